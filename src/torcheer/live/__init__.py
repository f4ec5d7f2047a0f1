"""Reads or changes chosen values while a model runs; nothing else is watched, so it costs next to nothing."""

from .intervening import Edits as Edits
from .intervening import intervene as intervene
from .places import Place as Place
from .places import locate as locate
from .reading import TappedValues as TappedValues
from .reading import activation as activation
from .reading import tap as tap
