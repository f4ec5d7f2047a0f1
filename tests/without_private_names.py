"""What `test_private_names.py` runs: everything a user does, with one private name of torch taken away at a time.

    python without_private_names.py hidden|deleted [NAME …]

A name may be several, joined by commas, which are taken away together. torch is imported once; each name is tried in a forked
copy of this process, which imports torcheer. `hidden` names are missing for torcheer alone (`TORCHEER_WITHOUT`). `deleted`
names are removed from torch itself, where plain torch runs on without them, and only `log` and `show` are tried. Writes one
line of JSON for each name: the name, and for each step "ok", what it raised, or "torch" where plain torch raised.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import tempfile
import traceback
import warnings

import matplotlib.pyplot  # noqa: F401  # what torcheer imports, once for all copies
import numpy  # noqa: F401
import safetensors  # noqa: F401
import torch
import torch.distributed
from torch import nn
from torch.overrides import BaseTorchFunctionMode


class Net(nn.Module):
    """A linear layer, an in-place function, a batch norm, attention on torch's fused path, and a view that is written to."""

    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(8, 8)
        self.norm = nn.BatchNorm1d(8)
        self.encoder = nn.TransformerEncoderLayer(8, 2, 8, batch_first=True)

    def forward(self, x):
        h = torch.relu_(self.norm(self.fc(x))) * 1
        h[0].mul_(2)
        return self.encoder(h[None])[0]


def steps(folder):
    """The name of each thing that a user does, and a function that does it and checks what came."""
    import torcheer as tl

    torch.manual_seed(0)
    net, x = Net().eval(), torch.rand(4, 8)
    with torch.no_grad():
        expected = net(x)
    held = {}

    def log():
        with torch.no_grad():
            held["history"] = tl.log_forward_pass(net, x)
        assert torch.allclose(held["history"]["output"].activation, expected, atol=1e-6)

    def show():
        assert "linear_1" in str(held["history"])
        assert str(held["history"].summary())

    def look_up():
        assert torch.equal(held["history"]["fc"].activation, net.fc(x))

    def draw():
        assert held["history"].draw(f"{folder}/net.dot")

    def page():
        assert os.path.getsize(held["history"].to_html(f"{folder}/net.html")) > 10_000

    def save():
        held["history"].save(f"{folder}/net.safetensors", params=True)

    def load():
        loaded = tl.load(f"{folder}/net.safetensors")
        assert torch.equal(loaded["fc"].activation, net.fc(x))

    def tap():
        with tl.tap(net, ["fc", "relu_1"], like=held["history"]) as values:
            net(x)
        assert torch.equal(values["fc"], net.fc(x))

    def validate():
        report = held["history"].validate()
        assert report, report

    def backward():
        traced = tl.log_forward_pass(net, x, save_gradients=True)
        loss = traced["output"].activation.square().sum()
        traced.log_backward(loss)
        plain = torch.autograd.grad(net(x).square().sum(), net.fc.weight)[0]
        assert torch.allclose(traced.param_grads["fc.weight"], plain, atol=1e-5)

    def watch():
        with tl.watch_modules(net) as calls:
            net(x).sum().backward()
        assert calls

    return {
        function.__name__: function for function in (log, show, look_up, draw, page, save, load, tap, validate, backward, watch)
    }, held


def outcome(function):
    try:
        function()
    except BaseException as error:
        where = "".join(traceback.format_tb(error.__traceback__)[-3:])
        return f"{type(error).__name__}: {error}\n{where}"
    return "ok"


def delete(path):
    """Take a name out of torch. Returns False where plain torch does not run without it, or has no such name."""
    owner_path, _, name = path.rpartition(".")
    try:
        owner = torch
        for part in owner_path.split(".")[1:]:
            owner = getattr(owner, part, None) or importlib.import_module(owner_path)
        delattr(owner, name)
    except (AttributeError, TypeError, ImportError):
        return False
    try:
        net = Net()
        torch.distributed.is_initialized()
        with BaseTorchFunctionMode():
            net(torch.rand(4, 8)).sum().backward()
        with torch.no_grad():
            Net().eval()(torch.rand(4, 8))
    except Exception:
        return False
    return True


def run(way, name):
    if way == "deleted" and not delete(name):
        return {"import": "torch"}
    if way == "hidden":
        os.environ["TORCHEER_WITHOUT"] = name
    with tempfile.TemporaryDirectory() as folder:
        found = {}
        try:
            functions, held = steps(folder)
        except BaseException as error:
            return {"import": f"{type(error).__name__}: {error}"}
        found["import"] = "ok"
        chosen = functions if way == "hidden" else ("log", "show")
        for step in chosen:
            found[step] = outcome(functions[step])
            if found["log"] != "ok":
                break  # the other steps ask for the log
        history = held.get("history")
        found["notes"] = list(history.notes) if history is not None else []
        return found


def main():
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    way, names = sys.argv[1], sys.argv[2:]
    for name in names:
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(reading)
            with os.fdopen(writing, "w") as file:
                json.dump(run(way, name), file)
            os._exit(0)
        os.close(writing)
        with os.fdopen(reading) as file:
            written = file.read()
        _, status = os.waitpid(child, 0)
        result = json.loads(written) if written else {"import": f"ended the process: {status}"}
        print(json.dumps([name, result]), flush=True)


if __name__ == "__main__":
    main()
