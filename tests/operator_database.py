"""torch's own operator database: every operator with samples of its arguments."""

from __future__ import annotations

import contextlib
import sys
import types
import unittest
import unittest.mock
import warnings
from collections.abc import Iterator
from itertools import chain, islice
from typing import Any

import torch


def operators() -> list[Any]:
    """The entries of the database (`OpInfo`). It is imported on first use, which takes some seconds."""
    if "expecttest" not in sys.modules:  # torch's test helpers want a package that their database has no use for
        try:
            import expecttest  # noqa: F401
        except ImportError:
            stand_in = types.ModuleType("expecttest")
            stand_in.TestCase = unittest.TestCase  # type: ignore[attr-defined]
            stand_in.assert_expected_inline = None  # type: ignore[attr-defined]
            sys.modules["expecttest"] = stand_in
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from torch.testing._internal import common_methods_invocations
    common_methods_invocations.wrapper_set_seed = _call  # it sets a seed inside the call, so that nothing would be random
    written_for_cuda = "jiterator"
    return [one for one in common_methods_invocations.op_db if not one.name.startswith(written_for_cuda)]


def _call(func: Any, *args: Any, **kwargs: Any) -> Any:
    return func(*args, **kwargs)


def dtype_of(operator: Any, device: str = "cpu") -> torch.dtype:
    """The most ordinary dtype an operator takes."""
    supported = operator.supported_dtypes(device)
    preferred = (torch.float32, torch.complex64, torch.int64, torch.bool)
    return next((dtype for dtype in preferred if dtype in supported), next(iter(supported)))


def samples(operator: Any, count: int, *, device: str = "cpu", grad: bool = False) -> Iterator[Any]:
    """The first few samples of an operator's arguments, the same each time."""
    dtype = dtype_of(operator, device)
    torch.default_generator.manual_seed(0)  # torch.manual_seed looks at the stack, which takes longer than the operators
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with _capability_of_no_gpu():
            found = iter(operator.sample_inputs_func(operator, device, dtype, grad))
            first = list(islice(found, 1))  # a generator has made them all by then, where it asks for the capability
        yield from chain(first, islice(found, count - 1))


@contextlib.contextmanager
def _capability_of_no_gpu() -> Iterator[None]:
    """Where there is no GPU, its capability is 0.0: torch 2.10 asks for that also to make samples for the CPU, and raises."""
    if torch.cuda.is_available():
        yield
        return
    with unittest.mock.patch.object(torch.cuda, "get_device_capability", return_value=(0, 0)):
        yield


def name_of(operator: Any) -> str:
    return f"{operator.name}.{operator.variant_test_name}" if operator.variant_test_name else str(operator.name)
