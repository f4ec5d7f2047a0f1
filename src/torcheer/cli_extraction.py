"""`torcheer extract` and `torcheer features`: activations of whole datasets, from the command line."""

from __future__ import annotations

import argparse
import re
import sys
from typing import Any

import torch

from .cli_names import find_model, find_object, make_object, object_named, told
from .errors import InvalidArgument
from .extraction import Features, extract, open_features
from .extraction.data.batches import world
from .extraction.layers.transforms import READY_MADE
from .history.printing.text import human_size
from .reducers import KINDS, TopK


def add_extract(command: argparse.ArgumentParser) -> None:
    """The arguments of `torcheer extract`."""
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
        help=f"statistics instead of values: {', '.join(KINDS)}, also as TopK=50; with 'activations' values too",
    )
    command.add_argument("--dtype", help="the type that values are stored in, such as float16 (default: as they are)")
    command.add_argument("--tokens", action="store_true", help="one row for each position that is no padding")
    command.add_argument(
        "--block",
        type=int,
        help="how many samples a file has at least (default: an eighth of the samples before it, 32 to 1024)",
    )
    command.add_argument("--ids", metavar="NAME", help="the item of the batches that samples are known by: its name or place")
    command.add_argument("--call", metavar="MODULE:FUNCTION", help="call(model, batch) runs the model")
    command.add_argument("--device", help="where the model runs, such as cuda (default: where it is)")
    command.add_argument("--whole-pass", action="store_true", help="run each pass to its end, not to the last of the layers")
    command.add_argument("--no-resume", action="store_true", help="refuse a folder that has features already")


def run_extract(options: argparse.Namespace) -> int:
    """Run a model over a dataset and write the values of layers, telling how far it is."""
    model: Any = find_model(options.model)
    if not isinstance(model, torch.nn.Module):
        raise InvalidArgument(f"{options.model} is no nn.Module, whose layers could be read: it is a {type(model).__name__}.")
    data = make_object(options.data, find_object(options.data, "data", "my_data:make_loader"), "data")
    if options.device is not None:
        model = told(f"--device {options.device}", lambda: model.to(options.device))
    addresses = {address for address, _ in model.named_modules()}
    transform, call = _transform(options.transform), _function(options.call)
    keep = [_kept(text) for text in options.keep] if options.keep else None
    try:
        features = told(
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
        print(f"\nInterrupted. The same command goes on with what is in {options.output}{there}.", file=sys.stderr)
        return 130
    if world()[0] == 0:
        _print(features)
    return 0


def _layer(text: str, addresses: set[str]) -> Any:
    """A key as it is typed in a shell: a text, unless it spells a class or a function, and no address."""
    is_name = re.match(r"[A-Za-z_]", text) is not None and text not in addresses
    return (object_named(text) if is_name else None) or text


def _kept(text: str) -> Any:
    """What `--keep` names: a reducer, also with a number, or activations."""
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
    """The arguments of `torcheer features`."""
    command.add_argument("folder", help="a folder that 'torcheer extract' or extract() wrote, or is writing; also as a URL")


def run_features(options: argparse.Namespace) -> int:
    """Print what is in a folder of features."""
    _print(open_features(options.folder))
    return 0


def _print(features: Features) -> None:
    """Print what is there, and what of it `repr` leaves out."""
    print(features)
    settings = features.plan.settings
    given = {name: value for name, value in settings.items() if isinstance(value, (str, int)) and value and name != "ids"}
    said = {
        "labels": ", ".join(features.labels),
        "ids": "of every sample" if features.ids is not None else "",
        "reducers": _reducers(settings.get("keep")),
        "settings": ", ".join(f"{name}={value}" for name, value in given.items()),
        "on disk": human_size(features.size_on_disk),
    }
    for name, value in said.items():
        if value:
            print(f"  {name}: {value}")


def _reducers(keep: Any) -> str:
    """Which layers went through which reducers."""
    found = keep.get("reducers") if isinstance(keep, dict) else None
    if not isinstance(found, dict):
        return ""
    return "; ".join(f"{name}: {', '.join(str(one.get('reducer')) for one in some)}" for name, some in found.items())
