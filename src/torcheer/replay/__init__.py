"""Runs the recorded calls of a history again: to validate the history (`validate`), or with changed values (`replay`)."""

from .another_input import first_difference as first_difference
from .intervention import ReplayInputs as ReplayInputs
from .intervention import replay as replay
from .report import Check as Check
from .report import Disagreement as Disagreement
from .report import ValidationReport as ValidationReport
from .validation import validate as validate
from .validation import validate_against as validate_against
