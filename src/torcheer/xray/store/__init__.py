"""The files of a run: written whole or not at all, listed in an index, read by anybody."""

from .files import FileManager as FileManager
from .rows import Snapshots as Snapshots
