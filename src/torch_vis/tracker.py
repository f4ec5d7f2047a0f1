"""The tracker: follows a model forward and backward, and answers what it saw."""

from __future__ import annotations

import contextlib
from time import perf_counter_ns as now
from types import TracebackType
from typing import Any

from torch.nn import Module

import torcheer
from torcheer import InvalidArgument, ModelHistory
from torcheer.errors import put_on

from .document import as_document, summarize
from .layers import LayerWatcher
from .memory import cuda_is_used, cuda_memory, process_memory
from .operations import Translation
from .passes import add_module_passes
from .running import Step, undone, without_compiling
from .structures import GraphEdge, GraphNode, OperationType, TrackedGraph


def _nothing(operation: object) -> bool:
    """Of no operation is the gradient to be kept: only where it went is wanted."""
    return False


class ComputationalGraphTracker:
    """Follows what a model does between `start_tracking` and `stop_tracking`.

    >>> import torch
    >>> model, x = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.ReLU()), torch.ones(1, 2)
    >>> with ComputationalGraphTracker(model) as tracker:
    ...     model(x).sum().backward()
    >>> tracker.get_graph_summary()["operation_types"]["tensor_op"]
    3

    Args:
        model: the model; other modules that run meanwhile are followed too, and named after their classes.
        track_memory: tell the bytes of every node, and what CUDA and the process hold.
        track_timing: tell the seconds of every node.
        track_tensor_ops: follow every torch function and autograd node. Without, only modules are followed, which is cheap.

    The forward and backward passes are the user's own, so their effects stay. Tensors are not kept. Work on other threads is
    not seen.
    """

    def __init__(
        self,
        model: Module,
        track_memory: bool = True,
        track_timing: bool = True,
        track_tensor_ops: bool = True,
    ) -> None:
        if not isinstance(model, Module):
            raise InvalidArgument(f"a tracker follows an nn.Module; got {type(model).__name__}.")
        self.model = model
        self.track_memory = bool(track_memory)
        self.track_timing = bool(track_timing)
        self.track_tensor_ops = bool(track_tensor_ops)
        self.history: ModelHistory | None = None  # what torcheer recorded, where every operation was followed
        self._leave: contextlib.ExitStack | None = None
        self._watcher: LayerWatcher | None = None
        self._start = self._end = 0
        self._on_device = False
        self._memory: dict[str, dict[str, int]] = {}
        self._translation: Translation | None = None
        self._graph: TrackedGraph | None = None

    # Tracking -----------------------------------------------------------------------------------------------------

    def start_tracking(self) -> ComputationalGraphTracker:
        """Begin to follow whatever runs on this thread. What was tracked before is forgotten."""
        if self.is_tracking:
            raise InvalidArgument("this tracker is tracking already: call stop_tracking() first.")
        self._forget()
        self._on_device = self.track_timing and cuda_is_used()
        leave = contextlib.ExitStack()
        self._memory["before"] = self._sample()
        if self.track_tensor_ops:
            self.history = leave.enter_context(torcheer.recording(self.model, **self._options))
        else:
            self._watcher = LayerWatcher(self.model, timing=self.track_timing)
            leave.enter_context(without_compiling(self.model))
            leave.callback(self._watcher.stop)
            self._watcher.start()
        self._leave = leave
        self._start = now()
        return self

    def stop_tracking(self) -> ComputationalGraphTracker:
        """End it. From now on the tracker can be asked."""
        self._stop(None, None, None)
        return self

    def _stop(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._leave is None:
            raise InvalidArgument("this tracker is not tracking: call start_tracking() first.")
        self._end = now()
        leave, self._leave = self._leave, None
        leave.__exit__(kind, error, trace)
        self._close()
        if error is not None:
            self._put_on(error)

    def __enter__(self) -> ComputationalGraphTracker:
        return self.start_tracking()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._stop(kind, error, trace)

    @property
    def is_tracking(self) -> bool:
        """Whether it is following anything now."""
        return self._leave is not None

    def run(
        self, input_args: tuple[Any, ...], input_kwargs: dict[str, Any], *, include_loss: bool = False
    ) -> ComputationalGraphTracker:
        """Track one forward and backward pass of the model, and leave everything as it was."""
        if self.is_tracking:
            raise InvalidArgument("this tracker is tracking already: call stop_tracking() first.")
        self._forget()
        self._on_device = self.track_timing and cuda_is_used()
        self._memory["before"] = self._sample()
        step = Step(self.model, include_loss=include_loss)
        try:
            if self.track_tensor_ops:
                self._log(step, input_args, input_kwargs)
            else:
                self._watch(step, input_args, input_kwargs)
        except BaseException as error:
            if self.history is not None or self._watcher is not None:
                self._close()
                self._put_on(error)
            raise
        self._close()
        return self

    def _log(self, step: Step, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        began = now()
        try:
            self.history = torcheer.log_forward_pass(step, args, kwargs, **self._options)
        except BaseException as error:
            self.history = getattr(error, "history", None)  # what was logged until then
            raise
        finally:
            if self.history is not None:
                seconds = self.history.time_by_phase
                self._start = began + int(seconds.get("setup", 0) * 1e9)
                self._end = self._start + int(seconds.get("forward", 0) * 1e9)

    def _watch(self, step: Step, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        with undone(step, args, kwargs) as (step, args, kwargs), without_compiling(step.model):
            self._watcher = watcher = LayerWatcher(step.model, timing=self.track_timing)
            watcher.start()
            self._start = now()
            try:
                step(*args, **kwargs)
            finally:
                self._end = now()
                watcher.stop()

    def _put_on(self, error: BaseException) -> None:
        """Let an exception lead to what was tracked until it was raised."""
        put_on(error, "torch_vis: what was tracked until then is on this exception, as error.tracker.", tracker=self)

    @property
    def _options(self) -> dict[str, Any]:
        """What torcheer is to record: everything that ran, no tensors, and times where the work is done."""
        return {
            "layers_to_save": "none",
            "save_gradients": _nothing,
            "keep_orphans": True,
            "time_on_device": self._on_device,
        }

    def _close(self) -> None:
        self._memory["after"] = self._sample()

    def _forget(self) -> None:
        self.history = self._watcher = self._graph = self._translation = None
        self._memory = {}

    def _sample(self) -> dict[str, int]:
        return {**process_memory(), **cuda_memory()} if self.track_memory else {}

    # What was seen ------------------------------------------------------------------------------------------------

    @property
    def graph(self) -> TrackedGraph:
        """The nodes and edges, made when they are first asked for."""
        if self._graph is None:
            if self.is_tracking:
                raise InvalidArgument("this tracker is still tracking: call stop_tracking() first.")
            if self.history is None and self._watcher is None:
                raise InvalidArgument("nothing was tracked yet: call start_tracking(), run the model, and stop_tracking().")
            self._graph = self._translated()
        return self._graph

    def _translated(self) -> TrackedGraph:
        if self.history is not None:
            self._translation = Translation(self.history, on_device=self._on_device)
            graph = self._translation.graph
        else:
            assert self._watcher is not None
            graph = TrackedGraph()
            for name, facts in self._watcher.inputs.items():
                graph.add(_input_node(name, facts))
            add_module_passes(graph, self._watcher.finished)
        for node in graph.nodes.values():
            if not self.track_memory:
                node.memory_usage = None
            if not self.track_timing:
                node.execution_time = None
        return graph.finish(self._start if self.track_timing else None)

    @property
    def translation(self) -> Translation:
        """How operations of the history became nodes. Only where every operation was followed."""
        if self.graph is not None and self._translation is None:
            raise InvalidArgument("only layers were tracked: track with track_tensor_ops=True.")
        assert self._translation is not None
        return self._translation

    @property
    def nodes(self) -> dict[str, GraphNode]:
        """Every node by its id, in the order they ran."""
        return self.graph.nodes

    @property
    def edges(self) -> list[GraphEdge]:
        return self.graph.edges

    @property
    def execution_time(self) -> float:
        """Seconds from the start of tracking to its end."""
        return (self._end - self._start) / 1e9

    def get_graph_summary(self) -> dict[str, Any]:
        """Totals: how many nodes and edges of which type, how long, how much memory. See `docs/torch_vis.md` for the keys."""
        return summarize(self)

    def get_graph_data(self) -> dict[str, Any]:
        """Everything, as plain values that JSON can hold: `nodes`, `edges`, `summary`, and the version of the schema."""
        return as_document(self)

    @property
    def memory(self) -> dict[str, dict[str, int]]:
        """What the process and CUDA held, `before` and `after`; empty without `track_memory`."""
        return {when: held for when, held in self._memory.items() if held}

    @property
    def notes(self) -> list[str]:
        """What a reader should know, such as work that could not be seen."""
        return self.history.notes if self.history is not None else []

    def __repr__(self) -> str:
        if self.is_tracking or (self.history is None and self._watcher is None):
            return f"<ComputationalGraphTracker of {type(self.model).__name__}: {'tracking' if self.is_tracking else 'empty'}>"
        return (
            f"<ComputationalGraphTracker of {type(self.model).__name__}: {len(self.nodes)} nodes, {len(self.edges)} edges, "
            f"{self.execution_time:.4f} s>"
        )


def _input_node(name: str, facts: dict[str, Any]) -> GraphNode:
    return GraphNode(
        id=name,
        name=name.replace(":", "_"),
        operation_type=OperationType.MEMORY_OP,
        output_shapes=[tuple(facts["shape"])],
        memory_usage=facts["bytes"],
        metadata={"role": "input", "dtype": facts["dtype"]},
    )
