"""The text of a long model: equal blocks fold, containers have subtotals, and tables fit the screen."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import torcheer


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.input_layernorm = nn.LayerNorm(64)
        self.self_attn = nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 64))
        self.mlp = nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 64))

    def forward(self, x):
        x = x + self.self_attn(self.input_layernorm(x))
        return x + self.mlp(x)


class Tower(nn.Module):
    """Thirty-two equal blocks between an embedding and a head, as in Llama."""

    def __init__(self) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(1000, 64)
        self.layers = nn.ModuleList(Block() for _ in range(32))
        self.norm = nn.LayerNorm(64)
        self.lm_head = nn.Linear(64, 1000, bias=False)

    def forward(self, input_ids):
        x = self.embed_tokens(input_ids)
        for layer in self.layers:
            x = layer(x)
        return {"logits": self.lm_head(self.norm(x))}


@pytest.fixture(scope="module")
def history() -> torcheer.ModelHistory:
    return torcheer.log_forward_pass(Tower(), torch.zeros(1, 8, dtype=torch.long))


COLUMNS = ("calls", "in", "out", "params", "flops", "memory")
GOLDEN: dict[int, str] = {}
GOLDEN[80] = """
module                                       class      params   flops    memory
───────────────────────────────────────────  ──────  ─────────  ──────  ────────
(model)                                      Tower   1,457,280  22.5 M  803.2 KB
├─ embed_tokens                              Embed…     64,000       0    2.0 KB
├─ layers                                    Modul…  1,329,152  21.4 M  768.0 KB
│  └─ layers.0 … layers.31 (32 equal)        Block      41,536   670 k   24.0 KB
│     ├─ input_layernorm                     Layer…        128  3.58 k    2.0 KB
│     ├─ self_attn                           Seque…      8,320   131 k    4.0 KB
│     │  └─ self_attn.0 … s…ttn.1 (2 equal)  Linear      4,160  65.5 k    2.0 KB
│     └─ mlp                                 Seque…     33,088   535 k   18.0 KB
│        ├─ 0                                Linear     16,640   262 k    8.0 KB
│        ├─ 1                                GELU            –  10.2 k    8.0 KB
│        └─ 2                                Linear     16,448   262 k    2.0 KB
├─ norm                                      Layer…        128  3.58 k    2.0 KB
└─ lm_head                                   Linear     64,000  1.02 M   31.2 KB
───────────────────────────────────────────  ──────  ─────────  ──────  ────────
total                                                1,457,280  22.5 M
Equal modules are one row, with the figures of each; fold=False shows all.
No room here for the columns 'calls', 'in', 'out'.
"""
GOLDEN[100] = """
module                                           class       out            params   flops    memory
───────────────────────────────────────────────  ──────────  ──────────  ─────────  ──────  ────────
(model)                                          Tower       (1, 8, 10…  1,457,280  22.5 M  803.2 KB
├─ embed_tokens                                  Embedding   (1, 8, 64)     64,000       0    2.0 KB
├─ layers                                        ModuleList              1,329,152  21.4 M  768.0 KB
│  └─ layers.0 … layers.31 (32 equal)            Block       (1, 8, 64)     41,536   670 k   24.0 KB
│     ├─ input_layernorm                         LayerNorm   (1, 8, 64)        128  3.58 k    2.0 KB
│     ├─ self_attn                               Sequential  (1, 8, 64)      8,320   131 k    4.0 KB
│     │  └─ self_attn.0 … self_attn.1 (2 equal)  Linear      (1, 8, 64)      4,160  65.5 k    2.0 KB
│     └─ mlp                                     Sequential  (1, 8, 64)     33,088   535 k   18.0 KB
│        ├─ 0                                    Linear      (1, 8, 25…     16,640   262 k    8.0 KB
│        ├─ 1                                    GELU        (1, 8, 25…          –  10.2 k    8.0 KB
│        └─ 2                                    Linear      (1, 8, 64)     16,448   262 k    2.0 KB
├─ norm                                          LayerNorm   (1, 8, 64)        128  3.58 k    2.0 KB
└─ lm_head                                       Linear      (1, 8, 10…     64,000  1.02 M   31.2 KB
───────────────────────────────────────────────  ──────────  ──────────  ─────────  ──────  ────────
total                                                                    1,457,280  22.5 M
Equal modules are one row, with the figures of each; fold=False shows all.
No room here for the columns 'calls', 'in'.
"""
GOLDEN[160] = """
module                                           class            calls  in           out              params   flops    memory
───────────────────────────────────────────────  ──────────  ──────────  ───────────  ────────────  ─────────  ──────  ────────
(model)                                          Tower                1  (1, 8)       (1, 8, 1000)  1,457,280  22.5 M  803.2 KB
├─ embed_tokens                                  Embedding            1  (1, 8)       (1, 8, 64)       64,000       0    2.0 KB
├─ layers                                        ModuleList  not called                             1,329,152  21.4 M  768.0 KB
│  └─ layers.0 … layers.31 (32 equal)            Block                1  (1, 8, 64)   (1, 8, 64)       41,536   670 k   24.0 KB
│     ├─ input_layernorm                         LayerNorm            1  (1, 8, 64)   (1, 8, 64)          128  3.58 k    2.0 KB
│     ├─ self_attn                               Sequential           1  (1, 8, 64)   (1, 8, 64)        8,320   131 k    4.0 KB
│     │  └─ self_attn.0 … self_attn.1 (2 equal)  Linear               1  (1, 8, 64)   (1, 8, 64)        4,160  65.5 k    2.0 KB
│     └─ mlp                                     Sequential           1  (1, 8, 64)   (1, 8, 64)       33,088   535 k   18.0 KB
│        ├─ 0                                    Linear               1  (1, 8, 64)   (1, 8, 256)      16,640   262 k    8.0 KB
│        ├─ 1                                    GELU                 1  (1, 8, 256)  (1, 8, 256)           –  10.2 k    8.0 KB
│        └─ 2                                    Linear               1  (1, 8, 256)  (1, 8, 64)       16,448   262 k    2.0 KB
├─ norm                                          LayerNorm            1  (1, 8, 64)   (1, 8, 64)          128  3.58 k    2.0 KB
└─ lm_head                                       Linear               1  (1, 8, 64)   (1, 8, 1000)     64,000  1.02 M   31.2 KB
───────────────────────────────────────────────  ──────────  ──────────  ───────────  ────────────  ─────────  ──────  ────────
total                                                                                               1,457,280  22.5 M
Equal modules are one row, with the figures of each; fold=False shows all.
"""
LAYERS = """
		0: input_1_0           1×8
		1: embedding_1_1       1×8×64    embed_tokens
		2: layernorm_1_2       1×8×64    layers.0.input_layernorm
		3: linear_1_3          1×8×64    layers.0.self_attn.0
		4: linear_2_4          1×8×64    layers.0.self_attn.1
		5: add_1_5             1×8×64    layers.0
		6: linear_3_6          1×8×256   layers.0.mlp.0
		7: gelu_1_7            1×8×256   layers.0.mlp.1
		8: linear_4_8          1×8×64    layers.0.mlp.2
		9: add_2_9             1×8×64    layers.0
		… layers.1 … layers.31 (31 equal): 248 layers …
		258: layernorm_33_258  1×8×64    norm
		259: linear_129_259    1×8×1000  lm_head
		260: output_1_260      1×8×1000
		(history.layers has all layers, history.summary() the modules.)
"""


@pytest.mark.parametrize("width", GOLDEN)
def test_a_summary_fits_the_width_and_says_what_has_no_room(history, width):
    text = history.summary(COLUMNS).table.text(width)
    assert text == GOLDEN[width].strip("\n")
    assert max(map(len, text.split("\n"))) <= width
    assert len(text.split("\n")) <= 40


def test_a_container_has_the_sums_of_all_below_it(history):
    rows = history.summary(["params"], fold=False).table.rows
    shown = {row[0].strip("├└│─ "): int(row[2].replace(",", "")) for row in rows if row[2] != "–"}
    assert shown["(model)"] == history.num_params_total
    assert shown["layers"] == 32 * history.modules["layers.5"].num_params
    assert sum(row["params"] for row in history.summary(["params"]).to_rows()) == history.num_params_total


def test_fold_and_depth_show_more(history):
    whole = history.summary(COLUMNS, fold=False).table.rows
    assert len(whole) == len(history.summary(COLUMNS).to_rows()) == history.num_modules + 1
    assert len(history.summary(COLUMNS, depth=1).table.rows) == 5
    with pytest.raises(torcheer.InvalidArgument, match="fold is True or False"):
        history.summary(fold=2)


def test_the_layers_of_a_long_model_fold_in_print(history):
    assert str(history).partition("\tLayers:\n")[2] == LAYERS.strip("\n")
    assert str(history).startswith("Log of Tower forward pass:\n")


def test_everything_works_or_says_why_on_the_meta_device(tmp_path):
    with torch.device("meta"):
        model = nn.Sequential(nn.Embedding(9, 16), nn.TransformerEncoderLayer(16, 4, batch_first=True, dropout=0.0))
        tokens = torch.zeros(2, 5, dtype=torch.long)
    history = torcheer.log_forward_pass(model, tokens)
    assert "Sequential" in str(history)
    assert "(model)" in str(history.summary())
    assert "meta" in str(history["linear_1"])
    assert history.draw(tmp_path / "meta.svg").svg
    assert history.to_html(tmp_path / "meta.html").stat().st_size > 1000
    history.save(tmp_path / "meta.torcheer")
    assert torcheer.load(tmp_path / "meta.torcheer").num_operations == history.num_operations
    assert history.attention("1.self_attn").is_meta
    assert history.validate()
    with pytest.raises(torcheer.TorcheerError, match="meta"):
        torcheer.compare(history, history)
