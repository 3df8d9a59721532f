"""A trigger of the user's own: a class that says when the next time is.

It is named by where it can be imported from, with the arguments it is made with, as JSON::

    @call myapp.triggers:Tides {"port": "Brest"}

The class has one method, ``next_at(after)``: the first time after an instant, or None if there is
none. The instant is whole Unix seconds; where the parameter is annotated as a `datetime`, it is an
aware datetime in UTC. The answer is whole Unix seconds or an aware datetime, whatever was given. It
is asked again and again, on every host, about instants in any order, by processes that have other
things to do: the answer has to be quick, and to depend on nothing but the instant and those
arguments.

Whoever may write into the table can name any module. So a module is imported only if the operator
allows it: by the setting ``triggers``, or, without that, by a file in one of the folders of
``load_path``. ``__main__``, the program that runs, is never imported, and always allowed.

Which process loads and asks the class is chosen by `loading_by`. A program does it itself
(`load_here`). A worker never does (`refuse_to_ask`): a separate process does it for the worker, see
`worker.trigger_helpers`. The command line starts a child for it, see
`psched.cli.schedules.trigger_child`.
"""

import inspect
import json
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import lru_cache
from math import ceil
from typing import Any, NoReturn

from psched.base import loader
from psched.base.errors import InvalidError, LoadError, NotLoadedError, described

LATEST = 253_402_214_400  # 9999-12-31T00:00Z, as for cron lines

_WORD = r"[^\W\d]\w*"
_NAME = rf"{_WORD}(?:\.{_WORD})*:{_WORD}(?:\.{_WORD})*"
_TEXT = re.compile(rf"@call[ \t]+(?P<name>{_NAME})(?:[ \t]+(?P<arguments>\{{.*\}}))?", re.DOTALL)

DEADLINE = 10.0
"""Seconds in which a process answers that is asked by another, the import of a class included."""

_QUESTIONS = 5
"""Times that are looked at when a schedule is declared."""

_LONGEST_NUMBER = 64
"""Bits; a longer number is not written out in an error."""

_PROGRAM = "__main__"


@dataclass(frozen=True, slots=True)
class Call:
    """What a trigger's text names, and what of it is allowed.

    Attributes:
        text: the trigger's.
        name: ``module:Class``.
        load_path: folders in which modules are looked for first.
        triggers: the modules that are allowed; None: those below ``load_path``.
    """

    text: str
    name: str
    load_path: tuple[str, ...]
    triggers: tuple[str, ...] | None


Answer = Callable[[int], int | None]
"""The first time after an instant; raises an `InvalidError` if that cannot be had."""


class AskElsewhereError(Exception):
    """A trigger of the user's own would have had to be asked in a process that does not do that."""


@dataclass(frozen=True, slots=True)
class CustomTrigger:
    """A trigger of the user's own. Made by `parse_call`; equal by its text."""

    text: str
    _answer: Answer = field(repr=False, compare=False)

    def next_after(self, instant: int) -> int | None:
        """See `psched.triggers.trigger.Trigger.next_after`.

        Raises:
            InvalidError: it raised, or what it answers is no later time.
            AskElsewhereError: see `refuse_to_ask`.
        """
        return self._answer(instant)

    def check(self, instant: int) -> None:
        """Ask for a few times after an instant, to see that they are times, and stay the same.

        Raises:
            InvalidError: they are not.
        """
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
    """Read ``@call module:Class {"name": "value"}``.

    Args:
        text: without blanks around it.
        load_path: folders in which modules are looked for first.
        triggers: the modules that are allowed; None: those below ``load_path``.

    Raises:
        NotLoadedError: there is no such thing in this process, or it is not allowed.
        InvalidError: the text, or what it names, makes no sense.
    """
    match = _TEXT.fullmatch(text)
    if match is None or ".py:" in match["name"]:
        raise InvalidError(
            "cron", f'{text!r} is not like \'@call myapp.triggers:Tides {{"port": "Brest"}}\''
        )
    _arguments(text)
    allowed = None if triggers is None else tuple(triggers)
    return _called(_find, Call(text, match["name"], tuple(load_path), allowed))


@lru_cache(maxsize=1024)
def _called(find: Callable[[Call], Answer], call: Call) -> CustomTrigger:
    return CustomTrigger(call.text, find(call))


def class_name(text: str) -> str:
    """What a trigger's text calls, ``module:Class``; for people, and to tell them apart."""
    match = _TEXT.fullmatch(text.strip(" \t"))
    return match["name"] if match else text


def load_here(call: Call) -> Answer:
    """Import a class in this process, and make it.

    Raises:
        NotLoadedError: there is no such thing in this process, or it is not allowed.
        InvalidError: it makes no sense.
    """
    loader.extend_path(call.load_path)
    _refuse_unlisted(call)
    try:
        found = loader.load_object(call.name)
    except LoadError as error:
        problem = str(error)
        if call.name.startswith(f"{_PROGRAM}:"):
            problem = f"{call.name!r} is of the program that declared it: only its workers have it"
        raise NotLoadedError("cron", problem) from error
    try:
        is_one = inspect.isclass(found) and callable(getattr(found, "next_at", None))
        made: Any = found(**_arguments(call.text)) if is_one else None
        next_at: Callable[[Any], object] | None = made.next_at if is_one else None
        dated = next_at is not None and _takes_datetime(next_at)
    except (Exception, SystemExit) as error:
        raise InvalidError("cron", f"{call.name} cannot be made: {described(error)}") from error
    if next_at is None:
        raise InvalidError("cron", f"{call.name!r} is not a class with a method next_at(after)")

    def answer(instant: int) -> int | None:
        try:
            answered = next_at(datetime.fromtimestamp(instant, UTC) if dated else instant)
            seconds, problem = _seconds(answered)
        except MemoryError:
            raise  # it may be others who have used up the memory
        except (Exception, SystemExit) as error:
            asked = _asked(call.text, instant)
            raise InvalidError("cron", f"{asked} raised {described(error)}") from error
        if seconds is not None and seconds <= instant:
            problem = f"answered {_shown(seconds)}, which is not later"
        if problem is not None:
            raise _refusal(call.text, instant, problem)
        return seconds if seconds is not None and seconds < LATEST else None

    return answer


def refuse_to_ask(call: Call) -> Answer:
    """Find nothing and ask nothing: whoever needs to know has to have it asked elsewhere."""

    def answer(_instant: int) -> NoReturn:
        raise AskElsewhereError(call.name)

    return answer


_find: Callable[[Call], Answer] = load_here


@contextmanager
def loading_by(find: Callable[[Call], Answer]) -> Iterator[None]:
    """Have triggers of the users' own found in another way, in this process and for a while.

    Args:
        find: `load_here`, `refuse_to_ask`, or another; it raises what `load_here` raises.
    """
    global _find  # noqa: PLW0603  # who asks is a matter of the process, not of a row
    before, _find = _find, find
    try:
        yield
    finally:
        _find = before


def _refuse_unlisted(call: Call) -> None:
    module = call.name.partition(":")[0]
    if module == _PROGRAM:
        return
    if call.triggers is None:
        if not loader.is_below(module, call.load_path):
            folders = ", ".join(call.load_path) or "which is empty"
            raise NotLoadedError(
                "cron",
                f"there is no module {module!r} on the load path ({folders}); set load_path, or"
                f" name the module in the setting triggers",
            )
    elif not any(f"{module}.".startswith(f"{name}.") for name in call.triggers):
        named = ", ".join(call.triggers) or "none"
        raise NotLoadedError(
            "cron", f"the module {module!r} is not one that the setting triggers allows ({named})"
        )


def _takes_datetime(next_at: Callable[[Any], object]) -> bool:
    """Whether its parameter is annotated as a datetime."""
    try:
        parameters = inspect.signature(next_at).parameters.values()
    except (TypeError, ValueError):  # one of the interpreter's own does not say
        return False
    hint = next((each.annotation for each in parameters), None)
    if isinstance(hint, str):  # as with ``from __future__ import annotations``
        return hint.rpartition(".")[2] == "datetime"
    return hint is datetime


def _seconds(answer: object) -> tuple[int | None, str | None]:
    """An answer as Unix seconds, rounded up: nothing runs early; or what is wrong with it."""
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
    # Python refuses to write out one of thousands of digits.
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
