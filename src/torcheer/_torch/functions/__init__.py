"""Facts about torch's functions, in one table that all other folders use.

`facts(function)` is the entry. Nearly everything is derived from torch's own schemas and tags; only the rest is written
down, in `groups.py` and in the tables of FLOPs and of tensors that autograd saves.
"""

from .facts import Kind as Kind
from .facts import Origin as Origin
from .facts import TorchFunction as TorchFunction
from .facts import facts as facts
from .facts import opened_copy as opened_copy
from .names import label_type as label_type
