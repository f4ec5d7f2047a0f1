"""Runs Graphviz in a process of its own, which can be stopped: reads DOT, writes what it becomes.

Started by its path, as `python -I worker.py FOLDER ENGINE FORMAT`, so that torch is not imported. FOLDER is where pygraphviz
lies.
"""

from __future__ import annotations

import sys

NOT_IMPORTABLE = 3


def main(folder: str, engine: str, form: str) -> int:
    """Lay out or draw the graph on standard input."""
    sys.path.append(folder)
    try:
        import pygraphviz  # what this process is for; it may be missing or broken
    except (ImportError, OSError) as error:
        print(error, file=sys.stderr)
        return NOT_IMPORTABLE
    graph = pygraphviz.AGraph(string=sys.stdin.buffer.read().decode())
    sys.stdout.buffer.write(graph.draw(format=form, prog=engine))
    return 0


if __name__ == "__main__":
    raise SystemExit(main(*sys.argv[1:]))
