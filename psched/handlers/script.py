"""The settings ``script`` and ``script_class``: a class in a Python file runs every task."""

import inspect
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from psched.application.dispatch import check_handler
from psched.base import loader
from psched.base.errors import LoadError

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
