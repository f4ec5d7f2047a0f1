"""`ValidationReport`: the result of `validate`, with one `Check` per kind of check and its disagreements."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Disagreement:
    """One disagreement with the history."""

    where: str  # the label of an operation, or a module call
    what: str
    source: str | None = None

    def __str__(self) -> str:
        return f"{self.where}: {self.what}" + (f"\n\t\tat {self.source}" if self.source else "")


@dataclass(slots=True)
class Check:
    """One kind of check: counts the values that were checked and that were exempt, and lists the disagreements."""

    name: str
    count: int = 0
    exempt: Counter[str] = field(default_factory=Counter)  # reason -> number of values
    disagreements: list[Disagreement] = field(default_factory=list)
    skipped: str | None = None  # the reason why nothing was checked; None if the check was made

    @property
    def passed(self) -> bool:
        return not self.disagreements

    def disagree(self, where: str, what: str, source: object = None) -> None:
        self.disagreements.append(Disagreement(where, what, str(source) if source is not None else None))

    def __str__(self) -> str:
        if self.skipped is not None:
            return f"–  {self.name}: not checked ({self.skipped})"
        text = f"{'ok' if self.passed else 'NO'} {self.name}: {self.count:,} checked"
        if self.exempt:
            text += "; exempt: " + ", ".join(f"{count:,} {why}" for why, count in self.exempt.most_common())
        return text + (f"; {len(self.disagreements):,} disagree" if self.disagreements else "")


@dataclass(frozen=True, slots=True)
class ValidationReport:
    """The checks and their disagreements. True if nothing disagreed."""

    title: str
    num_operations: int
    checks: tuple[Check, ...]
    notes: tuple[str, ...] = ()  # the notes of the history that was validated

    @property
    def is_valid(self) -> bool:
        return all(check.passed for check in self.checks)

    @property
    def num_checked(self) -> int:
        """How many values, edges and module boundaries were compared."""
        return sum(check.count for check in self.checks)

    @property
    def disagreements(self) -> list[Disagreement]:
        """Everything that disagreed, in the order of the checks."""
        return [one for check in self.checks for one in check.disagreements]

    @property
    def first_disagreement(self) -> Disagreement | None:
        return next(iter(self.disagreements), None)

    def __bool__(self) -> bool:
        return self.is_valid

    def __str__(self) -> str:
        verdict = "NOT VALID" if not self.is_valid else "valid" if self.num_checked else "nothing to prove, the log is empty"
        lines = [f"Validation of {self.title}, {self.num_operations:,} operation{'s' * (self.num_operations != 1)}: {verdict}"]
        lines += [f"\t{check}" for check in self.checks]
        lines += [f"\tNote: {note}" for note in self.notes]
        if self.first_disagreement is not None:
            lines.append(f"\tFirst disagreement: {self.first_disagreement}")
        return "\n".join(lines)

    __repr__ = __str__
