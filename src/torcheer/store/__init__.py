"""Saves histories: writes a log into one file, and reads it again so that the library treats it like a recorded log."""

from .loading import bind as bind
from .loading import is_history as is_history
from .loading import load_run as load_run
from .saving import Streaming as Streaming
from .saving import save_history as save_history
