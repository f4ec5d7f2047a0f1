"""Nothing that an Xray waits for can keep a training for ever: partners that are dead, stopped or slow, threads and locks."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import threading
import time
import warnings
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from forked import run_in_a_copy
from torcheer import SnapshotLost, Xray
from torcheer.errors import RunInUse
from torcheer.xray import drawing as desk
from torcheer.xray import writing
from torcheer.xray.drawing import Desk, Job

LONG = 300  # seconds, for what takes a moment

needs_stopping = pytest.mark.skipif(not hasattr(signal, "SIGSTOP"), reason="processes cannot be stopped here")
needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="processes cannot be forked here")


def in_time(work):
    """Do something in a thread that is left behind if it hangs. Returns what it returns."""
    found = []

    def run():
        try:
            found.append((work(), None))
        except BaseException as error:
            found.append((None, error))

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(LONG)
    assert found, "it hangs"
    if found[0][1] is not None:
        raise found[0][1]
    return found[0][0]


# A process that draws nothing, at once: Matplotlib takes seconds.
QUICK = 'import sys\nfor line in sys.stdin: print(\'{"length": 0, "seconds": 0.0}\', flush=True)'


@pytest.fixture
def begin(tmp_path, monkeypatch):
    """Makes an Xray, with a desk of its own."""
    monkeypatch.setattr(desk, "_desks", {})
    monkeypatch.setattr(desk, "_PROGRAM", QUICK)
    made = []

    def make(name="run", **options):
        made.append(Xray(nn.Linear(4, 3), torch.ones(2, 4), [""], folder=tmp_path / name, **options))
        return made[-1]

    yield make
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for one in made:
            in_time(one.close)
        for one in desk._desks.values():
            in_time(one.close)


def shown(xray, count=1):
    for _ in range(count):
        xray.take_graphs()
        drawing = xray.show_last_graphs()
        xray._flush_snapshots()
    return drawing


def told(work):
    """Do something in time, and return what was told."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        in_time(work)
    assert all(issubclass(one.category, SnapshotLost) for one in caught)
    return [str(one.message) for one in caught]


def closed(xray):
    return told(xray.close)


def impatient(monkeypatch, limit=1.0):
    monkeypatch.setattr(desk, "_LIMIT", limit)
    monkeypatch.setattr(desk, "_LEAVE", 0.1)


@needs_stopping
@pytest.mark.parametrize("waiting", [1, 3])
def test_a_stopped_process_loses_its_figures_and_the_training_ends(begin, monkeypatch, waiting):
    """Those that wait behind it are not waited for one after the other, and the next Xray has its figures."""
    xray = begin()
    assert shown(xray).wait(LONG)
    process = desk.desk()._process
    os.kill(process.pid, signal.SIGSTOP)
    impatient(monkeypatch, 2.0)
    shown(xray, waiting)
    said = closed(xray)
    assert len(said) == 1
    assert "took more than 2 s" in said[0]
    assert process.poll() == -signal.SIGKILL
    assert xray.run.steps() == list(range(1 + waiting))
    monkeypatch.setattr(desk, "_LIMIT", float(LONG))
    another = begin(resume=True)
    drawing = shown(another)
    assert drawing.wait(LONG)
    assert closed(another) == []
    assert drawing.path.name == f"step_{1 + waiting:08d}.png"


@needs_stopping
def test_a_process_that_is_stopped_and_killed_loses_one_figure(begin):
    """None at all, where that was noticed before it was asked for the figure."""
    xray = begin()
    assert shown(xray).wait(LONG)
    process = desk.desk()._process
    os.kill(process.pid, signal.SIGSTOP)
    lost = shown(xray)
    os.kill(process.pid, signal.SIGKILL)
    assert lost.wait(LONG)
    drawn = []
    said = told(lambda: (drawn.append(shown(xray)), xray.close()))
    assert drawn[0].path.name == "step_00000002.png"
    assert lost.path is not None or "step 1 could not be drawn" in said[0]


PROGRAMS = {
    "never answers": "import time; time.sleep(1000)",
    "answers nonsense and stays": "import time; print('nonsense', flush=True); time.sleep(1000)",
    "answers in part and stays": "import time; print('{', end='', flush=True); time.sleep(1000)",
    "says less than it announces": "import time; print('{\"length\": 5}', flush=True); time.sleep(1000)",
    "does not read": "import sys, time; sys.stdin.close(); time.sleep(1000)",
    "ignores the wish to end": "import time; print(flush=True); time.sleep(1000)",
    "ignores signals": "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(1000)",
    "ends at once": "",
    "fails": "raise SystemExit(3)",
    "has a child that holds the pipe": "import subprocess; subprocess.Popen(['sleep', '30'])",
}


@pytest.mark.parametrize("program", PROGRAMS)
def test_whatever_becomes_of_the_process_every_job_is_finished(begin, monkeypatch, program):
    """A process that hangs, fails, says nonsense or does not end: the figure is lost, and the training ends."""
    monkeypatch.setattr(desk, "_PROGRAM", PROGRAMS[program])
    impatient(monkeypatch)
    xray = begin()
    shown(xray, 2)
    said = closed(xray)
    assert said
    assert all("figure" in one for one in said)
    assert xray.run.steps() == [0, 1]


@needs_fork
@pytest.mark.skipif(not hasattr(os, "setsid"), reason="needs sessions")
def test_a_process_whose_pipe_another_holds_loses_its_figure_and_the_next_figure_has_another_process(
    begin, monkeypatch, tmp_path
):
    """The thread that reads from the pipe hangs for ever, since the process that is to be killed has ended."""
    child = "import os, time; open({!r}, 'w').write(str(os.getpid())); time.sleep(1000)".format(str(tmp_path / "pid"))
    program = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {child!r}], start_new_session=True)"
    monkeypatch.setattr(desk, "_PROGRAM", program)
    impatient(monkeypatch)
    xray = begin()
    try:
        drawing = shown(xray)
        said = closed(xray)
        assert len(said) == 1
        assert "took more than 1 s" in said[0]
        assert drawing.wait(0)
        monkeypatch.setattr(desk, "_PROGRAM", QUICK)
        monkeypatch.setattr(desk, "_LIMIT", float(LONG))
        another = begin("another")
        assert in_time(lambda: shown(another).wait(LONG))
        assert closed(another) == []
    finally:
        os.kill(int((tmp_path / "pid").read_text()), signal.SIGKILL)


@pytest.mark.parametrize("error", [SystemExit, KeyboardInterrupt, RuntimeError])
def test_a_figure_that_cannot_be_shown_is_done(begin, monkeypatch, error):
    """Whatever is raised where its path is printed."""

    def fails(*_):
        raise error("no screen")

    xray = begin()
    monkeypatch.setattr(desk, "print", fails, raising=False)
    assert in_time(lambda: shown(xray, 2).wait(LONG))
    closed(xray)
    assert desk.desk()._thread is None


def test_a_desk_that_can_start_no_thread_gives_its_figures_up(begin, monkeypatch):
    """Too many threads, or the program ends."""
    start = threading.Thread.start

    def refuses(thread):
        if thread.name == "torcheer-xray-drawing":
            raise RuntimeError("can't start new thread")
        start(thread)

    xray = begin()
    monkeypatch.setattr(threading.Thread, "start", refuses)
    assert "can't start new thread" in told(lambda: (shown(xray).wait(LONG), xray.close()))[0]


def test_a_figure_whose_showing_hangs_is_not_waited_for(begin, monkeypatch):
    """As a screen that takes no more: the training ends, and is told."""
    is_over = threading.Event()
    xray = begin()
    monkeypatch.setattr(desk, "print", lambda *_: is_over.wait(LONG), raising=False)
    monkeypatch.setattr(desk, "_LIMIT", 5.0)
    drawing = shown(xray)
    said = closed(xray)
    assert not drawing.wait(0)
    is_over.set()
    assert drawing.wait(LONG)
    assert len(said) == 1
    assert "1 figure could not be drawn in time" in said[0]


def test_a_figure_that_waits_for_its_own_thread_is_not_waited_for():
    """As Python's collector may finish an Xray on any thread."""
    table, said = Desk(), []
    one = Job({}, "here", lambda *_: said.append(table.wait(one)))
    table._draw = lambda request: ({}, b"")
    table.ask(one)
    assert one.done.wait(LONG)
    assert said == [False]


@pytest.fixture
def blocked(monkeypatch):
    """A disk that does not answer until the event is set."""
    monkeypatch.setattr(writing, "_LIMIT", 0.2)
    answers, write = threading.Event(), writing.FileManager.write

    def waits(self, *args):
        assert answers.wait(LONG)
        return write(self, *args)

    monkeypatch.setattr(writing.FileManager, "write", waits)
    yield answers
    answers.set()


def test_a_disk_that_does_not_answer_keeps_no_training(begin, blocked):
    """What is lost is told, figures are left out, and nobody else may write to the folder as long as the thread may."""
    xray = begin()
    xray.take_graphs()
    thread, shown = xray._writer._thread, []

    def train():
        for _ in range(3):
            xray.take_graphs()
            shown.append(xray.show_last_graphs())
        xray.flush()
        xray.close()

    said = told(train)
    assert shown == [None] * 3
    assert len(said) == 2
    assert "was not written within 0.2 s" in said[0]
    assert "the snapshot of step 1 was left out" in said[1]
    with pytest.raises(RunInUse):
        begin(resume=True)
    blocked.set()
    thread.join(LONG)
    with begin(resume=True) as again:
        assert again.run.steps() == [0]


def test_a_disk_that_answers_late_loses_only_what_was_left_out(begin, blocked):
    xray = begin()
    assert len(told(lambda: ([xray.take_graphs() for _ in range(3)], xray.flush()))) == 2
    blocked.set()
    writing._LIMIT = LONG
    while not xray._writer.flush():
        xray._writer._queue.join()
    in_time(xray.take_graphs)
    assert xray.run.steps() == [0, 3]
    assert closed(xray) == []


@pytest.mark.parametrize("error", [SystemExit, KeyboardInterrupt])
def test_no_error_ends_the_thread_that_writes(begin, monkeypatch, error):
    """Such as that of a selector that ends the program."""
    xray, write, failed = begin(), writing.FileManager.write, []

    def fails(self, *args):
        if not failed:
            failed.append(True)
            raise error("no more")
        return write(self, *args)

    monkeypatch.setattr(writing.FileManager, "write", fails)
    in_time(xray.take_graphs)
    with pytest.warns(SnapshotLost, match=f"step 0 was lost: {error.__name__}"):
        in_time(xray.flush)
    in_time(xray.take_graphs)
    assert xray.run.steps() == [1]


def test_a_figure_that_cannot_be_asked_for_is_given_up(begin, monkeypatch):
    xray = begin()
    xray.take_graphs()
    monkeypatch.setattr(desk, "desk", lambda: SimpleNamespace())
    assert in_time(xray.show_last_graphs().wait)
    assert "a figure could not be drawn: AttributeError" in closed(xray)[0]


def test_the_collector_may_finish_an_xray_on_the_thread_that_writes_for_it(tmp_path):
    """There it must not wait for itself; the snapshots are there, and the folder is free."""
    xray = Xray(nn.Linear(4, 3), torch.ones(2, 4), [""], folder=tmp_path / "run")
    xray.take_graphs()
    xray.flush()
    writer, thread, has_gone = xray._writer, xray._writer._thread, threading.Event()
    xray.itself = xray

    def collect():
        assert has_gone.wait(LONG)
        gc.collect()

    gc.disable()
    try:
        writer.soon(collect)
        del xray
    finally:
        has_gone.set()
        gc.enable()
    thread.join(LONG)
    assert not thread.is_alive()
    with Xray(nn.Linear(4, 3), torch.ones(2, 4), [""], folder=tmp_path / "run", resume=True) as again:
        assert again.run.steps() == [0]


@needs_fork
@pytest.mark.parametrize("use", ["close", "flush", "show_last_graphs", "saved"])
def test_a_forked_process_does_not_wait_for_threads_that_it_does_not_have(begin, use, monkeypatch):
    """The snapshot, the figure and the threads are its parent's."""
    xray = begin()
    xray.take_graphs()
    xray._flush_snapshots()
    monkeypatch.setattr(Desk, "ask", lambda self, job: None)  # a figure that is never done
    xray.show_last_graphs()
    xray._flush_snapshots()
    monkeypatch.undo()

    def work():
        signal.alarm(LONG)
        desk._desks.clear()
        getattr(xray, use)()

    code, said = run_in_a_copy(work)
    assert code == 0, said
    for job in xray._drawer._jobs:
        job.done.set()


PROGRAM = """
import sys, torch
from torch import nn
from torcheer import Xray
from torcheer.xray import drawing as desk
desk._PROGRAM = sys.argv[2]
xray = Xray(nn.Linear(4, 3), torch.ones(2, 4), [""], folder=sys.argv[1])
xray.itself = xray
xray.take_graphs()
xray.show_last_graphs()
"""


def test_a_program_that_ends_without_closing_its_xray_ends(tmp_path):
    """What was taken is there. The process that draws does not run the program again, which nothing guards."""
    folder, paths = str(tmp_path / "run"), os.pathsep.join(filter(None, sys.path))
    (tmp_path / "train.py").write_text(PROGRAM)
    command = [sys.executable, str(tmp_path / "train.py"), folder, QUICK]
    environment = {**os.environ, "PYTHONPATH": paths}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=5 * LONG, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert Xray.open(folder).run.steps() == [0]


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="processes cannot be killed here")
def test_the_process_that_draws_ends_with_a_training_that_is_killed(tmp_path):
    program = f"{PROGRAM}xray.flush()\nimport os\nprint(desk.desk()._process.pid, flush=True)\nos.kill(os.getpid(), 9)\n"
    draws = (
        "import os, sys\nfor line in sys.stdin: print('{\"length\": 0}', flush=True)\nopen(os.environ['ENDED'], 'w').close()"
    )
    paths, ended = os.pathsep.join(filter(None, sys.path)), tmp_path / "ended"
    command = [sys.executable, "-c", program, str(tmp_path / "run"), draws]
    environment = {**os.environ, "PYTHONPATH": paths, "ENDED": str(ended)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=LONG, check=False)
    assert done.returncode == -signal.SIGKILL, done.stderr
    deadline = time.monotonic() + LONG
    while not ended.exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert ended.exists()
