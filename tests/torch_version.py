"""The version of torch that the tests run with, as two numbers."""

from __future__ import annotations

import torch

TORCH = tuple(map(int, torch.__version__.split("+")[0].split(".")[:2]))
