"""Numbers about a tensor, for everybody who shows some: the graph page, Xray, its report."""

from .reading import dense, magnitudes, real, short
from .statistics import BIN_EDGES, LINEAR_BINS, NUM_BINS, ZERO_BIN, Statistics, statistics_of

__all__ = [
    "BIN_EDGES",
    "LINEAR_BINS",
    "NUM_BINS",
    "ZERO_BIN",
    "Statistics",
    "dense",
    "magnitudes",
    "real",
    "short",
    "statistics_of",
]
