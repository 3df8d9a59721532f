"""The settings ``script`` and ``script_class``: a class in a Python file runs every task."""

import inspect
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from psched.base import loader
from psched.base.errors import LoadError

_DEFAULT_CLASS = "Run"
"""PerfectQueue's default."""


def load_script(script: Sequence[str], class_name: str | None) -> type[Any]:
    """Import a script and return its class, whose ``kill`` accepts a reason.

    Args:
        script: the file's path, and the arguments that the script finds in ``sys.argv``.
        class_name: the class; None: ``Run``, or the only class with ``run()``.

    Raises:
        LoadError: the script cannot be imported, or has no such class.
    """
    path, *arguments = script
    # As if Python ran it, the script can import modules beside it, and finds its arguments.
    loader.extend_path([str(Path(path).parent)])
    sys.argv = [path, *arguments]
    if not path.endswith(".py"):
        raise LoadError(f"script: {path!r} is not a Python file; its name must end in .py")
    module = loader.load_module(path)
    found = _default_class(module) if class_name is None else getattr(module, class_name, None)
    if not inspect.isclass(found):
        raise LoadError(f"script: there is no class {class_name or _DEFAULT_CLASS!r} in {path!r}")
    return _with_reason(found)


def _default_class(module: ModuleType) -> Any:  # noqa: ANN401  # Run may be anything
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
    """A class whose ``kill`` accepts a reason; PerfectQueue's ``kill`` has no parameter."""
    kill = getattr(handler, "kill", None)
    if not inspect.isfunction(kill) or len(inspect.signature(kill).parameters) != 1:
        return handler

    class Killable(handler):  # type: ignore[misc]  # a class of the user's
        def kill(self, _reason: str) -> None:
            super().kill()

    Killable.__name__ = handler.__name__
    return Killable
