"""The handlers of a configuration: a dispatch or a single handler, and the built-in handlers."""

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from typing_extensions import override

from psched.application.dispatch import Dispatch, check_handler, load_dispatch
from psched.application.task import Task
from psched.base.errors import LoadError
from psched.base.file_rights import refusal_of_file
from psched.config import Config
from psched.handlers.exec import Exec, Program
from psched.handlers.push import Push
from psched.handlers.script import load_script

_BUILT_IN: Mapping[str, Any] = {"exec": Exec, "push": Push}
"""The handler of each built-in type; it serves the type if the user's dispatch has no route."""


def built_in_handlers(settings: Config) -> Mapping[str, Any]:
    """The built-in handlers by type; ``exec`` runs only programs that ``exec_type`` allows."""

    class AllowedExec(Exec):
        allowed = settings.allowed_programs

    return {**_BUILT_IN, "exec": AllowedExec}


class SingleHandler(Dispatch):
    """Routes every type to one handler, except the built-in types, which keep their handlers."""

    def __init__(self, handler: Any, name: str) -> None:  # noqa: ANN401  # anything a user wrote
        super().__init__()
        self._handler = check_handler(handler, name)
        self.name = name

    @override
    def find(self, type_: str) -> Any | None:
        return None if type_ in _BUILT_IN else self._handler


def load_handlers(settings: Config) -> Dispatch | None:
    """Import the handlers that the settings name; None if the settings name no handler."""
    if settings.exec:
        return SingleHandler(_program(settings.exec), settings.exec[0])
    dispatch = load_dispatch(settings.load_path, settings.require, settings.dispatch)
    if not settings.script:
        return dispatch
    handler = load_script(settings.script, settings.script_class)
    return SingleHandler(handler, f"{settings.script[0]}:{handler.__name__}")


def _program(command: Sequence[str]) -> type[Program]:
    """A handler that runs a program, with the task's key as its last argument."""
    if (path := shutil.which(command[0])) is None:
        raise LoadError(
            f"exec: there is no executable program {command[0]!r}; write the path of its file, and"
            " its arguments as separate items"
        )
    if reason := refusal_of_file(Path(path), owner=False):
        raise LoadError(f"exec: {reason}")

    class Command(Program):
        def __init__(self, task: Task) -> None:
            super().__init__(task, [*command, task.key])

    return Command
