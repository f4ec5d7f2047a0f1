"""What torch's functions are: one table, below everything else, that every other part of the library asks.

`facts(function)` is the entry. Nearly everything is derived from torch's own schemas and tags; `groups.py` and the tables of
FLOPs and of what autograd saves hold only what cannot be derived.
"""

from .facts import Kind as Kind
from .facts import Origin as Origin
from .facts import TorchFunction as TorchFunction
from .facts import facts as facts
from .facts import opened_copy as opened_copy
from .names import label_type as label_type
