"""Tests of routes from types to handlers: writing, adding and finding them."""

import re
import sys
import types

import pytest

from psched.application import Dispatch
from psched.base.errors import LoadError
from psched.config import from_mapping


def handler(task):
    """Do nothing."""


class Outer:
    """A class with a handler that routes name as ``Outer.inner``."""

    @staticmethod
    def inner(task):
        """Do nothing."""


class ByName(Dispatch):
    routes = {"t": "handler", "deep": "Outer.inner", "gone": "nothing"}  # noqa: RUF012


@pytest.fixture
def elsewhere(monkeypatch):
    """A module whose dispatch class is derived from a dispatch class of this module."""
    module = types.ModuleType("psched_elsewhere")
    monkeypatch.setitem(sys.modules, module.__name__, module)

    class Based(ByName):
        __module__ = "psched_elsewhere"

    module.Based = Based
    return module


def test_a_name_alone_is_looked_up_in_the_module_of_the_dispatch():
    assert ByName().find("t") is handler
    assert ByName().find("deep") is Outer.inner
    with pytest.raises(LoadError, match=r"there is no 'nothing' in .*; write 'module:nothing'"):
        ByName().find("gone")
    with pytest.raises(LoadError, match="there is no 'nothing'"):
        ByName().load_all()


def test_its_own_module_precedes_those_of_its_base_classes(elsewhere):
    assert elsewhere.Based().find("t") is handler
    elsewhere.handler = lambda task: task
    assert elsewhere.Based().find("t") is elsewhere.handler
    assert ByName().find("t") is handler


def test_routes_can_be_added_and_stay_with_their_class():
    class First(Dispatch):
        routes = {"old": handler, "same": "nowhere:x"}  # noqa: RUF012

    class Second(First):
        pass

    Second.route({"new": handler, "same": handler})
    Second.route({re.compile("^r-"): handler})

    for type_ in "old", "new", "same", "r-1":
        assert Second().find(type_) is handler
    assert First().find("new") is None
    assert Dispatch.routes == {}


@pytest.mark.parametrize(
    ("routes", "text"),
    [
        ({7: handler}, "Bad: a route must be a text or a compiled pattern, not 7"),
        ({"t": 7}, "Bad: the route 't': 7 is neither a class nor a function"),
        ({re.compile("x"): int}, "Bad: the route 'x': the class int has no run"),
    ],
)
def test_a_route_that_leads_nowhere_is_refused_when_it_is_added(routes, text):
    class Bad(Dispatch):
        pass

    with pytest.raises(LoadError, match=text):
        Bad.route(routes)
    assert Bad.routes == {}


def test_what_is_required_is_a_module_or_a_file_with_or_without_its_ending(tmp_path):
    required = from_mapping(
        {"url": "sqlite:////none", "require": ["a.b", "a.py", "./c", "d/e", "/f/g.py"]},
        environ={},
        cwd=tmp_path,
    ).require
    here = str(tmp_path)
    assert required == ("a.b", f"{here}/a.py", f"{here}/c.py", f"{here}/d/e.py", "/f/g.py")
