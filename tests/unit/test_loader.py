"""Users' modules by name: which file was loaded, where another has its name."""

import calendar
import sys

import pytest

from psched.base import loader
from psched.base.errors import LoadError, NotLoadedError
from psched.base.loader import loading_by
from psched.triggers.custom import load_here, parse_call


@pytest.fixture
def lib(tmp_path, monkeypatch):
    """A folder that is searched first; a function that writes a module there."""
    monkeypatch.syspath_prepend(tmp_path)
    before = set(sys.modules)

    def write(name, code="def main(task): pass"):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(code)
        return path

    yield write
    for name in set(sys.modules) - before:
        del sys.modules[name]


@pytest.mark.parametrize(
    "name", ["calendar:main", "calendar:Dispatch", "json:main", "signal:main", "time:main"]
)
def test_a_module_that_was_loaded_already_is_not_taken_for_one_of_the_user(lib, name):
    module = name.partition(":")[0]
    file = getattr(sys.modules[module], "__file__", "a part of Python itself")
    mine = lib(f"{module}.py")
    expected = f"'{module}' is {file}, which was loaded first; give {mine} another name"
    for load in (
        lambda: loader.load_object(name),
        lambda: loader.load_module(module),
        lambda: loader.load_module(f"{module}.jobs"),
    ):
        with pytest.raises(LoadError) as refused:
            load()
        assert str(refused.value).endswith(expected)


@pytest.mark.parametrize(
    "code", ["from calendar import mine", "import calendar; calendar.mine", "import calendar.mine"]
)
def test_a_module_that_imports_it_says_so_too(lib, code):
    mine = lib("calendar.py")
    lib("psched_importing.py", code)
    with pytest.raises(LoadError) as refused:
        loader.load_module("psched_importing")
    assert f"'calendar' is {calendar.__file__}, which was loaded first" in str(refused.value)
    assert str(mine) in str(refused.value)


def test_a_trigger_s_module_says_so_too(lib, tmp_path):
    mine = lib("calendar.py")
    with loading_by(load_here), pytest.raises(NotLoadedError) as refused:
        parse_call("@call calendar:Tides", [str(tmp_path)])
    assert str(refused.value).endswith(f"which was loaded first; give {mine} another name")


def test_without_a_file_of_that_name_the_one_that_was_loaded_is_named():
    with pytest.raises(LoadError) as refused:
        loader.load_object("calendar:Dispatch")
    assert str(refused.value) == f"the module 'calendar' has no 'Dispatch' ({calendar.__file__})"
    with pytest.raises(LoadError) as refused:
        loader.find_object("Dispatch", [calendar])
    assert f"in calendar ({calendar.__file__})" in str(refused.value)


def test_a_module_that_was_loaded_through_a_link_or_twice_is_the_same(lib, tmp_path, monkeypatch):
    lib("psched_own.py")
    link = tmp_path / "link"
    link.symlink_to(tmp_path)
    assert loader.load_module("psched_own").main
    monkeypatch.syspath_prepend(link)
    assert loader.load_object("psched_own:main")
