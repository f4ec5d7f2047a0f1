"""Pure functions from graph to graph: what a reader does not need is left out, joined or drawn as one."""
