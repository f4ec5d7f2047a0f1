"""Draws a history, or one of its modules: what both offer as `draw`."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ._files.files import output_path
from ._text import Fold, image, preformatted
from ._torch.internals import DisableTorchFunction
from ._torch.thread_state import thread_left_as_found
from .analysis import Cost, MemoryTimeline, Summary, cost_of, flops_by_operation, largest, memory_of, slowest, summary_of
from .analysis.nonfinite import nonfinite_of
from .analysis.summary import DEFAULT_COLUMNS, count_of
from .changes import Given
from .errors import TorcheerError
from .graph import Graph, Node, graph_of_index
from .history import History, Layer, Module, Operation
from .history.attention import attention_in
from .history.index import Index, Makers
from .history.keeping import LayersToSave
from .history.printing import plural
from .live import Place, locate
from .live.module_calls import ModuleCalls, module_calls_of
from .log.keys import AnyKey, KeyType
from .page import Metrics, Page, to_html, to_json, to_model_explorer
from .page import show as show_page
from .page.payload import MAX_BYTES
from .pictures import DrawOptions, Picture, PictureOptions, Target, draw, make_picture, picture_options
from .replay import ReplayInputs, ValidationReport, replay, validate
from .store import save_history

if TYPE_CHECKING:
    from typing_extensions import Unpack


def graph_of(index: Index) -> Graph:
    """The graph of a history, made when it is first asked for, and again after another backward pass."""
    backward = index.log.backward
    made_of = len(backward.passes) if backward is not None else 0
    made = index.kept.get("graph")
    if made is None or made[0] != made_of:
        made = index.kept["graph"] = (made_of, graph_of_index(index))
    graph: Graph = made[1]
    return graph


def draw_history(index: Index, path: Target | None, format: str | None, options: Mapping[str, Any]) -> Picture:
    """Draw a history to a path or file object, or show it."""
    chosen = picture_options(options)
    if chosen.color_by == "grad":
        chosen = replace(chosen, color_by=_of_node(index, gradient_norm))
    elif chosen.color_by == "flops":
        chosen = replace(chosen, color_by=_flops_of_node(index))
    elif callable(chosen.color_by):
        chosen = replace(chosen, color_by=_of_node(index, chosen.color_by))
    return draw(graph_of(index), chosen, path, format)


def _of_node(index: Index, of_operation: Callable[[Operation], float | None]) -> Callable[[Node], float | None]:
    """A function of an operation as a function of a node: of all it stands for, the mean."""

    @wraps(of_operation)
    def of_node(node: Node) -> float | None:
        found = [of_operation(Operation(index, number)) for number in node.operations]
        known = [float(value) for value in found if value is not None]
        return sum(known) / len(known) if known else None

    return of_node


def _flops_of_node(index: Index) -> Callable[[Node], float | None]:
    by_operation = index.flops

    def flops(node: Node) -> float | None:
        """All together of what a node stands for; None where a part of it is not known."""
        found = [by_operation.get(number) for number in node.operations]
        known = [value for value in found if value is not None]
        return sum(known) if known and len(known) == len(found) else None

    return flops


def gradient_norm(operation: Operation) -> float | None:
    """The norm of the gradient at an operation's output."""
    gradient = operation.grad_contents
    return float(gradient.norm()) if gradient is not None else None


# ModelHistory: the object a user holds. A history, and what can be done with one.

_CARD_COLUMNS = ("calls", "in", "out", "params", "flops", "self time")  # of the modules in a notebook
_CARD_ROWS, _CARD_DEPTH = 16, 4  # modules are shown as deep as this many rows allow
_PATIENCE = 3.0  # seconds for the small picture there


class ModelHistory(History):
    """The whole history of one recording: layers, operations, modules, parameters, what they cost.

    >>> import torch, torcheer
    >>> model = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.ReLU())
    >>> history = torcheer.log_forward_pass(model, torch.ones(1, 2))
    >>> [layer.label for layer in history]
    ['input_1_0', 'linear_1_1', 'relu_1_2', 'output_1_3']
    >>> history["relu_1"].tensor_shape == history["1"].tensor_shape == history[2].tensor_shape
    True
    """

    _makers = Makers(Layer, Module, flops_by_operation, draw_history)
    _made_cost: tuple[object, Cost] | None = None

    @property
    def graph(self) -> Graph:
        """The graph of the pass, operation by operation: what `torcheer.graph` turns into views and pictures are drawn from."""
        return graph_of(self._index)

    def draw(
        self,
        path: Target | None = None,
        *,
        format: str | None = None,
        **options: Unpack[DrawOptions],
    ) -> Picture:
        """Draw the graph: as SVG, PNG, PDF, TikZ or DOT to a path or file object, or on the screen.

        >>> import io, torch, torcheer
        >>> history = torcheer.log_forward_pass(torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.ReLU()), torch.ones(1, 2))
        >>> picture = history.draw(io.BytesIO(), direction="right")
        >>> "linear_1_1" in picture.svg
        True

        Args:
            path: where to write; the ending says the form. Without one, a notebook shows what is returned, and elsewhere it is
                saved in the current folder and, where there is a screen, opened.
            format: `"svg"`, `"png"`, `"pdf"`, `"tex"` or `"dot"`, when the ending does not say.
            options: the fields of `PictureOptions`, or one as `options=`; and `vis_opt="rolled"` or `"unrolled"`. A function in
                `color_by` gets an `Operation`; a node that stands for several has their mean.

        Too large a graph is drawn with fewer modules open, and the picture says so; so `time_limit` holds.
        """
        return draw_history(self._index, path, format, options)

    def _card_text(self) -> str:
        unknown = sum(self.cost.unknown.values())
        missing = f", and those of {plural(unknown, 'call')} without a formula" if unknown else ""
        cost = f"\tCost: {count_of(self.cost.flops)} FLOPs in the forward pass{missing}"
        return "\n".join([super()._card_text(), cost, *(f"\tWarning: {one}" for one in nonfinite_of(self))])

    def _folds(self) -> list[Fold]:
        """What a notebook shows of it: the modules with their costs, the layers, a small picture."""
        with DisableTorchFunction():
            whole = self.summary(_CARD_COLUMNS)
            depths = (self.summary(_CARD_COLUMNS, depth=depth).table for depth in range(_CARD_DEPTH, -1, -1))
            short = next((table for table in depths if len(table.rows) <= _CARD_ROWS), None)
            folds = [Fold("Modules", short.html(), is_open=True)] if short is not None else []
            if short is None or len(short.rows) < len(whole.table.rows):
                folds.append(Fold(f"All {plural(self.num_modules, 'module')}", whole.table.html()))
            folds.append(super()._folds()[1])
            try:
                picture = make_picture(self.graph, PictureOptions(nesting_depth=1, legend=False, time_limit=_PATIENCE))
                folds.append(Fold("Picture", image(picture.to_bytes("png"), f"{self.model_name}, drawn")))
            except TorcheerError as error:  # the card says so, and is shown without the picture
                folds.append(Fold("Picture", preformatted(str(error))))
            return folds

    # In a file ----------------------------------------------------------------------------------------------------

    def save(
        self,
        path: str | os.PathLike[str],
        *,
        activations: LayersToSave = "all",
        params: bool = False,
        gradients: bool = True,
        sources: bool = True,
        dtype: torch.dtype | None = None,
    ) -> Path:
        """Write it to one `.safetensors` file: `torcheer.load` opens it again, any safetensors reader reads its tensors.

        >>> import tempfile, torch, torcheer
        >>> history = torcheer.log_forward_pass(torch.nn.Linear(2, 3), torch.ones(1, 2))
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     torcheer.load(history.save(f"{folder}/linear.safetensors"))["linear_1"].tensor_shape
        (1, 3)

        Args:
            path: where to write; what is there is replaced when everything is written. Returned.
            activations: which of the kept activations to write: what `layers_to_save` takes.
            params: whether to write parameters and buffers too. Without them the file can be replayed with
                `torcheer.load(path, model=model)`.
            gradients: whether to write the gradients of backward passes.
            sources: whether to write lines of the program, and the folders of its files.
            dtype: a floating-point type to write activations and gradients in, to send a smaller file. It cannot be run again.

        docs/saving.md says what a file contains. What no file can give back, such as a tensor of a class of your own, raises
        `CannotBeSaved`, which names it.
        """
        place = output_path(path, "history", "run.safetensors", "safetensors")
        save_history(self, place, activations=activations, params=params, gradients=gradients, sources=sources, dtype=dtype)
        return place

    @thread_left_as_found
    def attention(self, key: AnyKey) -> Tensor | list[Tensor]:
        """The attention pattern (batch, heads, queries, keys) of a module or an operation; a list where there are several.

        >>> import torch, torcheer
        >>> attention = torch.nn.MultiheadAttention(8, 2, batch_first=True)
        >>> x = torch.rand(1, 5, 8)
        >>> torcheer.log_forward_pass(attention, (x, x, x)).attention("").shape
        torch.Size([1, 2, 5, 5])

        Fused attention does not return its pattern: it is worked out from the logged queries, keys, mask, scale and grouping of
        heads, without dropout. `history[label].heads` has these, too.
        """
        matches = self._lookup.meaning(key).matches
        calls = {id(match.call): match.call for match in matches if match.call is not None}
        inside = [number for call in calls.values() for number in range(call.first, call.end)]
        numbers = dict.fromkeys(inside or [match.number for match in matches])
        return attention_in([Operation(self._index, number) for number in numbers if self._index.table.shows(number)], key)

    def locate(self, key: AnyKey) -> list[Place]:
        """Where in a run of the model the operations are that a key means: what `tap` and `intervene` watch.

        >>> import torch, torcheer
        >>> history = torcheer.log_forward_pass(torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.ReLU()), torch.ones(1, 2))
        >>> print(history.locate("relu_1")[0])
        relu_1_2: what '1' returned, call 1
        """
        return locate(self, key)

    # In the viewer ------------------------------------------------------------------------------------------------

    def show(
        self,
        *,
        compare: ModelHistory | None = None,
        title: str | None = None,
        previews: bool = True,
        max_bytes: int | None = None,
        metrics: Metrics | None = None,
    ) -> Page:
        """Show it in the viewer: in the notebook, or as `torcheer_<model>.html`, opened where there is a screen.

        The arguments are those of `to_html`; in a notebook, which is saved with what it shows, a page takes 4 MB at most
        unless `max_bytes` says otherwise.
        """
        return show_page(self, compare=compare, title=title, previews=previews, max_bytes=max_bytes, metrics=metrics)

    @thread_left_as_found
    def to_html(
        self,
        path: str | os.PathLike[str],
        *,
        compare: ModelHistory | None = None,
        title: str | None = None,
        previews: bool = True,
        max_bytes: int = MAX_BYTES,
        metrics: Metrics | None = None,
    ) -> Path:
        """Write the viewer, with this history in it, as one HTML file that opens in any browser, offline.

        >>> import tempfile, torch, torcheer
        >>> history = torcheer.log_forward_pass(torch.nn.Linear(2, 3), torch.ones(1, 2))
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     history.to_html(f"{folder}/linear.html").name
        'linear.html'

        Args:
            path: where to write; what is there is replaced.
            compare: another history, to show next to this one.
            title: the name of the page; without one, that of the model.
            previews: whether to add small pictures of the kept activations, of attention heads and of parameters.
            max_bytes: how large the file may be. What there is no room for is left out, previews first, and the page says so.
            metrics: figures of your own to colour and sort by, `{"my norm": lambda tensor: tensor.norm()}`: each function gets
                a copy of every kept activation and returns a number.

        The file contains names, shapes, statistics, previews, and lines of the program with the paths of its files.
        """
        return to_html(self, path, compare=compare, title=title, previews=previews, max_bytes=max_bytes, metrics=metrics)

    def to_json(
        self,
        path: str | os.PathLike[str] | None = None,
        *,
        previews: bool = True,
        max_bytes: int = MAX_BYTES,
        metrics: Metrics | None = None,
    ) -> str:
        """What the viewer shows, as JSON text, also written to a file if there is a path: `torcheer view` opens it.

        docs/viewer_format.md describes it. `max_bytes` is what it may take in a page, compressed; the other arguments are those
        of `to_html`.
        """
        return to_json(self, path, previews=previews, max_bytes=max_bytes, metrics=metrics)

    def to_model_explorer(self, path: str | os.PathLike[str] | None = None, *, node_data: bool = True) -> dict[str, Any]:
        """The graph as Google's Model Explorer reads it, also written to a file if there is a path.

        With `node_data`, files with the time, FLOPs, memory and norms of every node lie beside it, to colour nodes by:
        `model-explorer net.json --node_data_paths=net.time.json,net.flops.json`.
        """
        return to_model_explorer(self, path, node_data=node_data)

    @property
    def module_calls(self) -> ModuleCalls:
        """Every module call, forward and backward, with what other calls gave it.

        >>> import torch, torcheer
        >>> model = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.ReLU())
        >>> calls = torcheer.log_forward_pass(model, torch.ones(1, 2)).module_calls
        >>> [source.label for source in calls[2].sources]
        ['0:1']
        """
        return module_calls_of(self)

    # What it cost -------------------------------------------------------------------------------------------------

    @property
    def cost(self) -> Cost:
        """FLOPs, MACs, time and traffic: of everything, of an operation, a layer or a module.

        >>> import torch, torcheer
        >>> history = torcheer.log_forward_pass(torch.nn.Linear(2, 3), torch.ones(1, 2))
        >>> history.cost.macs, history.cost.module("").total.flops
        (6, 12)
        """
        index = self._index
        if self._made_cost is None or self._made_cost[0] is not index:
            self._made_cost = (index, cost_of(self))
        return self._made_cost[1]

    @property
    def flops(self) -> int | None:
        """The floating-point operations of the whole pass; what no formula is known for is in `history.cost.unknown`.

        None where no formula is known for anything that ran.
        """
        return self.cost.flops or (None if self.cost.unknown else 0)

    @property
    def memory(self) -> MemoryTimeline:
        """The bytes alive over the pass, the peak, and what was alive then."""
        return memory_of(self)

    def summary(self, columns: Iterable[str] = DEFAULT_COLUMNS, *, depth: int | None = None) -> Summary:
        """A table of the modules: shapes, parameters, FLOPs, time, memory; with totals. Prints as text."""
        return summary_of(self, columns, depth=depth)

    def slowest(self, n: int = 10) -> list[Operation]:
        """The operations that took longest, longest first."""
        return slowest(self, n)

    def largest(self, n: int = 10) -> list[Operation]:
        """The operations with the largest tensors, largest first."""
        return largest(self, n)

    # Running it again ---------------------------------------------------------------------------------------------

    @thread_left_as_found
    def validate(self) -> ValidationReport:
        """Run the recorded graph again, from inputs, parameters and constants alone, and compare every value; try every edge.

        The report is true when everything agrees, and says what was checked. `torcheer.validate_forward_pass` compares with the
        plain model as well.
        """
        return validate(self)

    def replay(self, inputs: ReplayInputs | None = None, changes: Mapping[KeyType, Given] | None = None) -> ModelHistory:
        """Run the recorded graph again, with other inputs or with values changed on the way, and return the new history.

        >>> import torch, torcheer
        >>> history = torcheer.log_forward_pass(torch.nn.Sequential(torch.nn.ReLU(), torch.nn.Tanh()), torch.ones(2))
        >>> history.replay(changes={"relu_1": lambda t: t * 0})["output"].tensor_contents
        tensor([0., 0.])

        Args:
            inputs: a tensor, one for each input in order, or a dictionary from labels to tensors; those left out are as logged.
            changes: by key (docs/keys.md), one of `torcheer.changes`, a tensor to use instead, or a function of the tensor, as
                `intervene` takes them. Where two keys mean the same operation, the one that means fewer counts.

        The model is not touched, and the graph stays the recorded one. What cannot be worked out again behind a change (such as
        TorchScript, a branch that turns, a number that Python read) is refused: `ReplayFailed` names it.
        """
        return replay(self, inputs, changes)
