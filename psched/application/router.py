"""All handlers of a worker: those of the user's dispatch, and the built-in ones."""

from collections.abc import Mapping, Sequence
from typing import Any

from psched.application.dispatch import Dispatch
from psched.base import loader
from psched.base.errors import LoadError


class Router:
    """Finds the handler of a type.

    Args:
        dispatch: the user's routes; None: there are none.
        built_in: handlers by type, for types without a route in the dispatch.
    """

    def __init__(self, dispatch: Dispatch | None, built_in: Mapping[str, Any]) -> None:
        self._dispatch = dispatch
        self._built_in = built_in

    def find(self, type_: str) -> Any | None:  # noqa: ANN401  # see dispatch.Target
        """The handler of a type; None: there is none.

        Raises:
            LoadError: its module cannot be imported, or has no such handler.
        """
        found = None if self._dispatch is None else self._dispatch.find(type_)
        return self._built_in.get(type_) if found is None else found


def load_dispatch(
    load_path: Sequence[str], require: Sequence[str], name: str | None
) -> Dispatch | None:
    """Import the handlers' modules, and the dispatch, that a configuration names.

    Args:
        load_path: folders that are searched for modules first.
        require: modules and .py files, loaded in this order.
        name: the dispatch, as ``module:attribute`` or as a name in one of the required modules.

    Raises:
        LoadError: something is missing, or an import raised; the text says what.
    """
    loader.extend_path(load_path)
    modules = [loader.load_module(module) for module in require]
    return None if name is None else instance(loader.find_object(name, modules), name)


def instance(dispatch: Any, name: str) -> Dispatch:  # noqa: ANN401  # whatever has that name
    """A dispatch, given an instance or the class.

    Raises:
        LoadError: the object is neither.
    """
    if isinstance(dispatch, type) and issubclass(dispatch, Dispatch):
        dispatch = dispatch()
    if not isinstance(dispatch, Dispatch):
        raise LoadError(f"{name} should be a subclass of psched.application.Dispatch")
    return dispatch
