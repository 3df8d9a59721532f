"""A user's trigger: a class that computes the next time.

The trigger's text contains the import path of the class, and its constructor's arguments as JSON::

    @call myapp.triggers:Tides {"port": "Brest"}

The class must have a method ``next_at(after)``. It returns the first time after the instant
``after``, or None if there is none. ``after`` is whole Unix seconds, or an aware datetime in UTC if
the parameter is annotated as a `datetime`. The result can be whole Unix seconds or an aware
datetime, whatever the type of ``after``. ``next_at`` must be a fast, pure function of the instant
and the constructor's arguments, because every host calls it often, with instants in any order.

Anybody who is allowed to write to the table can write the name of any module into it. So a module
is imported only if the operator allows it. The setting ``triggers`` lists the allowed modules. If
it is not set, the modules in the folders of ``load_path`` are allowed. ``__main__`` is always
allowed, because it is the running program and needs no import.

`psched.base.loader.loading_by` chooses which process loads the class. A user's program loads it
itself (`load_here`). A worker does not load the class (`refuse_to_ask`): a separate process loads
the class and computes the times for the worker, see `worker.trigger_helpers`. The command line
starts a child process that loads the class, see `psched.cli.trigger_helper`.
"""

import inspect
import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import lru_cache
from math import ceil
from typing import Any, NamedTuple, NoReturn

from psched.base import loader
from psched.base.errors import InvalidError, LoadError, NotLoadedError, described
from psched.triggers.zone import LATEST

_WORD = r"[^\W\d]\w*"
_NAME = rf"{_WORD}(?:\.{_WORD})*:{_WORD}(?:\.{_WORD})*"
_TEXT = re.compile(rf"@call[ \t]+(?P<name>{_NAME})(?:[ \t]+(?P<arguments>\{{.*\}}))?", re.DOTALL)

DEADLINE = 10.0
"""Seconds within which a process that loads classes for another process must answer.

The time for imports is included.
"""

_QUESTIONS = 5
"""The number of next times that psched computes as a trial when a schedule is declared."""

_LONGEST_NUMBER = 64  # the size in bits of the longest number that an error shows

_PROGRAM = "__main__"


class Call(NamedTuple):
    """The parsed text of a user's trigger, and the modules that are allowed."""

    text: str
    name: str  # the import path of the class, ``module:Class``
    load_path: tuple[str, ...]  # folders that are searched for modules first
    # The modules that are allowed; None means the modules below ``load_path``.
    triggers: tuple[str, ...] | None


NextAfter = Callable[[int], int | None]
"""A function that calls ``next_at`` and checks the result.

The instant and the result are Unix seconds. The function raises `InvalidError` if ``next_at``
raises or its result is not valid.
"""


class AskElsewhereError(Exception):
    """This process does not load users' triggers; another process must compute the time."""


@dataclass(frozen=True, slots=True)
class CustomTrigger:
    """A user's trigger. Created by `parse_call`. Triggers with equal texts are equal."""

    text: str
    _next_after: NextAfter = field(repr=False, compare=False)

    def next_after(self, instant: int) -> int | None:
        """The first time strictly after an instant, in Unix seconds; None if there is none."""
        return self._next_after(instant)

    def check(self, instant: int) -> None:
        """Test the class: compute the first few times after an instant, each of them twice."""
        for _ in range(_QUESTIONS):
            answer = self.next_after(instant)
            if (again := self.next_after(instant)) != answer:
                raise _refusal(self.text, instant, f"answered {answer}, and then {again}")
            if answer is None:
                return
            instant = answer


def parse_call(
    text: str, load_path: Sequence[str], triggers: Sequence[str] | None = None
) -> CustomTrigger:
    """Parse the text ``@call module:Class {"name": "value"}``, and load the class."""
    match = _TEXT.fullmatch(text)
    if match is None or ".py:" in match["name"]:
        raise InvalidError(
            "cron", f'{text!r} is not like \'@call myapp.triggers:Tides {{"port": "Brest"}}\''
        )
    _arguments(text)
    allowed = None if triggers is None else tuple(triggers)
    return _loaded(
        loader.load_trigger or load_here, Call(text, match["name"], tuple(load_path), allowed)
    )


@lru_cache(maxsize=1024)
def _loaded(load: Callable[[Call], NextAfter], call: Call) -> CustomTrigger:
    return CustomTrigger(call.text, load(call))


def class_name(text: str) -> str:
    """``module:Class`` from the text of a user's trigger, for messages; invalid text unchanged."""
    match = _TEXT.fullmatch(text.strip(" \t"))
    return match["name"] if match else text


def load_here(call: Call) -> NextAfter:
    """Import a class in this process, create an instance, and return its checked ``next_at``."""
    try:
        loader.extend_path(call.load_path)
        _refuse_unlisted(call)
        found = loader.load_object(call.name)
    except LoadError as error:
        problem = str(error)
        if call.name.startswith(f"{_PROGRAM}:"):
            problem = f"{call.name!r} is in the program that declared it: only its workers have it"
        raise NotLoadedError("cron", problem) from error
    try:
        is_trigger = inspect.isclass(found) and callable(getattr(found, "next_at", None))
        made: Any = found(**_arguments(call.text)) if is_trigger else None
        next_at: Callable[[Any], object] | None = made.next_at if is_trigger else None
        dated = next_at is not None and _takes_datetime(next_at)
    except (Exception, SystemExit) as error:
        raise InvalidError("cron", f"{call.name} cannot be made: {described(error)}") from error
    if next_at is None:
        raise InvalidError("cron", f"{call.name!r} is not a class with a method next_at(after)")

    def next_after(instant: int) -> int | None:
        try:
            answered = next_at(datetime.fromtimestamp(instant, UTC) if dated else instant)
            seconds, problem = _seconds(answered)
        except MemoryError:
            raise  # no fault of the trigger: other code may have used up the memory
        except (Exception, SystemExit) as error:
            asked = _asked(call.text, instant)
            raise InvalidError("cron", f"{asked} raised {described(error)}") from error
        if seconds is not None and seconds <= instant:
            problem = f"answered {_shown(seconds)}, which is not later"
        if problem is not None:
            raise _refusal(call.text, instant, problem)
        return seconds if seconds is not None and seconds < LATEST else None

    return next_after


def refuse_to_ask(call: Call) -> NextAfter:
    """Return a function that raises `AskElsewhereError`; the class is not imported."""

    def next_after(_instant: int) -> NoReturn:
        raise AskElsewhereError(call.name)

    return next_after


def _refuse_unlisted(call: Call) -> None:
    module = call.name.partition(":")[0]
    if module == _PROGRAM:
        return
    if call.triggers is None:
        if not loader.is_below(module, call.load_path):
            folders = ", ".join(call.load_path) or "which is empty"
            fix = loader.objection(module) or (
                "set load_path, or name the module in the setting triggers"
            )
            raise NotLoadedError(
                "cron", f"there is no module {module!r} on the load path ({folders}); {fix}"
            )
    elif not any(f"{module}.".startswith(f"{name}.") for name in call.triggers):
        named = ", ".join(call.triggers) or "none"
        raise NotLoadedError(
            "cron", f"the module {module!r} is not one that the setting triggers allows ({named})"
        )


def _takes_datetime(next_at: Callable[[Any], object]) -> bool:
    """Whether the parameter of ``next_at`` is annotated as a datetime."""
    try:
        parameters = inspect.signature(next_at).parameters.values()
    except (TypeError, ValueError):  # some built-in methods have no signature
        return False
    hint = next((each.annotation for each in parameters), None)
    if isinstance(hint, str):  # because of ``from __future__ import annotations``
        return hint.rpartition(".")[2] == "datetime"
    return hint is datetime


def _seconds(answer: object) -> tuple[int | None, str | None]:
    """A result of ``next_at`` in Unix seconds, rounded up to run no task early; or why not."""
    if isinstance(answer, datetime):
        if answer.utcoffset() is None:
            return None, "answered a datetime without a zone"
        answer = ceil(answer.timestamp())
    if answer is None or type(answer) is int:
        return answer, None
    return None, f"answered a value of type {type(answer).__name__}"


def _asked(text: str, instant: int) -> str:
    return f"next_at({instant}) of {class_name(text)}"


def _shown(number: int) -> str:
    # Long numbers are not shown, because Python refuses to convert a number with thousands of
    # digits to text.
    return str(number) if number.bit_length() <= _LONGEST_NUMBER else "a huge number"


def _refusal(text: str, instant: int, problem: str) -> InvalidError:
    rule = (
        "it has to be whole Unix seconds, or a datetime with a zone, after that instant, always"
        " the same; or None"
    )
    return InvalidError("cron", f"{_asked(text, instant)} {problem}; {rule}")


def _arguments(text: str) -> dict[str, Any]:
    match = _TEXT.fullmatch(text)
    given = (match and match["arguments"]) or "{}"
    try:
        return dict(json.loads(given, parse_constant=_refuse_constant))
    except (ValueError, RecursionError) as error:
        raise InvalidError("cron", f"what follows the class is not JSON: {error}") from None


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")
