"""What names operations: text or an object becomes a `Key`, and a key means the same set of operations in every place.

`history[…]`, `layers_to_save`, `save_gradients`, the changes of a replay, an Xray's layers, the functions of `torcheer.graph`,
pictures and the command line all read keys here. docs/keys.md has the table of what can be given.
"""

from .grammar import ALL as ALL
from .grammar import Reading as Reading
from .grammar import end_of as end_of
from .grammar import glob_pattern as glob_pattern
from .grammar import readings as readings
from .grammar import split_turn as split_turn
from .meaning import Key as Key
from .meaning import Match as Match
from .meaning import Meaning as Meaning
from .meaning import Names as Names
from .objects import AnyKey as AnyKey
from .objects import Keyed as Keyed
from .objects import KeyType as KeyType
from .objects import OfClass as OfClass
from .objects import OfFunction as OfFunction
from .objects import OneKey as OneKey
from .objects import Position as Position
from .objects import Range as Range
from .objects import Several as Several
from .objects import Where as Where
from .objects import is_torch_function as is_torch_function
from .objects import parse_key as parse_key
from .text import Text as Text
from .text import find_address as find_address
from .text import fitting_glob as fitting_glob
