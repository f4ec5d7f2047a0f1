"""How similar layers are, within a model or between two: CKA, RSA, and the matrix of what was found."""

from .comparing import similarity as similarity
from .matrix import Similarity as Similarity
