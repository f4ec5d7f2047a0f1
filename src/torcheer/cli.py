"""The `torcheer` command. Errors of the user's code are reported in one line."""

from __future__ import annotations

import argparse
import importlib
import inspect
import json
import os
import pkgutil
import re
import sys
from collections.abc import Callable, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any, TypeVar

import torch

from . import __version__
from ._text import aligned, human_size, print_shown
from ._text.screen import open_file
from ._torch.inputs import misfit_of, taken_by
from .api import load, log_forward_pass
from .compare import compare
from .demo import AlexNet, Gpt2, SimpleRecurrent
from .errors import InvalidArgument, LayerNotFound, TorcheerError
from .features import Features, extract, open_features
from .features.data import world
from .features.features import reducer_names
from .features.transforms import READY_MADE
from .history import ModelHistory
from .log.keys import Key, parse_key
from .log.run import run_of
from .page import read_payload, to_html
from .pictures import FORMATS, PictureOptions, form_for
from .reducers import KINDS, TopK

T = TypeVar("T")

_RAISED = "torcheer: raised in "  # the note on a model's error begins like this


def find_object(name: str, what: str, example: str) -> Any:
    """The object named `module:name`. Modules in the current folder can be imported, too."""
    module, _, attribute = name.partition(":")
    if not module or not attribute:
        raise InvalidArgument(f"{what} is named module:name, as in {example}; got {name!r}.")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    found = _imported(module)
    for part in attribute.split("."):
        if not hasattr(found, part):
            near = get_close_matches(part, [known for known in dir(found) if not known.startswith("_")], n=1)
            whose = f"module {module!r}" if inspect.ismodule(found) else repr(found)
            raise InvalidArgument(f"{whose} has no attribute {part!r}." + (f" Did you mean {near[0]}?" if near else ""))
        found = getattr(found, part)
    return found


def _imported(module: str) -> Any:
    """Import a module; raise a one-line InvalidArgument if it is missing or fails."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        # another module, which this module imports, is missing
        if error.name is None or not f"{module}.".startswith(f"{error.name}."):
            raise _not_imported(module, error) from error
        raise InvalidArgument(
            f"there is no module {error.name!r} in this folder, or installed. Write it as Python imports it: what is "
            "called Net in models/small.py is models.small:Net."
        ) from error
    except Exception as error:  # the module's own code may raise anything
        raise _not_imported(module, error) from error


def _not_imported(module: str, error: Exception) -> InvalidArgument:
    return InvalidArgument(": ".join([f"importing {module} raised {type(error).__name__}", *str(error).splitlines()[:1]]))


def make_object(name: str, found: Any, what: str) -> Any:
    """Return the object. If it is a class or a function without required arguments, call it and return the result."""
    if isinstance(found, type) and (needed := _needed(found)):
        raise InvalidArgument(
            f"{name} is a class that needs {', '.join(needed)}: name a function that makes the {what} without arguments."
        )
    if isinstance(found, type) or (not isinstance(found, torch.nn.Module) and callable(found) and _needed(found) == []):
        return reporting_errors(f"{name}()", found)
    return found


def find_model(name: str) -> Callable[..., Any]:
    """The model named `module:name`, or the result of a class or function that makes a model."""
    found = make_object(name, find_object(name, "a model", "torchvision.models:resnet18"), "model")
    if not callable(found):
        raise InvalidArgument(f"{name} is a {type(found).__name__}, not a model.")
    return found.eval() if isinstance(found, torch.nn.Module) else found


def reporting_errors(what: str, call: Callable[[], T]) -> T:
    """Call `call` and return its result. A model's error is reported in one line: the call, the error, where it was raised."""
    try:
        return call()
    except (TorcheerError, OSError):
        raise
    except Exception as error:
        where = [note for note in getattr(error, "__notes__", ()) if note.startswith(_RAISED)]
        place = where[0].removeprefix(_RAISED).partition(". The partial history")[0].splitlines()[0] if where else ""
        said = [f"{what} raised {type(error).__name__}", *str(error).strip().splitlines()[:1]]
        raise InvalidArgument(": ".join(said) + (f" (in {place})" if place else "")) from error


def _needed(function: Callable[..., Any]) -> list[str] | None:
    """The names of a function's required arguments; None if its signature is unknown."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return None
    return [p.name for p in parameters if p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]


def object_named(text: str) -> Any:
    """Return the position, slice, class or function that a text spells. None if the text spells nothing of this kind."""
    if re.fullmatch(r"-?\d+", text):
        return int(text)
    if re.fullmatch(r"(-?\d+)?(:(-?\d+)?){1,2}", text):
        return slice(*(int(part) if part else None for part in text.split(":")))
    short = {"nn": "torch.nn", "F": "torch.nn.functional"}
    first, dot, rest = text.partition(".")
    try:
        found = pkgutil.resolve_name(f"{short.get(first, first)}{dot}{rest}") if dot or ":" in text else None
    except (ImportError, AttributeError, ValueError):
        return None
    return found if callable(found) else None


# `torcheer extract` and `torcheer features`: extract activations over whole datasets.


def add_extract(command: argparse.ArgumentParser) -> None:
    """Declare the arguments of `torcheer extract`."""
    command.add_argument("model", metavar="MODULE:NAME", help="a model, or a class or function that makes one")
    command.add_argument(
        "data", metavar="MODULE:NAME", help="a DataLoader, a Dataset or an iterable of batches, or a function that makes one"
    )
    command.add_argument(
        "--layers", nargs="+", required=True, metavar="KEY", help="a label, an address (also with *), a class, a function"
    )
    command.add_argument(
        "-o", "--output", required=True, metavar="FOLDER", help="a folder, also as a URL: s3://bucket/features"
    )
    command.add_argument(
        "--transform", metavar="NAME", help=f"before values are stored: {', '.join(READY_MADE)}, or MODULE:FUNCTION"
    )
    command.add_argument(
        "--keep",
        nargs="+",
        metavar="NAME",
        help=f"statistics instead of values: {', '.join(KINDS)}, also as TopK=50; add 'activations' to store values too",
    )
    command.add_argument("--dtype", help="the dtype of stored values, such as float16 (default: unchanged)")
    command.add_argument("--tokens", action="store_true", help="one row for each position that is not padding")
    command.add_argument(
        "--block",
        type=int,
        help="the least number of samples in a file (default: an eighth of the samples before it, 32 to 1024)",
    )
    command.add_argument("--ids", metavar="NAME", help="the item of the batches with the samples' ids: its name or index")
    command.add_argument("--call", metavar="MODULE:FUNCTION", help="call(model, batch) runs the model")
    command.add_argument("--device", help="the device of the model, such as cuda (default: its own)")
    command.add_argument(
        "--whole-pass", action="store_true", help="run each pass to its end, not only to the last of the layers"
    )
    command.add_argument("--no-resume", action="store_true", help="refuse a folder that has features already")


def run_extract(options: argparse.Namespace) -> int:
    """Run a model over a dataset and write the values of layers, with progress."""
    model: Any = find_model(options.model)
    if not isinstance(model, torch.nn.Module):
        raise InvalidArgument(
            f"{options.model} is not an nn.Module, so it has no layers to read: it is a {type(model).__name__}."
        )
    data = make_object(options.data, find_object(options.data, "data", "my_data:make_loader"), "data")
    if options.device is not None:
        model = reporting_errors(f"--device {options.device}", lambda: model.to(options.device))
    addresses = {address for address, _ in model.named_modules()}
    transform, call = _transform(options.transform), _function(options.call)
    keep = [_kept(text) for text in options.keep] if options.keep else None
    try:
        features = reporting_errors(
            f"{options.model} over {options.data}",
            lambda: extract(
                model,
                data,
                [_layer(text, addresses) for text in options.layers],
                options.output,
                transform=transform,
                keep=keep,
                dtype=options.dtype,
                flatten="tokens" if options.tokens else None,
                block=options.block,
                ids=int(options.ids) if re.fullmatch(r"-?\d+", options.ids or "") else options.ids,
                call=call,
                stop=False if options.whole_pass else None,
                resume=not options.no_resume,
            ),
        )
    except KeyboardInterrupt as interrupt:
        there = f": {str(interrupt).partition(' samples')[0]} samples" if interrupt.args else ""
        print(f"\nInterrupted. The same command continues with the samples in {options.output}{there}.", file=sys.stderr)
        return 130
    if world()[0] == 0:
        _print(features)
    return 0


def _layer(text: str, addresses: set[str]) -> Any:
    """Read a key typed in a shell. It stays a text, unless it is no address and spells a class or a function."""
    is_name = re.match(r"[A-Za-z_]", text) is not None and text not in addresses
    return (object_named(text) if is_name else None) or text


def _kept(text: str) -> Any:
    """Read the option `--keep`: the name of a reducer, possibly with a number, or `activations`."""
    name, _, number = text.partition("=")
    kind: Any = {known.casefold(): reducer for known, reducer in KINDS.items()}.get(name.casefold())
    if kind is None:
        return text
    if not number:
        return kind()
    if kind is not TopK or not number.isdecimal():
        raise InvalidArgument(f"--keep takes {', '.join(KINDS)}, and a number with TopK alone, as in TopK=50; got {text!r}.")
    return TopK(int(number))


def _transform(name: str | None) -> Any:
    if name is None or name in READY_MADE:
        return name
    if ":" not in name:
        raise InvalidArgument(f"--transform is one of {', '.join(READY_MADE)}, or MODULE:FUNCTION; got {name!r}.")
    return _function(name)


def _function(name: str | None) -> Any:
    return None if name is None else find_object(name, "a function", "my_models:pooled")


def add_features(command: argparse.ArgumentParser) -> None:
    """Declare the arguments of `torcheer features`."""
    command.add_argument("folder", help="a folder that 'torcheer extract' or extract() wrote, or is writing; also as a URL")


def run_features(options: argparse.Namespace) -> int:
    """Print a summary of extracted features."""
    _print(open_features(options.folder))
    return 0


def _print(features: Features) -> None:
    """Print the features, and facts that `repr` leaves out."""
    print(features)
    settings = features.plan.settings
    given = {name: value for name, value in settings.items() if isinstance(value, (str, int)) and value and name != "ids"}
    said = {
        "labels": ", ".join(features.labels),
        "ids": "of every sample" if features.ids is not None else "",
        "reducers": "; ".join(f"{layer}: {reducer_names(some)}" for layer, some in settings["keep"]["reducers"].items()),
        "settings": ", ".join(f"{name}={value}" for name, value in given.items()),
        "on disk": human_size(features.size_on_disk),
    }
    for name, value in said.items():
        if value:
            print(f"  {name}: {value}")


# The `torcheer` command.

SUFFIX = ".safetensors"  # the ending of a saved history's file


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code."""
    parser = argparse.ArgumentParser(prog="torcheer", description="See everything a PyTorch model does.")
    parser.add_argument("--version", action="version", version=f"torcheer {__version__}")
    commands = parser.add_subparsers(dest="command", required=True)
    for name, add, run, help in _COMMANDS:
        command = commands.add_parser(name, help=help)
        add(command)
        command.set_defaults(run=run)
    options = parser.parse_args(argv)
    try:
        return int(options.run(options))
    except (TorcheerError, ImportError, AttributeError) as error:
        parser.exit(2, f"torcheer: {error}\n")
    except OSError as error:
        where = f"cannot write to {options.folder}: " if options.command == "demo" else ""
        parser.exit(2, f"torcheer: {where}{error.strerror or error if where else error}\n")


# Models and saved histories ---------------------------------------------------------------------------------------


def logged(options: argparse.Namespace, layers_to_save: str = "all") -> ModelHistory:
    """Load the saved history that the command line names; or run the model that it names, and return the log."""
    if _is_file(options.model):
        if options.input:
            raise InvalidArgument(f"--input goes with a model; {options.model} is a saved history, which has its inputs.")
        return load(options.model)
    model, inputs = _model_and_inputs(options)
    with torch.no_grad():
        return reporting_errors(_words(options), lambda: log_forward_pass(model, inputs, layers_to_save=layers_to_save))


def _model_and_inputs(options: argparse.Namespace) -> tuple[Callable[..., Any], tuple[torch.Tensor, ...]]:
    """The model named on the command line, and a tensor for each --input; raises if the model cannot take them."""
    model, inputs = find_model(options.model), tuple(make_input(shape) for shape in options.input)
    misfit = misfit_of(model, taken_by(model), inputs, {})
    if misfit is not None:
        raise InvalidArgument(
            f"{options.model} takes {misfit.taken}, and cannot be called with {len(inputs)} of --input: {misfit.why}. "
            "Give the shape of each: --input 1,3,224,224, or --input 2,6:int64 for whole numbers."
        )
    return model, inputs


def _is_file(name: str) -> bool:
    return Path(name).suffix.lower() == SUFFIX


def _add_summary(summary: argparse.ArgumentParser) -> None:
    _add_model(summary)
    summary.add_argument("--depth", type=int, help="number of module levels to show (default: all)")


def run_summary(options: argparse.Namespace) -> int:
    """Print the table of modules."""
    print_shown(logged(options, "none").summary(depth=options.depth))
    return 0


def _add_log(log: argparse.ArgumentParser) -> None:
    _add_model(log, takes_file=False)
    log.add_argument("-o", "--output", type=Path, required=True, help=f"the {SUFFIX} file to write")
    log.add_argument("--layers", help="which activations to keep: all, none, modules, or a key (default: all)", default="all")
    log.add_argument(
        "--params", action="store_true", help="write parameters too, so that it can be run again without the model"
    )


def run_log(options: argparse.Namespace) -> int:
    """Run a model and save its history. Without --params, activations are written to the file during the pass."""
    path: Path = options.output
    if not _is_file(str(path)):
        raise InvalidArgument(f"the ending of the output is {SUFFIX}; got {str(path)!r}.")
    model, inputs = _model_and_inputs(options)
    where = None if options.params else path
    with torch.no_grad():
        history = reporting_errors(
            _words(options), lambda: log_forward_pass(model, inputs, layers_to_save=options.layers, save_to=where)
        )
    if options.params:
        history.save(path, params=True)
    print(f"Written: {path}")
    return 0


# Drawing ----------------------------------------------------------------------------------------------------------


def _add_model(command: argparse.ArgumentParser, *, takes_file: bool = True) -> None:
    command.add_argument(
        "model",
        metavar=f"MODULE:NAME|FILE{SUFFIX}" if takes_file else "MODULE:NAME",
        help="a model, a class or function that makes one, or a function of tensors" + ", or a saved history" * takes_file,
    )
    command.add_argument(
        "--input",
        action="append",
        default=[],
        metavar="SHAPE",
        help="the shape of an input, '1,3,224,224'; other than float32 as '2,6:int64'; once for each input",
    )


def _add_draw(draw: argparse.ArgumentParser) -> None:
    _add_model(draw)
    *most, last = [f".{form}" for form in FORMATS]
    draw.add_argument("-o", "--output", type=Path, help=f"an {', '.join(most)} or {last} file (default: shown)")
    how = draw.add_mutually_exclusive_group()
    how.add_argument("--rolled", action="store_true", help="each layer once, however often it ran")
    how.add_argument("--unrolled", action="store_true", help="each pass of a layer on its own")
    draw.add_argument("--depth", help="how many levels of modules are opened, or 'all' (default: as many as can be read)")
    draw.add_argument(
        "--collapse",
        action="append",
        default=[],
        metavar="KEY",
        help="modules to draw as one box: an address, also with *, or a class (torch.nn.Sequential); once for each",
    )
    draw.add_argument("--direction", default="down", help="down, up, right or left")
    draw.add_argument("--theme", help="light, dark or paper (default: that of the style)")
    draw.add_argument("--style", default="screen", help="screen, or paper: small, grey and with few words")
    draw.add_argument("--width", metavar="LENGTH", help="width of the picture: 8.5cm, 80mm, 3.3in")
    draw.add_argument("--columns", type=int, metavar="N", help="number of columns for a long model")
    draw.add_argument("--focus", metavar="KEY", help="draw only this module or operation and what is next to it")


def run_draw(options: argparse.Namespace) -> int:
    """Draw the model or the saved history named on the command line."""
    depth = options.depth
    chosen = PictureOptions(
        rolled=True if options.rolled else False if options.unrolled else None,
        nesting_depth=int(depth) if depth is not None and depth.isdecimal() else depth,
        collapse=[object_named(key) or key for key in options.collapse],
        direction=options.direction,
        theme=options.theme,
        style=options.style,
        width=options.width,
        columns=options.columns,
        focus=options.focus,
    )
    if options.output is not None:
        form_for(options.output, None)  # wrong endings raise before the model runs
    logged(options, "none").draw(options.output, options=chosen)
    if options.output is not None:
        print(f"Written: {options.output}")
    return 0


def _words(options: argparse.Namespace) -> str:
    given = " ".join(f"--input {shape}" for shape in options.input)
    return f"{options.model} with {given or 'no --input'}"


def make_input(text: str) -> torch.Tensor:
    """A tensor of a given shape and dtype: `1,3,224,224`, `2,6:int64`."""
    sizes, _, kind = text.partition(":")
    dtype = getattr(torch, kind or "float32", None)
    try:
        shape = [int(size) for size in sizes.split(",") if size.strip()]
        if not isinstance(dtype, torch.dtype) or any(size < 0 for size in shape):
            raise ValueError
    except ValueError:
        raise InvalidArgument(f"an input is a shape such as 1,3,224,224 or 2,6:int64; got {text!r}.") from None
    is_float = dtype.is_floating_point
    return reporting_errors(
        f"--input {text}", lambda: torch.rand(shape).to(dtype) if is_float else torch.ones(shape, dtype=dtype)
    )


# Keys -------------------------------------------------------------------------------------------------------------


def _add_find(find: argparse.ArgumentParser) -> None:
    _add_model(find)
    find.add_argument(
        "keys",
        nargs="+",
        metavar="KEY",
        help="a label, an address (also with *), a position, a slice (2:5), a class (nn.ReLU), a function (torch.softmax)",
    )


def run_find(options: argparse.Namespace) -> int:
    """Print the operations that keys mean, each once."""
    history = logged(options, "none")
    found = history.filter([_key(history, text) for text in options.keys])
    rows = [(one.label, one.layer_type, str(one.tensor_shape), one.containing_module or "") for one in found]
    if rows:
        print(aligned(rows))
    return 0


def _key(history: ModelHistory, text: str) -> Key:
    """A key typed in a shell. A text without a match may be a position, slice, class or function."""
    try:
        key = parse_key(text)
        key.meaning(run_of(history).lookup.names)
        return key
    except LayerNotFound:
        other = object_named(text)
        if other is None:
            raise
        return parse_key(other)


# The viewer -------------------------------------------------------------------------------------------------------


def _add_show(show: argparse.ArgumentParser) -> None:
    _add_model(show)
    show.add_argument("-o", "--output", type=Path, help="an .html file, or a .json file for 'torcheer view' (default: shown)")
    show.add_argument("--no-previews", action="store_true", help="without small pictures of the activations")


def run_show(options: argparse.Namespace) -> int:
    """Show a saved history, or the log of a model, in the viewer."""
    path: Path | None = options.output
    if path is not None and path.suffix.lower() not in (".html", ".htm", ".json"):
        raise InvalidArgument(f"the ending of the output is .html or .json; got {str(path)!r}.")
    history = logged(options)
    has_previews = not options.no_previews
    if path is None:
        history.show(previews=has_previews)
        return 0
    if path.suffix.lower() == ".json":
        history.to_json(path, previews=has_previews)
    else:
        history.to_html(path, previews=has_previews)
    print(f"Written: {path}")
    return 0


def _add_compare(compared: argparse.ArgumentParser) -> None:
    compared.add_argument("a", type=Path, help="a saved history, taken as right")
    compared.add_argument("b", type=Path, help="the saved history that is compared with it")
    compared.add_argument("--tolerance", type=float, help="largest accepted error, relative to a tensor's largest value")
    compared.add_argument("-o", "--output", type=Path, help="an .html page with both, to write as well")


def run_compare(options: argparse.Namespace) -> int:
    """Compare two saved histories. Exit code: 0 if equal or within tolerance, 1 if different, 2 if not compared."""
    comparison = compare(load(options.a), load(options.b), tolerance=options.tolerance)
    print_shown(comparison)
    if options.output is not None:
        print(f"Written: {comparison.to_html(options.output)}")
    return {"different": 1, "not compared": 2}.get(comparison.verdict, 0)


def _add_check(check: argparse.ArgumentParser) -> None:
    _add_model(check)
    check.add_argument("--train", action="store_true", help="check the model in training mode (default: evaluation mode)")
    check.add_argument("--json", action="store_true", help="print the findings as JSON")
    check.add_argument("--strict", action="store_true", help="exit with 1 for warnings, too (default: for errors alone)")


def run_check(options: argparse.Namespace) -> int:
    """Print what is wrong with a model or a saved history. Exit code: 0 if healthy, 1 if a finding is an error."""
    if _is_file(options.model):
        diagnosis = logged(options).diagnose()
    else:
        model, inputs = _model_and_inputs(options)
        if options.train and isinstance(model, torch.nn.Module):
            model.train()
        with torch.no_grad():
            diagnosis = reporting_errors(_words(options), lambda: log_forward_pass(model, inputs)).diagnose()
    if options.json:
        print(json.dumps(diagnosis.to_dict(), indent=2))
    else:
        print_shown(diagnosis)
    return int(bool(diagnosis.errors) or (options.strict and not diagnosis.is_healthy))


def _add_view(view: argparse.ArgumentParser) -> None:
    view.add_argument("file", type=Path, help=f"an .html page, a {SUFFIX} file, or a .json file that history.to_json() wrote")
    view.add_argument("-o", "--output", type=Path, help="the page to write (default: next to the file, and opened)")
    view.add_argument("--compare", type=Path, metavar="FILE", help="another file, to show next to the first")


def run_view(options: argparse.Namespace) -> int:
    """Open a page; a saved history is first converted to a page."""
    file: Path = options.file
    if file.suffix.lower() in (".html", ".htm"):
        if not file.is_file():
            raise InvalidArgument(f"there is no page {str(file)!r}.")
        if options.output is not None or options.compare is not None:
            raise InvalidArgument("--output and --compare go with a saved history; a page is only opened.")
        open_file("Page", file)
        return 0
    if options.output is not None and options.output.suffix.lower() not in (".html", ".htm"):
        raise InvalidArgument(f"the ending of the output is .html; got {str(options.output)!r}.")
    other = _viewed(options.compare) if options.compare is not None else None
    path = to_html(_viewed(file), options.output or file.with_suffix(".html"), compare=other)
    if options.output is not None:
        print(f"Written: {path}")
    else:
        open_file("Page", path)
    return 0


def _viewed(file: Path) -> Any:
    """Read the data for a page from a saved history, or from the JSON of a page."""
    return load(file) if _is_file(str(file)) else read_payload(file)


# The demo ---------------------------------------------------------------------------------------------------------


def _add_demo(demo: argparse.ArgumentParser) -> None:
    demo.add_argument("--folder", type=Path, default=Path("torcheer_demo"), help="where to write (default: %(default)s)")


def run_demo(options: argparse.Namespace) -> int:
    """Log AlexNet, a recurrent model and a transformer, and show the results."""
    folder: Path = options.folder
    folder.mkdir(parents=True, exist_ok=True)
    history = log_forward_pass(AlexNet(), torch.rand(1, 3, 224, 224), random_seed=0)
    layer = history["conv2d_3_7"]
    print_shown(history)
    print()
    print_shown(layer)
    text, table = folder / "alexnet.txt", folder / "alexnet.csv"
    text.write_text(f"{history}\n\n{layer}\n", encoding="utf-8")
    history.to_csv(table)
    print(f"\nWritten: {text} (what is printed above)\n         {table} (one row per operation)")
    recurrent = log_forward_pass(SimpleRecurrent(), torch.rand(1, 5), random_seed=0)
    pictures = (("alexnet", history, None), ("recurrent_unrolled", recurrent, False), ("recurrent_rolled", recurrent, True))
    for name, drawn, is_rolled in pictures:
        picture = drawn.draw(folder / f"{name}.svg", rolled=is_rolled)
        picture.save(folder / f"{name}.png")
        print(f"         {folder / name}.svg and .png (a picture)")
    with torch.no_grad():
        decoder = log_forward_pass(Gpt2(), torch.randint(50257, (1, 32)), random_seed=0)
    for name, shown in (("alexnet", history), ("gpt2", decoder)):
        path = shown.to_html(folder / f"{name}.html")
        print(f"         {path} (a page: open it in a browser)")
    return 0


# (name, adds its arguments, runs it, help text)
_COMMANDS: list[tuple[str, Callable[[argparse.ArgumentParser], None], Callable[[argparse.Namespace], int], str]] = [
    ("demo", _add_demo, run_demo, "log and draw AlexNet, a recurrent model and a transformer, and write everything to files"),
    ("draw", _add_draw, run_draw, "draw a model: torcheer draw torchvision.models:resnet18 --input 1,3,224,224"),
    ("find", _add_find, run_find, "print the operations that keys mean: torcheer find my_models:Net 'blocks.*.mlp'"),
    ("show", _add_show, run_show, "show a model in the viewer: torcheer show my_models:Net --input 1,3,224,224"),
    ("summary", _add_summary, run_summary, "print the modules of a model, with shapes, parameters and FLOPs"),
    ("log", _add_log, run_log, "save the history of a model: torcheer log my_models:Net -o run.safetensors"),
    ("check", _add_check, run_check, "print what is wrong with a model: torcheer check my_models:Net --input 1,3,224,224"),
    ("compare", _add_compare, run_compare, "compare two saved histories; exits with 1 where they differ"),
    (
        "extract",
        add_extract,
        run_extract,
        "write activations of a whole dataset: torcheer extract my:model my:data --layers conv1 -o folder",
    ),
    ("features", add_features, run_features, "print what is in a folder that 'torcheer extract' wrote"),
    ("view", _add_view, run_view, "open a page, or a history that was saved, in the viewer"),
]


if __name__ == "__main__":
    raise SystemExit(main())
