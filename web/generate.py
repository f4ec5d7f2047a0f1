"""Writes what TypeScript and the documentation take from Python: types, defaults, checks, colours, tables of keys.

`make web-types` runs it; a test fails when what it writes is not what is committed.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

from torcheer.web import colors
from torcheer.web.schema import FORMAT, GRAPH, REPORT, VERSION, Key, Part

ROOT = Path(__file__).resolve().parent.parent
HEADER = "Written by `make web-types` from src/torcheer/web/{source}. Do not edit."


def generated() -> dict[Path, str]:
    """Every file that is written from Python, and what is in it."""
    folder = ROOT / "web" / "shared" / "generated"
    constants = f"export const FORMAT = {json.dumps(FORMAT)};\nexport const VERSION = {VERSION};\n\n"
    docs = ROOT / "docs"
    return {
        folder / "graph_format.ts": _header("schema.py") + constants + _format(GRAPH),
        folder / "report_format.ts": _header("schema.py") + _format(REPORT),
        folder / "colors.ts": _header("colors.py") + _colors(),
        folder / "theme.css": f"/* {HEADER.format(source='colors.py')} */\n\n" + _css(),
        docs / "viewer_format.md": _documented(docs / "viewer_format.md", GRAPH),
        docs / "report_format.md": _documented(docs / "report_format.md", REPORT),
    }


def _header(source: str) -> str:
    return f"// {HEADER.format(source=source)}\n\n"


# The format ---------------------------------------------------------------------------------------------------------


def _format(parts: dict[str, Part]) -> str:
    """An interface for each part, and the table by which `filled` in shared/filling.ts checks and completes data."""
    types = {part.type for part in parts.values()}
    interfaces = "\n".join(_interface(part) for part in parts.values())
    table = "\n".join(_entry(part, types) for part in parts.values())
    return f'import type {{ Parts }} from "../filling";\n\n{interfaces}\nexport const PARTS: Parts = {{\n{table}\n}};\n'


def _interface(part: Part) -> str:
    keys = "\n".join(f"  {name}: {key.type};" for name, key in part.keys.items())
    return f"export interface {part.type} {{\n{keys}\n}}\n"


def _entry(part: Part, types: set[str]) -> str:
    checks = ", ".join(f"{name}: {_check(key, types)}" for name, key in part.keys.items())
    return (
        f"  {part.type}: {{\n    required: {json.dumps(part.required)},\n"
        f"    defaults: {json.dumps(part.defaults)},\n    checks: {{ {checks} }},\n  }},"
    )


def _check(key: Key, types: set[str]) -> str:
    """What JSON has to hold: a type of value, of which part its objects are, and whether it may be null."""
    plain = key.type.removesuffix(" | null")
    base = plain.removesuffix("[]")
    is_list = plain.endswith("]")
    kind = "list" if is_list else "object" if base in types or base.startswith("Record<") else base
    said = [f'is: "{kind}"']
    said += [f'of: "{base}"'] if base in types else []
    said += ["isNullable: true"] if plain != key.type else []
    return f"{{ {', '.join(said)} }}"


def _documented(page: Path, parts: dict[str, Part]) -> str:
    """A page of the documentation with the table in the section of each part written anew."""
    text = page.read_text(encoding="utf-8")
    for part in parts.values():
        section = re.compile(rf"(^## {part.title}\n(?:(?!^## |^\|).*\n)*)(?:^\|.*\n)*", re.MULTILINE)
        text, count = section.subn(lambda found, part=part: found[1] + _table(part), text, count=1)
        if not count:
            raise ValueError(f"{page} has no section '## {part.title}'.")
    return text


def _table(part: Part) -> str:
    rows = [
        f"| `{name}` | {key.about} | {'' if key.is_required else f'`{json.dumps(key.default)}` '}|"
        for name, key in part.keys.items()
    ]
    return "\n".join(["| key | value | default |", "| --- | --- | --- |", *rows, ""])


# Colours ------------------------------------------------------------------------------------------------------------


def _colors() -> str:
    tones = ", ".join(f'"{_camel(name)}"' for name in colors.THEME).replace(", ", " | ")
    titles = {name: title for name, (title, *_) in colors.CATEGORIES.items()}
    return "\n".join(
        [
            f"export const BOTH_SIGNS = {json.dumps(colors.BOTH_SIGNS)};",
            f"export const NEVER_NEGATIVE = {json.dumps(colors.NEVER_NEGATIVE)};",
            f"export const NONFINITE = {json.dumps(colors.NONFINITE)};",
            "",
            f"export const CATEGORY_TITLES = {json.dumps(titles, indent=2)};",
            "export type Category = keyof typeof CATEGORY_TITLES;",
            "",
            "export interface CategoryLook {\n  fill: string;\n  accent: string;\n}",
            "",
            f"export type Tone = {tones};",
            "",
            "export interface Theme extends Record<Tone, string> {",
            '  name: "light" | "dark";',
            "  costRamp: string[];",
            "  shareRamp: string[];",
            "  categories: Record<Category, CategoryLook>;",
            "}",
            "",
            f'export const THEMES: Record<Theme["name"], Theme> = {json.dumps(_themes(), indent=2)};',
            "",
        ]
    )


def _themes() -> dict[str, object]:
    made: dict[str, object] = {}
    for number, name in enumerate(("light", "dark")):
        looks = {
            one: {"fill": found[2 * number + 1], "accent": found[2 * number + 2]} for one, found in colors.CATEGORIES.items()
        }
        made[name] = {
            "name": name,
            **{_camel(tone): pair[number] for tone, pair in colors.THEME.items()},
            "costRamp": colors.COST_RAMPS[name],
            "shareRamp": colors.SHARE_RAMPS[name],
            "categories": looks,
        }
    return made


def _camel(name: str) -> str:
    return re.sub(r"_(\w)", lambda found: found[1].upper(), name)


def _css() -> str:
    blocks = []
    for number, (selector, scheme) in enumerate(((":root", "light"), (':root[data-theme="dark"]', "dark"))):
        lines = [f"  --{tone.replace('_', '-')}: {pair[number].lower()};" for tone, pair in colors.THEME.items()]
        blocks.append("\n".join([f"{selector} {{", f"  color-scheme: {scheme};", *lines, "}", ""]))
    return "\n".join(blocks)


if __name__ == "__main__":
    for path, text in generated().items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        print(path.relative_to(ROOT))
