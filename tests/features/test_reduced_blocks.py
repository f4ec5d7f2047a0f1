"""States of blocks merge to the same bits whoever wrote which block, in any order, with crashes, and by several processes."""

from __future__ import annotations

import itertools
import multiprocessing
import os
import signal
import time
from functools import cache

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from torcheer import UnreadableFile
from torcheer._files.tensor_files import TensorFile
from torcheer.features.reduced_blocks import Node, ReducedBlocks
from torcheer.features.storage import LocalStorage
from torcheer.reducers import Covariance, Histogram, Mean, TopK

REDUCERS = {"conv": [Mean(), TopK(3)], "a/b [0]": [Covariance(), Histogram()], "empty": []}
LAYERS = ("conv", "a/b [0]")


class Killed(BaseException):
    """A process that ends here."""


class MemoryStorage(LocalStorage):
    """Files that are named by a dictionary. `allowed` is how many more changes there may be before the process is killed."""

    def __init__(self, folder) -> None:
        super().__init__(folder)
        self.files: dict[str, TensorFile] = {}
        self.allowed = 10**9

    def _changes(self) -> None:
        if not self.allowed:
            raise Killed
        self.allowed -= 1

    def sizes(self):
        return dict.fromkeys(self.files, 1)

    def read_tensors(self, name):
        if name not in self.files:
            raise FileNotFoundError(name)
        return self.files[name]

    def write_tensors(self, name, tensors, metadata):
        self._changes()
        super().write_tensors(name, tensors, metadata)
        self.files[name] = LocalStorage.read_tensors(self, name)

    def delete(self, name):
        self._changes()
        self.files.pop(name, None)


def values_of(block: int) -> dict[str, torch.Tensor]:
    """What a block holds: every one has another scale, so that sums in another order have other bits."""
    generator = torch.Generator().manual_seed(block)
    scale = 10.0 ** (block % 7 - 3)
    return {
        "conv": torch.randn(5, 2, 3, 3, generator=generator) * scale,
        "a/b [0]": torch.randn(5, 4, generator=generator) * scale,
        "empty": torch.zeros(5, 1),
    }


def write_block(blocks: ReducedBlocks, number: int) -> None:
    states = blocks.begin()
    for begin in (0, 3):
        for layer, values in values_of(number).items():
            part = values[begin : begin + 3]
            blocks.update(states, layer, part, torch.arange(number * 5 + begin, number * 5 + begin + len(part)))
    blocks.write(number, states, 5)


def bits_of(blocks: ReducedBlocks, layers=LAYERS) -> list[bytes]:
    """Every bit of every state."""
    found = []
    for layer in layers:
        states, samples = blocks.read(layer)
        found.append(str(samples).encode())
        found += [tensor.numpy().tobytes() for state in states for _, tensor in sorted(state.items())]
    return found


@cache
def merged_by_hand(numbers: tuple[int, ...], layers=LAYERS) -> list[bytes]:
    """The same, by a recursion over plain lists that halves the smallest power of two that covers all blocks."""

    def state(layer, at, begin, size):
        reducer = REDUCERS[layer][at]
        if size == 1:
            if begin not in numbers:
                return None
            found, values = reducer.begin(), values_of(begin)[layer]
            reducer.update(found, values[:3], torch.arange(begin * 5, begin * 5 + 3))
            reducer.update(found, values[3:], torch.arange(begin * 5 + 3, begin * 5 + 5))
            return found
        left, right = state(layer, at, begin, size // 2), state(layer, at, begin + size // 2, size // 2)
        return reducer.merge(left, right) if left and right else left or right

    found = []
    for layer in layers:
        found.append(str(5 * len(numbers)).encode())
        for at in range(len(REDUCERS[layer])):
            whole = state(layer, at, 0, 64)
            found += [tensor.numpy().tobytes() for _, tensor in sorted(whole.items())]
    return found


@settings(max_examples=25, deadline=None)
@given(st.integers(1, 12).flatmap(lambda count: st.permutations(range(count))))
def test_any_order_of_blocks_gives_the_same_bits(tmp_path_factory, order):
    storage = MemoryStorage(tmp_path_factory.mktemp("blocks"))
    blocks = ReducedBlocks(storage, REDUCERS)
    for done, number in enumerate(order, 1):
        write_block(blocks, number)
        assert blocks.blocks() == set(order[:done])
    assert bits_of(blocks) == merged_by_hand(tuple(order))
    assert len(storage.files) == bin(len(order)).count("1")  # one file for each power of two in the number of blocks


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_any_kills_and_any_repeated_work_give_the_same_bits(tmp_path_factory, data):
    """Several processes in turns, each killed at any write or delete, some doing again what is done already."""
    count = data.draw(st.integers(1, 9))
    storage = MemoryStorage(tmp_path_factory.mktemp("blocks"))
    for _ in range(data.draw(st.integers(0, 6))):
        storage.allowed = data.draw(st.integers(0, 8))
        blocks = ReducedBlocks(storage, REDUCERS)
        try:
            if data.draw(st.booleans()):
                blocks.settle()
            for number in data.draw(st.lists(st.integers(0, count - 1), max_size=5)):
                write_block(blocks, number)
        except Killed:
            pass
    storage.allowed = 10**9
    blocks = ReducedBlocks(storage, REDUCERS)
    for number in set(range(count)) - blocks.blocks():
        write_block(blocks, number)
    wanted = merged_by_hand(tuple(range(count)))
    assert bits_of(blocks) == wanted
    blocks.settle()
    assert bits_of(blocks) == wanted
    assert len(storage.files) == bin(count).count("1")


class Racing(MemoryStorage):
    """At one chosen call to the storage another process does all of its work at once."""

    def __init__(self, folder) -> None:
        super().__init__(folder)
        self.calls = 0
        self.at = -1
        self.other = lambda: None

    def _reached(self) -> None:
        self.calls += 1
        if self.calls == self.at:
            self.at = -1
            self.other()

    def sizes(self):
        self._reached()
        found = super().sizes()
        self._reached()
        return found

    def read_tensors(self, name):
        self._reached()
        return super().read_tensors(name)

    def write_tensors(self, name, tensors, metadata):
        self._reached()
        super().write_tensors(name, tensors, metadata)
        self._reached()

    def delete(self, name):
        self._reached()
        super().delete(name)


@pytest.mark.parametrize("at", range(1, 64))
def test_another_process_may_do_the_same_work_at_any_moment(tmp_path, at):
    """Whatever moment it comes in between, writing, merging and reading give the same bits."""
    storage = Racing(tmp_path)
    blocks = ReducedBlocks(storage, REDUCERS)
    for number in (0, 1, 2, 4):
        write_block(blocks, number)
    storage.calls = 0

    def other():
        again = ReducedBlocks(storage, REDUCERS)
        for number in (5, 3, 3):
            write_block(again, number)
        again.settle()

    storage.at, storage.other = at, other
    write_block(blocks, 3)
    for layer in LAYERS:  # what is there when it is asked for, all of it
        possible = [merged_by_hand(tuple(range(count)), (layer,)) for count in (5, 6)]
        assert bits_of(blocks, [layer]) in possible
    if storage.at == at:  # it has not come in between
        other()
    blocks.settle()
    assert bits_of(blocks) == merged_by_hand(tuple(range(6)))
    assert sorted(storage.files) == ["reduced-01-00000002.safetensors", "reduced-02-00000000.safetensors"]


def work(folder, numbers, begin) -> None:
    torch.set_num_threads(1)
    begin.wait(300)
    blocks = ReducedBlocks(LocalStorage(folder), REDUCERS)
    for number in numbers:
        write_block(blocks, number)


def started(folder, shares, parties=None):
    fork = multiprocessing.get_context("fork")
    begin = fork.Barrier(parties or len(shares))
    processes = [fork.Process(target=work, args=(folder, share, begin)) for share in shares]
    for process in processes:
        process.start()
    return processes, begin


def test_two_processes_that_merge_at_once_give_the_same_bits(tmp_path):
    """Real processes, on one folder: each with its share, and both with all of it."""
    torch.set_num_threads(1)
    wanted = merged_by_hand(tuple(range(24)))
    for name, shares in {"shared": [range(0, 24, 2), range(1, 24, 2)], "twice": [range(24), range(24)]}.items():
        processes, _ = started(tmp_path / name, shares)
        reading = ReducedBlocks(LocalStorage(tmp_path / name), REDUCERS)
        while any(process.is_alive() for process in processes):
            states, samples = reading.read("conv")
            assert samples % 5 == 0
            if samples:
                assert int(states[0]["count"][0]) == samples * 9
        for process in processes:
            process.join()
        assert [process.exitcode for process in processes] == [0, 0]
        reading.settle()
        assert bits_of(reading) == wanted
        assert len(os.listdir(tmp_path / name)) == 2


def test_a_process_that_is_killed_while_it_merges_loses_at_most_its_block(tmp_path):
    """Real kills at ten moments; then one process does what is missing."""
    torch.set_num_threads(1)
    wanted = merged_by_hand(tuple(range(12)))
    for moment in range(10):
        folder = tmp_path / str(moment)
        (process,), begin = started(folder, [range(12)], parties=2)
        begin.wait(300)
        time.sleep(0.004 * moment)
        os.kill(process.pid, signal.SIGKILL)
        process.join()
        blocks = ReducedBlocks(LocalStorage(folder), REDUCERS)
        blocks.settle()
        done = blocks.blocks()
        assert done == set(range(len(done)))
        for number in set(range(12)) - done:
            write_block(blocks, number)
        assert bits_of(blocks) == wanted


def test_blocks_may_be_missing_anywhere(tmp_path):
    blocks = ReducedBlocks(LocalStorage(tmp_path), REDUCERS)
    assert blocks.read("conv").samples == 0
    for number in (9, 3, 2, 40):
        write_block(blocks, number)
    assert blocks.blocks() == {2, 3, 9, 40}
    assert bits_of(blocks) == merged_by_hand((2, 3, 9, 40))


def test_a_node_covers_its_blocks():
    assert Node(2, 3).blocks == range(12, 16)
    assert set(itertools.chain(*(half.blocks for half in Node(2, 3).halves))) == set(Node(2, 3).blocks)
    assert Node(0, 13).is_covered({Node(2, 3)})
    assert not Node(0, 13).is_covered({Node(2, 2), Node(0, 13)})


def test_files_of_other_reducers_are_refused(tmp_path):
    write_block(ReducedBlocks(LocalStorage(tmp_path), REDUCERS), 0)
    other = ReducedBlocks(LocalStorage(tmp_path), {**REDUCERS, "conv": [Mean(), TopK(4)]})
    with pytest.raises(UnreadableFile, match="not of the layers and reducers"):
        other.read("conv")
    (tmp_path / "reduced-00-00000000.safetensors").write_bytes(b"nothing")
    with pytest.raises(UnreadableFile, match="cannot be read"):
        ReducedBlocks(LocalStorage(tmp_path), REDUCERS).read("conv")
    (tmp_path / "reduced-99-99999999.safetensors").write_bytes(b"nothing")
    assert ReducedBlocks(LocalStorage(tmp_path), REDUCERS).blocks() == {0}
