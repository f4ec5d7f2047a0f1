"""An extraction ends, whatever becomes of the folder it writes to; features are read in forked processes."""

from __future__ import annotations

import os
import signal
import threading

import pytest
import torch
from torch import nn

import torcheer as tl
from forked import run_in_a_copy
from torcheer.errors import NotWritten
from torcheer.features import block_index, storage, writer
from torcheer.features.reduced_blocks import Node, ReducedBlocks
from torcheer.features.storage import LocalStorage

LONG = 300  # seconds, for what takes a moment
X = torch.rand(64, 4)


@pytest.fixture
def blocked(monkeypatch):
    """Lets a method of the file of a block wait until the event is set."""
    monkeypatch.setattr(writer, "_LIMIT", 0.2)
    monkeypatch.setattr(writer, "_LAST", 0.2)
    monkeypatch.setattr(writer, "_TOGETHER", 1)
    answers = threading.Event()
    answers.began = threading.Event()  # set while a call waits

    def block(name, first=0):
        real, calls = getattr(storage.TensorsInWork, name), []

        def waits(self, *args):
            calls.append(self)
            if len(calls) > first:
                answers.began.set()
                assert answers.wait(LONG)
            return real(self, *args)

        monkeypatch.setattr(storage.TensorsInWork, name, waits)
        return answers

    yield block
    answers.set()


def threads():
    return [one for one in threading.enumerate() if one.name == "torcheer-blocks"]


@pytest.mark.parametrize("method", ["add", "finish"])
@pytest.mark.parametrize("queue", [1, writer.QUEUE], ids=["full queue", "empty queue"])
def test_a_folder_that_does_not_answer_is_an_error(tmp_path, monkeypatch, blocked, method, queue):
    """While a batch is added, or at the end. The blocks that are there stay, and another extraction does the rest."""
    monkeypatch.setattr(writer.BlockWriter.__init__, "__defaults__", (queue,))
    answers = blocked(method, first=1)
    arguments = (nn.Linear(4, 3).eval(), X.split(4), "output", tmp_path)
    with pytest.raises(NotWritten, match=r"accepted no data for 0\.2 s"):
        tl.extract(*arguments, block=4, progress=False)
    left = threads()
    answers.set()
    for one in left:
        one.join(LONG)
    assert not threads()
    features = tl.extract(*arguments, block=4, progress=False)
    assert torch.equal(features["output"][:], torch.cat([arguments[0](one) for one in X.split(4)]))


def test_after_an_interrupt_a_folder_that_does_not_answer_is_not_waited_for(tmp_path, blocked):
    answers = blocked("add")

    def interrupt(progress):
        assert answers.began.wait(LONG)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        tl.extract(nn.Linear(4, 3).eval(), X.split(4), "output", tmp_path, block=4, progress=interrupt)
    assert threads()
    left = threads()
    answers.set()
    for one in left:
        one.join(LONG)
    assert not threads()


def test_a_slow_folder_is_waited_for_as_long_as_it_takes_something(tmp_path, monkeypatch):
    """The limit is one for each step, not for all."""
    monkeypatch.setattr(writer, "_LIMIT", 20.0)
    slow = writer.BlockWriter(LocalStorage(tmp_path), 4096, lambda size: None)
    waited = []

    def wait_for(is_so, limit):
        waited.append(limit)
        slow._finished += 1  # each time something was written
        return len(waited) == 50

    monkeypatch.setattr(slow, "_changed", type("Never", (), {"wait_for": staticmethod(wait_for)}))
    slow._wait(lambda: False, 20.0)
    assert (len(waited), slow._error) == (50, None)


def test_a_thread_that_cannot_be_started_is_an_error(tmp_path, monkeypatch):
    start = threading.Thread.start

    def refuses(thread):
        if thread.name == "torcheer-blocks":
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", refuses)
    with pytest.raises(RuntimeError, match="can't start new thread"):
        tl.extract(nn.Linear(4, 3).eval(), X.split(4), "output", tmp_path, progress=False)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="processes cannot be forked here")
def test_a_forked_process_reads_features_while_a_thread_of_its_parent_opens_a_block(tmp_path, monkeypatch):
    """As workers of a DataLoader do: a lock that another thread held would never be released in them."""
    features = tl.extract(nn.Linear(4, 3).eval(), X.split(4), "output", tmp_path, block=4, progress=False)
    monkeypatch.setattr(block_index, "_OPEN", 1)
    features = tl.open_features(tmp_path)
    expected = features["output"][:]
    opening, answers, real = threading.Event(), threading.Event(), LocalStorage.read_tensors

    def waits(self, name):
        if threading.current_thread() is reader:
            opening.set()
            assert answers.wait(LONG)
        return real(self, name)

    monkeypatch.setattr(LocalStorage, "read_tensors", waits)
    reader = threading.Thread(target=lambda: features["output"][0], daemon=True)
    reader.start()
    assert opening.wait(LONG)

    def work():
        signal.alarm(LONG)
        assert torch.equal(features["output"][:], expected)

    code, said = run_in_a_copy(work)
    answers.set()
    reader.join(LONG)
    assert code == 0, said


def test_a_listing_that_names_what_is_gone_is_not_read_for_ever(tmp_path, monkeypatch):
    """As a store may give it for a while."""
    reduced = ReducedBlocks(LocalStorage(tmp_path), {"a": [tl.reducers.Mean()]})
    monkeypatch.setattr(reduced, "nodes", lambda: {Node(0, 0), Node(0, 1)})
    reduced._merge_from(Node(0, 0))
    assert not list(tmp_path.iterdir())
