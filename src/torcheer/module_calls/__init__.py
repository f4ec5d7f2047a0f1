"""The calls of modules, forward and backward, and what flowed between them: from a history, or watched without one."""

from .calls import ModuleBackward as ModuleBackward
from .calls import ModuleCalls as ModuleCalls
from .calls import ModuleInput as ModuleInput
from .calls import ModulePass as ModulePass
from .logged import module_calls_of as module_calls_of
from .watching import watch_modules as watch_modules
