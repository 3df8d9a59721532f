"""One question: what is known about a schedule, and the occurrence that is meant."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from psched.core.definition import Definition
from psched.core.history.records import RunRecord
from psched.core.history.why.answer import Answer, Code, State, Wording
from psched.core.history.why.facts import Facts, Then, fires


@dataclass(frozen=True, kw_only=True)
class Case:
    """The question what became of an occurrence.

    Attributes:
        facts: what is known.
        words: words for times.
        instant: the scheduled time of the occurrence, in Unix seconds.
    """

    facts: Facts
    words: Wording
    instant: int

    @cached_property
    def then(self) -> Then:
        """The definition at the time of the occurrence."""
        return self.facts.at(self.instant)

    @property
    def definition(self) -> Definition | None:
        """The definition at the time of the occurrence, or else the present one."""
        return self.then.definition or self.facts.definition

    @property
    def cursor(self) -> int | None:
        """The scheduled time of the occurrence that is due or running next."""
        return None if self.facts.row is None else self.facts.row.next_time

    @property
    def once(self) -> bool:
        """Whether the schedule has only one occurrence."""
        return self.facts.row is not None and self.facts.row.cron is None

    @cached_property
    def records(self) -> Sequence[RunRecord]:
        """The records about the occurrence, the newest first.

        A span also covers times between its occurrences. So it counts only if the trigger has an
        occurrence at the time.
        """
        return [
            each
            for each in self.facts.covering(self.instant)
            if each.scheduled_time == self.instant
            or self.facts.row is None
            or fires(self.then.trigger, self.instant)
        ]

    @property
    def attempts(self) -> Sequence[RunRecord]:
        """The records of the attempts, in order."""
        return sorted(
            (each for each in self.records if each.outcome is not None),
            key=lambda each: (each.started or each.ended, each.fence),
        )

    @property
    def run_from(self) -> int:
        """When the occurrence could start at the earliest: after the delay and the jitter."""
        if self.definition is None:
            return self.instant
        return self.definition.first_run(self.instant)

    @property
    def near(self) -> Wording:
        """Words for times that follow `subject` in a sentence."""
        return Wording(self.words.zone, self.instant)

    @property
    def subject(self) -> str:
        """The occurrence, as the subject of a sentence."""
        if self.once:
            return f"The task of {self.words.time(self.instant)}"
        return f"The occurrence of {self.words.time(self.instant)}"

    def time(self, instant: float) -> str:
        """A time that follows `subject` in a sentence."""
        return self.words.time(instant, self.instant)

    def answer(self, code: Code, state: State, predicate: str, **details: object) -> Answer:
        """An answer about the occurrence."""
        return Answer(
            key=self.facts.key,
            time=self.instant,
            code=code,
            state=state,
            sentence=f"{self.subject} {predicate}.",
            details=details,
        )
