"""Attention in a log: queries, keys, values and the pattern of each head, also where attention ran as one fused call.

A fused call does not return its pattern, so it is computed from the arguments (`fused.py`). Where attention is written out, the
pattern is the result of its softmax (`written_out.py`). `head_axis.py` finds which elements of other values, such as
projections, belong to which head.
"""

from .head_axis import head_axis as head_axis
from .heads import Attention as Attention
from .heads import Heads as Heads
from .heads import Part as Part
from .reading import attention_in as attention_in
from .reading import attention_of as attention_of
from .reading import heads_of as heads_of
from .reading import is_attention as is_attention
from .reading import is_fused as is_fused
