"""Finds handlers, in the user's dispatch and among the built-in handlers; loads the dispatch."""

from collections.abc import Mapping, Sequence
from typing import Any

from psched.application.dispatch import Dispatch
from psched.base import loader
from psched.base.errors import LoadError


class Router:
    """Finds the handler of a type.

    Args:
        dispatch: the user's routes; None if the user has no dispatch.
        built_in: handlers by type, for types without a route in the dispatch.
    """

    def __init__(self, dispatch: Dispatch | None, built_in: Mapping[str, Any]) -> None:
        self._dispatch = dispatch
        self._built_in = built_in

    def find(self, type_: str) -> Any | None:  # noqa: ANN401  # see dispatch.Target
        """The handler of a type; None if the type has no handler.

        Raises:
            LoadError: the handler's module cannot be imported, or does not define the handler.
        """
        found = None if self._dispatch is None else self._dispatch.find(type_)
        return self._built_in.get(type_) if found is None else found


def load_dispatch(
    load_path: Sequence[str], require: Sequence[str], name: str | None
) -> Dispatch | None:
    """Import the modules that a configuration requires, and return its dispatch.

    Args:
        load_path: folders that are searched for modules before all others.
        require: modules and .py files, which are loaded in this order.
        name: the dispatch, as ``module:attribute`` or as a name in one of the required modules;
            None if there is no dispatch.

    Raises:
        LoadError: a module or the dispatch is missing, or an import has raised an exception.
    """
    loader.extend_path(load_path)
    modules = [loader.load_module(module) for module in require]
    return None if name is None else instance(loader.find_object(name, modules), name)


def instance(dispatch: Any, name: str) -> Dispatch:  # noqa: ANN401  # whatever has that name
    """Return a dispatch; if a class is given, create an instance of it.

    Args:
        dispatch: a subclass of `Dispatch`, or an instance.
        name: the name of this object, for the error.

    Raises:
        LoadError: the object is neither a subclass nor an instance of `Dispatch`.
    """
    if isinstance(dispatch, type) and issubclass(dispatch, Dispatch):
        dispatch = dispatch()
    if not isinstance(dispatch, Dispatch):
        raise LoadError(f"{name} should be a subclass of psched.application.Dispatch")
    return dispatch
