"""Computes what a pass cost from its log, after the pass: FLOPs, time and memory. Also reads attention and finds NaN."""

from .._torch.functions.flops import Operand as Operand
from .._torch.functions.flops import Work as Work
from .calls import TorchCall as TorchCall
from .cost import Cost as Cost
from .cost import Expense as Expense
from .cost import ModuleCost as ModuleCost
from .cost import cost_of as cost_of
from .cost import flops_of as flops_of
from .device import DeviceMemory as DeviceMemory
from .device import device_memory as device_memory
from .memory import Alive as Alive
from .memory import MemoryTimeline as MemoryTimeline
from .memory import memory_of as memory_of
from .summary import Summary as Summary
from .summary import largest as largest
from .summary import slowest as slowest
from .summary import summary_of as summary_of
