"""Runs Graphviz in a process of its own, which can be stopped: reads DOT, writes the result.

It is started by its path, `python -I worker.py FOLDER ENGINE FORMAT`, so that torch is not imported. FOLDER contains
pygraphviz. Its wheels contain Graphviz, but not GLib and other system libraries, which PNG and PDF need and small systems
lack. If pygraphviz does not import for this reason, layouts and SVG are made by those libraries of the wheel that do not
need them.
"""

from __future__ import annotations

import ctypes
import sys
from pathlib import Path

NOT_IMPORTABLE = 3
_PLUGINS = ("libgvplugin_core", "libgvplugin_dot_layout", "libgvplugin_neato_layout")
_LIBRARIES = ("libcdt", "libcgraph", "libpathplan", "libxdot", "libltdl", "libgvc", *_PLUGINS)
FORMS_OF_ITS_OWN = ("json0", "svg")  # formats without system libraries


def main(folder: str, engine: str, form: str) -> int:
    """Lay out or draw the graph on standard input."""
    sys.path.append(folder)
    source = sys.stdin.buffer.read()
    try:
        import pygraphviz  # what this process is for; it may be missing or broken
    except (ImportError, OSError) as error:
        try:
            made = made_alone(Path(folder) / "pygraphviz.libs", source, engine, form) if form in FORMS_OF_ITS_OWN else b""
        except (OSError, AttributeError, StopIteration):  # the folder is not a Linux wheel, or has another structure
            made = b""
        if not made:
            print(error, file=sys.stderr)
            return NOT_IMPORTABLE
    else:
        made = pygraphviz.AGraph(string=source.decode()).draw(format=form, prog=engine)
    sys.stdout.buffer.write(made)
    return 0


def made_alone(folder: Path, source: bytes, engine: str, form: str) -> bytes:
    """The output of Graphviz, from those libraries in a folder that need no others; empty if Graphviz fails."""
    found = {name: ctypes.CDLL(str(next(folder.glob(f"{name}-*"))), mode=ctypes.RTLD_GLOBAL) for name in _LIBRARIES}
    graphviz, graphs = found["libgvc"], found["libcgraph"]
    graphviz.gvContextPlugins.restype = graphs.agmemread.restype = ctypes.c_void_p
    context = ctypes.c_void_p(graphviz.gvContextPlugins(None, 0))
    for name in _PLUGINS:
        plugin = ctypes.c_char.in_dll(found[name], f"{name.removeprefix('lib')}_LTX_library")
        graphviz.gvAddLibrary(context, ctypes.byref(plugin))
    graph = ctypes.c_void_p(graphs.agmemread(source))
    if not graph or graphviz.gvLayout(context, graph, engine.encode()) != 0:
        return b""
    result, length = ctypes.POINTER(ctypes.c_char)(), ctypes.c_size_t(0)
    if graphviz.gvRenderData(context, graph, form.encode(), ctypes.byref(result), ctypes.byref(length)) != 0:
        return b""
    return ctypes.string_at(result, length.value)


if __name__ == "__main__":
    raise SystemExit(main(*sys.argv[1:]))
