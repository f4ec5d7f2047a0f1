"""`ModelHistory`: the whole history of one run. It finds layers and modules; the other folders do the rest of the work."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import UnionType
from typing import IO, TYPE_CHECKING, Any, Literal, SupportsIndex, overload

import torch
from torch import Tensor

from .._files.files import output_path
from .._text import Fold, data_frame, image, plural, preformatted
from .._torch.functions.facts import Origin
from .._torch.inputs import LEFT_OUT, as_arguments
from .._torch.internals import DisableTorchFunction
from .._torch.randomness import RandomState
from .._torch.thread_state import thread_left_as_found
from ..analysis import Cost, MemoryTimeline, Summary, largest, memory_of, slowest, summary_of
from ..analysis.attention import attention_in
from ..analysis.diagnosis import Diagnosis
from ..analysis.findings import diagnose
from ..analysis.summary import DEFAULT_COLUMNS, count_of
from ..capture import run_model
from ..changes import Given
from ..errors import GraphChanged, TorcheerError
from ..graph import Graph, graph_of
from ..live import Place, locate
from ..live.module_calls import ModuleCalls, module_calls_of
from ..log.copying import refuse_pickling
from ..log.fingerprint import fingerprint_of
from ..log.keys import AnyKey, Found, Keyed, KeyType, LayerTypes, OneKey, check_where, numbers_that_fit
from ..log.options import LayersToSave, Options
from ..log.param import Param, describe_param
from ..log.records import PARENTS, UNSAVED, Failure, Log
from ..log.run import Index, LoggedRun
from ..page import Metrics, Page, PageOptions, to_html, to_json, to_model_explorer
from ..page import show as show_page
from ..page.payload import MAX_BYTES
from ..pictures import DrawOptions, Picture, PictureOptions, Target, make_picture
from ..replay import ReplayInputs, ValidationReport, first_difference, replay, validate
from ..store import save_history
from .attributes import Helpful
from .backward import BackwardPass, run_backward
from .drawing import draw_history
from .layer import Layer
from .module import Modules
from .operation import Operation
from .printing import describe_history, layers_table
from .python_reads import PythonRead
from .table import row_of, write_csv

if TYPE_CHECKING:
    import pandas
    from typing_extensions import Unpack


_CARD_COLUMNS = ("calls", "in", "out", "params", "flops", "self time")  # columns of the table of modules in a notebook
_CARD_ROWS, _CARD_DEPTH = 16, 4  # the table shows as many levels of modules as fit 16 rows, but at most 4
_PATIENCE = 3.0  # time limit in seconds for the layout of the small picture in a notebook


class ModelHistory(Helpful):
    """The whole history of one recording: layers, operations, modules, parameters and their costs.

    >>> import torch, torcheer
    >>> model = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.ReLU())
    >>> history = torcheer.log_forward_pass(model, torch.ones(1, 2))
    >>> [layer.label for layer in history]
    ['input_1_0', 'linear_1_1', 'relu_1_2', 'output_1_3']
    >>> history["relu_1"].tensor_shape == history["1"].tensor_shape == history[2].tensor_shape
    True
    """

    _made_cost: tuple[object, Cost] | None = None

    def __init__(self, run: LoggedRun) -> None:
        self._run = run
        run.shown_by(self)

    @classmethod
    def begin(cls, title: str, options: Options) -> ModelHistory:
        """Make the history of a run that is about to be recorded."""
        return cls(LoggedRun.begin(title, options))

    @property
    def _log(self) -> Log:
        return self._run.log

    @property
    def _index(self) -> Index:
        return self._run.index

    # Looking up -------------------------------------------------------------------------------------------------

    @overload
    def __getitem__(self, key: str | SupportsIndex | Keyed) -> Layer | Operation: ...  # type: ignore[overload-overlap]  # text is iterable
    @overload
    def __getitem__(
        self, key: slice | type | UnionType | Callable[..., object] | Iterable[OneKey]
    ) -> list[Layer | Operation]: ...
    def __getitem__(self, key: AnyKey) -> Layer | Operation | list[Layer | Operation]:
        """The layer that a key means: a label, a label with its pass, a module address, a position; docs/keys.md lists all
        keys.

        A slice, a list, a class, a torch function, a function of an operation and an address with `*` mean a list of layers.
        """
        found = self._run.lookup.find_any(key)
        return [self._made(one) for one in found] if isinstance(found, list) else self._made(found)

    def _made(self, found: Found) -> Layer | Operation:
        if found.number is not None and len(found.layer.passes) > 1:
            return Operation(self._index, found.number)
        return Layer(self._index, found.layer)

    def filter(
        self,
        key: AnyKey | None = None,
        *,
        type: LayerTypes | None = None,
        module: AnyKey | None = None,
        where: Callable[[Operation], object] | None = None,
    ) -> list[Operation]:
        """The operations that meet every given condition, in execution order.

        Args:
            key: any key (docs/keys.md); a text means the operations that `layers_to_save` would keep for it.
            type: layer types (`"relu"`, `"maxpool2d"`), torch functions, classes (what their modules returned), or a list.
            module: those that ran inside these modules: an address, also with `*`, a class, or a list.
            where: a function of an `Operation`.
        """
        check_where(where)
        numbers = numbers_that_fit(self._run.lookup, key, type, module)
        found = [Operation(self._index, number) for number in numbers]
        return [one for one in found if where(one)] if where is not None else found

    def __contains__(self, key: object) -> bool:
        if isinstance(key, (Layer, Operation)):
            return key._index.log is self._log
        try:
            found = self._run.lookup.find_any(key)
        except KeyError:
            return False
        return found != []

    def __len__(self) -> int:
        """The number of layers."""
        return len(self._index.table)

    def __iter__(self) -> Iterator[Layer]:
        """The layers, in execution order."""
        return iter(self.layers)

    def keys(self) -> list[str]:
        """The labels of all layers and the addresses of all modules that were called."""
        return self._run.lookup.names.known()

    _ipython_key_completions_ = keys

    @property
    def layers(self) -> list[Layer]:
        """Every layer, in execution order, inputs and outputs included."""
        index = self._index
        return [Layer(index, entry) for entry in index.table.layers]

    @property
    def operations(self) -> list[Operation]:
        """Every operation, in execution order, inputs and outputs included."""
        index = self._index
        return [Operation(index, number) for number in index.operations]

    @property
    def saved(self) -> list[Operation]:
        """The operations whose activations were kept."""
        return [one for one in self.operations if one.has_saved_activations]

    @property
    def layer_labels(self) -> list[str]:
        """The labels of all layers, in execution order."""
        index = self._index
        return [index.table.label(entry) for entry in index.table.layers]

    def _of_origin(self, origin: Origin) -> list[Operation]:
        index = self._index
        return [Operation(index, number) for number in index.of_origin(origin)]

    @property
    def inputs(self) -> list[Operation]:
        """The tensors that were passed to the model."""
        return self._of_origin(Origin.INPUT)

    @property
    def outputs(self) -> list[Operation]:
        """The tensors the model returned."""
        return self._of_origin(Origin.OUTPUT)

    @property
    def sources(self) -> list[Operation]:
        """Tensors of unknown origin: closed over, made by NumPy, or computed in code that torcheer cannot trace."""
        return self._of_origin(Origin.SOURCE)

    # Parameters, buffers, modules --------------------------------------------------------------------------------

    @property
    def params(self) -> dict[str, Param]:
        """Every parameter, by name."""
        index = self._index
        return {name: describe_param(index, name, tensor) for name, tensor in index.all_parameters().items()}

    @property
    def buffers(self) -> dict[str, Param]:
        """Every buffer, by name."""
        index = self._index
        return {name: describe_param(index, name, tensor) for name, tensor in index.all_buffers().items()}

    @property
    def modules(self) -> Modules:
        """The modules, by address: `history.modules['features']`, or one call of it: `history.modules['features:1']`."""
        return Modules(self._index)

    @property
    def model_name(self) -> str:
        """The class of the model, or the name of the function; all names if there are several models."""
        return self._log.title

    @property
    def python_reads(self) -> list[PythonRead]:
        """Reads of tensor values by Python code (`bool(t)`, `.item()`, `.numpy()`)."""
        index = self._index
        return [PythonRead(index, record) for record in self._log.python_reads]

    # Backward -----------------------------------------------------------------------------------------------------

    @property
    def backward_passes(self) -> list[BackwardPass]:
        """The recorded backward passes, in order. Needs `save_gradients`."""
        passes = self._log.backward.passes if self._log.backward is not None else []
        return [BackwardPass(self._index, record, number) for number, record in enumerate(passes, 1)]

    @property
    def param_grads(self) -> dict[str, Tensor]:
        """The gradient of every parameter in the last backward pass, by name."""
        passes = self.backward_passes
        return passes[-1].param_grads if passes else {}

    def log_backward(
        self,
        loss: Tensor,
        gradient: Tensor | None = None,
        *,
        retain_graph: bool | None = None,
        create_graph: bool = False,
        inputs: Tensor | Sequence[Tensor] | None = None,
    ) -> BackwardPass:
        """Run `loss.backward(…)` with these arguments and return the recorded backward pass.

        The loss must be computed from this history's outputs, which have an autograd graph if gradients are recorded. While
        backward runs, the state that the logged pass changed has its values from the end of that pass, because checkpointed
        blocks, your functions and hooks may read it. Afterwards the state is restored. Gradients stay in `.grad`.
        """
        run_backward(self._log.backward, loss, gradient, retain_graph, create_graph, inputs)
        return self.backward_passes[-1]

    def fingerprint(self) -> str:
        """A hash of the structure: functions, shapes and what each was computed from; not names, weights or values.

        >>> import torch, torcheer
        >>> torcheer.log_forward_pass(torch.nn.ReLU(), torch.ones(2)).fingerprint()[:2]
        '3-'
        """
        return fingerprint_of(self._index)

    @property
    def notes(self) -> list[str]:
        """Remarks on this history, for example about work that could not be watched."""
        return list(self._log.notes)

    @property
    def is_complete(self) -> bool:
        """True if the pass ran to its end."""
        return self._log.is_complete

    @property
    def failure(self) -> Failure | None:
        """The operation that raised, if the pass failed in one."""
        return self._log.failure

    @property
    def random_seed(self) -> int | None:
        """The `random_seed` that the pass was started with; None without a seed."""
        return self._log.random_seed

    @property
    def random_state(self) -> RandomState:
        """The random state that the pass started from. `log_forward_pass(…, random_state=history.random_state)` repeats the
        pass.

        `random_state.restore()` puts every generator back to it.
        """
        state: RandomState = self._log.random_state
        return state

    @property
    def time_elapsed(self) -> float | None:
        """Seconds of setup, forward pass and cleanup together; None while the recording runs."""
        return sum(self._log.seconds.values()) if self._log.seconds else None

    @property
    def time_by_phase(self) -> dict[str, float]:
        """Seconds by phase; `functions` is the part of `forward` spent in the operations themselves."""
        functions = sum({r.call: r.elapsed for r in self._log.operations}.values()) / 1e9
        return {**self._log.seconds, "functions": functions}

    # Activations ------------------------------------------------------------------------------------------------

    def clear_activations(self) -> None:
        """Free every kept tensor, including gradients, and keep the graph."""
        self._log.clear()

    def save_new_activations(
        self,
        model: Callable[..., object],
        input_args: object = LEFT_OUT,
        input_kwargs: Mapping[str, object] | None = None,
        *,
        layers_to_save: LayersToSave | Literal["as before"] = "as before",
        random_seed: int | None = None,
        random_state: RandomState | None = None,
    ) -> None:
        """Run the same graph with another input and keep its activations instead; arguments as in `log_forward_pass`.

        Raises `GraphChanged`, naming the first operation that differs, when the model ran other operations; the history
        is then as it was.
        """
        options = self._run.options
        if layers_to_save != "as before":
            options = replace(options, layers_to_save=layers_to_save)
        new = LoggedRun.begin(self._log.title, options)
        arguments = as_arguments(model, input_args, input_kwargs, call="save_new_activations")
        run_model(new, model, arguments, random_seed, random_state, call="save_new_activations")
        difference = first_difference(self._index, new.index)
        if difference is not None:
            raise GraphChanged(
                f"the new pass is not the one that was logged: {difference}. "
                "The history is unchanged; use log_forward_pass for a new one."
            )
        self._run = new
        new.shown_by(self)

    # Totals ------------------------------------------------------------------------------------------------------

    @property
    def num_modules(self) -> int:
        """How many modules the model has below its root."""
        return sum(1 for module in self._log.registered.values() if module.address)

    @property
    def num_operations(self) -> int:
        """How many operations ran, inputs and outputs included."""
        return len(self._index.operations)

    num_tensors_total = num_operations

    @property
    def num_tensors_saved(self) -> int:
        """How many operations kept their tensor."""
        values = self._log.values
        return sum(1 for number in self._index.operations if values[number] is not UNSAVED)

    @property
    def tensor_fsize_total(self) -> int:
        """Bytes of all tensors. An output is the tensor of another operation, so it is not counted."""
        index = self._index
        return sum(index.tensor_bytes(number) for number in index.operations if number not in index.outputs)

    @property
    def tensor_fsize_saved(self) -> int:
        """Bytes of the saved tensors. An output is not counted if the operation that made its tensor is saved, too."""
        index, rows = self._index, self._log.rows
        saved = {number for number in index.operations if self._log.values[number] is not UNSAVED}
        again = {number for number in saved & index.outputs if rows[number][PARENTS] < 0 or rows[number][PARENTS] in saved}
        return sum(map(index.tensor_bytes, saved - again))

    @property
    def num_param_operations(self) -> int:
        """How many operations used parameters."""
        index = self._index
        parameters = {state.number for state in self._log.states if state.is_parameter}
        return sum(1 for number in index.operations if not parameters.isdisjoint(self._log.rows[number][PARENTS:]))

    @property
    def num_params_total(self) -> int:
        """How many elements the parameters have, each parameter counted once."""
        return sum(param.numel for param in self.params.values())

    @property
    def params_fsize_total(self) -> int:
        """The bytes of all parameters."""
        return sum(param.fsize for param in self.params.values())

    @property
    def is_recurrent(self) -> bool:
        """True if any layer ran more than once."""
        return self.max_passes > 1

    @property
    def max_passes(self) -> int:
        """The largest number of passes that a layer has."""
        return self._index.table.most_passes

    @property
    def is_branching(self) -> bool:
        """True if any tensor was used by more than one operation."""
        return any(len(children) > 1 for children in self._index.children.values())

    @property
    def has_data_dependent_branching(self) -> bool:
        """True if Python code read a truth value of a tensor, which can decide what runs next."""
        return any(read.is_truth_value for read in self._log.python_reads)

    # What is wrong -----------------------------------------------------------------------------------------------

    def diagnose(self) -> Diagnosis:
        """Look for what is wrong with this pass: NaN and where it begins, dead units, a softmax over the batch and the like.

        >>> import torch, torcheer
        >>> history = torcheer.log_forward_pass(lambda x: torch.log(x - 1), torch.tensor([0.5, 2.0]))
        >>> print(history.diagnose()[0].message)
        NaN begins at log_1_2 (log): log of 1 value < 0, smallest -0.5 (1 value of 2)

        The findings are sorted, the worst first; docs/diagnosis.md lists the kinds. Only kept activations are judged; gradients
        if the history has a backward pass.
        """
        return diagnose(self._run)

    # As a picture ------------------------------------------------------------------------------------------------

    @property
    def graph(self) -> Graph:
        """The graph of the pass, operation by operation. `torcheer.graph` makes views of it, from which pictures are drawn."""
        return graph_of(self._index)

    def draw(
        self,
        path: Target | None = None,
        *,
        format: str | None = None,
        **options: Unpack[DrawOptions],
    ) -> Picture:
        """Draw the graph to a path or file object, or on the screen.

        >>> import io, torch, torcheer
        >>> history = torcheer.log_forward_pass(torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.ReLU()), torch.ones(1, 2))
        >>> picture = history.draw(io.BytesIO(), direction="right")
        >>> "linear_1_1" in picture.svg
        True

        Args:
            path: where to write; the ending gives the format, such as `.svg` (docs/pictures.md has all). Without a path, a
                notebook shows the returned picture; elsewhere the picture is saved in the current folder and opened if there
                is a screen.
            format: such as `"svg"`, when the ending does not say.
            options: the fields of `PictureOptions`, or one as `options=`; and `vis_opt="rolled"` or `"unrolled"`. A function in
                `color_by` gets an `Operation`; a node that stands for several operations gets the mean.

        A graph too large to be drawn within `time_limit` is drawn with fewer modules open, and the picture says so.
        """
        return draw_history(self._index, path, format, options)

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
        """Write the history to one `.safetensors` file, for `torcheer.load`; any safetensors reader can read its tensors.

        >>> import tempfile, torch, torcheer
        >>> history = torcheer.log_forward_pass(torch.nn.Linear(2, 3), torch.ones(1, 2))
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     torcheer.load(history.save(f"{folder}/linear.safetensors"))["linear_1"].tensor_shape
        (1, 3)

        Args:
            path: where to write. An existing file is replaced once everything is written. Returned.
            activations: which of the kept activations to write: what `layers_to_save` takes.
            params: whether to write parameters and buffers too. Without them the file can be replayed with
                `torcheer.load(path, model=model)`.
            gradients: whether to write the gradients of backward passes.
            sources: whether to write lines of the program, and the folders of its files.
            dtype: a floating-point type to write activations and gradients in, to send a smaller file. It cannot be run again.

        docs/saving.md says what a file contains. A value that no file can restore, such as a tensor of your own class, raises
        `CannotBeSaved`, which names the value.
        """
        place = output_path(path, "history", "run.safetensors", "safetensors")
        save_history(
            self._run, place, activations=activations, params=params, gradients=gradients, sources=sources, dtype=dtype
        )
        return place

    @thread_left_as_found
    def attention(self, key: AnyKey) -> Tensor | list[Tensor]:
        """The attention pattern (batch, heads, queries, keys) of a module or an operation; a list if there are several.

        >>> import torch, torcheer
        >>> attention = torch.nn.MultiheadAttention(8, 2, batch_first=True)
        >>> x = torch.rand(1, 5, 8)
        >>> torcheer.log_forward_pass(attention, (x, x, x)).attention("").shape
        torch.Size([1, 2, 5, 5])

        Fused attention does not return its pattern, so the pattern is computed from the logged queries, keys, mask, scale and
        grouping of heads, without dropout. `history[label].heads` has the queries, keys and values of each head.
        """
        matches = self._run.lookup.meaning(key).matches
        calls = {id(match.call): match.call for match in matches if match.call is not None}
        inside = [number for call in calls.values() for number in range(call.first, call.end)]
        numbers = dict.fromkeys(inside or [match.number for match in matches])
        return attention_in([Operation(self._index, number) for number in numbers if self._index.table.shows(number)], key)

    def locate(self, key: AnyKey) -> list[Place]:
        """The places in a run of the model of the operations that a key means, as `tap` and `intervene` watch them.

        >>> import torch, torcheer
        >>> history = torcheer.log_forward_pass(torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.ReLU()), torch.ones(1, 2))
        >>> print(history.locate("relu_1")[0])
        relu_1_2: what '1' returned, call 1
        """
        return locate(self._run, key)

    # In the viewer ------------------------------------------------------------------------------------------------

    def show(self, **options: Unpack[PageOptions]) -> Page:
        """Show the history in the viewer: in a notebook, or in the file `torcheer_<model>.html`, opened if there is a screen.

        Takes the arguments of `to_html`. In a notebook, whose file contains the page, `max_bytes` is 4 MB by default.
        """
        return show_page(self, **options)

    @thread_left_as_found
    def to_html(self, path: str | os.PathLike[str], **options: Unpack[PageOptions]) -> Path:
        """Write the viewer, with this history in it, as one HTML file that opens in any browser, offline.

        >>> import tempfile, torch, torcheer
        >>> history = torcheer.log_forward_pass(torch.nn.Linear(2, 3), torch.ones(1, 2))
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     history.to_html(f"{folder}/linear.html").name
        'linear.html'

        Args:
            path: where to write. An existing file is replaced.
            compare: another history, to show next to this one.
            title: the name of the page; by default the name of the model.
            previews: whether to add small pictures of the kept activations, of attention heads and of parameters.
            max_bytes: the largest size of the file. A larger page is cut, previews first, and says so.
            metrics: figures of your own to colour and sort by, `{"my norm": lambda tensor: tensor.norm()}`: each function gets
                a copy of every kept activation and returns a number.

        The file contains names, shapes, statistics, previews, and lines of the program with the paths of its files.
        """
        return to_html(self, path, **options)

    def to_json(
        self,
        path: str | os.PathLike[str] | None = None,
        *,
        previews: bool = True,
        max_bytes: int = MAX_BYTES,
        metrics: Metrics | None = None,
    ) -> str:
        """The viewer's data as JSON text. With a path, the text is also written to a file, which `torcheer view` opens.

        docs/viewer_format.md describes the text. `max_bytes` limits its compressed size; the other arguments are those of
        `to_html`.
        """
        return to_json(self, path, previews=previews, max_bytes=max_bytes, metrics=metrics)

    def to_model_explorer(self, path: str | os.PathLike[str] | None = None, *, node_data: bool = True) -> dict[str, Any]:
        """The graph in the format of Google's Model Explorer; with a path, it is also written to a file.

        With `node_data`, files with the time, FLOPs, memory and norms of every node lie beside it, to colour nodes by:
        `model-explorer net.json --node_data_paths=net.time.json,net.flops.json`.
        """
        return to_model_explorer(self, path, node_data=node_data)

    @property
    def module_calls(self) -> ModuleCalls:
        """Every module call, forward and backward, with the calls and inputs that its tensors came from.

        >>> import torch, torcheer
        >>> model = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.ReLU())
        >>> calls = torcheer.log_forward_pass(model, torch.ones(1, 2)).module_calls
        >>> [source.label for source in calls[2].sources]
        ['0:1']
        """
        return module_calls_of(self._run)

    # What it cost -------------------------------------------------------------------------------------------------

    @property
    def cost(self) -> Cost:
        """FLOPs, MACs, time and memory traffic: totals, and by operation, layer and module.

        >>> import torch, torcheer
        >>> history = torcheer.log_forward_pass(torch.nn.Linear(2, 3), torch.ones(1, 2))
        >>> history.cost.macs, history.cost.module("").total.flops
        (6, 12)
        """
        index = self._index
        if self._made_cost is None or self._made_cost[0] is not index:
            self._made_cost = (index, Cost(index))
        return self._made_cost[1]

    @property
    def flops(self) -> int | None:
        """The floating-point operations of the whole pass, without the functions in `history.cost.unknown`.

        None if no function that ran has a formula.
        """
        return self.cost.flops or (None if self.cost.unknown else 0)

    @property
    def memory(self) -> MemoryTimeline:
        """The bytes in use over the pass, the peak, and the tensors alive at the peak."""
        return memory_of(self)

    def summary(self, columns: Iterable[str] = DEFAULT_COLUMNS, *, depth: int | None = None, fold: bool = True) -> Summary:
        """A table of the modules: shapes, parameters, FLOPs, time, memory; with totals. Prints as text.

        Equal modules in a row are one row, and the text fits a screen; `depth=` and `fold=False` show more.
        """
        return summary_of(self, columns, depth=depth, fold=fold)

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
        return validate(self._run)

    def replay(self, inputs: ReplayInputs | None = None, changes: Mapping[KeyType, Given] | None = None) -> ModelHistory:
        """Run the recorded graph again, with other inputs or with values changed on the way, and return the new history.

        >>> import torch, torcheer
        >>> history = torcheer.log_forward_pass(torch.nn.Sequential(torch.nn.ReLU(), torch.nn.Tanh()), torch.ones(2))
        >>> history.replay(changes={"relu_1": lambda t: t * 0})["output"].tensor_contents
        tensor([0., 0.])

        Args:
            inputs: a tensor, one for each input in order, or a dictionary from labels to tensors; other inputs stay as logged.
            changes: by key (docs/keys.md), one of `torcheer.changes`, a tensor to use instead, or a function of the tensor, as
                `intervene` takes them. If two keys mean one operation, the key that means fewer wins.

        The model is unchanged, and the graph stays the recorded graph. If a value depends on a change but cannot be computed
        again (TorchScript, a branch that turns, a number that Python read), `ReplayFailed` names it.
        """
        return ModelHistory(replay(self._run, inputs, changes))

    # As a table --------------------------------------------------------------------------------------------

    def to_rows(self, *, statistics: bool = False) -> list[dict[str, Any]]:
        """One dictionary per operation: the rows of `to_pandas`."""
        return [row_of(one, statistics=statistics) for one in self.operations]

    @overload
    def to_csv(self, path: str | os.PathLike[str], *, statistics: bool = False) -> Path: ...
    @overload
    def to_csv(self, path: IO[bytes] | IO[str], *, statistics: bool = False) -> None: ...
    def to_csv(self, path: str | os.PathLike[str] | IO[bytes] | IO[str], *, statistics: bool = False) -> Path | None:
        """Write one row per operation as comma-separated values, to a path, which is returned, or to a file object."""
        return write_csv(self.to_rows(statistics=statistics), path)

    def to_pandas(self, *, statistics: bool = False) -> pandas.DataFrame:
        """One row per operation. Needs pandas.

        With `statistics=True` the columns min, max, mean, std, zeros and nonfinite follow, read from the kept activations; they
        are empty where none was kept. The first four are of the finite values.
        """
        return data_frame(self.to_rows(statistics=statistics))

    # Printing, copying ------------------------------------------------------------------------------------------

    def __repr__(self) -> str:
        with DisableTorchFunction():
            return describe_history(self)

    def _card_text(self) -> str:
        unknown = sum(self.cost.unknown.values())
        missing = f", and those of {plural(unknown, 'call')} without a formula" if unknown else ""
        cost = f"\tCost: {count_of(self.cost.flops)} FLOPs in the forward pass{missing}"
        text = repr(self).partition("\n\tModule Hierarchy:")[0].partition("\n\tLayers:")[0]
        return "\n".join([text, cost])

    def _folds(self) -> list[Fold]:
        """The parts of the card in a notebook: the modules with their costs, the layers, a small picture."""
        with DisableTorchFunction():
            whole = self.summary(_CARD_COLUMNS, fold=False)
            depths = (self.summary(_CARD_COLUMNS, depth=depth).table for depth in range(_CARD_DEPTH, -1, -1))
            short = next((table for table in depths if len(table.rows) <= _CARD_ROWS), None)
            folds = [Fold("Modules", short.html(), is_open=True)] if short is not None else []
            if short is None or len(short.rows) < len(whole.table.rows):
                folds.append(Fold(f"All {plural(self.num_modules, 'module')}", whole.table.html()))
            folds.append(Fold(plural(len(self.layers), "layer"), layers_table(self).html()))
            try:
                picture = make_picture(self.graph, PictureOptions(nesting_depth=1, legend=False, time_limit=_PATIENCE))
                folds.append(Fold("Picture", image(picture.to_bytes("png"), f"{self.model_name}, drawn")))
            except TorcheerError as error:  # the card names the error, and is shown without the picture
                folds.append(Fold("Picture", preformatted(str(error))))
            return folds

    def __deepcopy__(self, memo: dict[int, Any]) -> ModelHistory:
        """A second history with copies of the kept tensors; parameters stay the model's."""
        return ModelHistory(self._run.copy(memo))

    def __copy__(self) -> ModelHistory:
        """A second history that shares the kept tensors."""
        return ModelHistory(self._run.copy())

    def __reduce_ex__(self, protocol: Any) -> Any:
        refuse_pickling(type(self).__name__)


# Folders below this one cannot import it: give them the classes whose objects they return to users.
Index.operation = Operation
LoggedRun.make_history = ModelHistory
