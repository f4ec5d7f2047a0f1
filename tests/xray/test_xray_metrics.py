"""What goes with a snapshot: metrics, the figure at once, a selector for each sort of layer; what was drawn wrongly."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import nn

from torcheer import InvalidArgument, Xray
from torcheer._text import human_size
from torcheer.xray import FirstFilters, Limits, Run
from torcheer.xray.tiles import make_mosaic

X = torch.ones(2, 3, 8, 8)


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(288, 10))


@pytest.fixture
def xray(tmp_path):
    with Xray(network(), X, ["0", "3"], folder=tmp_path / "run") as made:
        yield made


def test_metrics_are_written_down_with_the_snapshot(xray):
    """Tensors with a graph behind them, numbers, NumPy's numbers; what is not finite stays so."""
    loss = torch.ones(1, requires_grad=True).sum() * 2.5
    xray.take_graphs(0, metrics={"loss": loss, "rate": 1e-3, "accuracy": np.float32(0.5)})
    xray.take_graphs(1, metrics={"loss": math.nan, "accuracy": torch.tensor([math.inf])})
    xray.take_graphs(2)
    run = xray.run
    assert [one.metrics for one in run.snapshots][0] == {"loss": 2.5, "rate": 1e-3, "accuracy": 0.5}
    last = Run(type(run.files).open(run.files.folder)).snapshot(1).metrics
    assert math.isnan(last["loss"])
    assert last["accuracy"] == math.inf
    assert run.snapshot(2).metrics == {}
    assert run.metrics == ["loss", "rate", "accuracy"]
    assert "with loss, rate, accuracy" in str(xray.saved())


def test_a_snapshot_that_is_not_due_leaves_its_metrics(tmp_path):
    """They are not those of the next one."""
    with Xray(network(), X, ["0"], folder=tmp_path / "run", every=2) as xray:
        xray.take_graphs(0, metrics={"loss": 1.0})
        xray.take_graphs(1, metrics={"other": 2.0})
        xray.take_graphs(2, metrics={"loss": 3.0})
    assert [one.metrics for one in xray.run.snapshots] == [{"loss": 1.0}, {"loss": 3.0}]


def test_metrics_of_a_recorded_step(xray):
    model = xray._probe.model
    with xray.step(4):
        loss = model(X).square().mean()
        loss.backward()
        xray.note_metrics({"loss": loss})
    assert xray.run.snapshot(4).metrics == {"loss": pytest.approx(float(loss.detach()))}


@pytest.mark.parametrize(
    ("metrics", "said"),
    [
        ([1.0], "metrics are a dictionary"),
        ({1: 1.0}, "named by texts"),
        ({"loss": torch.ones(3)}, r"metric 'loss' must be one number; got a tensor of shape \(3,\)"),
        ({"loss": "low"}, "metric 'loss' must be a number"),
        ({"loss": None}, "got None"),
    ],
)
def test_metrics_that_are_no_numbers_are_told(xray, metrics, said):
    with pytest.raises(InvalidArgument, match=said):
        xray.take_graphs(metrics=metrics)


def test_take_graph_and_show_at_once(xray, capsys):
    """The name in the singular works too, and the figure is drawn without another line."""
    assert xray.take_graph(3, show=True, metrics={"loss": 1.0})
    xray.close()
    assert (xray.folder / "figures" / "step_00000003.png").exists()
    assert "step_00000003.png" in capsys.readouterr().out


def last_ones(layer, count, limit, tensor):
    return range(count - limit, count)


def test_convolutions_and_fully_connected_layers_have_selectors_of_their_own(tmp_path):
    """Each sort has its own limits as well; a sort that is not named chooses at random."""
    options = {"limits": Limits(channels=3, units=4)}
    selector = {"conv": FirstFilters(), "fc": last_ones}
    with Xray(network(), X, ["0", "3"], folder=tmp_path / "run", selector=selector, **options) as xray:
        xray.take_graphs()
    assert xray.run.entry("0", "weight").rows == xray.run.entry("0", "activation").rows == (0, 1, 2)
    assert xray.run.entry("3", "weight").rows == xray.run.entry("3", "layer").columns == (6, 7, 8, 9)
    with Xray(network(), X, ["0", "3"], folder=tmp_path / "two", selector={"fc": last_ones}, **options) as other:
        other.take_graphs()
    assert other.run.entry("3", "weight").rows == (6, 7, 8, 9)
    assert other.run.entry("0", "weight").rows != (5, 6, 7)


@pytest.mark.parametrize(("selector", "said"), [({"linear": last_ones}, "'conv' and for 'fc'"), ({"fc": 3}, "got int")])
def test_a_selector_for_nothing_is_told(tmp_path, selector, said):
    with pytest.raises(InvalidArgument, match=said):
        Xray(network(), X, ["0"], folder=tmp_path / "run", selector=selector)


@pytest.mark.parametrize(
    ("layer", "given", "is_color"),
    [
        (lambda: nn.Conv2d(3, 4, 5), (1, 3, 8, 8), True),
        (lambda: nn.Conv1d(3, 4, 5), (1, 3, 8), False),
        (lambda: nn.Conv3d(3, 4, 2), (1, 3, 4, 4, 4), False),
        (lambda: nn.Conv2d(6, 4, 5, groups=2), (1, 6, 8, 8), False),
        (lambda: nn.ConvTranspose2d(3, 3, 5), (1, 3, 8, 8), False),
        (lambda: nn.Linear(3, 4), (1, 3), False),
    ],
    ids=["pictures", "signals", "volumes", "groups", "transposed", "connected"],
)
def test_only_filters_over_three_channels_of_pictures_are_drawn_in_color(tmp_path, layer, given, is_color):
    with Xray(nn.Sequential(layer()), given, {"0": ["weight", "layer"]}, folder=tmp_path / "run") as xray:
        xray.take_graphs()
    run = xray.run
    entry = run.entry("0", "weight")
    assert entry.is_color == make_mosaic(run.tensor("0", "weight"), entry).is_color == is_color


def test_sizes_are_the_same_in_the_text_and_in_the_report(xray, tmp_path, page):
    """Both in units of 1024."""
    xray.take_graphs()
    size = human_size(xray.saved().bytes)
    assert size in str(xray.saved())
    page.goto(xray.report(tmp_path / "report.html").as_uri())
    page.wait_for_selector("#main:not([hidden])")
    assert f"{size} on disk" in page.inner_text("body")


def test_the_loss_of_the_probe_is_a_metric_by_itself(tmp_path):
    """So a report has a curve over its slider without a word about metrics; the user's own come first."""
    torch.manual_seed(0)
    model, x, target = nn.Linear(3, 1), torch.rand(4, 3), torch.rand(4, 1)
    xray = Xray(model, x, [""], folder=tmp_path / "run", loss_fn=nn.functional.mse_loss, target=target)
    xray.take_graphs(0, metrics={"rate": 0.1})
    xray.take_graphs(1)
    xray.close()
    expected = float(nn.functional.mse_loss(model(x), target).detach())
    assert xray.run.metrics == ["rate", "probe loss"]
    assert xray.run.snapshot(1).metrics == {"probe loss": pytest.approx(expected)}


def test_without_a_loss_there_is_no_metric(tmp_path):
    xray = Xray(nn.Linear(3, 1), torch.rand(4, 3), [""], folder=tmp_path / "run")
    xray.take_graphs(0)
    xray.close()
    assert xray.run.metrics == []


@pytest.mark.parametrize("layers", [None, {"0": ["weight"]}], ids=["by default", "weights"])
def test_the_loss_of_the_probe_is_a_metric_also_where_no_gradient_is_watched(tmp_path, layers):
    model, x, target = nn.Sequential(nn.Linear(3, 2), nn.ReLU()), torch.randn(4, 3), torch.randn(4, 2)
    with Xray(model, x, layers, folder=tmp_path / "run", loss_fn=nn.functional.mse_loss, target=target) as xray:
        xray.take_graphs(0)
        loss = nn.functional.mse_loss(model(x), target)
        assert xray.run.snapshot().metrics == {"probe loss": pytest.approx(loss.item())}
        gradient = torch.autograd.grad(loss, list(model.parameters()))
        assert xray.run.summary("0").grad_norm == pytest.approx(torch.cat([one.flatten() for one in gradient]).norm().item())
    assert all(param.grad is None for param in model.parameters())
