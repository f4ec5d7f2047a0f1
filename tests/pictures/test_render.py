"""What is drawn: views, words, looks, lines and the legend, read from the drawing and from the DOT text."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import torcheer
from models import Branching, Convolutional, Mlp, log, made_of
from torcheer.demo import AlexNet, SimpleRecurrent
from torcheer.errors import InvalidArgument
from torcheer.graph import collapse, merge_ports, omit_middle
from torcheer.pictures import Companions, PictureOptions, lay_out, make_picture, picture_options
from torcheer.pictures.dot import dot_text
from torcheer.pictures.drawing import FEEDS_MANY, Drawing, make_drawing
from torcheer.pictures.options import STYLES, THEMES, contrast, luminance
from torcheer.pictures.views import READABLE, views


def drawn(history: torcheer.ModelHistory, **options) -> Drawing:
    chosen = picture_options(options)
    return make_drawing(next(iter(views(history.graph, chosen))), chosen)


def lines(drawing: Drawing, name: str) -> tuple[str, ...]:
    return next(node.lines for node in drawing.nodes if node.lines[0].startswith(name))


def edge(drawing: Drawing, source: str, target: str):
    keys = {node.id: node.key.partition(":")[0] for node in drawing.nodes}
    return next(one for one in drawing.edges if (keys[one.source], keys[one.target]) == (source, target))


@pytest.fixture(scope="module")
def recurrent() -> torcheer.ModelHistory:
    return torcheer.log_forward_pass(SimpleRecurrent(), torch.ones(1, 5))


@pytest.fixture(scope="module")
def alexnet() -> torcheer.ModelHistory:
    return torcheer.log_forward_pass(AlexNet(10), torch.rand(1, 3, 224, 224), layers_to_save="none")


class Deep(nn.Module):
    """Blocks in stages; equal or not."""

    def __init__(self, stages: int, blocks: int, equal: bool) -> None:
        super().__init__()
        sizes = [[4 if equal else 4 + 2 * s + b % 2 for b in range(blocks)] for s in range(stages)]
        self.stages = nn.ModuleList(
            nn.Sequential(*(nn.Sequential(nn.Linear(4, w), nn.ReLU(), nn.Linear(w, 4)) for w in widths)) for widths in sizes
        )

    def forward(self, x):
        for stage in self.stages:
            x = stage(x)
        return x


def test_an_unrolled_node_says_name_pass_address_tensor_and_parameters(recurrent):
    assert lines(drawn(recurrent), "linear_1_1 (pass 2/4)") == (
        "linear_1_1 (pass 2/4)",
        "@fc:2",
        "float32 1×5 · 20 B",
        "params 5×5, 5",
    )


def test_a_rolled_node_says_so_once_with_how_often_it_ran(recurrent):
    drawing = drawn(recurrent, rolled=True)
    assert [node.lines[0] for node in drawing.nodes] == ["input_1_0", "linear_1_1 ×4", "add_1_2 ×4", "mul_1_3 ×4", "output_1_4"]
    assert lines(drawing, "linear_1_1")[1:] == ("@fc", "float32 1×5 · 20 B", "params 5×5, 5")


def test_rolled_edges_say_which_passes_travel_them_only_where_passes_differ(recurrent):
    drawing = drawn(recurrent, rolled=True)
    assert edge(drawing, "input_1_0", "linear_1_1").text == "pass 1"
    assert edge(drawing, "linear_1_1", "add_1_2").text == ""
    back = edge(drawing, "mul_1_3", "linear_1_1")
    assert (back.text, back.line, back.is_free) == ("passes 2-4", "dashed", True)


def test_argument_positions_stand_where_order_matters_and_nowhere_else():
    def f(a, b):
        left, right = a.sin(), b.sin()
        joined = torch.cat([left, right])
        return left - right, left + right, left @ right, joined, torch.where(a > 0, left, right)

    drawing = drawn(log(f, torch.ones(2, 2), torch.ones(2, 2)))
    assert edge(drawing, "sin_1_2", "sub_1_5").text == "0"
    assert edge(drawing, "sin_2_3", "sub_1_5").text == "1"
    assert edge(drawing, "sin_1_2", "add_1_6").text == ""
    assert edge(drawing, "sin_2_3", "matmul_1_7").text == "1"
    assert edge(drawing, "sin_2_3", "cat_1_4").text == "[1]"
    assert edge(drawing, "sin_2_3", "where_1_9").text == "2"
    assert "positions" in drawing.seen


def test_an_addition_with_a_factor_is_not_symmetric():
    drawing = drawn(log(lambda a, b: torch.add(a, b, alpha=2), torch.ones(2), torch.ones(2)))
    assert edge(drawing, "input_2_1", "add_1_2").text == "1"


def test_a_named_argument_is_called_by_its_name():
    def f(x, m):
        return torch.nn.functional.scaled_dot_product_attention(x, x * 2, x * 3, attn_mask=m)

    drawing = drawn(log(f, torch.ones(1, 1, 2, 4), torch.ones(2, 2)))
    assert "attn_mask" in {one.text for one in drawing.edges}


def test_a_model_without_choices_has_no_positions_in_its_legend(alexnet):
    assert "positions" not in drawn(alexnet).seen


def test_modules_are_nested_boxes_with_address_and_class(alexnet):
    drawing = drawn(alexnet)
    assert [box.lines for box in drawing.boxes] == [("features", "Sequential"), ("classifier", "Sequential")]


def test_a_module_of_one_operation_is_that_operation_and_gets_no_box(alexnet):
    assert {box.key for box in drawn(alexnet).boxes} == {"features:1", "classifier:1"}
    assert lines(drawn(alexnet), "conv2d_1_1")[1] == "@features.0"


def test_deeper_boxes_have_thinner_borders_and_stand_inside():
    text = dot_text(drawn(torcheer.log_forward_pass(Deep(1, 2, False), torch.ones(1, 4))))
    assert "subgraph cluster_0 {" in text
    assert text.index("subgraph cluster_0") < text.index("subgraph cluster_1")
    assert 'penwidth="2.0"' in text
    assert 'penwidth="1.55"' in text


@pytest.mark.parametrize("style", STYLES)
def test_borders_of_nodes_are_as_wide_as_the_style_says(style, alexnet):
    drawing = drawn(alexnet, style=style)
    text = dot_text(drawing)
    for width in {node.look.width for node in drawing.nodes}:
        assert f'penwidth="{width * STYLES[style].line}"' in text


def test_the_line_below_the_title_counts_operations_and_parameters(alexnet):
    assert drawn(alexnet).notes[0] == "24 operations · 57.0M parameters"
    assert drawn(log(torch.relu, torch.ones(2))).notes[0] == "3 operations"


def test_a_repeated_module_says_which_call_it_is():
    history = torcheer.log_forward_pass(
        made_of(lambda self, x: self.block(self.block(x)), block=nn.Sequential(nn.Linear(3, 3), nn.ReLU())), torch.ones(1, 3)
    )
    assert [box.lines[0] for box in drawn(history).boxes] == ["block (call 1/2)", "block (call 2/2)"]
    assert [box.lines[0] for box in drawn(history, rolled=True).boxes] == ["block ×2"]


def test_a_collapsed_module_says_class_operations_parameters_and_shapes(alexnet):
    drawing = drawn(alexnet, nesting_depth=1)
    node = next(node for node in drawing.nodes if node.lines[0] == "features")
    assert node.lines == ("features", "Sequential", "13 operations · 2.5M params", "1×3×224×224 → 1×256×6×6")
    assert node.shape == "box3d"
    assert "collapsed" in drawing.seen


def test_collapse_takes_a_depth_an_address_a_class_a_function_or_several():
    history = torcheer.log_forward_pass(Deep(2, 2, False), torch.ones(1, 4))

    def shut(pick):
        return [node.key for node in drawn(history, collapse=pick).nodes if node.shape == "box3d"]

    assert shut(1) == ["@stages.0:1", "@stages.1:1"]
    assert shut("stages.1") == ["@stages.1:1"]
    assert shut("stages.*.0") == ["@stages.0.0:1", "@stages.1.0:1"]
    assert shut("Sequential") == ["@stages.0:1", "@stages.1:1"]
    assert shut(lambda box: box.address in ("stages.0.1", "stages.1")) == ["@stages.0.1:1", "@stages.1:1"]
    assert shut(["stages.0", "stages.1.1"]) == ["@stages.0:1", "@stages.1.1:1"]


def test_folded_blocks_are_counted_and_tell_whose_parameters_they_use():
    history = torcheer.log_forward_pass(Deep(1, 6, True), torch.ones(1, 4))
    drawing = drawn(history, fold_repeats=True)
    assert ("stages.0.0", "Sequential", "6 in a row, own params") in {box.lines for box in drawing.boxes}
    assert lines(drawing, "linear_1_1")[-1] == "params 4×4, 4"
    shut = drawn(history, fold_repeats=True, nesting_depth=1)
    assert lines(shut, "stages.0.0")[2:4] == ("6 in a row, own params", "each 3 operations · 40 params")


def test_elementwise_runs_are_one_node_when_asked():
    drawing = drawn(log(lambda x: torch.relu(x + 1) * 2, torch.ones(2)), merge_elementwise=True)
    assert [node.lines[0] for node in drawing.nodes] == ["input_1_0", "add → relu → mul", "output_1_4"]


def looks(drawing: Drawing) -> dict[str, str]:
    names = {look: name for name, look in THEMES["light"].looks.items()}
    return {node.key.partition(":")[0]: names[node.look] for node in drawing.nodes if not node.is_reference}


class Everything(nn.Module):
    """One of each kind of thing that has a look of its own."""

    def __init__(self):
        super().__init__()
        self.free, self.frozen, self.part = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4)
        self.frozen.requires_grad_(False)
        self.part.bias.requires_grad_(False)
        self.register_buffer("mask", torch.ones(4))
        self.script = torch.jit.script(nn.ReLU())

    def forward(self, x):
        y = self.part(self.frozen(self.free(x))) * self.mask
        y.relu_()
        if y.sum() > -1:
            y = self.script(y) + torch.rand(4)
        return y


def test_every_kind_of_node_has_its_look_and_its_line_in_the_legend():
    drawing = drawn(torcheer.log_forward_pass(Everything(), torch.ones(1, 4)), show_buffers=True)
    found = looks(drawing)
    assert found["input_1_0"] == "input"
    assert found["linear_1_1"] == "trainable"
    assert found["linear_2_2"] == "frozen"
    assert found["linear_3_3"] == "mixed"
    assert found["gt_1_7"] == "decision"
    assert found["buffer mask"] == "buffer"
    assert found["rand_1_9"] == "internal"
    assert "opaque" in found.values()
    assert found["mul_1_4"] == "function"
    for name in ("input", "output", "trainable", "frozen", "mixed", "decision", "buffer", "internal", "opaque", "in place"):
        assert name in drawing.seen, name
    assert lines(drawing, "linear_2_2")[-1].endswith("frozen")
    assert lines(drawing, "gt_1_7")[-1] == "left for Python: bool = True"
    assert next(node for node in drawing.nodes if node.key.startswith("relu")).is_double


def test_the_legend_lists_only_what_occurs(alexnet):
    seen = drawn(alexnet, plumbing=True).seen
    assert {"input", "output", "trainable", "in place", "module output", "function output"} <= set(seen)
    assert not {"frozen", "mixed", "decision", "buffer", "internal", "opaque", "failed", "feedback", "collapsed"} & set(seen)
    text = dot_text(drawn(alexnet))
    assert "trainable parameters" in text
    assert "frozen parameters" not in text
    assert "trainable parameters" not in dot_text(drawn(alexnet, legend=False))


def test_shape_tells_what_a_module_returned_from_what_a_function_did():
    drawing = drawn(torcheer.log_forward_pass(Mlp(), torch.ones(1, 4)))
    shapes = {node.key.partition(":")[0]: node.shape for node in drawing.nodes}
    assert shapes["relu_1_2"] == "box"
    assert shapes["tanh_1_4"] == "pill"


def test_the_operation_that_raised_is_red_and_says_why():
    def fails(x):
        return x.relu() @ torch.ones(7, 7)

    with pytest.raises(RuntimeError) as caught:
        log(fails, torch.ones(2, 3))
    drawing = drawn(caught.value.history)
    node = drawing.nodes[-1]
    assert node.look is THEMES["light"].looks["failed"]
    assert "shapes cannot be multiplied" in " ".join(node.lines)
    assert "given 2×3, 7×7" in node.lines
    assert "failed" in drawing.seen


def test_constants_can_be_left_out():
    history = log(lambda x: x + torch.rand(2).sin(), torch.ones(2))
    assert "internal" in looks(drawn(history)).values()
    assert "internal" not in looks(drawn(history, show_constants=False)).values()


@pytest.mark.parametrize("name", THEMES)
def test_text_can_be_read_on_every_color_of_every_theme(name):
    theme = THEMES[name]
    for look in theme.looks.values():
        for fill in look.fill.split(":"):
            assert contrast(look.text or theme.ink, fill) >= 4.5, look
    assert contrast(theme.faint, theme.page) >= 4.5
    assert contrast(theme.edge, theme.page) >= 4.5
    for fill in theme.box_fills:
        assert contrast(theme.ink, fill) >= 7
        assert contrast(theme.edge, fill) >= 4.5


@pytest.mark.parametrize("name", THEMES)
def test_a_color_scale_is_in_order_when_printed_grey(name):
    shades = [luminance(color) for color in THEMES[name].ramp]
    assert shades in (sorted(shades), sorted(shades, reverse=True))


def test_trainable_and_frozen_differ_when_printed_grey():
    for theme in THEMES.values():
        one, other = (luminance(theme.looks[kind].fill) for kind in ("trainable", "frozen"))
        assert abs(one - other) > 0.05


@pytest.mark.parametrize(("measure", "word"), [("time", "time"), ("memory", "memory of outputs"), ("params", "parameters")])
def test_color_by_shades_nodes_and_shows_its_scale(alexnet, measure, word):
    drawing = drawn(alexnet, color_by=measure)
    fills = {node.look.fill for node in drawing.nodes}
    assert len(fills) > 3
    assert drawing.scale.title == word
    assert f"> {word}" in dot_text(drawing)


def test_color_by_takes_any_function_of_an_operation():
    history = log(lambda x: (x + 1).relu(), torch.ones(2))

    def largest_value(operation):
        return operation.tensor_contents.max().item()

    picture_text = history.draw(path=Sink(), color_by=largest_value, format="dot").dot
    assert "largest value" in picture_text


class Sink:
    def write(self, data) -> None:
        self.data = data


def test_measures_that_need_a_history_are_refused_in_words(alexnet):
    with pytest.raises(InvalidArgument, match="needs a history"):
        drawn(alexnet, color_by="flops")


def test_a_scale_with_one_value_or_none_is_no_error():
    history = log(lambda x: x + 1, torch.ones(2))
    assert drawn(history, color_by="params").scale.values == {}
    assert drawn(history, color_by="memory").scale.share(8.0) == 0.5


def test_a_label_is_a_format_string_or_a_function(alexnet):
    assert lines(drawn(alexnet, label="{type}\n{shape}"), "conv2d") == ("conv2d", "1×64×55×55")
    assert lines(drawn(alexnet, label=lambda node: node.label.upper()), "CONV2D_1") == ("CONV2D_1_1",)
    assert all(node.lines == ("·",) for node in drawn(alexnet, label=lambda node: "").nodes)


def test_a_format_string_with_an_unknown_field_lists_the_known_ones(alexnet):
    with pytest.raises(InvalidArgument, match=r"num_params.*shape"):
        drawn(alexnet, label="{nonsense}")


def test_overrides_reach_graph_nodes_edges_and_modules(alexnet):
    text = dot_text(
        drawn(
            alexnet,
            plumbing=True,
            overrides={
                "graph": {"ranksep": 2},
                "node": {"fontsize": 7, "URL": lambda node: "x" if node.type == "relu" else None},
                "edge": {"arrowhead": "vee"},
                "module": {"style": "dashed"},
            },
        )
    )
    assert 'ranksep="2"' in text
    assert text.count('fontsize="7"') == 24
    assert text.count('URL="x"') == 7
    assert text.count('arrowhead="vee"') == 23
    assert text.count('style="dashed"') == 2


@pytest.mark.parametrize(("direction", "rankdir"), [("down", "TB"), ("up", "BT"), ("right", "LR"), ("left", "RL")])
def test_direction(alexnet, direction, rankdir):
    assert f'rankdir="{rankdir}"' in dot_text(drawn(alexnet, direction=direction))


def test_themes(alexnet):
    assert all(THEMES[name].page in dot_text(drawn(alexnet, theme=name)) for name in THEMES)


def test_a_small_model_is_drawn_as_it_is(alexnet):
    drawing = drawn(alexnet, plumbing=True)
    assert len(drawing.nodes) == 24
    assert len(drawing.notes) == 1


def test_plumbing_folds_into_the_edges_it_stands_on_and_is_counted(alexnet):
    drawing = drawn(alexnet)
    assert len(drawing.nodes) == 23
    assert not any("flatten" in line for node in drawing.nodes for line in node.lines)
    assert edge(drawing, "adaptiveavgpool2d_1_14", "dropout_1_16")
    assert drawing.notes[0].startswith("24 operations")
    assert drawing.notes[1] == "1 operation of plumbing folded; plumbing=True draws all."


def test_equal_blocks_of_a_larger_model_are_drawn_once():
    history = torcheer.log_forward_pass(Deep(1, 30, True), torch.ones(1, 4))
    drawing = drawn(history)
    assert len(drawing.nodes) == 5
    assert "Equal blocks in a row are drawn once." in drawing.notes
    assert len(drawn(history, nesting_depth="all").nodes) == 92


def test_a_large_model_is_collapsed_until_it_can_be_read_and_says_so():
    history = torcheer.log_forward_pass(Deep(10, 12, False), torch.ones(1, 4))
    drawing = drawn(history)
    assert len(drawing.nodes) <= READABLE
    assert any("open as the page opens" in note for note in drawing.notes)


def test_many_passes_are_rolled_up_unless_asked_not_to_be():
    def loop(x):
        for _ in range(100):
            x = x.sin() + 1
        return x

    history = log(loop, torch.ones(2))
    assert [node.lines[0] for node in drawn(history).nodes][1] == "sin_1_1 ×100"
    assert any("rolled up" in note for note in drawn(history).notes)
    assert len(drawn(history, vis_opt="unrolled").nodes) == 202


def test_a_flat_model_of_10000_operations_shows_its_ends_and_what_is_left_out():
    source = "def flat(x):\n" + "    x = torch.sin(x)\n    x = torch.cos(x)\n" * 5000 + "    return x\n"
    names = {"torch": torch}
    exec(compile(source, "flat.py", "exec"), names)
    drawing = drawn(log(names["flat"], torch.ones(2), layers_to_save="none"))
    assert len(drawing.nodes) == 61
    assert "9,942 operations in the middle are left out" in " ".join(drawing.notes)


def test_views_get_smaller_one_after_the_other():
    history = torcheer.log_forward_pass(Deep(4, 5, False), torch.ones(1, 4))
    for options in ({}, {"nesting_depth": "all"}, {"nesting_depth": 2}, {"rolled": True}, {"fold_repeats": False}):
        sizes = [view.size for view in views(history.graph, picture_options(options))]
        assert sizes == sorted(sizes, reverse=True)
        assert sizes[-1] <= 12


def test_what_feeds_very_many_is_drawn_as_references():
    def masked(x, mask):
        for _ in range(20):
            x = x.sin() * mask
        return x

    drawing = drawn(log(masked, torch.ones(2), torch.ones(2)), rolled=False)
    found = [node for node in drawing.nodes if node.is_reference]
    assert len(found) == 19 > FEEDS_MANY
    assert {node.lines for node in found} == {("input_2_1",)}
    ids = {node.id for node in found}
    assert all(sum(one.source == name for one in drawing.edges) == 1 for name in ids)
    assert "reference" in drawing.seen


def test_many_outputs_alike_are_one():
    history = log(lambda x: [x.sum()] + [x] * 9, torch.ones(2))
    names = [node.lines[:2] for node in drawn(history).nodes]
    assert ("9 outputs", "output[1] … output[9]") in names
    assert len(merge_ports(history.graph).nodes) == 4


def test_residual_chains_are_straight_and_skips_are_not():
    def residual(x):
        y = x.sin()
        z = y.cos().tanh()
        return z + y

    drawing = drawn(log(residual, torch.ones(2)))
    assert edge(drawing, "tanh_1_3", "add_1_4").weight == 100
    assert edge(drawing, "sin_1_1", "cos_1_2").weight == 100
    assert edge(drawing, "sin_1_1", "add_1_4").weight == 1


def test_a_solid_line_is_not_said_in_the_text_and_any_other_is():
    with torcheer.recording(save_gradients=True) as history:
        loss = nn.Linear(3, 2)(torch.ones(1, 3)).sum()
    loss.backward()
    drawing = drawn(history, show_gradients=True)
    said = [line for line in dot_text(drawing).splitlines() if " -> " in line]
    assert {edge.line for edge in drawing.edges} == {"solid", "dashed"}
    for edge, line in zip(drawing.edges, said, strict=True):
        assert ("style=" in line) == (edge.line != "solid"), (edge.line, line)


@pytest.mark.parametrize("theme", THEMES)
def test_arrows_and_their_words_have_the_colors_of_the_theme(theme):
    drawing = drawn(log(Mlp(), torch.ones(1, 4)), theme=theme)
    (said,) = (line for line in dot_text(drawing).splitlines() if line.startswith("  edge ["))
    assert f'color="{THEMES[theme].edge}" fontcolor="{THEMES[theme].faint}"' in said
    assert ' fontsize="8" arrowsize="0.6" penwidth="0.9"];' in said


def test_nodes_stand_in_execution_order_in_the_text():
    text = dot_text(drawn(torcheer.log_forward_pass(Branching(), torch.ones(2, 4))))
    places = [text.index(f"n{number} [") for number in range(5)]
    assert places == sorted(places)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"direction": "sideways"}, "direction is one of 'down'"),
        ({"theme": "pink"}, "theme is one of 'light'"),
        ({"nesting_depth": 0}, "number from 1, or 'all'"),
        ({"nesting_depth": True}, "number from 1, or 'all'"),
        ({"nesting_depth": "deep"}, "number from 1, or 'all'"),
        ({"collapse": 0}, "depth from 1"),
        ({"collapse": [3.5]}, "depth from 1"),
        ({"rolled": "yes"}, "rolled is one of True, False, None"),
        ({"merge_elementwise": 1}, "merge_elementwise is one of"),
        ({"color_by": "taste"}, "or a function"),
        ({"label": 3}, "format string or a function"),
        ({"overrides": {"nodes": {}}}, "'graph', 'node', 'edge', 'module'"),
        ({"overrides": {"node": "red"}}, "dictionary of Graphviz attributes"),
        ({"overrides": {"node": {"fill color": "red"}}}, "not the name"),
        ({"overrides": {"node": {"color": []}}}, "text, a number or a function"),
        ({"overrides": 4}, "is a dictionary"),
        ({"time_limit": 0}, "seconds above 0"),
        ({"time_limit": "fast"}, "seconds above 0"),
        ({"vis_opt": "spiral"}, "vis_opt is one of 'unrolled', 'rolled'"),
        ({"nestingdepth": 2}, "Did you mean 'nesting_depth'"),
        ({"options": {}}, "is a PictureOptions"),
    ],
)
def test_wrong_options_are_told_in_words(options, message):
    with pytest.raises(InvalidArgument, match=message):
        picture_options(options)


def test_options_can_be_given_as_one_and_changed():
    chosen = picture_options({"options": PictureOptions(theme="dark", direction="up"), "direction": "left"})
    assert (chosen.theme, chosen.direction) == ("dark", "left")
    with pytest.raises(AttributeError):
        chosen.theme = "light"


def test_an_unknown_module_to_collapse_names_the_nearest():
    history = torcheer.log_forward_pass(Convolutional().eval(), torch.ones(1, 3, 8, 8))
    with pytest.raises(torcheer.LayerNotFound, match="'features'"):
        drawn(history, collapse="featurs")


def test_leaving_out_the_middle_keeps_what_leads_in_and_out(alexnet):
    graph = omit_middle(alexnet.graph, keep=8)
    assert len(graph.nodes) == 9
    middle = next(node for node in graph.nodes if node.kind == "omitted")
    assert middle.num_operations == 16
    assert len(graph.parents(middle.key)) == len(graph.children(middle.key)) == 1
    assert omit_middle(graph, keep=20) is graph


def test_merging_ports_leaves_other_graphs_alone(alexnet):
    assert merge_ports(alexnet.graph) is alexnet.graph
    assert collapse(merge_ports(alexnet.graph), depth=1).nodes


def test_a_layout_has_every_node_edge_and_box_of_the_picture():
    history = log(Convolutional(), torch.rand(2, 3, 8, 8))
    options = picture_options({"nesting_depth": "all", "fold_repeats": False})
    layout, picture = lay_out(history.graph, options), make_picture(history.graph, options)
    assert layout.title == picture.title
    assert layout.graph == picture.graph
    assert [one.node.key for one in layout.nodes if not one.is_reference] == [node.key for node in picture.graph.nodes]
    assert len(layout.edges) == len(picture.graph.edges)
    assert not any(one.is_beside for one in (*layout.nodes, *layout.edges))
    around = layout.bounds
    for one in (*layout.nodes, *layout.boxes):
        assert around.left <= one.place.left < one.place.right <= around.right
        assert around.low <= one.place.low < one.place.high <= around.high
    features = next(box for box in layout.boxes if box.lines[0] == "features")
    inside = [one.place for one in layout.nodes if "features:1" in one.node.modules]
    assert all(features.place.overlap(place) == pytest.approx(place.width * place.height) for place in inside)


def test_companions_stand_beside_their_nodes_and_their_arrows_run_against_the_others():
    graph = log(nn.Sequential(nn.Linear(2, 3), nn.ReLU()), torch.rand(1, 2)).graph
    keys = [node.key for node in graph.nodes if node.kind == "operation"]
    asked = []

    def beside(view):
        asked.append(view)
        return Companions({key: (f"back of {key}", "two") for key in keys}, [(keys[1], keys[0]), (keys[0], "unknown")])

    layout = lay_out(graph, beside=beside)
    assert asked == [layout.graph]
    companions = {one.node.key: one for one in layout.nodes if one.is_beside}
    assert {key: one.lines for key, one in companions.items()} == {key: (f"back of {key}", "two") for key in keys}
    up, led = sorted((edge for edge in layout.edges if edge.is_beside), key=lambda edge: edge.line, reverse=True)
    assert (up.line, led.line) == ("solid", "dashed")
    assert up.tip[1] > up.curve[0][1]
    assert abs(up.tip[0] - companions[keys[0]].place.x) < companions[keys[0]].place.width
    assert [node.key for node in graph.nodes] == [one.node.key for one in layout.nodes if not one.is_beside]


def test_no_more_nodes_are_laid_out_than_asked_for():
    model = nn.Sequential(*[nn.Sequential(nn.Linear(2, 2), nn.ReLU()) for _ in range(8)])
    graph = log(model, torch.rand(1, 2)).graph
    assert len(lay_out(graph, most=18).nodes) == 18
    assert len(lay_out(graph, picture_options({"fold_repeats": False}), most=12).nodes) == 10
    with pytest.raises(torcheer.DrawingFailed, match="could be laid out"):
        lay_out(graph, most=1)
