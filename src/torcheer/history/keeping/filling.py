"""Fills a history: runs a session that records into it, and afterwards releases what was not asked for."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from types import CodeType
from typing import TYPE_CHECKING, Any

from ...capture import Policy, Session, Sink, taking
from ...capture.refusals import warn_if_empty
from ...capture.restore.randomness import RandomState
from ...containers import Arguments
from ...display import few
from ...errors import InvalidArgument, LayerNotFound, UnseenWork, UnseenWorkWarning, put_on
from ...inputs import explained
from ...keys import Key
from ...records import LOST, UNSAVED, Held, Log, Origin
from ...torch_internals import is_of_compiler, may_be_compiled
from ..layers.labels import DEFAULT_FORMAT
from ..printing.text import describe_failure
from .early import EarlyAnswers
from .options import Options
from .selection import Keyed, LeavingModules, Nothing

if TYPE_CHECKING:
    from ..history import History


def open_session(
    history: History, outermost: CodeType | None = None, *, backs_up_everything: bool = False, sink: Sink | None = None
) -> Session:
    """A session that writes into `history`, and its tensors into a `sink`, if there is one."""
    options = history._options
    policy = Policy(_selection(history, options), taking(options.output_device, options.activation_postfunc), sink)
    return Session(
        history._log,
        policy,
        outermost,
        time_on_device=options.time_on_device,
        warns=options.unseen == "warn",
        backs_up_everything=backs_up_everything,
    )


_COMPILER_CAME = (
    "torcheer: torch's compiler was loaded while the model ran, as torch.cond does it, and it cannot compile what is being "
    "logged. It is loaded now, so log again."
)


def run(
    history: History,
    model: Callable[..., Any],
    arguments: Arguments,
    random_seed: int | None,
    random_state: RandomState | None = None,
    *,
    backs_up_everything: bool = False,
    call: str = "log_forward_pass",
    sink: Sink | None = None,
) -> Session:
    """Run `model` once on arguments that `inputs.as_arguments` made, and record it into `history`. Returns the session, closed.

    With `backs_up_everything` all tensors are copied first, so that writes of code that cannot be watched are undone, too.
    `call` is the function of ours that the user called, for errors.
    """
    _check_seed(random_seed, random_state)
    session = open_session(history, backs_up_everything=backs_up_everything, sink=sink)
    had_compiler, is_retried = may_be_compiled(), False
    with explained(model, arguments, call):
        try:
            session.run(model, *arguments, random_seed if random_state is None else random_state)
        except BaseException as error:
            is_retried = not had_compiler and is_of_compiler(error) and sink is None
            if not is_retried:
                explain(history, error)
                if not had_compiler and is_of_compiler(error):
                    put_on(error, _COMPILER_CAME)
                raise
    if is_retried:  # the compiler is known now, and is told to stay out
        history._begin(history.model_name)
        return run(history, model, arguments, random_seed, random_state, backs_up_everything=backs_up_everything, call=call)
    finish(history, session)
    if not history._options.keep_orphans:
        warn_if_empty(history._log)
    return session


def finish(history: History, session: Session) -> None:
    """Raise for unseen work with `unseen="raise"`. Release activations and gradients that turned out not to be meant."""
    unseen = session.recorder.unseen.message or _unseen_writes(history, session)
    if unseen and history._options.unseen == "raise":
        error = UnseenWork(f"{unseen} unseen='ignore' logs it all the same.")
        error.history = history  # type: ignore[attr-defined]  # what the pass logged is not lost
        raise error
    _release_gradients(history)
    wanted, selection = history._options.layers_to_save, session.keeper.selection
    if not isinstance(wanted, Key) or not isinstance(selection, Keyed):
        return
    numbers = _numbers_meant(history, selection.settled(wanted))
    log = history._log
    for number in numbers:
        if number >= 0:
            _hold_arguments(log, number, numbers)
    if log.backward is not None:
        numbers |= set(history._index.outputs)  # for the user to run backward from
    for number in range(len(log.rows)):
        if number not in numbers:
            log.forget(number)


def _unseen_writes(history: History, session: Session) -> str:
    """A sentence on tensors that unwatched code wrote to. It is noted and warned of where `restorer` did not do so already."""
    log, restorer = history._log, session.recorder.restorer
    overwritten = [number for number in sorted(log.overwritten()) if log.versions[number] != LOST]
    names = [history._index.label(number) for number in overwritten if history._index.table.shows(number)]
    told = restorer.written_unseen if restorer is not None else []
    if not names and not told:
        return ""
    message = (
        f"{few([*names, *told], 3)} was written to by something that cannot be watched, such as another thread or a compiled "
        "extension, so that is missing from this history. Run the model on one thread to log all of it."
    )
    if names:
        history._log.notes.append(message)
        if history._options.unseen == "warn":
            warnings.warn(message, UnseenWorkWarning, stacklevel=3)
    return message


def _numbers_meant(history: History, key: Key) -> set[int]:
    try:
        return set(history._lookup.meaning(key).numbers)
    except LayerNotFound as error:
        error.history = history  # type: ignore[attr-defined]  # what the pass logged is not lost
        raise


def _release_gradients(history: History) -> None:
    """Keep only the gradients that were asked for, of later backward passes too."""
    backward, wanted = history._log.backward, history._options.save_gradients
    if backward is None or wanted == "all":
        return
    log = history._log
    if wanted == "modules":
        numbers = {number for call in log.modules for number in call.outputs}
    else:
        assert isinstance(wanted, Key)
        numbers = _numbers_meant(history, wanted)
    made = {log.operations[n].parents[0] for n in numbers if n >= 0 and log.operations[n].origin is Origin.OUTPUT}
    backward.only(numbers | made)  # an output is the tensor some operation made


def _hold_arguments(log: Log, number: int, kept: set[int]) -> None:
    """Let an operation hold those of its arguments whose operations are about to be released."""
    record = log.operations[number]
    if not record.is_saved:
        return
    held = dict(record.details.held or {})
    for slot, parent in enumerate(record.parents):
        if parent >= 0 and parent not in kept and slot not in held and log.values[parent] is not UNSAVED:
            held[slot] = Held(log.values[parent], log.versions[parent])
    if held:
        log.detail(number).held = held


def explain(history: History, error: BaseException) -> None:
    """Put the partial history on the error, and a note that says where it was raised."""
    failure = history._log.failure
    where = f"raised in {describe_failure(failure).splitlines()[0]}. " if failure is not None else ""
    note = f"torcheer: {where}The partial history is on this exception, as error.history."
    put_on(error, note, history=history)


def _selection(history: History, options: Options) -> Any:
    wanted = options.layers_to_save
    if wanted == "all":
        return None
    if wanted == "none":
        return Nothing()
    if wanted == "modules":
        return LeavingModules()
    assert isinstance(wanted, Key)
    return Keyed(history._log, wanted, EarlyAnswers(history), options.layer_label_format == DEFAULT_FORMAT)


def _check_seed(seed: Any, state: Any) -> None:
    if state is not None and not isinstance(state, RandomState):
        raise InvalidArgument(f"random_state is the random_state of a history; got {type(state).__name__}: {state!r:.60}.")
    if state is not None and seed is not None:
        raise InvalidArgument("random_seed and random_state both say how the pass starts: give one of them.")
    if seed is not None and (isinstance(seed, bool) or not isinstance(seed, int) or not 0 <= seed < 2**63):
        raise InvalidArgument(f"random_seed must be a whole number from 0 to 2**63 - 1, or None; got {seed!r}.")
