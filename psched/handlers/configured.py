"""The handlers of a configuration: a dispatch, a script or a program, and the built-in handlers."""

import inspect
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Self

from typing_extensions import override

from psched.application.dispatch import Dispatch, Router, check_handler, load_dispatch
from psched.application.task import Task
from psched.base import loader
from psched.base.errors import AlreadyExistsError, InvalidError, LoadError
from psched.base.exec_data import EXEC_TYPE
from psched.base.file_rights import refusal_of_file
from psched.handlers.exec import Exec, Program

if TYPE_CHECKING:
    from psched.config import Config


class Push:
    """Type ``push``: submits a task for each occurrence; the queue runs and retries that task.

    The submitted task's key is the occurrence's idempotency key, ``key.scheduled_time``, so that
    an occurrence that is attempted twice submits only one task. The schedule's data describe the
    task:

    ===============  ====================================================================
    ``type``         the task's type
    ``data``         the task's data
    ``options``      further arguments of `psched.ScheduleCollection.push`, by name
    ===============  ====================================================================
    """

    # True: a return from ``run`` finishes the occurrence for every value of the setting
    # ``on_return``.
    finishes_by_returning: ClassVar[bool] = True

    def __init__(self, task: Task) -> None:
        self._task = task
        self._type: Any = task.data.get("type")
        self._data, self._options = task.data.get("data", {}), task.data.get("options", {})
        if not isinstance(self._type, str) or not self._type:
            raise InvalidError("data", '"type" must name the type of the task to submit')
        for name, value in (("data", self._data), ("options", self._options)):
            if not isinstance(value, Mapping):
                raise InvalidError("data", f'"{name}" must be an object')
        if refused := sorted({"type", "data", "connection", "key"} & {*self._options}):
            raise InvalidError("data", f'"options" must not hold {", ".join(refused)}')

    def run(self) -> None:
        """Submit the task, unless an earlier attempt has submitted it."""
        with suppress(AlreadyExistsError):
            self._task.schedules.push(
                self._task.idempotency_key, self._type, self._data, **self._options
            )


_DEFAULT_CLASS = "Run"
"""The class that runs tasks if ``script_class`` is not set; PerfectQueue's default."""


def load_script(script: Sequence[str], class_name: str | None) -> type[Any]:
    """Import a script and return its handler class; ``kill``, if defined, accepts a reason."""
    path, *arguments = script
    # sys.path and sys.argv are set as Python sets them for a script, because the script may import
    # modules from its folder and read its arguments.
    loader.extend_path([str(Path(path).parent)])
    sys.argv = [path, *arguments]
    if not path.endswith(".py"):
        raise LoadError(f"script: {path!r} is not a Python file; its name must end in .py")
    module = loader.load_module(path)
    found = _default_class(module) if class_name is None else getattr(module, class_name, None)
    if not inspect.isclass(found):
        raise LoadError(f"script: there is no class {class_name or _DEFAULT_CLASS!r} in {path!r}")
    return _with_reason(check_handler(found, f"script: {path}"))


def _default_class(module: ModuleType) -> Any:  # noqa: ANN401  # the script may assign anything to Run
    if hasattr(module, _DEFAULT_CLASS):
        return getattr(module, _DEFAULT_CLASS)
    classes = [
        each
        for each in vars(module).values()
        if inspect.isclass(each) and each.__module__ == module.__name__ and hasattr(each, "run")
    ]
    if len(classes) != 1:
        names = ", ".join(each.__name__ for each in classes) or "none"
        raise LoadError(
            f"script: {module.__file__!r} should have one class with run(), but has {names};"
            " set script_class to the one to use, or call it Run"
        )
    return classes[0]


def _with_reason(handler: type[Any]) -> type[Any]:
    """Return a handler class whose ``kill`` accepts a reason.

    If the class's own ``kill`` has no parameter, as in PerfectQueue, return a subclass that ignores
    the reason; otherwise return the class itself.
    """
    kill = getattr(handler, "kill", None)
    if not inspect.isfunction(kill) or len(inspect.signature(kill).parameters) != 1:
        return handler

    class Killable(handler):  # type: ignore[misc]  # the base is only known at run time
        def kill(self, _reason: str) -> None:
            super().kill()

    Killable.__name__ = handler.__name__
    return Killable


_BUILT_IN: Mapping[str, Any] = {"exec": Exec, "push": Push}
"""The handler of each built-in type; it serves the type if the user's dispatch has no route."""


class Named(NamedTuple):
    """The settings that name handlers: what a process needs of a `Config` that loads them."""

    load_path: Sequence[str] = ()
    require: Sequence[str] = ()
    dispatch: str | None = None
    script: Sequence[str] | None = None
    script_class: str | None = None
    exec: Sequence[str] | None = None
    allowed_programs: bool | Sequence[str] = False

    @classmethod
    def of(cls, settings: "Config") -> Self:
        """Those of a configuration; they consist of JSON values."""
        return cls(*(getattr(settings, name) for name in cls._fields))


def built_in_handlers(settings: "Config | Named") -> Mapping[str, Any]:
    """The built-in handlers by type; ``exec`` runs only programs that ``exec_type`` allows."""

    class AllowedExec(Exec):
        allowed = settings.allowed_programs

    return {**_BUILT_IN, "exec": AllowedExec}


_FINDERS = Dispatch.__module__, "psched.service.functions"
"""The modules of a `Dispatch` and an App, whose ``find`` knows no types but those that are told."""


def handled_types(dispatch: Dispatch | None) -> Sequence[str] | None:
    """The types that have a handler; None if any may have one: a pattern, or a ``find`` decides."""
    types: set[object] = {*_BUILT_IN}
    if dispatch is not None:
        if getattr(type(dispatch).find, "__module__", None) not in _FINDERS:
            return None
        types |= {*dispatch.routes, *getattr(dispatch, "functions", ())}
    texts = [each for each in types if isinstance(each, str)]
    return sorted(texts) if len(texts) == len(types) else None


def leaves_programs(dispatch: Dispatch | None) -> bool:
    """Whether tasks of type ``exec`` need no code of users: no handler of theirs, and no hook."""
    kind = Dispatch if dispatch is None else type(dispatch)
    hooks = "after_fork", "before_exit"
    if any(getattr(kind, name) is not getattr(Dispatch, name) for name in hooks):
        return False
    if getattr(kind.find, "__module__", None) not in (*_FINDERS, SingleHandler.__module__):
        return False
    try:
        return Router(dispatch, {}).find(EXEC_TYPE) is None
    except LoadError:
        return False  # a task of this type meets it again, and fails


class SingleHandler(Dispatch):
    """Routes every type to one handler, except the built-in types, which keep their handlers."""

    def __init__(self, handler: Any, name: str) -> None:  # noqa: ANN401  # anything a user wrote
        super().__init__()
        self._handler = check_handler(handler, name)
        self.name = name

    @override
    def find(self, type_: str) -> Any | None:
        return None if type_ in _BUILT_IN else self._handler


def load_handlers(settings: "Config | Named") -> Dispatch | None:
    """Import the handlers that the settings name; None if the settings name no handler."""
    if settings.exec:
        return SingleHandler(program_of(settings.exec), settings.exec[0])
    dispatch = load_dispatch(settings.load_path, settings.require, settings.dispatch)
    if not settings.script:
        return dispatch
    handler = load_script(settings.script, settings.script_class)
    return SingleHandler(handler, f"{settings.script[0]}:{handler.__name__}")


def program_of(command: Sequence[str]) -> type[Program]:
    """A handler that runs a program, with the task's key as its last argument."""
    from shutil import which  # noqa: PLC0415  # few settings need it

    if (path := which(command[0])) is None:
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
