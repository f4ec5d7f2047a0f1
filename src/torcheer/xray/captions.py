"""The texts about an entry: its title, how much of the tensor is shown, its statistics."""

from __future__ import annotations

from .records import WORDS, Entry
from .tiles import Mosaic


def title_of(entry: Entry, step: int) -> str:
    """The title of an entry at a step: `conv1 · weight · step 40`."""
    return f"{entry.layer} · {WORDS[entry.kind]} · step {step}"


def shape_of(entry: Entry) -> str:
    """The shape of the whole tensor as text: `8 × 3 × 5 × 5`."""
    return " × ".join("?" if size < 0 else str(size) for size in entry.shape) or "one value"


def source_of(entry: Entry) -> str:
    """The parameter or operation of an entry, if the name of the layer does not already say it."""
    return "" if entry.source in (entry.layer, f"{entry.layer}.weight", "weight") else entry.source


def kept_of(entry: Entry, mosaic: Mosaic | None = None) -> str:
    """Say how much of the tensor is kept; with `mosaic`, how much is shown: `16 of 64 filters, 3 of 3 input channels`."""
    if mosaic is not None and mosaic.is_empty:
        return "the tensor is empty"
    row, column = axes_of(entry)
    rows, columns = totals_of(entry)
    said = [_part(len(entry.rows), rows, row)] if row else []
    if mosaic is not None and mosaic.is_color:
        said.append("inputs as red, green, blue")
    elif entry.columns is not None and column and (mosaic is None or mosaic.form != "tiles" or columns != 1):
        said.append(_part(len(entry.columns), columns, column))
    return ", ".join(said)


def is_part(entry: Entry) -> bool:
    """True if rows, columns or samples of the tensor were left out."""
    rows, columns = totals_of(entry)
    kept = len(entry.columns) if entry.columns is not None else columns
    return (len(entry.rows), kept) != (rows, columns) or (
        entry.layout == "maps" and len(entry.shape) > 3 and entry.shape[0] > 1
    )


def axes_of(entry: Entry) -> tuple[str, str]:
    """The words for rows and columns, such as filter and input channel."""
    if entry.axes is not None:
        return entry.axes
    if entry.layout == "maps":
        return "channel", ""
    if entry.layout == "filters":
        return "filter", "input channel"
    if entry.kind in ("weight", "grad"):
        return "unit", "input"
    return ("sample", "unit") if len(entry.shape) == 2 else ("row", "column")


def totals_of(entry: Entry) -> tuple[int | None, int | None]:
    """The numbers of rows and columns of the whole tensor; None if its shape does not give them."""
    if entry.totals is not None:
        return entry.totals
    shape, kept = entry.shape, entry.columns or ()
    if entry.layout == "maps":
        return (shape[-3] if len(shape) == 3 else shape[1] if len(shape) > 3 else None), None
    if len(shape) < 2:
        return 1, shape[0] if shape else 1
    totals = (shape[0], shape[1]) if entry.kind in ("weight", "grad") else (shape[-2], shape[-1])
    if entry.layout == "filters" and not (_fits(entry.rows, totals[0]) and _fits(kept, totals[1])):
        return totals[1], totals[0]  # a transposed convolution has the input channels first
    return totals


def statistics_in_words(entry: Entry) -> list[str]:
    """The statistics of the whole tensor, as short texts."""
    found = entry.statistics
    if found.mean is None or found.std is None:
        return ["no finite value" if found.count else "no values"]
    said = [f"mean {number(found.mean)}", f"std {number(found.std)}"]
    if found.min is not None and found.max is not None:
        said.append(f"min {number(found.min)} … max {number(found.max)}")
    said.append(f"zeros {_percent(found.zero_fraction)}")
    if entry.update_ratio is not None:
        said.append(f"update ratio {number(entry.update_ratio)}")
    if entry.dead is not None:
        said.append(
            f"dead {entry.dead:,} of {entry.units:,} units" if entry.units is not None else f"dead units {entry.dead:,}"
        )
    return said


def nonfinite_in_words(entry: Entry) -> str:
    """Say how many values are not finite: `3 NaN, 1 infinite, of 600 values`. Empty if all values are finite."""
    found = entry.statistics
    said = [f"{count:,} {word}" for count, word in ((found.nan, "NaN"), (found.inf, "infinite")) if count]
    return f"{', '.join(said)}, of {found.count:,} values" if said else ""


def number(value: float) -> str:
    """A number with three digits: `−0.0123`."""
    return f"{value:.3g}".replace("e-0", "e-").replace("e+0", "e").replace("-", "−")


def _part(kept: int, total: int | None, word: str) -> str:
    plural = word if (total or kept) == 1 else f"{word}s"
    return f"{kept:,} of {total:,} {plural}" if total is not None and total >= kept else f"{kept:,} {plural}"


def _fits(numbers: tuple[int, ...], total: int) -> bool:
    return max(numbers, default=0) < total


def _percent(part: float) -> str:
    if 0 < part < 0.001:
        return "<0.1 %"
    if 0.999 < part < 1:
        return ">99.9 %"
    return f"{100 * part:.1f} %" if 0 < part < 0.1 or 0.9 < part < 1 else f"{100 * part:.0f} %"
