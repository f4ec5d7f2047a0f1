"""Numbers about a tensor, for everybody who shows some: the graph page, Xray, its report."""

from .reading import dense, dot, magnitudes, norm, real, short
from .statistics import BIN_EDGES, LINEAR_BINS, NUM_BINS, ZERO_BIN, Statistics, statistics_of

__all__ = [
    "BIN_EDGES",
    "LINEAR_BINS",
    "NUM_BINS",
    "ZERO_BIN",
    "Statistics",
    "dense",
    "dot",
    "magnitudes",
    "norm",
    "real",
    "short",
    "statistics_of",
]
