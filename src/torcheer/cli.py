"""The `torcheer` command."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from . import __version__
from .api import load, log_forward_pass
from .cli_extraction import add_extract, add_features, run_extract, run_features
from .cli_names import find_model, object_named, told
from .compare import compare
from .demo import AlexNet, Gpt2, SimpleRecurrent
from .display import aligned, print_shown
from .errors import InvalidArgument, LayerNotFound, TorcheerError
from .history import History
from .inputs import misfit_of, taken_by
from .keys import Key, parse_key
from .model_history import ModelHistory
from .render import PictureOptions, form_for
from .render.showing import open_file
from .viewer import read_payload, to_html

SUFFIX = ".safetensors"  # of a saved history


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
    """The history a command line names: a saved one, or that of a model, which runs for it."""
    if _is_file(options.model):
        if options.input:
            raise InvalidArgument(f"--input goes with a model; {options.model} is a saved history, which has its inputs.")
        return load(options.model)
    model, inputs = _model_and_inputs(options)
    with torch.no_grad():
        return told(_words(options), lambda: log_forward_pass(model, inputs, layers_to_save=layers_to_save))


def _model_and_inputs(options: argparse.Namespace) -> tuple[Callable[..., Any], tuple[torch.Tensor, ...]]:
    """The model that a command line names, and a tensor for each --input; as many as the model takes."""
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
    summary.add_argument("--depth", type=int, help="how many levels of modules are shown (default: all)")


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
    """Run a model and save its history. Without parameters, activations go into the file as they are made."""
    path: Path = options.output
    if not _is_file(str(path)):
        raise InvalidArgument(f"the ending of the output is {SUFFIX}; got {str(path)!r}.")
    model, inputs = _model_and_inputs(options)
    where = None if options.params else path
    with torch.no_grad():
        history = told(_words(options), lambda: log_forward_pass(model, inputs, layers_to_save=options.layers, save_to=where))
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
    draw.add_argument("-o", "--output", type=Path, help="an .svg, .png, .pdf, .tex or .dot file (default: shown)")
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
    draw.add_argument("--width", metavar="LENGTH", help="how wide the picture is: 8.5cm, 80mm, 3.3in")
    draw.add_argument("--columns", type=int, metavar="N", help="in how many columns a long model is drawn")
    draw.add_argument("--focus", metavar="KEY", help="draw only this module or operation and what is next to it")


def run_draw(options: argparse.Namespace) -> int:
    """Draw the model or the saved history that a command line names."""
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
        form_for(options.output, None)  # what is wrong with it is told before the model runs
    logged(options, "none").draw(options.output, options=chosen)
    if options.output is not None:
        print(f"Written: {options.output}")
    return 0


def _words(options: argparse.Namespace) -> str:
    given = " ".join(f"--input {shape}" for shape in options.input)
    return f"{options.model} with {given or 'no --input'}"


def make_input(text: str) -> torch.Tensor:
    """A tensor of a shape: `1,3,224,224`, `2,6:int64`."""
    sizes, _, kind = text.partition(":")
    dtype = getattr(torch, kind or "float32", None)
    try:
        shape = [int(size) for size in sizes.split(",") if size.strip()]
        if not isinstance(dtype, torch.dtype) or any(size < 0 for size in shape):
            raise ValueError
    except ValueError:
        raise InvalidArgument(f"an input is a shape such as 1,3,224,224 or 2,6:int64; got {text!r}.") from None
    is_float = dtype.is_floating_point
    return told(f"--input {text}", lambda: torch.rand(shape).to(dtype) if is_float else torch.ones(shape, dtype=dtype))


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


def _key(history: History, text: str) -> Key:
    """A key as it is typed in a shell. Text that names nothing in the history may be a position, slice, class or function."""
    try:
        key = parse_key(text)
        key.meaning(history._lookup.names)
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
    """Show the history that a command line names in the viewer: a saved one, or that of a model."""
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
    compared.add_argument("--tolerance", type=float, help="how large an error may be, relative to a tensor's largest value")
    compared.add_argument("-o", "--output", type=Path, help="an .html page with both, to write as well")


def run_compare(options: argparse.Namespace) -> int:
    """Compare two saved histories; 0 where they are equal or within tolerance, 1 where they differ, 2 if not compared."""
    comparison = compare(load(options.a), load(options.b), tolerance=options.tolerance)
    print_shown(comparison)
    if options.output is not None:
        print(f"Written: {comparison.to_html(options.output)}")
    return {"different": 1, "not compared": 2}.get(comparison.verdict, 0)


def _add_view(view: argparse.ArgumentParser) -> None:
    view.add_argument("file", type=Path, help=f"an .html page, a {SUFFIX} file, or a .json file that history.to_json() wrote")
    view.add_argument("-o", "--output", type=Path, help="the page to write (default: next to the file, and opened)")
    view.add_argument("--compare", type=Path, metavar="FILE", help="another file, to show next to the first")


def run_view(options: argparse.Namespace) -> int:
    """Open a page; a payload becomes a page first."""
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
    """What a page shows of a file: a saved history, or a payload."""
    return load(file) if _is_file(str(file)) else read_payload(file)


# The demo ---------------------------------------------------------------------------------------------------------


def _add_demo(demo: argparse.ArgumentParser) -> None:
    demo.add_argument("--folder", type=Path, default=Path("torcheer_demo"), help="where to write (default: %(default)s)")


def run_demo(options: argparse.Namespace) -> int:
    """Log AlexNet, a recurrent model and a transformer, and show what there is to see."""
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


# name, its arguments, what it does, what --help says of it
_COMMANDS: list[tuple[str, Callable[[argparse.ArgumentParser], None], Callable[[argparse.Namespace], int], str]] = [
    ("demo", _add_demo, run_demo, "log and draw AlexNet, a recurrent model and a transformer, and write everything to files"),
    ("draw", _add_draw, run_draw, "draw a model: torcheer draw torchvision.models:resnet18 --input 1,3,224,224"),
    ("find", _add_find, run_find, "print the operations that keys mean: torcheer find my_models:Net 'blocks.*.mlp'"),
    ("show", _add_show, run_show, "show a model in the viewer: torcheer show my_models:Net --input 1,3,224,224"),
    ("summary", _add_summary, run_summary, "print the modules of a model, with shapes, parameters and FLOPs"),
    ("log", _add_log, run_log, "save the history of a model: torcheer log my_models:Net -o run.safetensors"),
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
