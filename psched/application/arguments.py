"""The arguments of a function that is a task: as the data of a row, and back."""

import inspect
import re
import typing
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from psched.application.task import Task
from psched.base.errors import InvalidError
from psched.core.columns import encode

_UNNAMED = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.VAR_POSITIONAL)

_TASK = re.compile(r"(psched\.)?Task( \| None)?|(typing\.)?Optional\[(psched\.)?Task\]")
"""The texts of annotations that mean the class `Task`."""


class Arguments:
    """Converts the arguments of a function to the data of a task, and back.

    The data are a JSON object: each argument's value by the name of its parameter. Arguments that
    the caller leaves out are not stored, so the function's present default applies when it runs.

    One parameter can get the running task instead of an argument: the one that is annotated with
    `psched.Task`, or that has the name ``task`` and no annotation.

    Args:
        function: the function.

    Attributes:
        task: the name of the parameter for the running task; None if the function has none.

    Raises:
        InvalidError: the function's arguments cannot be stored by name, or more than one parameter
            is annotated with `psched.Task`.
    """

    def __init__(self, function: Callable[..., object]) -> None:
        try:
            signature = inspect.signature(function)
        except (TypeError, ValueError):
            raise InvalidError("function", f"{function!r} has no signature") from None
        parameters = signature.parameters.values()
        unnamed = [each for each in parameters if each.kind in _UNNAMED]
        if unnamed:
            raise InvalidError(
                "function",
                f"has the parameter {unnamed[0]}, but arguments are stored by name; use parameters"
                " that have a name",
            )
        tasks = _task_parameters(function, [*parameters])
        if len(tasks) > 1:
            raise InvalidError("function", f"has several parameters for the task: {tasks}")
        self.task = tasks[0] if tasks else None
        stored = [each for each in parameters if each.name != self.task]
        self._shown = f"{_name_of(function)}{inspect.Signature(stored)}"
        self._takes_more = any(each.kind is inspect.Parameter.VAR_KEYWORD for each in stored)
        named = [each for each in stored if each.kind is not inspect.Parameter.VAR_KEYWORD]
        self._names = [each.name for each in named]
        self._by_position = [
            each.name for each in named if each.kind is not inspect.Parameter.KEYWORD_ONLY
        ]
        self._required = [each.name for each in named if each.default is inspect.Parameter.empty]

    def as_data(self, args: Sequence[object], kwargs: Mapping[str, object]) -> dict[str, Any]:
        """The data of a task with these arguments.

        Raises:
            InvalidError: an argument is missing or unknown, is given twice, or cannot be
                represented by JSON; the error's ``field`` is the name of the argument.
        """
        if len(args) > len(self._by_position):
            raise InvalidError(
                f"argument {len(self._by_position) + 1}",
                f"is one too many by position: the function is {self._shown}",
            )
        data = dict(zip(self._by_position, args, strict=False))
        if twice := [name for name in kwargs if name in data]:
            raise InvalidError(twice[0], "is given twice, by position and by name")
        if self.task in kwargs:
            raise InvalidError(
                self.task or "", "is passed by psched when the task runs; leave it out"
            )
        data |= kwargs
        if problem := self._mismatch(data):
            raise InvalidError(*problem)
        for name, value in data.items():
            encode(name, {name: value})
        return data

    def from_data(self, task: Task) -> dict[str, Any]:
        """The arguments with which a task calls the function, by name.

        Raises:
            InvalidError: the task's data do not match the function. They were pushed by another
                version of the program, or written by SQL.
        """
        if problem := self._mismatch(task.data):
            name, what = problem
            raise InvalidError("data", f"does not match the function: {name} {what}")
        return task.data if self.task is None else {**task.data, self.task: task}

    def _mismatch(self, data: Mapping[str, object]) -> tuple[str, str] | None:
        """The first name that does not match the function, and what is wrong; None if all match."""
        for name in data:
            if name == self.task or not (self._takes_more or name in self._names):
                return name, f"is not an argument: the function is {self._shown}"
        for name in self._required:
            if name not in data:
                return name, f"is missing: the function is {self._shown}"
        return None


def _task_parameters(
    function: Callable[..., object], parameters: Sequence[inspect.Parameter]
) -> list[str]:
    try:
        hints = typing.get_type_hints(function)
    except Exception:  # noqa: BLE001  # an annotation can name what is only imported for type checks
        hints = {}
    return [
        each.name
        for each in parameters
        if each.kind is not inspect.Parameter.VAR_KEYWORD
        and _takes_task(each, hints.get(each.name, each.annotation))
    ]


def _takes_task(parameter: inspect.Parameter, annotation: object) -> bool:
    if annotation is inspect.Parameter.empty:
        return parameter.name == "task"
    if isinstance(annotation, str):
        return _TASK.fullmatch(annotation) is not None
    return annotation is Task or Task in typing.get_args(annotation)


def _name_of(function: Callable[..., object]) -> str:
    return getattr(function, "__name__", type(function).__name__)
