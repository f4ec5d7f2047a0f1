"""Statistics that `extract(keep=…)` keeps of a layer instead of its values: mean, covariance, top samples, histograms.

    from torcheer.reducers import Mean, TopK
    features = tl.extract(model, loader, ["layer3"], to="features/", keep=[Mean(), TopK(20)])

A reducer is an immutable description. What was found so far is a state: named tensors. States of parts of the data are merged
in the order of the data, so that the result is the same to the last bit, whoever merges them.
"""

from dataclasses import fields

from ..errors import InvalidArgument
from .covariance import Covariance as Covariance
from .covariance import CovarianceResult as CovarianceResult
from .histogram import Histogram as Histogram
from .histogram import HistogramResult as HistogramResult
from .mean import Mean as Mean
from .mean import MeanResult as MeanResult
from .reducer import Reducer as Reducer
from .reducer import State as State
from .top_k import TopK as TopK
from .top_k import TopKResult as TopKResult

KINDS: dict[str, type[Reducer]] = {"Mean": Mean, "Covariance": Covariance, "TopK": TopK, "Histogram": Histogram}


def reducer_from(description: object) -> Reducer:
    """The reducer with this `describe()`; raises InvalidArgument where there is none.

    >>> reducer_from(TopK(5).describe())
    TopK(k=5)
    """
    if not isinstance(description, dict) or description.get("reducer") not in KINDS:
        raise InvalidArgument(f"this describes none of the reducers {', '.join(KINDS)}: {description!r:.80}.")
    options = {name: value for name, value in description.items() if name != "reducer"}
    kind = KINDS[description["reducer"]]
    if not options.keys() <= {one.name for one in fields(kind)}:
        raise InvalidArgument(f"{kind.__name__} has no such options: {description!r:.200}.")
    return kind(**options)
