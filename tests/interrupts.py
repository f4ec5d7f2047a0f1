"""Interrupts calls of this library at one line after the other, by a real signal, and looks for what stays behind.

`python tests/interrupts.py` tries every line of every case; `tests/test_interrupts.py` a sample.
"""

from __future__ import annotations

import contextlib
import dis
import gc
import inspect
import linecache
import random
import signal
import sys
import tempfile
import traceback
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import torch
import torch._dynamo  # where torch's compiler was imported, logs keep it out, so other lines run
from torch import Tensor, nn
from torch.nn.modules import module as torch_modules
from torch.overrides import _get_current_function_mode_stack
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

import torcheer
from models import Buffer, made_with
from snapshot import numpy_state

LIBRARY = str(Path(torcheer.__file__).parent)
BETWEEN = inspect.getfile(torch.no_grad)  # torch's blocks, which are Python as well: a signal may come before they end
FINALIZERS = ("_remove", "__del__", "_close_all")  # Python drops whatever is raised there, also a program's own interrupts


@made_with(
    norm=lambda: nn.BatchNorm1d(4),
    drop=lambda: nn.Dropout(0.5),
    head=lambda: nn.Linear(4, 4),
    steps=lambda: 0,
    count=lambda: Buffer(torch.zeros(2)),
)
def Model(self, x: Tensor) -> Tensor:
    """Draws, writes to buffers and its input, runs a composite and a fused module."""
    self.steps += 1
    self.count[0] += 1
    x = self.drop(self.norm(x)) + random.random() + float(np.random.rand())
    x = nn.functional.normalize(self.head(x)).neg_()
    return x.view(-1, 4).add_(1)


def tensors_of(model: nn.Module) -> dict[str, Tensor]:
    return {**dict(model.named_parameters()), **dict(model.named_buffers())}


def state_of(model: nn.Module, x: Tensor) -> dict[str, Any]:
    """All that is to be as before, by name."""
    hooks = {
        name: [len(getattr(module, kind)) for kind in vars(module) if "_hooks" in kind]
        for name, module in model.named_modules()
    }
    hooks["everywhere"] = [
        len(getattr(torch_modules, kind))
        for kind in dir(torch_modules)
        if kind.startswith("_global_") and hasattr(getattr(torch_modules, kind), "__len__")
    ]
    return {
        "tensors": {name: (id(one), one.tolist(), one.requires_grad) for name, one in tensors_of(model).items()},
        "gradients": {name: None if one.grad is None else one.grad.tolist() for name, one in model.named_parameters()},
        "attributes": model.steps,
        "modes": [module.training for module in model.modules()],
        "input": (x.tolist(), x.requires_grad),
        "hooks": hooks,
        "torch's random state": torch.default_generator.get_state().numpy().tobytes(),
        "Python's random state": random.getstate(),
        "NumPy's random state": numpy_state(np.random.get_state()),
        "function modes": _get_current_function_mode_stack(),
        "dispatch modes": _get_current_dispatch_mode_stack(),
        "handing on": torch._C._is_torch_function_enabled(),
        "gradient mode": torch.is_grad_enabled(),
        "collector": (gc.get_threshold(), gc.isenabled()),
        "recursion": sys.getrecursionlimit(),
        "handlers": [signal.getsignal(number) for number in signal.valid_signals()],
        "warnings": len(warnings.filters),
    }  # fmt: skip


def ends_a_block_in_c(frame: FrameType) -> bool:
    """True where a block of `DisableTorchFunction` is about to end.

    Python traces the line of the `with` statement a second time then. No signal can come there: Python runs handlers when a
    Python function starts and after calls. The next call is the one that ends the block, and its function is written in C.
    """
    code = frame.f_code
    if "DisableTorchFunction" not in linecache.getline(code.co_filename, frame.f_lineno):
        return False
    return dis.opname[code.co_code[frame.f_lasti]] not in STARTS_OF_A_LINE


STARTS_OF_A_LINE = {"NOP", "PUSH_NULL", "LOAD_GLOBAL", "LOAD_NAME", "LOAD_FAST", "LOAD_DEREF", "LOAD_FAST_BORROW"}


def in_a_finalizer(frame: FrameType | None) -> bool:
    while frame is not None:
        if frame.f_code.co_name in FINALIZERS:
            return True
        frame = frame.f_back
    return False


class AtLine:
    """Raises a signal when line number `at` of the library, or of one of its files, is about to run; counts the lines."""

    def __init__(self, at: int, number: int = signal.SIGINT, file: str = "") -> None:
        self.at, self.number = at, number
        self.files = (LIBRARY + file,) if file else (LIBRARY, BETWEEN)
        self.count = 0
        self.where = ""

    def __enter__(self) -> AtLine:
        self._before = sys.gettrace()
        sys.settrace(self._enter)
        return self

    def __exit__(self, *error: object) -> None:
        sys.settrace(self._before)

    def _enter(self, frame: FrameType, event: str, value: Any) -> Any:
        return self._line if frame.f_code.co_filename.startswith(self.files) else None

    def _line(self, frame: FrameType, event: str, value: Any) -> Any:
        if event == "line" and frame.f_code.co_name not in FINALIZERS and not ends_a_block_in_c(frame):
            self.count += 1
            if self.count == self.at and in_a_finalizer(frame):
                self.at += 1
            elif self.count == self.at:
                self.where = f"{frame.f_code.co_filename.removeprefix(LIBRARY)}:{frame.f_lineno}"
                signal.raise_signal(self.number)
        return self._line


def log(model: nn.Module, x: Tensor) -> None:
    torcheer.log_forward_pass(model, x)


def log_with_gradients(model: nn.Module, x: Tensor) -> None:
    torcheer.log_forward_pass(model, x, random_seed=3, save_gradients=True)


def validate(model: nn.Module, x: Tensor) -> None:
    torcheer.validate_forward_pass(model, x)


def tap(model: nn.Module, x: Tensor) -> None:
    with torcheer.tap(model.eval(), ["head"], strict=False) as values:
        model.head(x)
    assert values is not None


def tap_like(model: Any, x: Tensor) -> None:
    with torcheer.tap(model, ["linear_1", "head"], like=model_history(model), strict=False):
        model.head(x)


def intervene(model: nn.Module, x: Tensor) -> None:
    with torcheer.intervene(model, {"head": torcheer.changes.zero()}, strict=False):
        model.head(x)


def activation(model: nn.Module, x: Tensor) -> None:
    torcheer.activation(model, x, "head")


def record(model: nn.Module, x: Tensor) -> None:
    with torcheer.recording(model):
        model.head(x)


def watch(model: nn.Module, x: Tensor) -> None:
    with torcheer.watch_modules(model):
        model.head(x)


def log_backward(model: nn.Module, x: Tensor) -> None:
    history = torcheer.log_forward_pass(model, x, save_gradients=True)
    history.log_backward(history["output"].tensor_contents.sum(), inputs=[history["output"].tensor_contents])


def step(model: nn.Module, x: Tensor) -> None:
    torcheer.TrainingStep(model, x).watch_modules()


def extract(model: nn.Module, x: Tensor) -> None:
    with tempfile.TemporaryDirectory() as folder:
        torcheer.extract(model, torch.ones(6, 4), ["head"], to=folder, progress=False)


def replay(model: nn.Module, x: Tensor) -> None:
    model_history(model).replay(inputs=x * 2)


def compare(model: nn.Module, x: Tensor) -> None:
    torcheer.compare(model_history(model), model_history(model))


_histories: dict[str, Any] = {}


def model_history(model: nn.Module) -> Any:
    return _histories["of the model"]


CASES: dict[str, Callable[[nn.Module, Tensor], None]] = {
    one.__name__: one
    for one in (
        log, log_with_gradients, validate, tap, tap_like, intervene, activation, record, watch, log_backward, step, extract,
        replay, compare,
    )
}  # fmt: skip


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def prepared(case: Callable[[nn.Module, Tensor], None]) -> tuple[Model, Tensor]:
    """A new model, what it is given, and its history where the case asks for it."""
    torch.manual_seed(0)
    random.seed(0)
    np.random.seed(0)
    model, x = Model(), torch.rand(3, 4)
    if case in (tap_like, replay, compare):
        _histories["of the model"] = torcheer.log_forward_pass(model, x)
    return model, x


def lines_of(case: Callable[[nn.Module, Tensor], None], file: str = "") -> int:
    """How many lines of the library, or of one of its files, run in a case."""
    with quiet():
        for _ in range(2):  # the first fills caches
            model, x = prepared(case)
            with AtLine(-1, file=file) as tracer:
                case(model, x)
    return tracer.count


def interrupted(
    case: Callable[[nn.Module, Tensor], None],
    at: int,
    number: int = signal.SIGINT,
    expected: type[BaseException] = KeyboardInterrupt,
    file: str = "",
) -> str:
    """Interrupt a case at a line. Returns what went wrong, in words; empty where all is as it was and `expected` was raised."""
    raised: str = "nothing"
    with quiet():
        model, x = prepared(case)
        if case is tap:
            model.eval()
        before = state_of(model, x)
        try:
            with AtLine(at, number, file) as tracer:
                case(model, x)
        except BaseException as error:
            raised = type(error).__name__
            if type(error) is not expected:
                raised += (
                    " in "
                    + "; ".join(
                        f"{Path(one.filename).name}:{one.lineno}" for one in traceback.extract_tb(error.__traceback__)[-4:]
                    )
                    + f": {error}"
                )
            del error
        after = state_of(model, x)
    if not tracer.where:
        return ""  # fewer lines ran than before
    wrong = [name for name, value in before.items() if after[name] != value]
    if not before["handing on"]:
        wrong.append("torch's functions did not reach modes before")
    if "tensors" in wrong:
        wrong += [name for name, value in before["tensors"].items() if after["tensors"][name] != value]
    if raised != expected.__name__:
        wrong.append(f"raised {raised}")
    try:
        if not torch.equal(torch.ones(2).add(1), torch.full((2,), 2.0)):
            wrong.append("plain torch")
        with quiet():
            model(x.clone())
    except Exception as error:
        wrong.append(f"plain torch raises {type(error).__name__}: {error}")
    return f"{tracer.where}: {', '.join(wrong)}" if wrong else ""


def main() -> None:
    torch.set_num_threads(1)
    chosen = [word for word in sys.argv[1:] if word in CASES] or list(CASES)
    every = next((int(word) for word in sys.argv[1:] if word.isdigit()), 1)
    bad = 0
    for name in chosen:
        case = CASES[name]
        lines = lines_of(case)
        found: dict[str, int] = {}
        for at in range(1, lines + 1, every):
            wrong = interrupted(case, at)
            if wrong:
                found[wrong] = found.get(wrong, 0) + 1
        print(f"{name}: {lines} lines, {sum(found.values())} interrupts that left something behind", flush=True)
        for wrong, count in found.items():
            print(f"  {count} × {wrong}", flush=True)
        bad += len(found)
    sys.exit(bool(bad))


if __name__ == "__main__":
    main()
