"""ModelHistory: the object a user holds. A history, and what can be done with one."""

from __future__ import annotations

from .history import History


class ModelHistory(History):
    """The whole history of one recording: layers, operations, modules, parameters, what they cost.

    >>> import torch, torcheer
    >>> model = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.ReLU())
    >>> history = torcheer.log_forward_pass(model, torch.ones(1, 2))
    >>> [layer.label for layer in history]
    ['input_1_0', 'linear_1_1', 'relu_1_2', 'output_1_3']
    >>> history["relu_1"].tensor_shape == history["1"].tensor_shape == history[2].tensor_shape
    True
    """
