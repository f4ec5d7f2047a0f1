"""Every kind of finding: programs in which it is planted, and their healthy twins, which get no finding of that kind."""

import csv
import json
import math
from itertools import pairwise
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import torcheer
from torcheer.analysis.diagnosis import KINDS, Checkup, amount, read
from torcheer.analysis.nonfinite import why
from torcheer.cli import main
from torcheer.log.run import run_of

torch.manual_seed(0)
X = torch.randn(4, 8)


class Program(nn.Module):
    """A function of a module and its inputs as a model with these parts."""

    def __init__(self, function, *parts):
        super().__init__()
        self.function = function
        self.parts = nn.ModuleList(parts)

    def forward(self, *inputs):
        return self.function(self.parts, *inputs)


def diagnosis(function, *inputs, parts=(), train=False, loss=None):
    torch.manual_seed(1)
    model = Program(function, *parts).train(train)
    with torch.set_grad_enabled(loss is not None):
        return torcheer.diagnose(model, inputs, loss=loss)


def messages(found, kind, severity=None):
    return [one.message for one in found.of(kind) if severity in (None, one.severity)]


# NaN and infinity: a program, what is said of it, and the severity.
ROW = torch.tensor([[False, False], [True, True]])
NONFINITE = {
    "log of negatives": (lambda p, x: torch.log(x), (torch.tensor([1.0, -0.02, -2.0]),), "log of 2 values < 0, smallest -2"),
    "log of zero": (lambda p, x: torch.log(x), (torch.tensor([1.0, 0.0]),), "log of 1 zero"),
    "square root": (lambda p, x: x.sqrt(), (torch.tensor([1.0, -4.0]),), "sqrt of 1 value < 0, smallest -4"),
    "square root of the reciprocal": (lambda p, x: x.rsqrt(), (torch.tensor([1.0, 0.0]),), "rsqrt of 1 zero"),
    "arcus": (lambda p, x: torch.acos(x), (torch.tensor([1.5]),), "acos of 1 value beyond ±1, smallest 1.5"),
    "zero by zero": (lambda p, x: x / x.sum(), (torch.zeros(3),), "0/0 in 3 places"),
    "division by zero": (lambda p, x: 1 / x, (torch.tensor([0.0, 2.0]),), "division by 0 in 1 place"),
    "in place": (lambda p, x: (x + 0).div_(0), (torch.ones(2),), "division by 0 in 2 places"),
    "float16": (lambda p, x: (x.half() * 300) * 300, (torch.ones(2),), "float16 overflow: 90,000 > 65,504"),
    "float16 of a product": (
        lambda p, x: x.half() @ x.half(),
        (torch.full((64, 64), 40.0),),
        "float16 overflow: 102,400 > 65,504",
    ),
    "a cast": (lambda p, x: x.half(), (torch.tensor([71000.0]),), "71,000 > 65,504"),
    "exponential": (lambda p, x: x.exp(), (torch.tensor([95.2]),), "exp of 95.2; above 88.72 it overflows float32"),
    "power": (lambda p, x: x**0.5, (torch.tensor([-4.0]),), "a negative base (-4) to the power 0.5"),
    "negative power of zero": (lambda p, x: x**-1.0, (torch.tensor([0.0]),), "0 to the negative power -1"),
    "deviation of one": (lambda p, x: x.var(0), (torch.ones(1, 3),), "var of single values"),
    "mean of none": (lambda p, x: x[x > 5].mean(), (torch.ones(3),), "mean of no values"),
    "a sample masked whole": (
        lambda p, x: x.masked_fill(ROW, -torch.inf).softmax(-1),
        (torch.ones(2, 2),),
        "softmax of 1 row that is −inf throughout: a sample masked whole",
    ),
    "difference of infinities": (
        lambda p, x: x.exp() - x.exp(),
        (torch.tensor([200.0]),),
        "infinity − infinity (1 value of 1); infinity began at exp_1_1: exp of 200",
    ),
    "nothing times infinity": (lambda p, x: (1 / x) * 0, (torch.zeros(2),), "0 × infinity"),
    "all targets ignored": (
        lambda p, x: F.cross_entropy(x, torch.full((4,), -100)),
        (X,),
        "targets are all ignore_index (-100)",
    ),
    "the data": (lambda p, x: x + 1, (torch.tensor([1.0, math.nan]),), "it was given to the model"),
}


@pytest.mark.filterwarnings("ignore:.*degrees of freedom")
@pytest.mark.parametrize("case", NONFINITE)
def test_where_nan_and_infinity_begin_and_why(case):
    program, inputs, said = NONFINITE[case]
    found = diagnosis(program, *inputs)
    assert not found.is_healthy
    assert said in found[0].message
    assert found[0].kind == "nonfinite"
    assert found[0].severity == "error"
    if found[0].label != "input_1_0":
        begins = found.history[found[0].label]
        assert not bool(torch.isfinite(begins.activation).all())
        assert "test_diagnosis.py" in str(found[0].source)


def test_the_operation_that_made_the_first_nan_is_named_and_not_those_after_it():
    found = diagnosis(lambda p, x: p[0]((x - 1).log() * 2).relu().sum(), torch.tensor([[0.5, 2.0]]), parts=[nn.Linear(2, 3)])
    assert [one.label for one in found.of("nonfinite")] == ["log_1_2"]


def test_attention_over_a_row_that_is_masked_whole_is_explained_also_where_torch_returns_no_nan():
    def attends(x):
        return F.scaled_dot_product_attention(x, x, x, torch.zeros(2, 2).masked_fill(ROW, -torch.inf))

    history = torcheer.log_forward_pass(attends, torch.ones(1, 2, 2))
    number = history["scaleddotproductattention_1"].number
    assert "attention over 1 row of the mask that is masked throughout" in why(Checkup(run_of(history).index), number, "nan")[0]


def test_two_places_where_nan_begins_are_two_findings():
    found = diagnosis(lambda p, x: (torch.log(x), torch.sqrt(x)), torch.tensor([-1.0]))
    assert [one.label for one in found.errors] == ["log_1_1", "sqrt_1_2"]


HARMLESS = {
    "a mask that a softmax consumes": lambda p, x: x.masked_fill(torch.eye(4, 8, dtype=torch.bool), -torch.inf).softmax(-1),
    "a mask that is added": lambda p, x: (x + torch.full((4, 8), -torch.inf).triu(1)).softmax(-1),
    "the logarithm of zero in a softmax": lambda p, x: x.relu().log().softmax(-1).nan_to_num(),
    "the mask of a fused attention": lambda p, x: F.scaled_dot_product_attention(
        x, x, x, torch.zeros(4, 4).fill_diagonal_(-torch.inf)
    ),
    "a logarithm of zero behind where": lambda p, x: torch.where(x > 0, x.clamp(min=0).log(), 0.0),
    "the largest of none": lambda p, x: torch.full((4,), -torch.inf).maximum(x[:, 0]),
    "the smallest number of the dtype as a mask": lambda p, x: x.masked_fill(
        torch.eye(4, 8, dtype=torch.bool), torch.finfo(x.dtype).min
    ).softmax(-1),
    "a sigmoid by hand": lambda p, x: 1 / (1 + torch.exp(-1000 * x)),
}


@pytest.mark.parametrize("case", HARMLESS)
def test_infinity_that_something_removes_is_no_fault(case):
    found = diagnosis(HARMLESS[case], X)
    assert found.is_healthy
    assert not [one for one in found.of("nonfinite") if one.severity != "note"]


def test_infinity_that_the_program_writes_into_its_output_is_a_note():
    found = diagnosis(lambda p, x: x.masked_fill(x < 0, -torch.inf), X)
    assert found.is_healthy
    assert messages(found, "nonfinite", "note")


def test_nan_that_a_selection_removes_is_a_note():
    found = diagnosis(lambda p, x: torch.where(x > 0, x.log(), 0.0), X)
    assert found.is_healthy
    (message,) = messages(found, "nonfinite", "note")
    assert "no output holds it" in message


def test_a_parameter_with_nan_is_named():
    layer = nn.Linear(8, 3)
    layer.weight.data[1, 2] = math.nan
    found = diagnosis(lambda p, x: p[0](x), X, parts=[layer])
    assert "parameter parts.0.weight holds NaN (1 value of 24)" in messages(found, "nonfinite", "error")


GRADIENTS = {
    "the root of zero": (lambda p, x: p[0](x).clamp(min=0).sqrt().sum(), "the slope of sqrt (sqrt_1_3) is infinite at"),
    "a root behind where": (
        lambda p, x: torch.where(p[0](x) > 0, p[0](x).clamp(min=0).sqrt(), 0.0).sum(),
        "is infinite at",
    ),
}


@pytest.mark.parametrize("case", GRADIENTS)
def test_where_a_gradient_begins_to_be_nan_and_why(case):
    program, said = GRADIENTS[case]
    found = diagnosis(program, X, parts=[nn.Linear(8, 8)], loss=lambda output: output)
    assert any(said in message for message in messages(found, "nonfinite gradient", "error"))


# The other kinds: planted, healthy twin, and the severity of what is planted.
def linear(*sizes):
    return [nn.Linear(one, other) for one, other in pairwise(sizes)]


def deep(parts, x):
    for part in parts:
        x = torch.sigmoid(part(x))
    return x.sum()


class Block(nn.Module):
    def __init__(self, factor):
        super().__init__()
        self.fc, self.factor = nn.Linear(8, 8), factor

    def forward(self, x):
        return x + self.factor * self.fc(x)


def blocks(factor):
    torch.manual_seed(0)
    return [Block(factor) for _ in range(6)]


def shrinking():
    layers = [nn.Linear(8, 8, bias=False) for _ in range(4)]
    for layer in layers:
        layer.weight.data.mul_(0.01)
    return layers


def through(parts, x):
    for part in parts:
        x = part(x)
    return x


def dead_layer(bias):
    torch.manual_seed(0)
    layer = nn.Linear(8, 16)
    layer.bias.data.fill_(bias)
    return [layer]


MANY = torch.randn(64, 8)
PLANTED = {
    "near overflow": (
        (lambda p, x: x.half() * 20000 * 2, (torch.ones(3),)),
        (lambda p, x: x.half() * 200 * 2, (torch.ones(3),)),
        {},
        "warning",
    ),
    "dead units": (
        (lambda p, x: p[0](x).relu(), (MANY,)),
        (lambda p, x: p[1](x).relu(), (MANY,)),
        {"parts": [*dead_layer(-50.0), *dead_layer(0.0)]},
        "warning",
    ),
    "saturated units": (
        (lambda p, x: torch.tanh(1000 * x + 50) * 2, (MANY,)),
        (lambda p, x: torch.tanh(x), (MANY,)),
        {},
        "warning",
    ),
    "growing scale": ((through, (X,), {"parts": blocks(10.0)}), (through, (X,), {"parts": blocks(0.1)}), {}, "note"),
    "vanishing activations": (
        (through, (X,), {"parts": shrinking()}),
        (through, (X,), {"parts": linear(8, 8, 8, 8, 8)}),
        {},
        None,
    ),
    "vanishing gradients": (
        (deep, (X,), {"parts": linear(*[8] * 14), "loss": lambda o: o}),
        (lambda p, x: through(p, x).sum(), (X,), {"parts": blocks(0.1), "loss": lambda o: o}),
        {},
        "warning",
    ),
    "exploding gradients": (
        (lambda p, x: through(p, x).sum(), (X,), {"parts": blocks(30.0), "loss": lambda o: o}),
        (lambda p, x: through(p, x).sum(), (X,), {"parts": blocks(0.1), "loss": lambda o: o}),
        {},
        "warning",
    ),
    "unused parameters": (
        (lambda p, x: p[0](x), (X,)),
        (lambda p, x: p[1](p[0](x)), (X,)),
        {"parts": linear(8, 8, 8)},
        "note",
    ),
    "no gradient": (
        (lambda p, x: p[1](p[0](x).detach()).sum(), (X,)),
        (lambda p, x: p[1](p[0](x)).sum(), (X,)),
        {"parts": linear(8, 8, 8), "loss": lambda o: o},
        "warning",
    ),
    "shared module": (
        (through, (X,), {"parts": [nn.Linear(8, 8)] * 3}),
        (through, (X,), {"parts": linear(8, 8, 8, 8)}),
        {},
        "note",
    ),
    "removed bias": (
        (lambda p, x: p[1](p[0](x)), (torch.rand(2, 3, 8, 8),), {"parts": [nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)]}),
        (lambda p, x: p[1](p[0](x)), (torch.rand(2, 3, 8, 8),), {"parts": [nn.Conv2d(3, 4, 3, bias=False), nn.BatchNorm2d(4)]}),
        {},
        "note",
    ),
    "constant output": ((lambda p, x: p[0](x * 0), (X,)), (lambda p, x: p[0](x), (X,)), {"parts": linear(8, 3)}, "warning"),
    "broadcast": (
        (lambda p, x: ((p[0](x) - x.sum(1)) ** 2).mean(), (X,)),
        (lambda p, x: ((p[0](x)[:, 0] - x.sum(1)) ** 2).mean(), (X,)),
        {"parts": linear(8, 1)},
        "warning",
    ),
    "softmax axis": (
        (lambda p, x: p[0](x).softmax(0), (X,)),
        (lambda p, x: p[0](x).softmax(1), (X,)),
        {"parts": linear(8, 3)},
        "warning",
    ),
    "two softmaxes": (
        (lambda p, x: x.softmax(-1).softmax(-1), (X,)),
        (lambda p, x: (x.softmax(-1) @ x.t()).softmax(-1), (X,)),
        {},
        "warning",
    ),
    "softmax before loss": (
        (lambda p, x: F.cross_entropy(x.softmax(-1), torch.zeros(4, dtype=torch.long)), (X,)),
        (lambda p, x: F.nll_loss(x.log_softmax(-1), torch.zeros(4, dtype=torch.long)), (X,)),
        {},
        "warning",
    ),
    "training in evaluation": (
        (lambda p, x: F.dropout(x, 0.5), (X,)),
        (lambda p, x: F.dropout(x, 0.5, False), (X,)),
        {},
        "warning",
    ),
    "batch norm on one sample": (
        (lambda p, x: p[0](x), (torch.rand(1, 3, 4, 4),)),
        (lambda p, x: p[0](x), (torch.rand(2, 3, 4, 4),)),
        {"parts": [nn.BatchNorm2d(3)], "train": True},
        "warning",
    ),
    "python read": ((lambda p, x: x * x.sum().item(), (X,)), (lambda p, x: x * x.sum(), (X,)), {}, "note"),
    "silent cast": (
        (lambda p, x: x * torch.ones(8).double(), (X,)),
        (lambda p, x: x.double() * torch.ones(8).double(), (X,)),
        {},
        "note",
    ),
    "large copy": (
        (lambda p, x: x.t().contiguous(), (torch.zeros(2048, 4096),)),
        (lambda p, x: x.contiguous() + 0, (torch.zeros(2048, 4096),)),
        {},
        "note",
    ),
    "computed twice": (
        (lambda p, x: p[0](x) + p[0](x), (torch.zeros(1 << 17, 8),)),
        (lambda p, x: p[0](x) + p[0](x + 1), (torch.zeros(1 << 17, 8),)),
        {"parts": linear(8, 2)},
        "note",
    ),
}


def run_case(case, common):
    program, inputs, *own = case
    return diagnosis(program, *inputs, **{**common, **(own[0] if own else {})})


@pytest.mark.parametrize("kind", PLANTED)
def test_what_is_planted_is_found_and_its_healthy_twin_is_not_blamed(kind):
    planted, healthy, common, severity = PLANTED[kind]
    found = run_case(planted, common)
    assert found.of(kind), f"not found; found were {[one.kind for one in found]}"
    assert severity in (None, found.of(kind)[0].severity)
    assert found.of(kind)[0].message
    assert not run_case(healthy, common).of(kind)


def test_every_kind_has_a_planted_case_and_is_in_the_docs():
    assert set(KINDS) == set(PLANTED) | {"nonfinite", "nonfinite gradient"}
    docs = (Path(__file__).parents[2] / "docs" / "diagnosis.md").read_text(encoding="utf-8")
    for name, kind in KINDS.items():
        assert f"| {name} | {kind.meaning} | {kind.advice} |" in docs


OTHER_PLACES = {
    "softmax before the loss of two classes": (
        lambda p, x: F.binary_cross_entropy_with_logits(torch.sigmoid(x), torch.zeros(4, 8)),
        "softmax before loss",
    ),
    "probabilities as logarithms": (
        lambda p, x: F.nll_loss(x.softmax(-1), torch.zeros(4, dtype=torch.long)),
        "softmax before loss",
    ),
    "attention that drops in evaluation": (
        lambda p, x: F.scaled_dot_product_attention(x[None], x[None], x[None], dropout_p=0.1),
        "training in evaluation",
    ),
    "a softmax without dim": (lambda p, x: x[None].expand(3, 4, 8).softmax(0)[0], None),
    "a loss of (N, 1) and (N,)": (
        lambda p, x: (x[:, :1] * x[:, 0]).sum() if False else ((x[:, :1] - x[:, 1]) ** 2).mean(),
        "broadcast",
    ),
}


@pytest.mark.parametrize("case", OTHER_PLACES)
def test_the_same_faults_in_other_places(case):
    program, kind = OTHER_PLACES[case]
    found = diagnosis(program, X)
    assert bool(found.of(kind)) if kind else not found.of("softmax axis")


def test_batch_statistics_in_evaluation_are_named_and_norms_without_running_statistics_are_not():
    norm, free = nn.BatchNorm2d(3), nn.BatchNorm2d(3, track_running_stats=False)
    model = nn.Sequential(norm, free).eval()
    norm.train()
    found = torcheer.diagnose(model, torch.rand(4, 3, 2, 2))
    assert [one.module for one in found.of("training in evaluation")] == ["0"]


# The diagnosis itself


def test_the_worst_comes_first_and_the_text_says_what_was_checked():
    found = diagnosis(lambda p, x: (p[0](x).softmax(0), torch.log(x), x.sum().item()), X, parts=linear(8, 3))
    assert [one.severity for one in found] == ["error", "warning", "note"]
    assert (len(found.errors), len(found.warnings), len(found.notes)) == (1, 1, 1)
    text = str(found)
    assert text.splitlines()[0] == "Diagnosis of Program: 1 error, 1 warning, 1 note."
    assert "Checked: " in text
    assert "no gradients, because none were recorded" in text


def test_a_healthy_model_has_no_findings_and_says_so():
    found = torcheer.diagnose(nn.Sequential(*linear(8, 8)), X)
    assert len(found) == 0
    assert found.is_healthy
    assert "nothing found" in str(found)
    assert "nothing found" in found._repr_html_()


def test_what_was_not_kept_is_not_judged_and_counted():
    history = torcheer.log_forward_pass(lambda x: torch.log(x).exp(), -torch.ones(3), layers_to_save=["exp_1"])
    assert not [one for one in history.diagnose().of("nonfinite") if one.label == "log_1_1"]
    assert "1 of 4 activations (the others were not kept" in str(history.diagnose())


def test_a_diagnosis_is_plain_values_for_json():
    found = diagnosis(lambda p, x: torch.log(x), X)
    told = json.loads(json.dumps(found.to_dict()))
    assert told["healthy"] is False
    assert told["findings"][0]["label"] == "log_1_1"
    assert told["findings"][0]["source"].startswith(str(found[0].source).partition(":")[0])


def test_a_saved_history_is_diagnosed_as_the_live_one(tmp_path):
    model = Program(lambda p, x: p[0](x).softmax(0).log(), *linear(8, 3))
    history = torcheer.log_forward_pass(model, X)
    loaded = torcheer.load(history.save(tmp_path / "run.safetensors", params=True))
    assert [one.message for one in loaded.diagnose()] == [one.message for one in history.diagnose()]


def test_a_model_on_the_meta_device_has_nothing_to_read():
    with torch.device("meta"):
        model, x = nn.Linear(8, 3), torch.empty(4, 8)
    found = torcheer.diagnose(model, x)
    assert found.is_healthy
    assert "0 of 3 activations" in str(found)


def test_the_model_its_gradients_and_the_random_state_are_as_before():
    model = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Dropout(), nn.Linear(8, 1))
    model[0].weight.grad = torch.ones(8, 8)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    state = torch.get_rng_state()
    torcheer.diagnose(model, X, loss=lambda output: output.mean())
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(model[0].weight.grad, torch.ones(8, 8))
    assert model[3].weight.grad is None


@pytest.mark.parametrize(
    ("model", "loss", "said"),
    [
        (nn.Linear(8, 3), 3, "loss is a function of what the model returns; got int"),
        (torch.relu, lambda output: output.sum(), "with loss=, model must be an nn.Module; got"),
        (nn.Linear(8, 3), lambda output: output, "loss must return one number"),
    ],
)
def test_a_wrong_loss_is_refused_in_words(model, loss, said):
    with pytest.raises(torcheer.errors.InvalidArgument, match=said.replace("(", r"\(")):
        torcheer.diagnose(model, X, loss=loss)


def test_a_reading_agrees_with_torch_for_all_kinds_of_numbers():
    for dtype in (torch.float32, torch.float16, torch.bfloat16, torch.float64, torch.complex64):
        values = torch.randn(50).to(dtype)
        found, real = read(values), values.abs() if dtype.is_complex else values.float()
        assert found.count == 50
        assert (found.low, found.high) == pytest.approx((float(real.min()), float(real.max())), rel=1e-6)
        assert found.magnitude == pytest.approx(float(real.double().pow(2).mean().sqrt()), rel=1e-4)
    found = read(torch.tensor([1.0, math.nan, math.inf, -math.inf, -math.inf, -3.0]))
    assert (found.nan, found.positive_infinity, found.negative_infinity, found.low, found.high) == (1, 1, 2, -3.0, 1.0)
    assert read(torch.empty(0)).count == 0
    assert read(torch.empty(3, device="meta")) is None


def test_amounts_are_short():
    assert [amount(value) for value in (71000.0, -0.02, 3.4e38, 12.0, 0.0, -2.5)] == [
        "71,000",
        "-0.02",
        "3.4e+38",
        "12",
        "0",
        "-2.5",
    ]


# What else says that values are not finite


def test_a_printed_history_mentions_values_that_are_not_finite_and_only_then():
    text = str(torcheer.log_forward_pass(lambda x: torch.log(x), torch.tensor([-1.0, 0.0])))
    assert "Warning: 2 tensors hold NaN; the first is log_1_1." in text
    assert "Warning" not in str(torcheer.log_forward_pass(lambda x: torch.log(x), torch.tensor([1.0])))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.float8_e5m2, torch.complex64])
def test_an_operation_counts_its_values_that_are_not_finite(dtype):
    values = torch.tensor([1.0, math.nan, math.inf]).to(dtype)
    history = torcheer.log_forward_pass(lambda x: x.clone(), values)
    assert history["clone_1"].nonfinite == 2
    assert torcheer.log_forward_pass(lambda x: x + 1, torch.ones(2, dtype=torch.long))["add_1"].nonfinite == 0
    assert torcheer.log_forward_pass(lambda x: x + 1, torch.ones(2), layers_to_save="none")["add_1"].nonfinite is None


def test_statistics_are_columns_on_request():
    history = torcheer.log_forward_pass(lambda x: torch.log(x), torch.tensor([1.0, 1.0, 0.0, -1.0]), layers_to_save=["log_1"])
    assert "mean" not in history.to_pandas().columns
    table = history.to_pandas(statistics=True).set_index("label")
    row = table.loc["log_1_1"]
    assert (row["min"], row["max"], row["mean"], row["std"], row["zeros"], row["nonfinite"]) == (0.0, 0.0, 0.0, 0.0, 2, 2)
    assert table.loc["input_1_0"][["min", "max", "mean", "std", "zeros", "nonfinite"]].isna().all()


def test_statistics_are_columns_of_a_csv(tmp_path):
    path = torcheer.log_forward_pass(torch.relu, X).to_csv(tmp_path / "table.csv", statistics=True)
    with path.open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert float(rows[1]["max"]) == pytest.approx(float(X.max()))
    assert int(rows[1]["zeros"]) == int((X <= 0).sum())


# On the command line

MODELS = """
import torch
from torch import nn
net = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
class Wrong(nn.Module):
    def forward(self, x):
        return torch.log(x - 10)
class Odd(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 4)
    def forward(self, x):
        return self.fc(x).softmax(0)
"""


@pytest.fixture
def models(tmp_path, monkeypatch):
    (tmp_path / "checked_models.py").write_text(MODELS)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(
    ("name", "options", "status"),
    [("net", [], 0), ("Wrong", [], 1), ("Odd", [], 0), ("Odd", ["--strict"], 1), ("net", ["--strict", "--train"], 0)],
)
def test_the_command_exits_with_1_where_something_is_wrong(models, capsys, name, options, status):
    assert main(["check", f"checked_models:{name}", "--input", "3,4", *options]) == status
    assert capsys.readouterr().out.startswith("Diagnosis of ")


def test_the_command_prints_json_and_takes_a_saved_history(models, capsys, tmp_path):
    assert main(["check", "checked_models:Wrong", "--input", "3,4", "--json"]) == 1
    told = json.loads(capsys.readouterr().out)
    torcheer.log_forward_pass(lambda x: torch.log(x - 10), torch.rand(3, 4)).save(tmp_path / "run.safetensors")
    assert main(["check", "run.safetensors", "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["findings"][0]["kind"] == told["findings"][0]["kind"] == "nonfinite"


@pytest.mark.parametrize("is_deep", [False, True])
def test_an_output_that_is_constant_because_a_weight_is_zero_is_a_note_as_at_an_initialisation(is_deep):
    head = nn.Linear(8, 3)
    nn.init.zeros_(head.weight)
    model = nn.Sequential(nn.Linear(8, 8), head, *([nn.Tanh(), nn.Linear(3, 3)] if is_deep else [])).eval()
    (found,) = torcheer.diagnose(model, X).of("constant output")
    assert found.severity == "note"
    assert "1.weight is 0 throughout" in found.message


def test_a_bias_of_zeros_is_no_reason_for_a_constant_output():
    layer = nn.Linear(8, 3)
    nn.init.zeros_(layer.bias)

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer, self.place = layer, nn.Parameter(torch.zeros(8))

        def forward(self, x):
            return self.layer(x * 0 + self.place)

    (found,) = torcheer.diagnose(Model().eval(), X).of("constant output")
    assert found.severity == "warning"


def test_a_saturated_result_is_a_model_that_is_sure_and_untrained_norms_say_nothing_about_scale():
    def severities(function, *parts):
        return [one.severity for one in diagnosis(function, MANY, parts=parts).of("saturated units")]

    assert severities(lambda p, x: torch.sigmoid(1000 * x + 5000)) == ["note"]
    assert severities(lambda p, x: torch.sigmoid(1000 * x + 5000) * x) == ["warning"]
    assert severities(lambda p, x: torch.sigmoid(1000 * p[0](x) + 5000) * x, nn.BatchNorm1d(8)) == ["note"]


def test_memory_that_holds_anything_is_not_judged():
    def function(x):
        memory = x.new_empty(4, 8)
        memory[:, :4] = x[:, :4]
        memory[:, 4:] = x[:, 4:]
        return memory + 1

    history = torcheer.log_forward_pass(function, X)
    checkup = Checkup(run_of(history).index)
    judged = {checkup.name(number) for number in checkup.operations if checkup.reading(number) is not None}
    assert judged == {"input", "getitem", "add", "output"}
    assert history.diagnose().is_healthy


@pytest.mark.parametrize(("scale", "severity"), [(1e-5, "note"), (0.0, "warning")])
def test_what_rounding_hides_is_a_note(scale, severity):
    def function(parts, x):
        return torch.ones_like(x) + x * scale

    (found,) = diagnosis(function, X.bfloat16()).of("constant output")
    assert (found.severity, "rounded away" in found.message) == (severity, severity == "note")


DOCS = Path(__file__).parents[2] / "docs"


@pytest.mark.parametrize(
    ("page", "model", "inputs"),
    [("xray.md", "model", "images"), ("similarity.md", "trained(0)", "pictures.tensors[0][:16]")],
)
def test_the_trained_small_models_of_the_docs_are_healthy(page, model, inputs, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = {}
    code = next(one for one in (DOCS / page).read_text().split("```python\n")[1:] if "optimizer.step()" in one)
    exec(code.partition("```")[0], names)
    found = torcheer.diagnose(eval(model, names).eval(), eval(inputs, names))
    assert found.is_healthy, found
    assert len(found.history.operations) > 5
