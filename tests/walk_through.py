"""What a new user does, with an installed torcheer and nothing else: `make test-wheel` runs it in an empty environment."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

import torch

import torch_vis  # noqa: F401
import torcheer as tl
from torcheer.demo import AlexNet


def main() -> None:
    assert "site-packages" in tl.__file__, f"torcheer is not installed, but imported from {tl.__file__}"
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        alexnet, x = AlexNet().eval(), torch.rand(1, 3, 64, 64)
        history = tl.log_forward_pass(alexnet, x)
        assert "conv2d_3_7" in str(history)
        assert torch.equal(history["output"].activation, alexnet(x))
        history.draw(folder / "alexnet.svg")
        assert (folder / "alexnet.svg").stat().st_size > 1000
        assert history.to_html(folder / "alexnet.html").stat().st_size > 100_000
        loaded = tl.load(history.save(folder / "alexnet.safetensors", params=True))
        assert loaded.validate()
        assert tl.validate_forward_pass(alexnet, x)
        with tl.tap(alexnet, ["features.6"]) as values:
            alexnet(x)
        assert torch.equal(values["features.6"], history["features.6"].activation)
        net = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU(), torch.nn.Linear(4, 2))
        xray = tl.Xray(net, torch.rand(8, 4), ["0"], folder=folder / "run")
        net(torch.rand(8, 4)).sum().backward()
        xray.take_graphs(0)
        xray.report(folder / "report.html")
        xray.close()
        command = [str(Path(sys.executable).parent / "torcheer"), "draw", "torch.nn:ReLU", "--input", "1,3", "-o", "relu.svg"]
        subprocess.run(command, cwd=folder, check=True)
        assert (folder / "relu.svg").exists()
    print(f"torcheer {tl.__version__} works with torch {torch.__version__}, Python {sys.version.split()[0]}")


if __name__ == "__main__":
    main()
