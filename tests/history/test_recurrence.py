"""Which operations are the same layer. A layer is written as its short label, with `×n` where it has n passes."""

from __future__ import annotations

from threading import Thread

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import torcheer
from catalogue.layers import ENTRIES, LAYERS, linear
from models import Attending, log, made_of

x = torch.rand(2, 4)


def layers(history: torcheer.ModelHistory) -> list[str]:
    found = [layer for layer in history if not (layer.passes[0].is_input_layer or layer.passes[0].is_output_layer)]
    return [layer.layer_label_short + (f"×{layer.num_passes}" if layer.num_passes > 1 else "") for layer in found]


@pytest.mark.parametrize("name", LAYERS)
def test_a_program_has_these_layers(name):
    history = log(ENTRIES[name].make(), *ENTRIES[name].given())
    assert layers(history) == LAYERS[name]
    assert history.is_recurrent == any("×" in layer for layer in LAYERS[name])


def test_one_activation_module_after_different_modules():
    def forward(self, t):
        t = self.act(self.fc1(t))
        t = self.act(self.fc2(t))
        return t

    history = log(made_of(forward, fc1=linear(), fc2=linear(), act=nn.ReLU()), x)
    assert layers(history) == ["linear_1", "relu_1", "linear_2", "relu_2"]
    assert [history[key].layer_label_short for key in ("act:1", "act:2")] == ["relu_1", "relu_2"]
    assert not history.is_recurrent
    assert "purely feedforward" in str(history)


@pytest.mark.parametrize("count", [2, 3])
def test_one_pool_after_different_blocks(count):
    def forward(self, t):
        for block in self.blocks:
            t = self.pool(block(t))
        return t

    blocks = nn.ModuleList([linear() for _ in range(count)])
    history = log(made_of(forward, blocks=blocks, pool=nn.AvgPool1d(3, 1, 1)), x)
    assert layers(history) == [name for n in range(1, count + 1) for name in (f"linear_{n}", f"avgpool1d_{n}")]
    assert not history.is_recurrent


def test_one_norm_without_parameters_for_queries_and_keys():
    def forward(self, t):
        q, k = self.projection(t).chunk(2, -1)
        q = self.norm(q)
        k = self.norm(k)
        return q @ k.mT

    norm = nn.LayerNorm(4, elementwise_affine=False)
    history = log(made_of(forward, projection=nn.Linear(4, 8), norm=norm), x)
    assert [name for name in layers(history) if "norm" in name] == ["layernorm_1", "layernorm_2"]
    assert not history.is_recurrent


class Half(nn.Module):
    """A layer and a dropout that it shares with others."""

    def __init__(self, dropout: nn.Module) -> None:
        super().__init__()
        self.fc, self.dropout = linear(), dropout

    def forward(self, t: Tensor) -> Tensor:
        return self.dropout(self.fc(t))


@pytest.mark.parametrize("training", [False, True])
def test_one_dropout_in_an_encoder_and_a_decoder(training):
    def forward(self, t):
        return self.decoder(self.encoder(t))

    dropout = nn.Dropout(0.5)
    history = log(made_of(forward, encoder=Half(dropout), decoder=Half(dropout)).train(training), x)
    assert layers(history) == ["linear_1", "dropout_1", "linear_2", "dropout_2"]
    assert [history[f"encoder.dropout:{n}"].containing_modules[0] for n in (1, 2)] == ["encoder:1", "decoder:1"]
    assert not history.is_recurrent


def test_siamese_branches():
    def forward(self, a, b):
        one = torch.tanh(self.net(a))
        two = torch.tanh(self.net(b))
        return one - two

    net = nn.Sequential(linear(), nn.ReLU(), linear())
    history = torcheer.log_forward_pass(made_of(forward, net=net), (x, x + 1))
    assert layers(history) == ["linear_1×2", "relu_1×2", "linear_2×2", "tanh_1×2", "sub_1"]


def test_one_activation_twice_in_a_sequence():
    act = nn.ReLU()
    history = log(nn.Sequential(linear(), act, linear(), act), x)
    assert layers(history) == ["linear_1", "relu_1", "linear_2", "relu_2"]
    assert not history.is_recurrent
    assert layers(log(nn.Sequential(linear(), act, act), x)) == ["linear_1", "relu_1", "relu_2"]


@pytest.mark.parametrize("count", [2, 3, 5])
def test_a_loop_over_different_parameters(count):
    def forward(self, t):
        for w in self.weights:
            t = F.relu(t @ w)
        return t

    weights = nn.ParameterList([nn.Parameter(torch.rand(4, 4)) for _ in range(count)])
    expected = [name for n in range(1, count + 1) for name in (f"matmul_{n}", f"relu_{n}")]
    assert layers(log(made_of(forward, weights=weights), x)) == expected


@pytest.mark.parametrize("count", [2, 4])
def test_residual_connections_around_different_blocks(count):
    def forward(self, t):
        for block in self.blocks:
            t = t + block(t)
        return t

    history = log(made_of(forward, blocks=nn.ModuleList([linear() for _ in range(count)])), x)
    assert layers(history) == [name for n in range(1, count + 1) for name in (f"linear_{n}", f"add_{n}")]


def test_residual_connections_around_one_block():
    def forward(self, t):
        for _ in range(4):
            t = t + self.block(t)
        return t

    block = nn.Sequential(linear(), nn.ReLU(), linear())
    assert layers(log(made_of(forward, block=block), x)) == ["linear_1×4", "relu_1×4", "linear_2×4", "add_1×4"]


def test_a_plain_sequence():
    history = log(nn.Sequential(linear(), nn.ReLU(), linear(), nn.ReLU()), x)
    assert layers(history) == ["linear_1", "relu_1", "linear_2", "relu_2"]


def inner_loop(self, t):
    for _ in range(2):
        t = torch.tanh(self.fc(t))
    return t


def test_passes_multiply_in_a_module_that_loops_inside_a_module_that_loops():
    def forward(self, t):
        for _ in range(3):
            t = self.inner(t) + 1
        return t

    history = log(made_of(forward, inner=made_of(inner_loop, fc=linear())), x)
    assert layers(history) == ["linear_1×6", "tanh_1×6", "add_1×3"]
    inner = [one.containing_modules for one in history["linear_1"].passes]
    assert inner == [[f"inner:{call}", f"inner.fc:{n}"] for call, n in ((1, 1), (1, 2), (2, 3), (2, 4), (3, 5), (3, 6))]


def test_a_loop_that_stops_on_data():
    def forward(self, t):
        while t.sum() < 100:
            t = t + self.fc(t).abs() + 5
        return t

    history = log(made_of(forward, fc=linear()), x)
    passes = history["linear_1"].num_passes
    assert passes > 1
    every, but_one = f"×{passes + 1}", f"×{passes}"
    again = [f"linear_1{but_one}", f"abs_1{but_one}", f"add_1{but_one}", f"add_2{but_one}"]
    assert layers(history) == [f"sum_1{every}", f"lt_1{every}", *again]
    assert history.has_data_dependent_branching


def test_interleaved_loops_over_two_shared_cells():
    def forward(self, t):
        for step in range(6):
            t = self.a(t) if step % 2 == 0 else self.b(t)
            t = torch.tanh(t)
        return t

    history = log(made_of(forward, a=linear(), b=linear()), x)
    assert layers(history) == ["linear_1×3", "tanh_1×3", "linear_2×3", "tanh_2×3"]
    assert [p.parent_layers for p in history["tanh_2"].passes] == [[f"linear_2_3:{n}"] for n in (1, 2, 3)]


def test_the_same_module_called_from_two_parents():
    shared = linear()
    one, two = nn.Sequential(shared, nn.ReLU()), nn.Sequential(shared, nn.Tanh())
    history = log(nn.Sequential(one, two), x)
    assert layers(history) == ["linear_1×2", "relu_1", "tanh_1"]
    assert [one.modules_exited for one in history["linear_1"].passes] == [["0.0:1"], ["0.0:2"]]


def test_parameters_used_functionally():
    def forward(self, t):
        t = F.linear(t, self.w)
        t = F.linear(t.relu(), self.w)
        return F.linear(t.tanh(), self.v)

    parameters = {"w": nn.Parameter(torch.rand(4, 4)), "v": nn.Parameter(torch.rand(4, 4))}
    assert layers(log(made_of(forward, **parameters), x)) == ["linear_1×2", "relu_1", "tanh_1", "linear_2"]


def test_tied_weights_used_by_different_functions():
    def forward(self, ids):
        return self.head(self.embedding(ids))

    tied = made_of(forward, embedding=nn.Embedding(5, 4), head=nn.Linear(4, 5, bias=False))
    tied.head.weight = tied.embedding.weight
    history = log(tied, torch.tensor([1, 2]))
    assert layers(history) == ["embedding_1", "linear_1"]
    assert history["linear_1"].parent_params[0].name == "embedding.weight"


def test_tied_weights_in_two_modules():
    one, two = linear(), linear()
    two.weight, two.bias = one.weight, one.bias
    assert layers(log(nn.Sequential(one, two), x)) == ["linear_1", "linear_2"]


def test_a_recurrent_cnn_with_feedback():
    def forward(self, t):
        feedback = torch.zeros_like(t)
        for _ in range(3):
            low = torch.relu(self.low(t + feedback))
            high = torch.relu(self.high(F.avg_pool2d(low, 2)))
            feedback = F.interpolate(self.back(high), scale_factor=2)
        return high

    modules = {"low": nn.Conv2d(3, 4, 3, padding=1), "high": nn.Conv2d(4, 4, 3, padding=1), "back": nn.Conv2d(4, 3, 1)}
    history = log(made_of(forward, **modules), torch.rand(1, 3, 8, 8))
    steps = ["add_1", "conv2d_1", "relu_1", "avgpool2d_1", "conv2d_2", "relu_2", "conv2d_3", "interpolate_1"]
    assert layers(history) == ["zeroslike_1", *(f"{step}×3" for step in steps)]


def test_an_lstm_written_by_hand():
    def forward(self, t):
        h = c = torch.zeros(2, 4)
        for step in range(4):
            both = torch.cat([t[step], h], -1)
            i, f = torch.sigmoid(self.i(both)), torch.sigmoid(self.f(both))
            g, o = torch.tanh(self.g(both)), torch.sigmoid(self.o(both))
            c = f * c + i * g
            h = o * torch.tanh(c)
        return h, c

    history = log(made_of(forward, **{name: nn.Linear(8, 4) for name in "ifgo"}), torch.rand(4, 2, 4))
    assert layers(history)[0] == "zeros_1"
    assert len(layers(history)) == 1 + 2 + 4 + 4 + 3 + 2
    assert all(name.endswith("×4") for name in layers(history)[1:])


def test_gates_in_one_matrix():
    def forward(self, t):
        h = c = torch.zeros(2, 4)
        for step in range(3):
            i, f, g, o = (self.x(t[step]) + self.h(h)).chunk(4, -1)
            c = f.sigmoid() * c + i.sigmoid() * g.tanh()
            h = o.sigmoid() * c.tanh()
        return h

    history = log(made_of(forward, x=nn.Linear(4, 16), h=nn.Linear(4, 16)), torch.rand(3, 2, 4))
    assert [name for name in layers(history) if name.startswith("chunk")] == [f"chunk_{n}×3" for n in (1, 2, 3, 4)]
    assert all(name.endswith("×3") for name in layers(history)[1:])


def test_seq2seq_with_attention():
    history = log(Attending(), torch.rand(3, 2, 4))
    encoder = ["getitem_1×3", "grucell_1×3"]
    decoder = [f"{name}×5" for name in ("einsum_1", "softmax_1", "einsum_2", "cat_1", "grucell_2", "linear_1")]
    assert layers(history) == ["zeros_1", *encoder, "stack_1", "zeros_2", *decoder, "stack_2"]


@pytest.mark.parametrize("times", [2, 3])
def test_a_loop_entered_from_another_layer(times):
    def forward(self, t):
        t = self.stem(t)
        for _ in range(times):
            t = self.fc(torch.relu(t))
        return t

    expected = ["linear_1", f"relu_1×{times}", f"linear_2×{times}"]
    assert layers(log(made_of(forward, stem=linear(), fc=linear()), x)) == expected


@pytest.mark.parametrize("count", [2, 3])
def test_a_stem_and_different_blocks_after_an_operation(count):
    def forward(self, t):
        t = self.stem(t)
        for fc in self.fcs:
            t = fc(torch.relu(t))
        return t

    history = log(made_of(forward, stem=linear(), fcs=nn.ModuleList([linear() for _ in range(count)])), x)
    assert [name for name in layers(history) if "relu" in name] == [f"relu_{n}" for n in range(1, count + 1)]


def test_one_parameter_used_twice_by_one_function_whatever_else_repeats():
    def forward(self, t):
        return torch.add(t + self.p, self.p)

    def also(self, t):
        t = torch.add(t + self.p, self.p)
        for _ in range(2):
            t = t.sin()
        return t

    for program, more in ((forward, []), (also, ["sin_1×2"])):
        assert layers(log(made_of(program, p=nn.Parameter(torch.rand(4))), x)) == ["add_1×2", *more]


def test_a_module_that_calls_itself():
    def forward(self, t: Tensor, depth: int = 3) -> Tensor:
        t = torch.tanh(self.fc(t))
        return self(t, depth - 1) + 1 if depth > 1 else t

    history = log(made_of(forward, fc=linear()), x)
    assert layers(history) == ["linear_1×3", "tanh_1×3", "add_1×2"]


def test_a_training_loop_in_one_recording():
    net = nn.Sequential(linear(), nn.ReLU(), linear())
    optimizer = torch.optim.SGD(net.parameters(), 0.1, foreach=False)
    with torcheer.recording(net) as history:
        for _ in range(3):
            optimizer.zero_grad()
            loss = net(x).square().mean()
            loss.backward()
            optimizer.step()
    found = layers(history)
    assert [name for name in found if not name.startswith(("add", "grad"))][:5] == [
        *("linear_1×3", "relu_1×3", "linear_2×3", "square_1×3", "mean_1×3")
    ]


@pytest.mark.parametrize("options", [{"foreach": True}, {"fused": True}])
def test_optimizers_that_write_many_parameters_at_once(options):
    net = nn.Sequential(linear(), nn.ReLU(), linear())
    optimizer = torch.optim.AdamW(net.parameters(), 0.1, **options)
    with torcheer.recording(net) as history:
        for _ in range(2):
            net(x).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
    assert [history[name].num_passes for name in ("0", "1", "2")] == [2, 2, 2]
    assert [param.name for param in history["0:2"].parent_params] == ["0.weight", "0.bias"]
    assert history.validate(), history.validate()


def test_running_statistics_are_no_parameters_of_what_follows():
    history = log(nn.Sequential(nn.BatchNorm1d(4), nn.ReLU()).train(), x)
    assert history["relu_1"].parent_buffers == []
    assert not history["batchnorm_1"].is_inplace


@pytest.fixture
def looping():
    def forward(self, t):
        for _ in range(3):
            t = torch.tanh(self.fc(t))
        return self.head(t)

    return log(made_of(forward, fc=linear(), head=linear()), x)


def test_numbers_count_layers_not_passes(looping):
    assert looping.layer_labels == ["input_1_0", "linear_1_1", "tanh_1_2", "linear_2_3", "output_1_4"]
    assert [one.label for one in looping.operations[:4]] == ["input_1_0", "linear_1_1:1", "tanh_1_2:1", "linear_1_1:2"]
    assert len(looping) == 5
    assert looping.num_operations == 9


def test_passes_are_found_by_label_and_by_call(looping):
    second = looping["linear_1_1:2"]
    assert isinstance(second, torcheer.Operation)
    assert second == looping["linear_1:2"] == looping["fc:2"] == looping["linear_1"][2]
    assert (second.pass_num, second.num_passes) == (2, 3)
    assert second.parent_layers == ["tanh_1_2:1"]
    assert "fc:2" in second.lookup_keys
    assert looping["fc"] == looping["linear_1"] == looping[1]
    for layer in looping:
        for one in layer.passes:
            assert all(looping[key] in (one, layer) for key in one.lookup_keys)


def test_the_address_of_a_module_called_once_is_its_one_output():
    net = made_of(inner_loop, fc=linear())
    outer = nn.Sequential(net)
    history = log(outer, x)
    assert history["0"] == history["tanh_1:2"]
    assert "0" in history["tanh_1:2"].lookup_keys
    assert history["tanh_1"].lookup_keys == [-2, 2, "tanh_1_2"]


def test_the_address_of_a_module_whose_calls_left_some_passes_asks_which():
    def forward(self, t):
        return self.inner(self.inner(t))

    history = log(made_of(forward, inner=made_of(inner_loop, fc=linear())), x)
    with pytest.raises(torcheer.AmbiguousKey, match=r"inner:1 \(tanh_1_2:2\), inner:2 \(tanh_1_2:4\)"):
        history["inner"]
    assert history["inner:2"] == history["tanh_1:4"]


def test_a_layer_answers_what_its_passes_share(looping):
    layer = looping["fc"]
    assert layer.tensor_shape == (2, 4)
    assert layer.num_params == 20
    with pytest.raises(torcheer.SeveralPasses, match="linear_1_1:1, linear_1_1:2"):
        layer.tensor_contents


def test_a_pass_that_is_not_there_is_an_error(looping):
    with pytest.raises(torcheer.LayerNotFound, match="3 passes"):
        looping["linear_1:4"]


@pytest.mark.parametrize("key", ["linear_1_1", "linear_1", "linear_1_1:2", "fc", "fc:2", 1, -4])
def test_passes_can_be_kept_alone(key):
    def forward(self, t):
        for _ in range(3):
            t = torch.tanh(self.fc(t))
        return self.head(t)

    history = log(made_of(forward, fc=linear(), head=linear()), x, layers_to_save=[key])
    expected = ["linear_1_1:2"] if str(key).endswith(":2") else [f"linear_1_1:{n}" for n in (1, 2, 3)]
    assert [one.label for one in history.saved] == expected


def test_a_history_that_is_running_already_knows_its_layers():
    seen = []

    def forward(self, t):
        for _ in range(3):
            t = self.fc(t) + 1
            seen.append(layers(self.history))
        return t

    net = made_of(forward, fc=linear())
    with torcheer.recording(net) as history:
        object.__setattr__(net, "history", history)
        net(x)
    assert seen[1:] == [["linear_1×2", "add_1×2"], ["linear_1×3", "add_1×3"]]


def test_different_parts_of_one_parameter_taken_at_different_places_are_layers_of_their_own():
    """As the class token and the patches of one table of positions; the same part taken twice is shared."""

    def forward(self, t):
        head, rest = self.p[:1], self.p[1:]
        again = self.p[:1]
        return t * torch.cat((rest, head)) + again + self.p.narrow(0, 0, 1) + self.p.narrow(0, 1, 1)

    found = layers(log(made_of(forward, p=nn.Parameter(torch.rand(2, 4))), x))
    parts = [one for one in found if one.startswith(("getitem", "narrow"))]
    assert parts == ["getitem_1×2", "getitem_2", "narrow_1", "narrow_2"]


def test_a_model_that_takes_two_parts_of_a_parameter_is_not_recurrent():
    def forward(self, t):
        return t * self.p[1:] + self.p[:1]

    assert "purely feedforward" in str(log(made_of(forward, p=nn.Parameter(torch.rand(3, 4))), x))


def test_what_one_module_returned_on_another_thread_are_layers_of_their_own():
    """Autograd traces both tensors of a GRU back to the same parameters; they were made side by side."""

    def forward(self, t):
        made = []
        for gru in (self.a, self.b):
            thread = Thread(target=lambda one=gru: made.extend(one(t)))
            thread.start()
            thread.join()
        return made

    history = log(made_of(forward, a=nn.GRU(4, 4), b=nn.GRU(4, 4)), x, unseen="ignore")
    assert not history.is_recurrent


def test_one_module_called_in_a_loop_on_another_thread_is_a_layer_for_each_thing_it_returns():
    def forward(self, t):
        for _ in range(3):
            made = []
            thread = Thread(target=lambda given=t, made=made: made.extend(self.gru(given)))
            thread.start()
            thread.join()
            t = made[0] + made[1]
        return t

    found = layers(log(made_of(forward, gru=nn.GRU(4, 4)), x, unseen="ignore"))
    assert "add_1×3" in found
    assert {one.rpartition("×")[2] for one in found} == {"3"}


def test_the_third_use_of_one_tensor_is_no_pass_of_the_first():
    def forward(self, x):
        x = self.fc(x)
        x = torch.relu(x) - torch.relu(x)
        x = self.fc(x)
        y = torch.relu(x)
        x = y - torch.relu(x)
        x = self.fc(x)
        a = torch.relu(x)
        b = torch.relu(x)
        return a - b + torch.relu(x)

    found = layers(log(made_of(forward, fc=linear()), x))
    assert [one for one in found if one.startswith("relu")] == ["relu_1×3", "relu_2×3", "relu_3"]
