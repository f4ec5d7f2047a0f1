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
from .key import Key as Key
from .key import Match as Match
from .key import Meaning as Meaning
from .key import Names as Names
from .key import OfClass as OfClass
from .key import OfFunction as OfFunction
from .key import Position as Position
from .key import Range as Range
from .key import Several as Several
from .key import Text as Text
from .key import Where as Where
from .key import find_address as find_address
from .key import fitting_glob as fitting_glob
from .key import is_torch_function as is_torch_function
from .key import parse_key as parse_key
