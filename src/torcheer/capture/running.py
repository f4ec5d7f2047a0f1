"""Runs a model once, records it into a log, and keeps the values that were asked for."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from types import CodeType
from typing import Any, cast

from .._cleanup import pass_interrupts_on
from .._text import few
from .._torch.containers import Arguments
from .._torch.functions.facts import Origin, TorchFunction
from .._torch.inputs import explained
from .._torch.internals import is_of_compiler, may_be_compiled
from .._torch.randomness import RandomState
from .._torch.thread_state import thread_left_as_found
from ..errors import InvalidArgument, LayerNotFound, UnseenWork, UnseenWorkWarning, put_on
from ..log.keys import Addresses, Candidates, Key
from ..log.layers import Owners
from ..log.options import DEFAULT_FORMAT
from ..log.records import LOST, UNSAVED, Held, Log, ModuleCall, OperationRecord
from ..log.run import Index, LoggedRun
from .keeper import Policy, Selection, Sink, taking
from .refusals import warn_if_empty
from .session import Session

# Calls the functions that are given as keys, with each operation, while the model still runs.
#
# Shape, type, module and arguments of an operation are final as soon as it ran. Its label, its children and its distance
# from an output are not: if a function reads one of these, it is called again at the end of the pass, and the tensor is
# kept until then.

# The attributes of an index that are final while a recording grows.
_FINAL = frozenset({"tensor_bytes", "state", "state_behind", "state_name", "state_names"})


class _EarlyIndex:
    """The index of an unfinished recording. Notes if it is asked for a fact that is not final before the pass ends."""

    def __init__(self, run: LoggedRun) -> None:
        self.log = run.log
        self.is_unsure = False
        self._run = run
        self._so_far = run.index_so_far()

    def record(self, number: int) -> OperationRecord:
        return self.log.operations[number]

    def __getattr__(self, name: str) -> Any:
        if name in _FINAL:
            return getattr(self._so_far, name)
        self.is_unsure = True
        return getattr(self._run.index, name)


class EarlyAnswers:
    """The answers that predicates gave while the model ran."""

    def __init__(self, run: LoggedRun) -> None:
        self._run = run
        self._index: _EarlyIndex | None = None
        # by id of a function, which the key keeps alive, and operation number: the function's answer
        self._answers: dict[int, dict[int, bool]] = {}

    def ask(self, predicate: Callable[[Any], Any], number: int) -> bool:
        """True if the predicate accepts an operation, or if it must be called again at the end: then the tensor is kept."""
        index = self._index
        if index is None:
            index = self._index = _EarlyIndex(self._run)
        index.is_unsure = False
        try:
            answer = bool(predicate(Index.operation(cast(Index, index), number)))
        except Exception as error:
            pass_interrupts_on(error)
            if index.is_unsure:  # at the end, the fact that the predicate reads may exist
                return True
            raise
        if index.is_unsure:
            return True
        self._answers.setdefault(id(predicate), {})[number] = answer
        return answer

    def settled(self, predicate: Callable[[Any], Any]) -> Callable[[Any], bool]:
        """Wrap a predicate so that it is called again only for operations without a final answer."""
        known = self._answers.get(id(predicate), {})
        self._index = None

        def settled(operation: Any) -> bool:
            answer = known.get(operation.number)
            return bool(predicate(operation)) if answer is None else answer

        return settled


# Decides which activations to keep while the model runs.
#
# Labels follow execution, so most keys can be matched as an operation runs. For keys that can only be matched at the
# end of the pass (positions from the end, slices) everything is kept by reference and released then. Whether an
# operation is an orphan, or a later pass of a layer, is known only at the end; until then a key is matched against
# every number the operation may get.


class LeavingModules(Selection):
    """Keeps what modules return."""

    def before(self, function: TorchFunction, module: ModuleCall | None) -> bool | None:
        return None

    def leaving(self, call: ModuleCall) -> bool:
        return True


class Keyed(Selection):
    """Keeps every activation that a key may turn out to mean."""

    def __init__(self, log: Log, key: Key, answers: EarlyAnswers, labels_are_default: bool) -> None:
        self._log = log
        self._key = key
        self.answers = answers
        self._labels_are_default = labels_are_default
        self._found: Candidates | None = None
        self._numbering = Numbering(log)

    def before(self, function: TorchFunction, module: ModuleCall | None) -> bool | None:
        found = self._found
        if found is None:  # called for the first operation: only now are addresses known
            found = self._found = Candidates(Addresses.of(self._log.registered), self._labels_are_default)
            self._key.add_to(found)
        kind = function.type
        if found.everything or kind in found.types:
            return True
        unsure = found.positions or found.predicates or found.has_modules or kind in found.numbers
        return None if unsure else False

    def after(self, record: OperationRecord) -> bool:
        found = self._found
        if found is None:
            return False
        if found.everything or record.function.type in found.types:
            return True
        if found.positions or found.numbers:
            of_type, overall = self._numbering.catch_up(record.number)
            numbers = found.numbers.get(record.function.type, ())
            if any(of_type[0] <= n <= of_type[1] for n in numbers) or any(
                overall[0] <= n <= overall[1] for n in found.positions
            ):
                return True
        return any(self.answers.ask(predicate, record.number) for predicate in found.predicates)

    def entering(self, call: ModuleCall) -> bool:
        return self._is_candidate(call, is_input=True)

    def leaving(self, call: ModuleCall) -> bool:
        return self._is_candidate(call, is_input=False)

    def _is_candidate(self, call: ModuleCall, *, is_input: bool) -> bool:
        found = self._found
        return (
            found is not None and found.has_modules and found.has_module(self._log.registered[call.address], is_input=is_input)
        )


class Numbering:
    """Finds, during the pass, the numbers that an operation may get in its type and overall."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._counts: dict[str, tuple[int, int]] = {}  # layer type -> how many layers there are, at least and at most
        self._total = (0, 0)
        self._lowest: dict[tuple[str | None, str], tuple[int, int]] = {}  # by owner and type: the least numbers
        self._owners = Owners(log)
        self._seen = 0
        self._reached: list[bool] = []

    def catch_up(self, number: int) -> tuple[tuple[int, int], tuple[int, int]]:
        """Count up to operation `number`. Returns the least and greatest number it may get, in its type and overall.

        Only an operation of the same type with the same owner can be another pass of its layer.
        """
        self._owners.catch_up()
        of_type = overall = (0, 0)
        for record in self._log.operations[self._seen : number + 1]:
            kind = record.function.type
            least, most = self._counts.get(kind, (0, 0))
            where = (self._owners.address(record.module.number if record.module is not None else -1), kind)
            is_new = where not in self._lowest or record.origin is Origin.INPUT
            if is_new:
                self._lowest[where] = (least + 1, self._total[0])
            lowest = self._lowest[where]
            of_type, overall = (lowest[0], most + 1), (lowest[1], self._total[1])
            is_reached = record.origin is Origin.INPUT or any(self._reached[n] for n in record.dependencies)
            self._reached.append(is_reached)
            counts = is_new and is_reached
            self._counts[kind] = (least + counts, most + 1)
            self._total = (self._total[0] + counts, self._total[1] + 1)
        self._seen = max(self._seen, number + 1)
        return of_type, overall


# Runs a model once in a session, and afterwards releases activations and gradients that were not asked for.


def open_session(
    run: LoggedRun, outermost: CodeType | None = None, *, backs_up_everything: bool = False, sink: Sink | None = None
) -> Session:
    """Make a session that writes into the log of `run`; tensors go to `sink`, if there is one."""
    options = run.options
    policy = Policy(_selection(run), taking(options.output_device, options.activation_postfunc), sink)
    return Session(
        run.log,
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


@thread_left_as_found
def run_model(
    run: LoggedRun,
    model: Callable[..., Any],
    arguments: Arguments,
    random_seed: int | None,
    random_state: RandomState | None = None,
    *,
    backs_up_everything: bool = False,
    call: str = "log_forward_pass",
    sink: Sink | None = None,
) -> Session:
    """Run `model` once on arguments that `inputs.as_arguments` made, and record it into the log of `run`.

    Returns the session, closed.

    With `backs_up_everything` all tensors are copied first, so that writes of code that cannot be watched are undone, too.
    `call` is the name of the function that the user called, for errors.
    """
    _check_seed(random_seed, random_state)
    session = open_session(run, backs_up_everything=backs_up_everything, sink=sink)
    had_compiler, is_retried = may_be_compiled(), False
    with explained(model, arguments, call):
        try:
            session.run(model, *arguments, random_seed if random_state is None else random_state)
        except BaseException as error:
            is_retried = not had_compiler and is_of_compiler(error) and sink is None
            if not is_retried:
                explain(run, error)
                if not had_compiler and is_of_compiler(error):
                    put_on(error, _COMPILER_CAME)
                raise
    if is_retried:  # the compiler is loaded now, so `run_uncompiled` can switch it off
        run.begin_again()
        return run_model(run, model, arguments, random_seed, random_state, backs_up_everything=backs_up_everything, call=call)
    finish(run, session)
    if not run.options.keep_orphans:
        warn_if_empty(run.log)
    return session


def finish(run: LoggedRun, session: Session) -> None:
    """Raise for unseen work if `unseen="raise"`. Release activations and gradients that the user did not ask for."""
    unseen = session.recorder.unseen.message or _unseen_writes(run, session)
    if unseen and run.options.unseen == "raise":
        error = UnseenWork(f"{unseen} unseen='ignore' logs it all the same.")
        error.history = run.history  # type: ignore[attr-defined]  # what the pass logged is not lost
        raise error
    _release_gradients(run)
    wanted, selection = run.options.layers_to_save, session.keeper.selection
    if not isinstance(wanted, Key) or not isinstance(selection, Keyed):
        return
    numbers = _numbers_meant(run, wanted.asking(selection.answers.settled))
    log = run.log
    for number in numbers:
        if number >= 0:
            _hold_arguments(log, number, numbers)
    if log.backward is not None:
        numbers |= set(run.index.outputs)  # outputs are kept, so that the user can call backward on them
    for number in range(len(log.rows)):
        if number not in numbers:
            log.forget(number)


def _unseen_writes(run: LoggedRun, session: Session) -> str:
    """Note and warn of tensors that unwatched code wrote to, unless `restorer` did. Returns the sentence, or an empty text."""
    log, restorer = run.log, session.recorder.restorer
    overwritten = [number for number in sorted(log.overwritten()) if log.versions[number] != LOST]
    names = [run.index.label(number) for number in overwritten if run.index.table.shows(number)]
    told = restorer.written_unseen if restorer is not None else []
    if not names and not told:
        return ""
    message = (
        f"{few([*names, *told], 3)} was written to by something that cannot be watched, such as another thread or a compiled "
        "extension, so that is missing from this history. Run the model on one thread to log all of it."
    )
    if names:
        run.log.notes.append(message)
        if run.options.unseen == "warn":
            warnings.warn(message, UnseenWorkWarning, stacklevel=3)
    return message


def _numbers_meant(run: LoggedRun, key: Key) -> set[int]:
    try:
        return set(run.lookup.meaning(key).numbers)
    except LayerNotFound as error:
        error.history = run.history  # type: ignore[attr-defined]  # what the pass logged is not lost
        raise


def _release_gradients(run: LoggedRun) -> None:
    """Keep only the gradients that were asked for, also in later backward passes."""
    backward, wanted = run.log.backward, run.options.save_gradients
    if backward is None or wanted == "all":
        return
    log = run.log
    if wanted == "modules":
        numbers = {number for call in log.modules for number in call.outputs}
    else:
        assert isinstance(wanted, Key)
        numbers = _numbers_meant(run, wanted)
    made = {log.operations[n].parents[0] for n in numbers if n >= 0 and log.operations[n].origin is Origin.OUTPUT}
    backward.only(numbers | made)  # the gradient of an output is also that of the operation that made the tensor


def _hold_arguments(log: Log, number: int, kept: set[int]) -> None:
    """Let an operation hold arguments whose operations are about to be released."""
    record = log.operations[number]
    if not record.is_saved:
        return
    held = dict(record.details.held or {})
    for slot, parent in enumerate(record.parents):
        if parent >= 0 and parent not in kept and slot not in held and log.values[parent] is not UNSAVED:
            held[slot] = Held(log.values[parent], log.versions[parent])
    if held:
        log.detail(number).held = held


def explain(run: LoggedRun, error: BaseException) -> None:
    """Put the partial history on the error, and a note that says where it was raised."""
    failure = run.log.failure
    where = f"raised in {failure.in_words().splitlines()[0]}. " if failure is not None else ""
    note = f"torcheer: {where}The partial history is on this exception, as error.history."
    put_on(error, note, history=run.history)


def _selection(run: LoggedRun) -> Selection | None:
    wanted = run.options.layers_to_save
    if wanted == "all":
        return None
    if wanted == "none":
        return Selection()
    if wanted == "modules":
        return LeavingModules()
    assert isinstance(wanted, Key)
    return Keyed(run.log, wanted, EarlyAnswers(run), run.options.layer_label_format == DEFAULT_FORMAT)


def _check_seed(seed: Any, state: Any) -> None:
    if state is not None and not isinstance(state, RandomState):
        raise InvalidArgument(f"random_state is the random_state of a history; got {type(state).__name__}: {state!r:.60}.")
    if state is not None and seed is not None:
        raise InvalidArgument("random_seed and random_state both say how the pass starts: give one of them.")
    if seed is not None and (isinstance(seed, bool) or not isinstance(seed, int) or not 0 <= seed < 2**63):
        raise InvalidArgument(f"random_seed must be a whole number from 0 to 2**63 - 1, or None; got {seed!r}.")
