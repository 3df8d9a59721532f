"""What can be done with schedules by hand: each verb once, for one schedule and for many."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import ClassVar, Generic, TypeVar

from psched.base.errors import NotSupportedError
from psched.client.access import Access, Condition
from psched.config import Config
from psched.core.definition import history_setting
from psched.core.history.records import RunRecord, Skipped
from psched.core.model import ENDED, Row
from psched.core.operations.pausing import record_of
from psched.core.selection import STATES

R_co = TypeVar("R_co", covariant=True)


class Verb(ABC, Generic[R_co]):
    """Does something with a schedule: what it checks, changes and records, and how it is called.

    Attributes:
        name: the infinitive; the audit trail calls the change so.
        done: the participle.
        after: what the task of a schedule has done before its worker changes the schedule.
        later: what is said of a schedule whose worker will do it; None means a text with ``after``.
        states: the values of `Row.state` of the schedules that a selection takes.
        unless_named: those of them that it takes only if they are a condition.
        takes_extra_runs: whether it takes extra runs, too.
        takes_one_shots: whether it takes what runs only once, too.
        takes_templates: whether it takes templates, in place of the rows of their hosts.
        has_preview: whether the state alone does not say whether a schedule can be changed.
        ends: whether a schedule then runs no more by itself.
        leaves_changed: whether the same verb, done again, leaves alone what it has changed.
    """

    name: ClassVar[str]
    done: ClassVar[str]
    after: ClassVar[str] = "stopped"
    later: ClassVar[str | None] = None
    states: ClassVar[frozenset[str]] = STATES - ENDED
    unless_named: ClassVar[frozenset[str]] = frozenset()
    takes_extra_runs: ClassVar[bool] = True
    takes_one_shots: ClassVar[bool] = True
    takes_templates: ClassVar[bool] = False
    has_preview: ClassVar[bool] = False
    ends: ClassVar[bool] = False
    leaves_changed: ClassVar[bool] = True

    @abstractmethod
    def apply(self, access: Access, key: str, only_if: Condition | None = None) -> R_co:
        """Do it with the schedule that has a key, if its row fulfils a condition."""

    def preview(self, access: Access, row: Row) -> R_co | bool:
        """What `apply` would return; the errors are the same, as far as they are known."""
        del access, row
        return True


def records_of(
    access: Access, row: Row, spans: Iterable[Skipped], *, owner: str, now: float
) -> Sequence[RunRecord]:
    """The records of skipped occurrences; none if the run history does not keep them."""
    history = access.store.history
    if history_setting(row, access.settings) == "none" or history is None:
        return ()
    if history.problem() is not None:
        return ()
    host = access.auditor.author.host
    return [record_of(row, each, owner=owner, host=host, now=now) for each in spans]


def refuse_without_status(settings: Config) -> None:
    """Refuse a store that cannot say that a schedule is paused or is being stopped."""
    if not settings.store_kind.keeps_status:
        raise NotSupportedError(
            f"a store of type {settings.type} keeps no status, so it has no pauses"
        )
