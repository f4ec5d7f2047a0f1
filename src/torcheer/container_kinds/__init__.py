"""The kinds of containers: for each class, how to read its items and how to build another container of it."""

from .attributes import slots_of as slots_of
from .choosing import LEAVES as LEAVES
from .choosing import kind_of as kind_of
from .kind import Attribute as Attribute
from .kind import Kind as Kind
from .kind import Nth as Nth
from .python_kinds import DICT as DICT
from .stand_ins import Members as Members
from .stand_ins import SavedObject as SavedObject
