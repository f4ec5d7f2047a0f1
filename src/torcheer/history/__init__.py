"""The object a user holds, and how it is named, looked up and printed."""

from .call import Call as Call
from .history import History as History
from .layer import Layer as Layer
from .module import Module as Module
from .module import Modules as Modules
from .operation import Operation as Operation
from .param import Param as Param
from .python_reads import PythonRead as PythonRead
