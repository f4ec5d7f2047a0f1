"""Xray and guard as callbacks, in real trainings of Lightning and of the Trainer of Hugging Face."""

from __future__ import annotations

import logging
import subprocess
import sys
from types import SimpleNamespace

import lightning.pytorch as lightning
import numpy as np
import pytest
import pytorch_lightning
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainerCallback, TrainingArguments, set_seed

from torcheer.errors import InvalidArgument, LayerNotFound, NotFinite, NotFiniteWarning
from torcheer.guard import LightningGuard, TrainerGuard
from torcheer.xray import Xray
from torcheer.xray.callbacks import LightningXray, TrainerXray
from torcheer.xray.store import FileManager

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*LeafSpec.*is deprecated:FutureWarning"),  # Lightning's own use of torch
    pytest.mark.filterwarnings("ignore:The 'train_dataloader' does not have many workers"),  # where there are many cores
]
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
logging.getLogger("pytorch_lightning").setLevel(logging.ERROR)

INPUT = torch.arange(2 * 64.0).reshape(2, 1, 8, 8) / 100
BATCHES = 6


def data():
    generator = torch.Generator().manual_seed(5)
    images = torch.randn(4 * BATCHES, 1, 8, 8, generator=generator)
    return DataLoader(TensorDataset(images, torch.arange(4 * BATCHES) % 3), batch_size=4)


def batches():
    return list(data())


class Net(nn.Module):
    """What a probe must not disturb: running statistics, random numbers, a function instead of a module."""

    def __init__(self, dropout=0.0):
        super().__init__()
        self.conv = nn.Conv2d(1, 4, 3)
        self.norm = nn.BatchNorm2d(4)
        self.drop = nn.Dropout(dropout)
        self.fc = nn.Linear(4 * 36, 3)

    def forward(self, x):
        return self.fc(self.drop(F.relu(self.norm(self.conv(x)))).flatten(1))


def lightning_module(base, dropout=0.0, make=lambda params: torch.optim.SGD(params, 0.1), fails_at=None):
    class Module(base):
        def __init__(self):
            super().__init__()
            self.net = Net(dropout)

        def forward(self, x):
            return self.net(x)

        def training_step(self, batch, number):
            if number == fails_at:
                raise RuntimeError("the data ran out of luck")
            return F.cross_entropy(self(batch[0]), batch[1])

        def configure_optimizers(self):
            return make(self.parameters())

    torch.manual_seed(1)
    return Module()


def fit(callbacks, folder, *, package=lightning, model=None, options=None, **facts):
    """A short training by Lightning. Returns the trained module."""
    model = model if model is not None else lightning_module(package.LightningModule, **facts)
    quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False, "enable_model_summary": False}
    trainer = package.Trainer(
        accelerator="cpu", max_epochs=1, default_root_dir=folder, callbacks=callbacks, **quiet, **(options or {})
    )
    torch.manual_seed(2)
    trainer.fit(model, data())
    return model


def half_precision():
    """float16 with a gradient scaler, on the processor."""
    return lightning.plugins.MixedPrecision("16-mixed", "cpu", torch.amp.GradScaler("cpu", init_scale=1024.0))


def is_free(folder):
    """Whether another Xray may write to a folder."""
    FileManager.create(folder, {}, resume=True).close()
    return True


def same_bits(one, other):
    ones, others = one.state_dict(), other.state_dict()
    return ones.keys() == others.keys() and all(torch.equal(ones[name], others[name]) for name in ones)


def plain_gradients(accumulate=1):
    """The gradients of the convolution at every step of the same training written in plain PyTorch."""
    torch.manual_seed(1)
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    found = []
    for number, (images, labels) in enumerate(batches()):
        (F.cross_entropy(model(images), labels) / accumulate).backward()
        if (number + 1) % accumulate == 0:
            found.append(model.conv.weight.grad.numpy().copy())
            optimizer.step()
            optimizer.zero_grad()
    return found


@pytest.mark.parametrize(
    "options",
    [
        dict,
        lambda: {"accumulate_grad_batches": 2, "gradient_clip_val": 0.1},
        lambda: {"plugins": [half_precision()]},
        lambda: {"precision": "bf16-true"},
    ],
    ids=["plain", "accumulated and clipped", "float16 with a scaler", "bfloat16"],
)
def test_a_fit_is_bit_identical_with_and_without_the_callback(tmp_path, options):
    """Weights and running statistics agree in every bit, with dropout and momentum, whatever the precision."""
    facts = {"dropout": 0.3, "make": lambda params: torch.optim.Adam(params, 0.01)}
    watch = LightningXray(INPUT, ["net.conv", "net.fc"], folder=tmp_path / "run")
    watched = fit([watch], tmp_path, options=options(), **facts)
    plain = fit([], tmp_path, options=options(), **facts)
    assert same_bits(watched, plain)
    assert not same_bits(watched, lightning_module(lightning.LightningModule, **facts))
    assert len(watch.xray.run.snapshots) > 2


@pytest.mark.parametrize("accumulate", [1, 2])
def test_stored_gradients_are_those_of_the_step(tmp_path, accumulate):
    """They equal plain PyTorch's, summed over accumulated batches and before clipping, which the note says."""
    watch = LightningXray(INPUT, {"net.conv": ["weight", "grad"]}, folder=tmp_path / "run")
    fit([watch], tmp_path, options={"accumulate_grad_batches": accumulate, "gradient_clip_val": 1e9})
    expected = plain_gradients(accumulate)
    run = watch.xray.run
    assert run.steps("net.conv", "grad") == list(range(BATCHES // accumulate)) == list(range(len(expected)))
    for step, gradient in enumerate(expected):
        np.testing.assert_allclose(run.tensor("net.conv", "grad", step), gradient, rtol=1e-4, atol=1e-7)
    assert run.entry("net.conv", "grad").note == "before clipping to norm 1e+09"


def test_gradients_under_float16_are_unscaled(tmp_path):
    """The scaler multiplies by 1024; what is stored is of the size that training without it has."""
    watch = LightningXray(INPUT, ["net.conv"], folder=tmp_path / "run")
    fit([watch], tmp_path, options={"plugins": [half_precision()]})
    run = watch.xray.run
    expected = plain_gradients()[0]
    np.testing.assert_allclose(run.tensor("net.conv", "grad", 0), expected, rtol=0.1, atol=0.02 * abs(expected).max())
    assert run.entry("net.conv", "grad", 0).note == ""
    assert run.entry("net.conv", "layer", 0).dtype == "float16"  # the probe runs as the training does


def test_gradients_that_an_optimizer_unscales_itself_are_noted(tmp_path):
    """A fused optimizer leaves them scaled until its step."""
    watch = LightningXray(INPUT, ["net.conv"], folder=tmp_path / "run")
    fused = {"make": lambda params: torch.optim.SGD(params, 0.1, fused=True)}
    fit([watch], tmp_path, options={"plugins": [half_precision()]}, **fused)
    entry = watch.xray.run.entry("net.conv", "grad", 0)
    assert entry.note == "multiplied by 1024, not unscaled yet"
    assert entry.statistics.norm == pytest.approx(1024 * np.linalg.norm(plain_gradients()[0]), rel=0.05)


def test_steps_are_the_trainers_and_every_is_kept(tmp_path):
    """A second fit goes on in the same folder with the steps of the trainer; of each step the later snapshot counts."""
    watch = LightningXray(INPUT, ["net.conv"], folder=tmp_path / "run", every=2)
    model = fit([watch], tmp_path)
    assert watch.xray.run.steps() == [0, 2, 4]
    assert is_free(tmp_path / "run")
    fit([watch], tmp_path, model=model)
    assert watch.xray.run.steps() == [0, 2, 4]
    assert [snapshot.number for snapshot in watch.xray.run.snapshots] == [3, 4, 5]


@pytest.mark.parametrize("every", [1, 2, 3])
def test_the_update_ratio_is_measured_at_every_snapshot(tmp_path, every):
    """Lightning runs the backward pass, and so the snapshot, inside the optimizer's step."""
    watch = LightningXray(INPUT, {"net.conv": ["weight"]}, folder=tmp_path / "run", every=every)
    model = lightning_module(lightning.LightningModule)
    name, weights = "net.conv.weight", [dict(model.named_parameters())["net.conv.weight"].detach().clone()]

    class Noting(lightning.Callback):
        def on_train_batch_end(self, trainer, module, *_):
            weights.append(dict(module.named_parameters())[name].detach().clone())

    fit([Noting(), watch], tmp_path, model=model)
    run = watch.xray.run
    assert len(run.steps()) >= 2
    for step in run.steps():
        entry = run.entry("net.conv", "weight", step)
        if step == 0:
            assert entry.update_ratio is None
            continue
        expected = float((weights[step] - weights[step - 1]).norm() / weights[step - 1].norm())
        assert entry.update_ratio == pytest.approx(expected, rel=1e-4)
        assert "mean over" not in entry.note
        assert run.summary("net.conv", step).update_ratio is not None


def test_without_a_folder_the_second_fit_goes_on_with_the_first(tmp_path, monkeypatch):
    """One run belongs to one callback."""
    monkeypatch.chdir(tmp_path)
    watch = LightningXray(INPUT, ["net.conv"], every=3)
    model = fit([watch], tmp_path)
    fit([watch], tmp_path, model=model)
    assert len(list((tmp_path / "xray").iterdir())) == 1
    assert [snapshot.step for snapshot in watch.xray.run.files.snapshots] == [0, 0, 3, 3]


def test_a_fit_that_fails_leaves_a_run_to_read(tmp_path):
    """Everything taken before the exception is there, and the folder is free."""
    watch = LightningXray(INPUT, ["net.conv"], folder=tmp_path / "run")
    with pytest.raises(RuntimeError, match="out of luck"):
        fit([watch], tmp_path, fails_at=4)
    assert is_free(tmp_path / "run")
    assert Xray.open(tmp_path / "run").run.steps() == [0, 1, 2, 3]


def test_the_optimizer_is_measured_and_left_without_hooks(tmp_path):
    """The update ratio of a weight is that of one step: learning rate times gradient, as a part of the weight."""
    watch = LightningXray(INPUT, ["net.conv"], folder=tmp_path / "run")
    made = []
    fit([watch], tmp_path, make=lambda params: made.append(torch.optim.SGD(params, 0.1)) or made[0])
    run = watch.xray.run
    for step in (1, 2):
        moved = 0.1 * np.linalg.norm(run.tensor("net.conv", "grad", step - 1))
        weight = np.linalg.norm(run.tensor("net.conv", "weight", step - 1))
        assert run.entry("net.conv", "weight", step).update_ratio == pytest.approx(moved / weight, rel=1e-3)
    assert not made[0]._optimizer_step_pre_hooks
    assert not made[0]._optimizer_step_post_hooks


def test_an_optimizer_that_evaluates_several_times_is_watched_once_a_step(tmp_path):
    """LBFGS runs its closure again and again within one step."""
    watch = LightningXray(INPUT, ["net.conv"], folder=tmp_path / "run")
    fit([watch], tmp_path, make=lambda params: torch.optim.LBFGS(params, 0.1, max_iter=3))
    assert watch.xray.run.steps() == list(range(BATCHES))


def test_every_step_of_several_optimizers_counts(tmp_path):
    """With manual optimization the steps are those of `trainer.global_step`."""

    class Pair(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.automatic_optimization = False
            self.net = Net()

        def forward(self, x):
            return self.net(x)

        def training_step(self, batch, number):
            for optimizer in self.optimizers():
                optimizer.zero_grad()
                self.manual_backward(F.cross_entropy(self(batch[0]), batch[1]))
                optimizer.step()

        def configure_optimizers(self):
            return [torch.optim.SGD(self.net.conv.parameters(), 0.1), torch.optim.SGD(self.net.fc.parameters(), 0.1)]

    watch = LightningXray(INPUT, ["net.conv"], folder=tmp_path / "run")
    fit([watch], tmp_path, model=Pair())
    assert watch.xray.run.steps() == list(range(2 * BATCHES))


def test_the_network_inside_a_module_can_be_named(tmp_path):
    """Addresses are then those of that network."""
    watch = LightningXray(INPUT, ["conv"], module="net", folder=tmp_path / "run")
    fit([watch], tmp_path)
    assert watch.xray.run.kinds("conv") == ["weight", "layer", "activation", "grad"]


def test_what_cannot_be_watched_is_told_before_the_training(tmp_path):
    """Unknown options, layers and modules are errors in words; nothing was trained."""
    with pytest.raises(InvalidArgument, match="takes no option 'evry'"):
        LightningXray(INPUT, evry=2)
    start = lightning_module(lightning.LightningModule)
    with pytest.raises(LayerNotFound, match=r"'net\.conv'"):
        fit([LightningXray(INPUT, ["net.cnv"], folder=tmp_path / "a")], tmp_path)
    with pytest.raises(InvalidArgument, match=r"module='body' is not in Module, which has \['net'\]"):
        fit([LightningXray(INPUT, module="body", folder=tmp_path / "b")], tmp_path, model=start)

    class Bare(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.net = Net()

        def training_step(self, batch, number):
            raise AssertionError("trained")

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), 0.1)

    with pytest.raises(InvalidArgument, match=r"Bare has no forward to probe.*\['net'\]"):
        fit([LightningXray(INPUT, folder=tmp_path / "c")], tmp_path, model=Bare())
    assert same_bits(start, lightning_module(lightning.LightningModule))


def test_the_trainers_of_both_packages_take_it(tmp_path):
    """It is a Callback of `lightning` and of `pytorch_lightning`, so it may also be given alone."""
    for package in (lightning, pytorch_lightning):
        watch = LightningXray(INPUT, ["net.conv"], folder=tmp_path / package.__name__)
        assert isinstance(watch, package.Callback)
        fit(watch, tmp_path, package=package)
        assert watch.xray.run.steps() == list(range(BATCHES))


def test_only_the_first_process_watches(tmp_path):
    """The others write nothing and need no folder."""
    watch = LightningXray(INPUT, folder=tmp_path / "run")
    other = SimpleNamespace(is_global_zero=False, global_step=0)
    watch.on_fit_start(other, None)
    watch.on_before_optimizer_step(other, None, None)
    watch.on_train_end(other, None)
    watch = TrainerXray(INPUT, folder=tmp_path / "run")
    state = SimpleNamespace(is_world_process_zero=False, global_step=0)
    watch.on_train_begin(None, state, None, model=None)
    watch.on_pre_optimizer_step(None, state, None)
    watch.on_train_end(None, state, None)
    assert not (tmp_path / "run").exists()


TOKENS = {"input_ids": torch.arange(8)[None], "labels": torch.tensor([1])}
DENSE = "bert.encoder.layer.0.output.dense"


class Recorder(TrainerCallback):
    """The gradients as the optimizer gets them."""

    def __init__(self):
        self.gradients, self.norms = [], []

    def on_pre_optimizer_step(self, args, state, control, model=None, **others):
        grads = {name: param.grad for name, param in model.named_parameters() if param.grad is not None}
        self.gradients.append(grads[f"{DENSE}.weight"].numpy().copy())
        self.norms.append(float(torch.stack([grad.norm() for grad in grads.values()]).norm()))


class Failing(TrainerCallback):
    def on_step_begin(self, args, state, control, **others):
        if state.global_step == 3:
            raise RuntimeError("the data ran out of luck")


def train(callbacks, folder, **options):
    """A short training of a tiny BERT. Returns the trained model and the trainer."""
    set_seed(3)
    sizes = {"vocab_size": 50, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
    model = BertForSequenceClassification(BertConfig(**sizes, max_position_embeddings=16))
    examples = [{"input_ids": torch.randint(50, (8,)), "labels": torch.tensor(i % 2)} for i in range(24)]
    quiet = {"report_to": [], "save_strategy": "no", "disable_tqdm": True, "use_cpu": True}
    quiet["logging_strategy"] = "steps" if "logging_steps" in options else "no"
    arguments = TrainingArguments(str(folder), max_steps=5, per_device_train_batch_size=2, **quiet, **options)
    trainer = Trainer(model, arguments, train_dataset=examples, callbacks=callbacks)
    trainer.train()
    return model, trainer


@pytest.mark.parametrize("options", [{"gradient_accumulation_steps": 2, "max_grad_norm": 0.01}, {"bf16": True}])
def test_a_train_is_bit_identical_with_and_without_the_callback(tmp_path, options):
    """Also where the probe runs a loss backward of its own, and the model drops out."""
    watch = TrainerXray(TOKENS, [DENSE, "classifier"], folder=tmp_path / "run", loss_fn=lambda output: output.loss)
    watched, _ = train([watch], tmp_path, **options)
    plain, _ = train([], tmp_path, **options)
    assert same_bits(watched, plain)
    assert watch.xray.run.steps() == [0, 1, 2, 3, 4]
    assert watch.xray.run.kinds(DENSE) == ["weight", "layer", "grad", "layer_grad"]
    assert is_free(tmp_path / "run")


@pytest.mark.parametrize("accumulate", [1, 2])
def test_stored_gradients_are_those_the_optimizer_gets(tmp_path, accumulate):
    """They are clipped already, over all accumulated batches, and the note says so."""
    watch, recorder = TrainerXray(TOKENS, [DENSE], folder=tmp_path / "run"), Recorder()
    train([watch, recorder], tmp_path, max_grad_norm=0.01, gradient_accumulation_steps=accumulate)
    run = watch.xray.run
    for step, gradient in enumerate(recorder.gradients):
        np.testing.assert_array_equal(run.tensor(DENSE, "grad", step), gradient)
    assert recorder.norms == pytest.approx([0.01] * 5, rel=1e-3)
    assert run.entry(DENSE, "grad").note == "clipped to norm 0.01"


def test_numbers_that_the_trainer_logged_are_metrics_of_the_next_snapshot(tmp_path):
    """Its steps and epochs are none: the snapshot has a step of its own."""
    watch = TrainerXray(TOKENS, [DENSE], folder=tmp_path / "run")
    _, trainer = train([watch], tmp_path, logging_steps=1)
    run = watch.xray.run
    logged = [one["loss"] for one in trainer.state.log_history if "loss" in one]
    assert [run.snapshot(step).metrics.get("loss") for step in run.steps()] == pytest.approx([None, *logged[:4]])
    assert not {"step", "epoch"} & set(run.metrics)


def test_unclipped_gradients_have_no_note(tmp_path):
    """A norm of 0 means that the Trainer does not clip; `every` leaves steps out."""
    watch = TrainerXray(TOKENS, [DENSE], folder=tmp_path / "run", every=2)
    train([watch], tmp_path, max_grad_norm=0.0)
    assert watch.xray.run.steps() == [0, 2, 4]
    assert watch.xray.run.entry(DENSE, "grad").note == ""


def test_a_train_that_fails_leaves_a_run_to_read(tmp_path):
    """The Trainer tells nobody, but what was taken is there, and training again goes on in the folder."""
    watch = TrainerXray(TOKENS, [DENSE], folder=tmp_path / "run")
    with pytest.raises(RuntimeError, match="out of luck"):
        train([watch, Failing()], tmp_path)
    watch.xray.flush()
    assert Xray.open(tmp_path / "run").run.steps() == [0, 1, 2]
    train([watch], tmp_path)
    assert watch.xray.run.steps() == [0, 1, 2, 3, 4]
    assert watch.xray.run.snapshot(0).number == 3
    assert is_free(tmp_path / "run")


def test_the_trainers_optimizer_is_measured_and_left_without_hooks(tmp_path):
    """What accelerate wraps is found."""
    watch = TrainerXray(TOKENS, [DENSE], folder=tmp_path / "run")
    _, trainer = train([watch], tmp_path)
    run = watch.xray.run
    before, after = (run.tensor(DENSE, "weight", step) for step in (1, 2))
    moved = np.linalg.norm(after - before) / np.linalg.norm(before)
    assert run.entry(DENSE, "weight", 2).update_ratio == pytest.approx(moved, rel=1e-3)
    assert not trainer.optimizer.optimizer._optimizer_step_pre_hooks


WITHOUT = """
import sys
import torcheer.xray.callbacks as callbacks
assert not {"lightning", "pytorch_lightning", "transformers"} & sys.modules.keys()
sys.modules.update({"lightning": None, "pytorch_lightning": None, "transformers": None})
for name in ("LightningXray", "TrainerXray"):
    try:
        getattr(callbacks, name)
    except ImportError as error:
        print(error)
"""


def test_neither_package_is_needed_until_its_callback_is_asked_for():
    """Importing takes none of them along; where one is missing, the error names it and the command."""
    done = subprocess.run([sys.executable, "-c", WITHOUT], capture_output=True, text=True, check=False)
    assert done.stdout.splitlines() == [
        "LightningXray needs Lightning: pip install lightning",
        "TrainerXray needs the Trainer of Hugging Face: pip install transformers accelerate",
    ], done.stderr


# Guards ---------------------------------------------------------------------------------------------------------------


def spoilt(function, at):
    """A hook that spoils what a module returns in one of its passes."""
    passes = []

    def hook(module, given, output):
        passes.append(output)
        return function(output) if len(passes) - 1 == at else output

    return hook


@pytest.mark.parametrize(
    "options",
    [dict, lambda: {"accumulate_grad_batches": 2, "gradient_clip_val": 0.1}, lambda: {"plugins": [half_precision()]}],
    ids=["plain", "accumulated and clipped", "float16 with a scaler"],
)
def test_a_fit_is_bit_identical_with_and_without_a_guard(tmp_path, options):
    facts = {"dropout": 0.3, "make": lambda params: torch.optim.Adam(params, 0.01)}
    watch = LightningGuard(folder=tmp_path / "guard")
    assert same_bits(fit([watch], tmp_path, options=options(), **facts), fit([], tmp_path, options=options(), **facts))
    assert watch.guard.steps > 2
    assert watch.guard.struck == 0
    assert not (tmp_path / "guard").exists()


@pytest.mark.parametrize("package", [lightning, pytorch_lightning], ids=lambda one: one.__name__)
@pytest.mark.parametrize("module", ["", "net"])
def test_a_guard_stops_a_fit(tmp_path, package, module):
    model = lightning_module(package.LightningModule)
    state = {}

    class Logs(nn.Module):
        def forward(self, x):
            state["passes"] = state.get("passes", 0) + 1
            return x.log() if state["passes"] > 3 else x

    model.net.drop = Logs()
    watch = LightningGuard(module=module, folder=tmp_path / "guard")
    with pytest.raises(NotFinite) as caught:
        fit([watch], tmp_path, package=package, model=model)
    assert caught.value.step == 3
    assert caught.value.label.startswith("log_")
    assert not model._forward_hooks
    assert not model.net._forward_hooks


def test_a_guard_as_a_callback_refuses_what_it_does_not_know(tmp_path):
    with pytest.raises(InvalidArgument, match="takes no option 'actoin'"):
        LightningGuard(actoin="skip")
    with pytest.raises(InvalidArgument, match=r"module='body' is not in Module, which has \['net'\]"):
        fit([LightningGuard(module="body")], tmp_path)


def test_a_train_is_bit_identical_with_and_without_a_guard(tmp_path):
    options = {"gradient_accumulation_steps": 2, "max_grad_norm": 0.01}
    watch = TrainerGuard(folder=tmp_path / "guard")
    assert same_bits(train([watch], tmp_path, **options)[0], train([], tmp_path, **options)[0])
    assert watch.guard.steps == 5
    assert watch.guard.struck == 0


def test_a_guard_skips_a_step_of_a_train(tmp_path):
    class Spoiling(TrainerCallback):
        def on_train_begin(self, args, state, control, **others):
            others["model"].bert.pooler.register_forward_hook(spoilt(lambda output: output / 0, 2))

    watch = TrainerGuard(action="skip", folder=tmp_path / "guard")
    with pytest.warns(NotFiniteWarning, match="The step is skipped"):
        model, _ = train([Spoiling(), watch], tmp_path)
    assert watch.guard.skipped == 1
    assert watch.guard.error.step == 2
    assert all(parameter.isfinite().all() for parameter in model.parameters())
