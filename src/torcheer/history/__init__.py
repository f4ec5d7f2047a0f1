"""The object a user holds, and how it is named, looked up and printed."""

from .history import History as History
from .layer import Layer as Layer
from .layer import Operation as Operation
from .layer import Param as Param
