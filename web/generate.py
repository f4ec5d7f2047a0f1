"""Writes what TypeScript and the documentation take from Python: types, defaults, checks, colours, tables of keys.

`make web-types` runs it; a test fails when what it writes is not what is committed.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

from torcheer import Call, Layer, ModelHistory, Module, Operation
from torcheer._text import colors
from torcheer.log.operation import facts_of
from torcheer.page.schema import FORMAT, GRAPH, REPORT, TYPES, VERSION, PageKey, Part, panel_rows, required

ROOT = Path(__file__).resolve().parent.parent
HEADER = "Written by `make web-types` from src/torcheer/{source}. Do not edit."


def generated() -> dict[Path, str]:
    """Every file that is written from Python, and what is in it."""
    folder = ROOT / "web" / "shared" / "generated"
    constants = f"export const FORMAT = {json.dumps(FORMAT)};\nexport const VERSION = {VERSION};\n\n"
    docs = ROOT / "docs"
    return {
        folder / "graph_format.ts": _header("page/schema.py") + constants + _format(GRAPH) + _panel(),
        folder / "report_format.ts": _header("page/schema.py") + _format(REPORT),
        folder / "colors.ts": _header("_text/colors.py") + _colors(),
        folder / "theme.css": f"/* {HEADER.format(source='_text/colors.py')} */\n\n" + _css(),
        docs / "viewer_format.md": _documented(docs / "viewer_format.md", GRAPH),
        docs / "report_format.md": _documented(docs / "report_format.md", REPORT),
        docs / "attributes.md": _attributes(),
    }


_ATTRIBUTES = """# Attributes

<!-- Written by `make web-types` from the classes. Do not edit. -->

Every attribute of the objects that a history gives. A `Layer` also has the attributes of `Operation`, with the value that all
its passes share. `column` is the name in `to_pandas()` and `to_csv()`.
"""


def _attributes() -> str:
    """The tables of docs/attributes.md: every attribute of what a user holds."""
    lines = [_ATTRIBUTES]
    for cls in (ModelHistory, Operation, Layer, Module, Call):
        inherited = {fact.name for fact in facts_of(Operation)} if cls is Layer else set()
        facts = [fact for fact in facts_of(cls) if fact.name not in inherited]
        has_columns = any(fact.column for fact in facts)
        lines.append(f"## `{cls.__name__}`\n")
        lines.append("| attribute | type | column | what it is |" if has_columns else "| attribute | type | what it is |")
        lines.append("| --- | --- | --- | --- |" if has_columns else "| --- | --- | --- |")
        for fact in facts:
            kind = fact.type.replace("|", "\\|")
            cells = [f"`{fact.name}`", f"`{kind}`", *([fact.column or ""] if has_columns else []), fact.sentence]
            lines.append(f"| {' | '.join(cells)} |")
        lines.append("")
    return "\n".join(lines)


def _header(source: str) -> str:
    return f"// {HEADER.format(source=source)}\n\n"


# The format ---------------------------------------------------------------------------------------------------------


def _format(parts: dict[str, Part]) -> str:
    """An interface for each part, and the table by which `filled` in shared/filling.ts checks and completes data."""
    types = {_type(name) for name in parts}
    made = ['import type { Parts } from "../filling";\n']
    for name, part in parts.items():
        made += [f"export interface {_type(name)} {{", *(f"  {one}: {key.type};" for one, key in part.items()), "}\n"]
    made.append("export const PARTS: Parts = {")
    for name, part in parts.items():
        checks = ", ".join(f"{one}: {_check(key, types)}" for one, key in part.items())
        made.append(f"  {_type(name)}: {{\n    required: {json.dumps(required(part))},")
        template = {one: None if key.is_required else key.default for one, key in part.items()}
        made.append(f"    template: {json.dumps(template)},\n    checks: {{ {checks} }},\n  }},")
    return "\n".join([*made, "};\n"])


def _type(name: str) -> str:
    return TYPES.get(name, name.capitalize())


def _check(key: PageKey, types: set[str]) -> str:
    """What JSON has to hold: a type of value, of which part its objects are, and whether it may be null."""
    plain = key.type.removesuffix(" | null")
    base = plain.removesuffix("[]")
    kind = "list" if plain.endswith("]") else "object" if base in types or base.startswith("Record<") else base
    said = [f'is: "{kind}"']
    said += [f'of: "{base}"'] if base in types else []
    said += ["isNullable: true"] if plain != key.type else []
    return f"{{ {', '.join(said)} }}"


def _panel() -> str:
    """The rows of an operation's panel, by section."""
    made = ["", "export const PANEL_ROWS = {"]
    for section, rows in panel_rows().items():
        made.append(f"  {section}: [")
        for name, row in rows:
            said = {"title": row.title, "key": name, "format": row.format, **({"yes": row.yes} if row.yes else {})}
            made.append(f"    {{ {', '.join(f'{one}: {json.dumps(text)}' for one, text in said.items())} }},")
        made.append("  ],")
    return "\n".join([*made, "} as const;\n"])


def _documented(page: Path, parts: dict[str, Part]) -> str:
    """A page of the documentation with the table in the section of each part written anew."""
    text = page.read_text(encoding="utf-8")
    for name, part in parts.items():
        rows = "\n".join(_row(one, key) for one, key in part.items())
        table = f"| key | value | default |\n| --- | --- | --- |\n{rows}\n"
        title = "Gradient" if name == "grad" else name.capitalize()
        section = re.compile(rf"(^## {title}\n(?:(?!^## |^\|).*\n)*)(?:^\|.*\n)*", re.MULTILINE)
        found = section.search(text)
        if found is None:
            raise ValueError(f"{page} has no section '## {title}'.")
        text = text[: found.start()] + found[1] + table + text[found.end() :]
    return text


def _row(name: str, key: PageKey) -> str:
    return f"| `{name}` | {key.about} | {'' if key.is_required else f'`{json.dumps(key.default)}` '}|"


# Colours ------------------------------------------------------------------------------------------------------------


def _colors() -> str:
    titles = {name: title for name, (title, *_) in colors.CATEGORIES.items()}
    constants = {
        "BOTH_SIGNS": colors.BOTH_SIGNS,
        "NEVER_NEGATIVE": colors.NEVER_NEGATIVE,
        "NONFINITE": colors.NONFINITE,
        "CATEGORY_TITLES": titles,
        "THEMES": _themes(),
    }
    made = [f"export const {name} = {json.dumps(value, indent=2)} as const;\n" for name, value in constants.items()]
    made.append("export type Category = keyof typeof CATEGORY_TITLES;")
    made.append("export type ThemeName = keyof typeof THEMES;")
    made.append("export type Theme = (typeof THEMES)[ThemeName];\n")
    return "\n".join(made)


def _themes() -> dict[str, object]:
    made: dict[str, object] = {}
    for number, name in enumerate(colors.COST_RAMPS):
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
