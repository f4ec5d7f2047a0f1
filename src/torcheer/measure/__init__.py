"""Numbers about a tensor, for everybody who shows some: the graph page, Xray, its report."""

from .reading import computes as computes
from .reading import dense as dense
from .reading import dot as dot
from .reading import finite as finite
from .reading import magnitudes as magnitudes
from .reading import norm as norm
from .reading import real as real
from .reading import short as short
from .statistics import BIN_EDGES as BIN_EDGES
from .statistics import LINEAR_BINS as LINEAR_BINS
from .statistics import NUM_BINS as NUM_BINS
from .statistics import ZERO_BIN as ZERO_BIN
from .statistics import Statistics as Statistics
from .statistics import statistics_of as statistics_of
