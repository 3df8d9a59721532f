"""The search box of the pages: keys, and qualifiers such as ``state:failing``."""

import re
from collections.abc import Iterator
from dataclasses import dataclass

from psched.base.errors import InvalidError
from psched.cli.schedules.listing import SHOWN_STATES, find_rows, last_runs_of
from psched.core.history.run import Run
from psched.core.model import Row
from psched.core.operations.extra_runs import schedule_key
from psched.core.selection import is_pattern, matches
from psched.web.asked import Asked

MOST_READ = 20_000  # the most rows that a search reads; it takes less than a second
QUALIFIERS = ("state", "type", "label")

HINTS = [f"state:{state}" for state in SHOWN_STATES]  # what a browser offers

_WORD = re.compile(rf'(?:({"|".join(QUALIFIERS)}):)?(?:"([^"]*)"|(\S+))')


@dataclass(frozen=True, slots=True)
class Search:
    """What somebody searches: rows that have one of each; nothing of a sort means all of them.

    ``keys`` are patterns.
    """

    text: str
    keys: tuple[str, ...]
    states: tuple[str, ...]
    types: tuple[str, ...]
    labels: tuple[str, ...]

    def __bool__(self) -> bool:
        return bool(self.keys or self.states or self.types or self.labels)

    def finds_record(self, run: Run) -> bool:
        """Whether it finds a record whose row is gone, such as a task's; only rows have a state."""
        key = schedule_key(run.key)
        return (
            not self.states
            and (not self.keys or any(matches(key, each) for each in self.keys))
            and (not self.types or run.type in self.types)
            and (not self.labels or run.label in self.labels)
        )


def parse_search(text: str) -> Search:
    """Parse what somebody has written: ``mail-* state:failing label:"two words"``."""
    found: dict[str, list[str]] = {name: [] for name in ("", *QUALIFIERS)}
    for word in _WORD.finditer(text):
        value = word[2] if word[3] is None else word[3]
        if value:
            found[word[1] or ""].append(value)
    for state in found["state"]:
        if state not in SHOWN_STATES:
            raise InvalidError(
                "state", f"{state!r} is unknown; choose from {', '.join(SHOWN_STATES)}"
            )
    return Search(
        text=text.strip(),
        keys=tuple(key if is_pattern(key) else f"{key}*" for key in found[""]),
        states=tuple(found["state"]),
        types=tuple(found["type"]),
        labels=tuple(found["label"]),
    )


def word_of(qualifier: str, value: str) -> str:
    """A qualifier as text of a search."""
    return f'{qualifier}:"{value}"' if re.search(r"\s", value) else f"{qualifier}:{value}"


class Found:
    """The rows that a search finds, while they are read.

    Attributes:
        find_last: finds the last runs; None if there is no run history, or nobody needs them.
        is_cut: whether the search has ended early, because the rows are too many, or nobody waits.
    """

    def __init__(self, asked: Asked, search: Search, now: float, *, with_last: bool = True) -> None:
        self.is_cut = False
        self._is_gone = asked.is_gone
        # A status can depend on the last run.
        needs = with_last or search.states
        self.find_last = last_runs_of(asked.schedules) if needs else None
        self.rows = find_rows(
            asked.schedules,
            search.keys,
            states=search.states,
            types=search.types,
            labels=search.labels,
            now=now,
            find_last=self.find_last,
            watch=self._watch,
        )

    def _watch(self, read: Iterator[Row]) -> Iterator[Row]:
        for number, row in enumerate(read):
            if number == MOST_READ or self._is_gone():
                self.is_cut = True
                return
            yield row
