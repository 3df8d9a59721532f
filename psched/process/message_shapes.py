"""The shapes of messages between processes: what a receiver accepts, and nothing else.

A peer may have been taken over by the code that runs in it. So each side declares what it accepts,
and its `Link` or `Channel` compares every message with that before anybody reads a field. Fields
that no shape names are ignored: a message may say more than its receiver knows.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from psched.base.texts import LONGEST_BRIEF

Check = Callable[[Any], bool]
"""Whether a field's value, as JSON yields it, is acceptable."""

_LARGEST = 2**63 - 1
"""What a column of a table can hold."""

_AGE = 1e12
"""Seconds; no clock, and no difference of two, is further from 0."""

_LONGEST_LINE = 1100
"""Characters of a key, a type or a line that a log remembers."""


@dataclass(frozen=True, slots=True)
class Shapes:
    """The messages that one side of a line accepts.

    Attributes:
        kinds: by a field that makes a message one of that kind, all fields that this kind needs;
            if empty, any object is accepted.
        longest: bytes of a message as JSON; a longer one is not even received.
    """

    kinds: Mapping[str, Mapping[str, Check]]
    longest: int

    def fault(self, message: object) -> str | None:
        """What is wrong with a message, for a log line; None if nothing is."""
        if type(message) is not dict:
            return "a message that is no object"
        known = not self.kinds
        for kind in message:
            # A message may be of several kinds: then it is checked as each of them.
            if (fields := self.kinds.get(kind)) is not None:
                known = True
                for name, accepts in fields.items():
                    if name not in message:
                        return f"the message {kind!r} without {name!r}"
                    if not accepts(message[name]):
                        return f"the message {kind!r} with an impossible {name!r}"
        return None if known else "a message of no known kind"


ANY = Shapes({}, longest=2**16)
"""Any object: what a link accepts until its owner says what it expects."""


def flag(value: object) -> bool:
    """True or false."""
    return value is True or value is False


def text(most: int) -> Check:
    """A text of so many characters at most, which every file and every database can hold."""

    def accepts(value: object) -> bool:
        if type(value) is not str or len(value) > most or "\0" in value:
            return False
        return value.isascii() or not any("\ud800" <= c <= "\udfff" for c in value)

    return accepts


def attached(value: object) -> bool:
    """The bytes beside a message; `Link` bounds them."""
    return type(value) is bytes


def whole(least: int = 0, most: int = _LARGEST) -> Check:
    """A whole number within bounds; true and false are none."""
    return lambda value: type(value) is int and least <= value <= most


any_whole = whole(-_LARGEST - 1)
"""A whole number that a column of a table can hold."""


def number(least: float = 0, most: float = _AGE) -> Check:
    """A finite number within bounds; true and false are none."""
    return lambda value: type(value) in (int, float) and least <= value <= most


def maybe(accepts: Check) -> Check:
    """Null, or what another check accepts."""
    return lambda value: value is None or accepts(value)


def one_of(*values: str) -> Check:
    """One of some words."""
    return lambda value: type(value) is str and value in values


def listed(accepts: Check, most: int) -> Check:
    """A list of so many values at most, each of which another check accepts."""
    return lambda value: type(value) is list and len(value) <= most and all(map(accepts, value))


def each(*checks: Check) -> Check:
    """A list of as many values as there are checks, each accepted by its own."""

    def accepts(value: object) -> bool:
        if type(value) is not list or len(value) != len(checks):
            return False
        return all(accepts(one) for accepts, one in zip(checks, value, strict=True))

    return accepts


def record(**fields: Check) -> Check:
    """An object that has all these fields."""

    def accepts(value: object) -> bool:
        return type(value) is dict and all(
            name in value and accepts(value[name]) for name, accepts in fields.items()
        )

    return accepts


line = text(_LONGEST_LINE)


brief_text = text(LONGEST_BRIEF)
"""What `texts.brief` returns."""


_pid = whole(2, 2**31 - 1)
_master = whole(1, 2**31 - 1)
"""In a container a master may be process 1."""

_nonces = listed(text(64), 100_000)
_MOST_TASKS = 10_000

TASK = record(
    occurrence=line,
    type=line,
    attempt=any_whole,
    pid=_pid,
    running_for=number(-_AGE),
    lease_left=number(-_AGE),
    state=text(20),
)
"""A task in a worker's report; see `psched.worker.running_task.account`."""

SETTINGS = record(
    processors=whole(1, 1000),
    start_timeout=number(),
    child_heartbeat_limit=number(),
    graceful_timeout=number(),
    graceful_kill_limit=number(),
    log_level=one_of("debug", "info", "warning", "error"),
    cgroup=one_of("auto", "on", "off"),
    log=maybe(text(4096)),
    pid_file=maybe(text(4096)),
    about=record(url=brief_text, table=line, programs=brief_text, triggers=brief_text),
)
"""The settings that a master works by, in the words of the worker that could read them."""

FROM_WORKER = Shapes(
    {
        "ready": {"ready": maybe(SETTINGS)},
        "looked": {"looked": flag},
        "recovered": {"recovered": _nonces},
        "tasks": {"tasks": whole(0, _MOST_TASKS), "away": maybe(brief_text), "enough": line},
        "report": {"report": record(tasks=listed(TASK, _MOST_TASKS), errors=listed(line, 100))},
    },
    # A thousand tasks whose keys are as long as they may be.
    longest=16 * 2**20,
)

FROM_MASTER = Shapes(
    {
        "go": {"go": flag},
        "stop": {"stop": maybe(number()), "hurry": flag},
        "recover": {"recover": _nonces},
        "pause": {"pause": flag},
        "reopen": {"reopen": flag},
        "report": {"report": flag},
    },
    longest=16 * 2**20,
)

FROM_FORK_SERVER = Shapes(
    {
        "born": {"born": listed(_pid, 64), "error": maybe(whole(1, 4095)), "threads": whole()},
        "ended": {"ended": listed(each(_pid, maybe(whole(0, 255)), maybe(whole(1, 64))), 100_000)},
    },
    longest=2**17,
)

TO_FORK_SERVER = Shapes(
    {
        "fork": {"fork": listed(whole(0, 100_000), 64)},
        "bury": {"bury": listed(_pid, 100_000)},
    },
    longest=2**17,
)

STATUS = Shapes(
    {
        "pid": {
            "pid": _master,
            "phase": text(20),
            "generation": whole(),
            "uptime": number(),
            "problem": maybe(brief_text),
            "worker_deaths": whole(),
            "workers": listed(
                record(
                    pid=_pid,
                    number=whole(-1),
                    generation=whole(),
                    state=text(20),
                    uptime=number(-_AGE),
                    silent_for=number(-_AGE),
                    store_away=maybe(brief_text),
                    tasks=listed(TASK, _MOST_TASKS),
                ),
                10_000,
            ),
            "errors": listed(line, 100),
        },
        # Of these a master tells once it knows them, and only beside all others.
        "url": {"pid": _master, "url": brief_text, "table": line},
        "programs": {"pid": _master, "programs": brief_text},
        "triggers": {"pid": _master, "triggers": brief_text},
    },
    longest=64 * 2**20,
)
"""What a master tells ``psched status``."""
