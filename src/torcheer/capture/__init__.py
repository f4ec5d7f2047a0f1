"""Runs a model and writes its log: the only folder that watches every torch call. See README.md in this folder."""

from .fused import FUSING as FUSING
from .fused import decision_of as decision_of
from .fused import named_arguments as named_arguments
from .gradients import device_event as device_event
from .identity import has_bytes as has_bytes
from .keeper import Keeper as Keeper
from .keeper import Policy as Policy
from .keeper import Selection as Selection
from .keeper import Sink as Sink
from .keeper import taking as taking
from .refusals import refuse_inside_compiled_code as refuse_inside_compiled_code
from .refusals import warn_if_empty as warn_if_empty
from .running import Numbering as Numbering
from .running import explain as explain
from .running import finish as finish
from .running import open_session as open_session
from .running import run_model as run_model
from .session import Session as Session
from .session import note_change as note_change
