"""A trigger of the user's own: a class that says when the next time is.

It is named by where it can be imported from, with the arguments it is made with, as JSON::

    @call myapp.triggers:Tides {"port": "Brest"}

The class has one method, ``next_at(after)``: the first time after an instant, or None if there is
none; both are whole Unix seconds. It is asked again and again, on every host, about instants in any
order, by processes that have other things to do: the answer has to be quick, and to depend on
nothing but the instant and those arguments.

It is imported where a row is understood: in workers, in the command line and in programs that
change schedules; never in the master. What is no class with that method is not called, whatever
somebody has written into the table.
"""

import inspect
import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn

from psched import loader
from psched.errors import InvalidError, LoadError, NotLoadedError, described

LATEST = 253_402_214_400  # 9999-12-31T00:00Z, as for cron lines

_WORD = r"[^\W\d]\w*"
_NAME = rf"{_WORD}(?:\.{_WORD})*:{_WORD}(?:\.{_WORD})*"
_TEXT = re.compile(rf"@call[ \t]+(?P<name>{_NAME})(?:[ \t]+(?P<arguments>\{{.*\}}))?", re.DOTALL)

_QUESTIONS = 5
"""Times that are looked at when a schedule is declared."""


def parse_call(text: str, load_path: Sequence[str]) -> "Called":
    """Read ``@call module:Class {"name": "value"}``.

    Args:
        text: without blanks around it.
        load_path: folders in which modules are looked for first.

    Raises:
        NotLoadedError: there is no such thing in this process.
        InvalidError: the text, or what it names, makes no sense.
    """
    match = _TEXT.fullmatch(text)
    if match is None or ".py:" in match["name"]:
        raise InvalidError(
            "cron", f'{text!r} is not like \'@call myapp.triggers:Tides {{"port": "Brest"}}\''
        )
    arguments = _arguments(match["arguments"] or "{}")
    name = match["name"]
    try:
        loader.extend_path(load_path)
        found = loader.load_object(name)
    except LoadError as error:
        raise NotLoadedError("cron", str(error)) from error
    if not (inspect.isclass(found) and callable(getattr(found, "next_at", None))):
        raise InvalidError("cron", f"{name!r} is not a class with a method next_at(after)")
    try:
        made: Any = found(**arguments)
    except (Exception, SystemExit) as error:
        raise InvalidError("cron", f"{name} cannot be made: {described(error)}") from error
    return Called(text, made.next_at)


@dataclass(frozen=True, slots=True)
class Called:
    """A trigger of the user's own. Made by `parse_call`; equal by its text."""

    text: str
    _next_at: Callable[[int], Any] = field(repr=False, compare=False)

    def next_after(self, instant: int) -> int | None:
        """See `psched.trigger.Trigger.next_after`.

        Raises:
            InvalidError: it raised, or what it answers is no later time.
        """
        try:
            answer = self._next_at(instant)
        except (Exception, SystemExit) as error:
            told = described(error)
            raise InvalidError("cron", f"{self._asked(instant)} raised {told}") from error
        if answer is None:
            return None
        if type(answer) is not int:
            kind = type(answer).__name__
            raise self._refusal(instant, f"answered a value of type {kind}")
        if answer <= instant:
            raise self._refusal(instant, f"answered {answer}, which is not later")
        return answer if answer < LATEST else None

    def check(self, instant: int) -> None:
        """Ask for a few times after an instant, to see that they are times, and stay the same.

        Raises:
            InvalidError: they are not.
        """
        for _ in range(_QUESTIONS):
            answer = self.next_after(instant)
            if (again := self.next_after(instant)) != answer:
                raise self._refusal(instant, f"answered {answer}, and then {again}")
            if answer is None:
                return
            instant = answer

    def _asked(self, instant: int) -> str:
        return f"next_at({instant}) of {self.text.split()[1]}"

    def _refusal(self, instant: int, problem: str) -> InvalidError:
        rule = "it has to be whole Unix seconds after that instant, always the same, or None"
        return InvalidError("cron", f"{self._asked(instant)} {problem}; {rule}")


def _arguments(text: str) -> dict[str, Any]:
    try:
        return dict(json.loads(text, parse_constant=_refuse_constant))
    except (ValueError, RecursionError) as error:
        raise InvalidError("cron", f"what follows the class is not JSON: {error}") from None


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")
