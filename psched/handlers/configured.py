"""The handlers that a configuration names: a dispatch, or one for tasks of every type."""

import inspect
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from psched.application.dispatch import Dispatch, check_handler
from psched.application.router import load_dispatch
from psched.application.task import Task
from psched.base import loader
from psched.base.errors import LoadError
from psched.config import Config
from psched.handlers.exec import BUILT_IN, Program

_USUAL_CLASS = "Run"
"""PerfectQueue's."""


class Only(Dispatch):
    """Routes every type to one handler, but for psched's own types, which keep their meaning.

    Args:
        handler: see `psched.application.dispatch.Target`.

    Attributes:
        name: what to call it.
    """

    def __init__(self, handler: Any, name: str) -> None:  # noqa: ANN401  # anything a user wrote
        super().__init__()
        self._handler = check_handler(handler, name)
        self.name = name

    def find(self, type_: str) -> Any | None:  # noqa: ANN401
        """See `Dispatch.find`."""
        return None if type_ in BUILT_IN else self._handler


def load_handlers(settings: Config) -> Dispatch | None:
    """Bring in what tasks are run by; None: nothing but what is built in.

    Raises:
        LoadError: something is missing or raised; the text says what.
    """
    if settings.exec:
        return Only(_program(settings.exec), settings.exec[0])
    dispatch = load_dispatch(settings.load_path, settings.require, settings.dispatch)
    if not settings.script:
        return dispatch
    found = _script(settings.script, settings.script_class)
    return Only(_killable(found), f"{settings.script[0]}:{found.__name__}")


def _program(command: Sequence[str]) -> type[Program]:
    """A handler that runs a program, with the task's key as its last argument."""
    if shutil.which(command[0]) is None:
        raise LoadError(
            f"exec: there is no program {command[0]!r} that can be run; name its file, and write"
            " its arguments apart from it"
        )

    class Command(Program):
        def __init__(self, task: Task) -> None:
            super().__init__(task, [*command, task.key])

    return Command


def _script(script: Sequence[str], name: str | None) -> type[Any]:
    path, *arguments = script
    # As if it was run: its neighbours can be imported, and it finds its arguments.
    loader.extend_path([str(Path(path).parent)])
    sys.argv = [path, *arguments]
    if not path.endswith(".py"):
        raise LoadError(f"script: {path!r} is not a Python file; its name must end in .py")
    module = loader.load_module(path)
    found = _sole_class(module) if name is None else getattr(module, name, None)
    if not inspect.isclass(found):
        raise LoadError(f"script: there is no class {name or _USUAL_CLASS!r} in {path!r}")
    return found


def _sole_class(module: ModuleType) -> Any:  # noqa: ANN401  # whatever stands there
    if hasattr(module, _USUAL_CLASS):
        return getattr(module, _USUAL_CLASS)
    classes = [
        each
        for each in vars(module).values()
        if inspect.isclass(each) and each.__module__ == module.__name__ and hasattr(each, "run")
    ]
    if len(classes) != 1:
        names = ", ".join(each.__name__ for each in classes) or "none"
        raise LoadError(
            f"script: {module.__file__!r} should have one class with run(), but has {names};"
            " name one by script_class, or call it Run"
        )
    return classes[0]


def _killable(handler: type[Any]) -> type[Any]:
    """A class whose ``kill`` takes the reason; PerfectQueue's takes nothing."""
    kill = getattr(handler, "kill", None)
    if not inspect.isfunction(kill) or len(inspect.signature(kill).parameters) != 1:
        return handler

    class Killable(handler):  # type: ignore[misc]  # a class of the user's
        def kill(self, _reason: str) -> None:
            super().kill()

    Killable.__name__ = handler.__name__
    return Killable
