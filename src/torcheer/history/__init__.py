"""The classes that users hold: `ModelHistory`, `Layer`, `Operation`, `Module`, `Call`, `BackwardPass`, and how they print."""

from .call import Call as Call
from .history import ModelHistory as ModelHistory
from .layer import Layer as Layer
from .module import Module as Module
from .module import Modules as Modules
from .operation import Operation as Operation
from .python_reads import PythonRead as PythonRead
