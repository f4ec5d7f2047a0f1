"""Reads (`tap`, `activation`) or changes (`intervene`) chosen values while a model runs, and watches module calls.

Only the chosen places are watched, so the model runs nearly as fast as without.
"""

from .intervening import Edits as Edits
from .intervening import intervene as intervene
from .places import Place as Place
from .places import locate as locate
from .reading import TappedValues as TappedValues
from .reading import activation as activation
from .reading import tap as tap
