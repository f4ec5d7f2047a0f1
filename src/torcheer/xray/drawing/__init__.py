"""Draws figures behind the training, in a process of its own: Matplotlib takes seconds, and knows nothing of threads."""

from .drawer import Drawer as Drawer
from .drawer import Drawing as Drawing
