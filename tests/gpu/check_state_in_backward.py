"""Checks on CUDA that a backward pass after a log reads the state as the forward pass left it, against plain torch, bit by bit.

A plain script, since the GPU machines have torch and nothing else:

    PYTHONPATH=src:tests python tests/gpu/check_state_in_backward.py

Prints one line per model and exits with 1 where a gradient differs, or anything is not put back afterwards.
"""

import copy
import sys

import torch

import torcheer
from backward_programs import MODELS, loss_of

DEVICE = sys.argv[1] if len(sys.argv) > 1 else "cuda"


def gradients(model, given):
    return [None if one.grad is None else one.grad.clone() for one in (*model.parameters(), given)]


def same(one, two):
    pairs = list(zip(one, two, strict=True))
    return all(a is b or (a is not None and b is not None and torch.equal(a, b)) for a, b in pairs)


def check(make, by_history):
    torch.manual_seed(0)
    model, given = make().to(DEVICE), torch.rand(3, 4).to(DEVICE).requires_grad_()
    for _ in range(4):  # TorchScript computes otherwise once it knows what it is given
        copy.deepcopy(model)(given)
    twin, twin_given = copy.deepcopy(model), given.detach().clone().requires_grad_()
    torch.manual_seed(1)
    loss_of(twin(twin_given)).backward()
    before = [one.clone() for one in model.state_dict().values()]
    torch.manual_seed(1)
    history = torcheer.log_forward_pass(model, given, save_gradients=True)
    loss = loss_of([output.tensor_contents for output in history.outputs])
    history.log_backward(loss) if by_history else loss.backward()
    is_put_back = all(map(torch.equal, before, model.state_dict().values()))
    return same(gradients(model, given), gradients(twin, twin_given)) and is_put_back


wrong = 0
for name, make in MODELS.items():
    for by_history in (True, False):
        is_right = check(make, by_history)
        wrong += not is_right
        print(f"{name}, {'log_backward' if by_history else 'backward'}: {'ok' if is_right else 'WRONG'}")
sys.exit(bool(wrong))
