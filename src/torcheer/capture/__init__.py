"""The one thing that watches torch. See README.md in this folder."""

from .keep.policy import Policy as Policy
from .keep.policy import Sink as Sink
from .keep.policy import taking as taking
from .session import Session as Session
