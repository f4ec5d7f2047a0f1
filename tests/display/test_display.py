"""Results in terminals and notebooks: width, colours, cards."""

from __future__ import annotations

import io
import os
import pty
import re
import sys
from html.parser import HTMLParser

import pytest
import torch
from torch import nn

import torcheer
from forked import run_in_a_copy
from torcheer._text import Column, Fold, Shown, Table, few, has_colors, print_shown, sparkline, terminal_width

_TABLE = Table(
    [Column("module"), Column("class"), Column("params", is_number=True)],
    [("(model)", "ARatherLongClassName", "1,000"), ("└─ a_rather_long_module_name", "Linear", "20")],
    ("total", "", "1,020"),
    notes=["something to know"],
)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def terminal(monkeypatch):
    """Makes standard output a terminal of 40 characters with colours, from the call on."""

    def begin() -> Terminal:
        monkeypatch.delenv("NO_COLOR", raising=False)
        monkeypatch.setenv("TERM", "xterm-256color")
        monkeypatch.setenv("COLUMNS", "40")
        out = Terminal()
        monkeypatch.setattr(sys, "stdout", out)
        return out

    return begin


def test_the_first_of_a_list_are_named_and_the_others_counted():
    assert few([], 2) == ""
    assert few(["a", 2], 2) == "a, 2"
    assert few(iter("abcde"), 2) == "a, b and 3 more"
    assert few("abcde", 2, "; ") == "a; b; and 3 more"


def test_a_table_is_as_wide_as_what_is_in_it():
    lines = _TABLE.text().split("\n")
    assert lines[0] == "module                        class                 params"
    assert lines[3] == "└─ a_rather_long_module_name  Linear                    20"
    assert lines[-2:] == ["total                                                1,020", "something to know"]


@pytest.mark.parametrize("width", [58, 50, 40, 30, 24])
def test_a_table_fits_the_width_it_is_given_and_cuts_no_number(width):
    lines = _TABLE.text(width).split("\n")
    assert max(map(len, lines[:-1])) <= width
    assert all(number in "\n".join(lines) for number in ("1,000", "20", "1,020", "params"))
    assert ("…" in lines[2] + lines[3]) == (width < 58)


def test_a_table_that_cannot_be_narrower_keeps_its_numbers():
    assert "1,000" in _TABLE.text(5)


def test_colors_change_nothing_but_the_looks():
    colored = _TABLE.text(40, color=True)
    plain = re.sub(r"\x1b\[\d+m", "", colored)
    assert colored != plain
    assert [line.rstrip() for line in plain.split("\n")] == _TABLE.text(40).split("\n")


def test_a_pipe_has_no_colors_and_no_width():
    assert not has_colors(io.StringIO())
    assert terminal_width(io.StringIO()) is None


@pytest.mark.parametrize("variables", [{"NO_COLOR": "1"}, {"TERM": "dumb"}])
def test_no_color_is_respected(terminal, monkeypatch, variables):
    terminal()
    assert has_colors()
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert not has_colors()


def test_a_summary_fits_the_terminal(terminal):
    history = torcheer.log_forward_pass(nn.Sequential(nn.Linear(200, 300), nn.ReLU()), torch.rand(16, 200))
    terminal()
    lines = str(history.summary(["in", "out", "params"])).split("\n")
    assert max(map(len, lines)) <= 40
    assert max(map(len, str(history.modules).split("\n")[:-1])) <= 48  # its numbers need as much
    assert "\x1b" not in str(history.summary())


def test_what_is_printed_for_a_terminal_is_colored(terminal):
    history = torcheer.log_forward_pass(nn.Linear(2, 3), torch.rand(1, 2))
    out = terminal()
    print_shown(history)
    print_shown(history.summary())
    print_shown(history["linear_1"])
    assert out.getvalue().startswith("\x1b[1mLog of Linear forward pass:")
    assert "\x1b[1mmodule" in out.getvalue()
    assert "\x1b[1mLayer linear_1_1" in out.getvalue()


def test_the_command_line_colors_a_terminal_and_leaves_a_pipe_plain(monkeypatch):
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    history = torcheer.log_forward_pass(nn.ReLU(), torch.ones(1))
    code, piped = run_in_a_copy(lambda: print_shown(history))
    assert code == 0
    assert "Log of ReLU" in piped
    assert "\x1b" not in piped
    ours, theirs = pty.openpty()

    def print_to_terminal():
        sys.stdout = open(theirs, "w")  # noqa: SIM115
        print_shown(history)
        sys.stdout.flush()

    assert run_in_a_copy(print_to_terminal) == (0, "")
    os.close(theirs)
    assert b"\x1b[1mLog of ReLU" in os.read(ours, 10_000)
    os.close(ours)


class Reader(HTMLParser):
    """The text of a page, and whether every tag that was opened is closed."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: set[str] = set()
        self.words = ""
        self.feed(text)
        assert not self.open

    def handle_starttag(self, tag, attrs):
        self.tags.add(tag)
        if tag != "img":
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.words += data


class Result(Shown):
    def __str__(self) -> str:
        return "Title <b>:\n\tFirst fact: 1 < 2\n\tNote: look out\n\tSecond: a\n\t\tb\n[3]\n\tno name here"

    def _folds(self):
        return [Fold("More & more", "<p>inside</p>", is_open=True)]


def test_a_card_is_made_of_what_is_printed():
    text = Result()._repr_html_()
    assert "<summary><b>Title &lt;b&gt;</b></summary>" in text
    assert "<p>⚠ look out</p>" in text
    assert "<pre>a\nb\n[3]</pre>" in text
    assert "<details open><summary>More &amp; more</summary><p>inside</p></details>" in text
    assert "1 < 2" in Reader(text).words
    assert "no name here" in Reader(text).words


def test_the_card_of_a_history_has_modules_layers_cost_and_a_picture():
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Sequential(nn.Linear(8, 2)))
    history = torcheer.log_forward_pass(model, torch.rand(3, 4))
    card = history._repr_html_()
    read = Reader(card)
    for words in ("Log of Sequential forward pass", "linear_1_1", "Cost", "FLOPs", "(3, 8)", "58"):
        assert words in read.words
    assert {"details", "table", "img"} <= read.tags
    assert not {"script", "style", "svg", "iframe"} & read.tags  # what GitHub takes out
    assert 'src="data:image/png;base64,' in card


def test_the_card_of_a_history_warns_of_what_is_not_finite():
    def model(x):
        return torch.log(x), x / 0, x + 1

    history = torcheer.log_forward_pass(model, torch.tensor([-1.0, 2.0]))
    words = Reader(history._repr_html_()).words
    assert "⚠ 2 tensors hold NaN; the first is log_1_1." in words
    assert "⚠ 2 tensors hold infinity; the first is truediv_1_2." in words or "infinity; the first is" in words
    assert "⚠" not in Reader(torcheer.log_forward_pass(torch.relu, torch.ones(2))._repr_html_()).words


@pytest.mark.parametrize("what", ["layer", "operation", "module", "call", "modules", "summary"])
def test_parts_of_a_history_have_cards(what):
    history = torcheer.log_forward_pass(nn.Sequential(nn.Linear(4, 8), nn.ReLU()), torch.rand(3, 4))
    results = {
        "layer": history["linear_1"],
        "operation": history["linear_1"][1],
        "module": history.modules["0"],
        "call": history.modules["0:1"],
        "modules": history.modules,
        "summary": history.summary(),
    }
    read = Reader(results[what]._repr_html_())
    assert "Linear" in read.words or "linear" in read.words
    assert "(3, 8)" in read.words


def test_the_card_of_an_operation_has_a_histogram_of_its_values():
    history = torcheer.log_forward_pass(torch.relu, torch.linspace(-1, 1, 100))
    words = Reader(history["relu_1"]._repr_html_()).words
    assert "from 0 to 1" in words
    assert "█" in words


def test_a_sparkline_is_highest_where_most_are():
    assert sparkline([0, 1, 4, 8, 2]) == "▁▁▄█▂"
    assert sparkline([]) == sparkline([0, 0]) == ""
