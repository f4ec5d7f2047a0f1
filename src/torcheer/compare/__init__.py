"""Compares two histories of one input: where they diverge, and what is different there.

In all files, `a` is the reference history and `b` the history that is compared with it.
"""

from .comparing import compare as compare
from .comparison import Comparison as Comparison
from .comparison import Unmatched as Unmatched
from .culprit import Culprit as Culprit
from .gradients import GradientCulprit as GradientCulprit
from .measures import Difference as Difference
from .outputs import ComparedOperation as ComparedOperation
from .parameters import ParameterDifference as ParameterDifference
