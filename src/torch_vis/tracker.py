"""The tracker: follows a model forward and backward, and returns its graph."""

from __future__ import annotations

import contextlib
from time import perf_counter_ns as now
from types import TracebackType
from typing import Any

import torch
from torch.nn import Module

import torcheer
from torcheer import InvalidArgument, ModelHistory, ModuleCalls, TrainingStep

from .document import as_document, summarize
from .operations import Translation, add_inputs, add_module_calls
from .structures import GraphEdge, GraphNode, TrackedGraph


class ComputationalGraphTracker:
    """Follows a model between `start_tracking` and `stop_tracking`.

    >>> import torch
    >>> model, x = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.ReLU()), torch.ones(1, 2)
    >>> with ComputationalGraphTracker(model) as tracker:
    ...     model(x).sum().backward()
    >>> tracker.get_graph_summary()["operation_types"]["tensor_op"]
    3

    Args:
        model: the model; other modules that run meanwhile are followed too, and named after their classes.
        track_memory: record the bytes of every node, and the memory of CUDA and of the process.
        track_timing: record the seconds of every node.
        track_tensor_ops: follow every torch function and autograd node. Otherwise only modules are followed, which is cheap.

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
            raise InvalidArgument(f"model must be an nn.Module; got {type(model).__name__}: {model!r:.80}.")
        self.model = model
        self.track_memory = bool(track_memory)
        self.track_timing = bool(track_timing)
        self.track_tensor_ops = bool(track_tensor_ops)
        self.history: ModelHistory | None = None  # torcheer's recording, if every operation was followed
        self._leave: contextlib.ExitStack | None = None
        self._calls: ModuleCalls | None = None  # if only modules were followed
        self._start = self._end = 0
        self._uses_cuda = self._on_device = False
        self._memory: dict[str, dict[str, int]] = {}
        self._translation: Translation | None = None
        self._graph: TrackedGraph | None = None

    # Tracking -----------------------------------------------------------------------------------------------------

    def start_tracking(self) -> ComputationalGraphTracker:
        """Start to follow everything that runs on this thread. Earlier results are dropped."""
        self._begin()
        leave = contextlib.ExitStack()
        if self.track_tensor_ops:
            self.history = leave.enter_context(torcheer.recording(self.model, **self._options))
        else:
            self._calls = leave.enter_context(torcheer.watch_modules(self.model, timing=self.track_timing))
        self._leave = leave
        self._start = now()
        return self

    def stop_tracking(self) -> ComputationalGraphTracker:
        """Stop tracking. From now on the results are available."""
        self.__exit__(None, None, None)
        return self

    def __enter__(self) -> ComputationalGraphTracker:
        return self.start_tracking()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._leave is None:
            raise InvalidArgument("this tracker is not tracking: call start_tracking() first.")
        self._end = now()
        leave, self._leave = self._leave, None
        leave.__exit__(kind, error, trace)
        self._close(error)

    @property
    def is_tracking(self) -> bool:
        """True between start and stop of tracking."""
        return self._leave is not None

    def run(self, input_tensor: Any, *, include_loss: bool = False, called: str = "tracker.run") -> ComputationalGraphTracker:
        """Track one forward and backward pass of the model, and restore everything."""
        step = TrainingStep(self.model, input_tensor, include_loss=include_loss, called=called)
        self._begin()
        began = now()
        try:
            if self.track_tensor_ops:
                step.log(**self._options)
            else:
                step.watch_modules(timing=self.track_timing)
        except BaseException as error:
            self._take(step, began)
            self._close(error)
            raise
        self._take(step, began)
        self._close(None)
        return self

    def _take(self, step: TrainingStep, began: int) -> None:
        self.history, self._calls = step.history, step.module_calls
        if self.history is not None:
            seconds = self.history.time_by_phase
            self._start = began + int(seconds.get("setup", 0) * 1e9)
            self._end = self._start + int(seconds.get("forward", 0) * 1e9)
        elif self._calls is not None:
            self._start, self._end = self._calls.started, self._calls.ended

    def _begin(self) -> None:
        if self.is_tracking:
            raise InvalidArgument("this tracker is tracking already: call stop_tracking() first.")
        self.history = self._calls = self._graph = self._translation = None
        self._uses_cuda = torcheer.device_memory().allocated is not None
        self._on_device = self.track_timing and self._uses_cuda
        self._memory = {"before": self._sample()}

    def _close(self, error: BaseException | None) -> None:
        """Attach the graph up to this point to an exception."""
        self._memory["after"] = self._sample()
        if error is not None and (self.history is not None or self._calls is not None):
            note = "torch_vis: the graph up to this error is on the exception, as error.tracker."
            torcheer.put_on(error, note, tracker=self)

    @property
    def _options(self) -> dict[str, Any]:
        """torcheer's options: every operation, no tensors, and times measured on the device."""
        chosen: dict[str, Any] = {"layers_to_save": "none", "keep_orphans": True, "time_on_device": self._on_device}
        return {**chosen, "save_gradients": lambda operation: False}  # follow gradients, but keep none

    def _sample(self) -> dict[str, int]:
        """The memory of the process and of all CUDA devices, as far as it can be read."""
        if not self.track_memory:
            return {}
        process = torcheer.device_memory("cpu").process
        found = {"process_resident": process} if process is not None else {}
        if self._uses_cuda:
            held = [torcheer.device_memory(number) for number in range(torch.cuda.device_count())]
            for name in ("allocated", "reserved", "peak_allocated"):
                found[f"cuda_{name}"] = sum(getattr(one, name) for one in held)
        return found

    # Results ------------------------------------------------------------------------------------------------------------

    @property
    def graph(self) -> TrackedGraph:
        """The tracked graph, computed at first access."""
        if self._graph is None:
            if self.is_tracking:
                raise InvalidArgument("this tracker is still tracking: call stop_tracking() first.")
            if self.history is None and self._calls is None:
                raise InvalidArgument("nothing was tracked yet: call start_tracking(), run the model, and stop_tracking().")
            self._graph = self._translated()
        return self._graph

    def _translated(self) -> TrackedGraph:
        if self.history is not None:
            self._translation = Translation(self.history, on_device=self._on_device)
            graph = self._translation.graph
        else:
            assert self._calls is not None
            graph = TrackedGraph()
            add_inputs(graph, self._calls)
            add_module_calls(graph, self._calls)
        for node in graph.nodes.values():
            if not self.track_memory:
                node.memory_usage = None
            if not self.track_timing:
                node.execution_time = None
        return graph.finish(self._start if self.track_timing else None)

    @property
    def translation(self) -> Translation:
        """Maps operations of the history to nodes; only if every operation was followed."""
        if self.graph is not None and self._translation is None:
            raise InvalidArgument("only layers were tracked: track with track_tensor_ops=True.")
        assert self._translation is not None
        return self._translation

    @property
    def nodes(self) -> dict[str, GraphNode]:
        """Maps ids to nodes, in the order in which the nodes ran."""
        return self.graph.nodes

    @property
    def edges(self) -> list[GraphEdge]:
        return self.graph.edges

    @property
    def execution_time(self) -> float:
        """Seconds from the start to the end of tracking."""
        return (self._end - self._start) / 1e9

    def get_graph_summary(self) -> dict[str, Any]:
        """Totals: numbers of nodes and edges by type, time, memory. See `docs/torch_vis.md` for the keys."""
        return summarize(self)

    def get_graph_data(self) -> dict[str, Any]:
        """The whole graph as JSON values: `nodes`, `edges`, `summary`, and the version of the schema."""
        return as_document(self)

    @property
    def memory(self) -> dict[str, dict[str, int]]:
        """The memory of the process and of CUDA, `before` and `after`; empty without `track_memory`."""
        return {when: held for when, held in self._memory.items() if held}

    @property
    def notes(self) -> list[str]:
        """Sentences about what a reader should know, such as work that could not be seen."""
        return self.history.notes if self.history is not None else []

    def __repr__(self) -> str:
        name = f"ComputationalGraphTracker of {type(self.model).__name__}"
        if self.is_tracking or (self.history is None and self._calls is None):
            return f"<{name}: {'tracking' if self.is_tracking else 'empty'}>"
        return f"<{name}: {len(self.nodes)} nodes, {len(self.edges)} edges, {self.execution_time:.4f} s>"
