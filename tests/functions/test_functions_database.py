"""What the table says of torch's functions is what they do, over torch's own operator database.

Each operator of the database is run on some of its samples, in all its forms (function, method, in place). A mode that shares
no code with the recorder looks at every torch call on the way: at the bits of its arguments before and after, at torch's
version counters, at the storages of its results.
"""

from __future__ import annotations

import inspect
from collections import defaultdict
from collections.abc import Callable
from types import FunctionType
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode, get_ignored_functions, get_overridable_functions
from torch.utils._pytree import tree_leaves

from operator_database import name_of, operators, samples
from torcheer._torch.functions import Kind, facts
from torcheer._torch.functions.names import function_name
from torcheer._torch.functions.schemas import aten_schemas

SAMPLES = 3
pytestmark = pytest.mark.filterwarnings("ignore")

# Marked as written by torch, and written or not depending on values.
SOMETIMES_WRITTEN = {"resize_", "resize_as_"}


def tensors(value: Any) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(value) if isinstance(leaf, Tensor)]


def storage(tensor: Tensor) -> int | None:
    return tensor.untyped_storage()._cdata if tensor.layout is torch.strided and not tensor.is_nested else None


def same(one: Tensor, other: Tensor) -> Tensor:
    """Element by element whether two tensors are equal, NaN being equal to itself."""
    return (one == other) | ((one != one) & (other != other))


def is_same(one: Tensor, other: Tensor) -> bool:
    if one.layout is not torch.strided or one.is_nested or one.is_quantized:
        return True
    return one.shape == other.shape and bool(same(one.detach(), other.detach()).all())


class Findings:
    """What functions were seen to do, by their names."""

    def __init__(self) -> None:
        self.calls = 0
        self.unannounced: set[str] = set()  # wrote to what the table does not say
        self.announced: set[str] = set()
        self.wrote: set[str] = set()
        self.copied: set[str] = set()  # a view by the table, with memory of its own
        self.shared: set[str] = set()  # no view by the table, with the memory of an argument
        self.varied: set[str] = set()  # gave other bits from another random state
        self.random: dict[str, bool] = defaultdict(bool)  # by function that may be random: whether it was seen to be
        self.spread: set[str] = set()  # element-wise by the table, and one value changed several
        self.elementwise = 0


class Witness(TorchFunctionMode):
    """Looks at every call."""

    def __init__(self, findings: Findings, *, repeat: bool) -> None:
        super().__init__()
        self.findings = findings
        self.repeat = repeat

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        known = facts(func)
        if known.kind not in (Kind.OPERATION, Kind.COMPOSITE):
            return func(*args, **kwargs)
        self.findings.calls += 1
        given = tensors((args, kwargs))
        before = [(tensor, tensor._version, tensor.detach().clone()) for tensor in given]
        announced = {storage(tensor) for tensor in known.writes(args, kwargs)} - {None}
        result = func(*args, **kwargs)
        self._compare_writes(known.name, announced, before)
        if known.kind is Kind.OPERATION and not announced:
            self._compare_memory(known, given, result)
            if self.repeat:
                self._compare_randomness(known, func, args, kwargs)
                self._compare_elements(known, func, args, kwargs)
        return result

    def _compare_writes(self, name: str, announced: set[int | None], before: list[tuple[Tensor, int, Tensor]]) -> None:
        wrote = {storage(one) for one, version, value in before if one._version != version or not is_same(one, value)} - {None}
        if wrote - announced:
            self.findings.unannounced.add(name)
        if announced:
            self.findings.announced.add(name)
        if announced == wrote and announced:
            self.findings.wrote.add(name)

    def _compare_memory(self, known: Any, given: list[Tensor], result: Any) -> None:
        there = {storage(tensor) for tensor in given} - {None}
        shares = [storage(made) in there for made in tensors(result) if made.numel() and storage(made)]
        if known.is_view and not all(shares):
            self.findings.copied.add(known.name)
        if any(shares) and not known.may_be_view:
            self.findings.shared.add(known.name)

    def _compare_randomness(self, known: Any, func: Any, args: Any, kwargs: Any) -> None:
        made = []
        for seed in (1, 2):
            torch.default_generator.manual_seed(seed)
            made.append(tensors(func(*args, **kwargs)))
        varies = not known.is_uninitialised and not all(map(is_same, *made))
        if varies and not known.is_random:
            self.findings.varied.add(known.name)
        if known.is_random:
            self.findings.random[known.plain_name] |= varies

    def _compare_elements(self, known: Any, func: Any, args: Any, kwargs: Any) -> None:
        """Change the first value of the first argument: no other value of the result may change."""
        first = args[0] if args else None
        if (
            not known.is_elementwise
            or known.is_random
            or not isinstance(first, Tensor)
            or first.numel() < 2
            or storage(first) is None
        ):
            return
        changed = first.detach().clone(memory_format=torch.contiguous_format)
        place = changed.view(-1)[:1]
        place.copy_(~place if place.dtype is torch.bool else place + 1)
        made = []
        for value in (first, changed):
            torch.default_generator.manual_seed(1)
            try:
                made.append(tensors(func(value, *args[1:], **kwargs)))
            except RuntimeError:  # it does not like the value
                return
        for one, other in zip(*made, strict=True):
            if one.shape == first.shape:
                self.findings.elementwise += 1
                if not bool(same(one, other).reshape(-1)[1:].all()):
                    self.findings.spread.add(known.name)


@pytest.fixture(scope="module")
def findings() -> Findings:
    """What was seen when the operators of the database ran on some of their samples."""
    found = Findings()
    for operator in operators():
        try:
            chosen = list(samples(operator, SAMPLES))
        except RuntimeError:  # not for the CPU
            continue
        forms = [operator.op, operator.inplace_variant, operator.method_variant]
        for sample in chosen:
            for form in filter(None, forms):
                own = sample.transform(lambda value: value.detach().clone() if isinstance(value, Tensor) else value)
                try:
                    with Witness(found, repeat=form is operator.op):
                        form(own.input, *own.args, **own.kwargs)
                except (RuntimeError, TypeError, ValueError, IndexError, NotImplementedError):
                    continue  # this form does not take the sample
    return found


def test_the_database_is_really_run(findings):
    assert findings.calls > 2500
    assert len(findings.announced) > 130
    assert findings.elementwise > 150


def test_what_a_call_writes_is_announced(findings):
    assert findings.unannounced == set()


def test_nothing_is_announced_that_is_not_written(findings):
    assert {name for name in findings.announced - findings.wrote if "dropout" not in name} <= SOMETIMES_WRITTEN


def test_views_share_memory_and_nothing_else_does(findings):
    assert findings.copied == set()
    assert findings.shared == set()


def test_what_gives_other_bits_from_another_random_state_is_random(findings):
    assert findings.varied == set()
    assert {name for name, is_seen in findings.random.items() if is_seen} >= {"dropout", "multinomial", "normal", "randn_like"}


def test_element_by_element_means_element_by_element(findings):
    assert findings.spread == set()


def test_torchs_element_wise_functions_are_known_as_such():
    known = operators()  # makes the database importable
    from torch.testing._internal.opinfo.core import BinaryUfuncInfo, UnaryUfuncInfo

    found = [one for one in known if isinstance(one, (BinaryUfuncInfo, UnaryUfuncInfo))]
    assert len(found) > 150
    strangers = {one.name for one in found if not facts(one.op).is_elementwise and not isinstance(one.op, FunctionType)}
    assert strangers == {"max", "min"}  # reductions as well


def test_aliases_of_the_database_are_one_function():
    for operator in operators():
        for alias in operator.aliases:
            if operator.name in ("max", "min", "mH"):  # torch.maximum is one form of torch.max; mH is a property
                continue
            names = {facts(operator.op).plain_name, facts(alias.op).plain_name}
            assert len(names) == 1, f"{name_of(operator)} is {names}"


def overridable() -> list[Callable[..., Any]]:
    """Leaves out what another library has wrapped, as Lightning wraps `torch.compile`: torch does not know the wrapper."""
    ignored = get_ignored_functions()
    found = [func for functions in get_overridable_functions().values() for func in functions]
    return [func for func in found if inspect.unwrap(func) not in ignored]


def test_every_overridable_function_of_torch_has_an_entry():
    assert len(overridable()) > 1200
    assert sorted({facts(func).plain_name for func in overridable() if not facts(func).is_known}) == []


def test_every_factory_of_torch_has_an_entry():
    builtins = [func for func in get_ignored_functions() if inspect.isbuiltin(func) and aten_schemas(function_name(func))]
    strangers = [func.__name__ for func in builtins if not facts(func).is_known]
    assert len(builtins) > 50
    assert strangers == []


@pytest.mark.parametrize(
    "spellings",
    [
        (F.softmax, torch.softmax, Tensor.softmax, torch.special.softmax, torch.ops.aten.softmax.int),
        (torch.add, Tensor.add_, Tensor.__add__, Tensor.__iadd__, Tensor.__radd__, torch.ops.aten.add_, torch._foreach_add),
        (torch.div, torch.true_divide, torch.divide, Tensor.__truediv__, Tensor.__rtruediv__, Tensor.divide_),
        (torch.matmul, Tensor.__matmul__, Tensor.__rmatmul__, torch.linalg.matmul),
        (F.embedding, torch.embedding),
        (torch.sigmoid, torch.special.expit, F.sigmoid, Tensor.sigmoid_),
    ],
    ids=lambda spellings: facts(spellings[0]).plain_name,
)
def test_all_spellings_of_a_function_are_one(spellings):
    assert len({facts(func).plain_name for func in spellings}) == 1
    assert len({facts(func).category for func in spellings}) == 1


def test_two_functions_of_one_name_are_two():
    assert facts(F.unfold).plain_name == "im2col"
    assert facts(Tensor.unfold).plain_name == "unfold"
    assert facts(Tensor.unfold).is_view
    assert not facts(F.unfold).is_view
