"""Exports features to `.npy`, Zarr and Hugging Face `datasets`."""

from __future__ import annotations

import importlib
import io
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from .._files.files import WholeFile, is_link
from ..errors import InvalidArgument, NotWritten

if TYPE_CHECKING:
    from .features import Features, LayerFeatures


_TOGETHER = 32 << 20  # at most about this many bytes are read at once


def as_numpy(tensor: Tensor) -> np.ndarray[Any, Any]:
    """A tensor of any device as an array. Dtypes that NumPy lacks become float32 or complex64."""
    tensor = tensor.detach().cpu().resolve_conj().resolve_neg()
    try:
        found: np.ndarray[Any, Any] = tensor.numpy()
    except TypeError:
        found = tensor.to(torch.complex64 if tensor.is_complex() else torch.float32).numpy()
    return found


def export_layer(layer: LayerFeatures, path: Path) -> Path:
    """Write a layer into a file in the format that the file's suffix names."""
    if path.suffix == ".npy":
        _write_npy(layer, path)
    elif path.suffix == ".zarr":
        _write_zarr(layer, _new_group(path))
    else:
        raise InvalidArgument(f"features are exported to .npy or .zarr; got {str(path)!r}.")
    return path


def _write_npy(layer: LayerFeatures, path: Path) -> None:
    shape, kind, _ = _form(layer)
    header = io.BytesIO()
    described = {"descr": np.lib.format.dtype_to_descr(kind), "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(header, described)
    with WholeFile(path, "array") as file:
        file.write(header.getvalue())
        for _, rows in _parts(layer):
            if rows.size:
                file.write(np.ascontiguousarray(rows).reshape(-1).view(np.uint8).data)


def _new_group(path: Path) -> Any:
    """A Zarr group in a new or empty folder. zarr itself would delete everything in an existing folder."""
    zarr = _library("zarr", "writing .zarr folders")
    if os.path.lexists(path) and (not path.is_dir() or is_link(path) or any(path.iterdir())):
        raise NotWritten(
            f"features are written into a new or empty .zarr folder, and {str(path)!r} exists already. "
            "Delete it, or choose another path."
        )
    return zarr.open_group(str(path), mode="w")


def _write_zarr(layer: LayerFeatures, group: Any) -> None:
    shape, kind, together = _form(layer)
    create = getattr(group, "create_array", None) or group.create_dataset  # Zarr 3, or 2
    chunks = (max(1, min(len(layer), together)), *shape[1:])
    target = create(layer.name.replace("/", "_") or "output", shape=shape, dtype=kind, chunks=chunks)
    for first, rows in _parts(layer):
        target[first : first + len(rows)] = rows


def _form(layer: LayerFeatures) -> tuple[tuple[int, ...], np.dtype[Any], int]:
    """Return the shape and dtype of a layer as an array, and how many rows to read at once."""
    shape = layer.full_shape()
    kind = as_numpy(torch.empty(0, dtype=layer.dtype)).dtype
    return shape, kind, max(1, _TOGETHER // max(1, kind.itemsize * int(np.prod(shape[1:]))))


def _parts(layer: LayerFeatures) -> Iterator[tuple[int, np.ndarray[Any, Any]]]:
    """Yield all rows in parts, each part with the number of its first row."""
    shape, _, together = _form(layer)
    for first in range(0, len(layer), together):
        rows = layer[first : first + together]
        if rows.shape[1:] != shape[1:]:  # the rows are padded only to the largest of these rows
            found = rows.new_full((len(rows), *shape[1:]), layer.padding)
            found[tuple(slice(0, size) for size in rows.shape)] = rows
            rows = found
        yield first, as_numpy(rows)


def export_features(features: Features, path: Path) -> Path:
    """Write all layers, labels and ids into a Zarr group."""
    if path.suffix != ".zarr":
        raise InvalidArgument(f"all layers are exported to a .zarr folder; got {str(path)!r}. One: features[…].export(path).")
    group = _new_group(path)
    for name in features:
        _write_zarr(features[name].pad() if features[name].is_ragged else features[name], group)
    return path


def to_datasets(features: Features, layers: list[str] | None, cache_dir: str | os.PathLike[str] | None) -> Any:
    """Features as a `datasets.Dataset`, with a column for each layer and label."""
    datasets = _library("datasets", "making a datasets.Dataset")
    names = list(features) if layers is None else layers
    columns = {name: features[name] for name in names}
    if features.tokens is not None:
        raise InvalidArgument(
            "rows of tokens are not samples, so they cannot become a datasets.Dataset; use features[…].to_numpy()."
        )
    types: dict[str, Any] = {}
    for name, layer in columns.items():
        layer.check_even()
        types[name] = _column_type(datasets, layer)
    labels = _labels(features)
    if labels:
        sample = {name: _plain(column[0]) for name, column in labels.items()}
        known = datasets.Dataset.from_list([sample]).features
        types.update({name: known[name] for name in labels})
    # datasets caches the result by the function's arguments. A list would be split among processes, so the layers are JSON.
    given = {"folder": features.location, "layers": json.dumps(names), "version": features.version()}
    options = {"cache_dir": str(cache_dir)} if cache_dir is not None else {}
    return datasets.Dataset.from_generator(dataset_rows, gen_kwargs=given, features=datasets.Features(types), **options)


def dataset_rows(folder: str, layers: str, version: str) -> Iterator[dict[str, Any]]:
    """The samples of some features, as dictionaries. `layers` is JSON, `version` is the features' version."""
    from .features import open_features

    features = open_features(folder)
    names, labels = json.loads(layers), _labels(features)
    for number, sample in enumerate(zip(*(features[name] for name in names), strict=True)):
        row = {name: as_numpy(value) for name, value in zip(names, sample, strict=True)}
        yield {**row, **{name: _plain(column[number]) for name, column in labels.items()}}


def _labels(features: Features) -> dict[str, Any]:
    ids = {} if features.ids is None else {"id": features.ids}
    return {**features.labels, **ids}


def _column_type(datasets: Any, layer: LayerFeatures) -> Any:
    shape, kind = layer.full_shape()[1:], str(as_numpy(layer[0]).dtype)
    if not shape:
        return datasets.Value(kind)
    if len(shape) == 1:
        return datasets.Sequence(datasets.Value(kind), length=shape[0])
    if len(shape) > 5:
        raise InvalidArgument(f"{layer.name!r} has {len(shape)} dimensions for each sample; datasets takes up to five.")
    return getattr(datasets, f"Array{len(shape)}D")(shape=shape, dtype=kind)


def _plain(value: Any) -> Any:
    return value.tolist() if hasattr(value, "tolist") else value


def _library(name: str, what: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError:
        raise InvalidArgument(f"{what} needs the package {name}, which is not installed: pip install {name}.") from None
