"""Import of users' modules and objects by name or path, and faster import of psched's modules."""

import gc
import importlib
import importlib.util
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib.machinery import PathFinder
from pathlib import Path
from types import ModuleType
from typing import Any

from psched.base.errors import LoadError, described
from psched.base.file_rights import refusal, refusal_of_file

_accepted: dict[str, ModuleType] = {}
"""The modules that were loaded without an `objection`. Runners inherit it from their worker: each
task whose route is a text asks for its module."""


load_trigger: Callable[[Any], Any] | None = None
"""How this process finds users' triggers; None if it loads them itself. See `loading_by`."""


@contextmanager
def loading_by(load: Callable[[Any], Any]) -> Iterator[None]:
    """Choose how this process finds users' triggers, within a with statement.

    ``load`` does what `psched.triggers.custom.load_here` does. That module need not be imported
    before a trigger is found.
    """
    global load_trigger  # noqa: PLW0603  # each process has one way
    before, load_trigger = load_trigger, load
    try:
        yield
    finally:
        load_trigger = before


@contextmanager
def gc_paused() -> Iterator[None]:
    """Disable garbage collection while work creates many objects but leaves no garbage.

    The import of modules is such work, and the reading of large files.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def load_object(name: str) -> Any:  # noqa: ANN401  # any object
    """Import the module in ``"module:name"``, and return the object ``name`` of the module.

    Both names can be dotted.
    """
    module_name, colon, path = name.partition(":")
    if not colon or not module_name or not path:
        raise LoadError(f"{name!r} should be 'module:name', such as 'myapp.schedules:Dispatch'")
    return _attribute(load_module(module_name), path)


def load_module(name: str) -> ModuleType:
    """Import a module by its name or by the path of its .py file."""
    if (known := sys.modules.get(name)) is not None and _accepted.get(name) is known:
        return known
    if not name.endswith(".py") and (reason := objection(name)):
        raise LoadError(f"the module {name!r} is refused: {reason}")
    try:
        if name.endswith(".py"):
            return _load_file(Path(name))
        module = _accepted[name] = importlib.import_module(name)
    except (Exception, SystemExit) as error:
        if isinstance(error, ModuleNotFoundError) and f"{name}.".startswith(f"{error.name}."):
            raise LoadError(
                f"there is no module {name!r} on the load path ({_path()}); set load_path, or -I"
            ) from None
        told = "; ".join(filter(None, (described(error), objection(_lacking(error)))))
        raise LoadError(f"importing {name!r} failed: {told}") from error
    return module


def objection(name: str) -> str | None:
    """Say why the module that is first on the path would not be loaded, or must not be.

    A module of Python's own, such as ``calendar``, may be loaded long before ``load_path`` is set,
    and then Python looks for no other with this name. Or everybody may write the file.
    """
    first = name.partition(".")[0]
    spec = PathFinder.find_spec(first)
    if spec is None or spec.origin is None or first == "__main__":
        return None
    built_in = first in sys.builtin_module_names
    loaded = getattr(sys.modules.get(first), "__file__", None)
    file = "a part of Python itself" if built_in else loaded
    if file is not None and os.path.realpath(file) != os.path.realpath(spec.origin):
        return f"{first!r} is {file}, which was loaded first; give {spec.origin} another name"
    return refusal_of_file(Path(spec.origin), owner=False)


def find_object(name: str, modules: Sequence[ModuleType]) -> Any:  # noqa: ANN401
    """Find an object by ``"module:name"``, or by a bare name.

    A bare name is looked up in the modules in order. In both forms, the name can be dotted.
    """
    if ":" in name:
        return load_object(name)
    for module in modules:
        if hasattr(module, name.partition(".")[0]):
            return _attribute(module, name)
    where = ", ".join(f"{module.__name__}{_file(module)}" for module in modules)
    where = f"in {where}" if where else "because nothing was required"
    raise LoadError(f"there is no {name!r} {where}; write 'module:{name}'")


def extend_path(folders: Sequence[str]) -> None:
    """Insert folders at the beginning of the module search path, in the given order."""
    for folder in reversed(folders):
        if folder not in sys.path:
            if (reason := refusal(Path(folder))) is not None:
                raise LoadError(f"no module is loaded from there: {reason}")
            sys.path.insert(0, folder)


def is_below(name: str, folders: Sequence[str]) -> bool:
    """Whether an import would load the module from one of these folders; nothing is imported.

    False if an import would load the module from elsewhere, as it does for built-in modules.
    """
    try:
        files = _files_of(name, [*folders])
        return files is not None and files == _files_of(name, None)
    except (Exception, SystemExit):  # noqa: BLE001  # a user's path hook can raise anything
        return False


def _files_of(name: str, path: list[str] | None) -> list[str | None] | None:
    """The files that an import of a module runs: one for each part of its name, None for no file.

    If the module was not found, the result is None instead of a list.
    """
    files: list[str | None] = []
    for part in name.split("."):
        # importlib.util.find_spec imports the parents of a module, so it is used only for the first
        # part, which has no parent. PathFinder searches the parent's folders for the other parts,
        # so that no parent is imported.
        first = path is None
        spec = importlib.util.find_spec(part) if first else PathFinder.find_spec(part, path)
        if spec is None:
            return None
        if spec.has_location:
            files.append(os.path.realpath(spec.origin or ""))
            path = [*(spec.submodule_search_locations or ())]
        else:
            # If the part is a folder without __init__.py, the next part is searched in all folders
            # with this name. If it is a built-in module, no such folder is found.
            files.append(None)
            places = [f"{folder}/{part}" for folder in path or sys.path]
            path = [place for place in places if Path(place).is_dir()]
    return files


def _load_file(path: Path) -> ModuleType:
    if not path.is_file():
        raise LoadError(f"there is no file {str(path)!r}")
    if (reason := refusal_of_file(path)) is not None:
        raise LoadError(f"{str(path)!r} is refused: {reason}")
    name = path.stem
    there = sys.modules.get(name)
    if there is not None and _is_of(there, path):
        return there
    if there is not None or name in sys.stdlib_module_names:
        raise LoadError(
            f"{str(path)!r} cannot be loaded beside the module {name!r}; give it another name"
        )
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise LoadError(f"{str(path)!r} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    # The module is registered before its code runs, as Python's import does, so that its code can
    # import the module itself.
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def _is_of(module: ModuleType, path: Path) -> bool:
    """Whether a module was loaded from this file."""
    file = getattr(module, "__file__", None)
    return file is not None and Path(file).exists() and Path(file).samefile(path)


def _attribute(module: ModuleType, path: str) -> Any:  # noqa: ANN401
    found: Any = module
    try:
        for part in path.split("."):
            found = getattr(found, part)
    except AttributeError:
        raise LoadError(f"the module {module.__name__!r} has no {path!r}{_file(module)}") from None
    except (Exception, SystemExit) as error:
        told = described(error)
        raise LoadError(f"{path!r} of the module {module.__name__!r} raised {told}") from error
    return found


def _lacking(error: BaseException) -> str:
    """The name of the module that lacks what an import asked it for; empty if it is not that."""
    named = error.name if isinstance(error, ImportError) else None
    if isinstance(error, AttributeError) and isinstance(error.obj, ModuleType):
        named = getattr(error.obj, "__name__", None)
    return named if isinstance(named, str) else ""  # a user's exception can have any attributes


def _file(module: ModuleType) -> str:
    return f" ({module.__file__})" if getattr(module, "__file__", None) else ""


def _path() -> str:
    return ", ".join(folder or "." for folder in sys.path[:3])
