"""The one thing that watches torch. See README.md in this folder."""

from .session import Keeping as Keeping
from .session import Session as Session
