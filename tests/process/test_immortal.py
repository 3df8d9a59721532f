"""The code of a master, which its processes share without counting references."""

import gc
import os
import sys
import weakref
from functools import partial
from types import FunctionType

from psched.service import immortal
from psched.service.immortal import make_code_immortal
from support.isolated import isolated
from support.page_faults import pages_copied

HAS_IMMORTALS = sys.version_info >= (3, 12)
MANY = 2**30


def example(x):
    """Return the argument."""
    return x


def make_functions(count):
    """Functions on many pages of memory."""
    codes = (example.__code__.replace(co_name=f"f{number}") for number in range(count))
    return [FunctionType(code, {}) for code in codes]


def call_all(functions):
    for each in functions:
        each(None)


def copied_before_and_after():
    functions = make_functions(3000)
    before = pages_copied(partial(call_all, functions))
    make_code_immortal()
    return before, pages_copied(partial(call_all, functions))


def test_a_child_copies_fewer_pages_of_the_functions_that_it_calls():
    before, after = isolated(copied_before_and_after)
    assert before > 200
    if HAS_IMMORTALS:
        assert after < before * 0.8


class Destroyed:
    """An object whose end can be observed."""


class Pretends:
    """An object whose class cannot be asked for, like a lazy one that fails to load."""

    @property
    def __class__(self):
        raise RuntimeError("not ready")


def code_and_objects():
    [function] = make_functions(1)
    found, lazy = Destroyed(), Pretends()
    proxy, end = weakref.proxy(Destroyed()), weakref.ref(found)
    make_code_immortal()
    counts = [sys.getrefcount(each) for each in (function, function.__code__, Destroyed, os)]
    kept = end() is not None
    del found
    return (
        [count >= MANY for count in counts],
        [kept, end() is None],
        [sys.getrefcount(each) < MANY for each in (lazy, proxy)],
        function("x"),
        gc.collect() >= 0,
    )


def test_code_is_immortal_and_objects_die_with_their_last_reference():
    expected = [[HAS_IMMORTALS] * 4, [True, True], [True, True], "x", True]
    assert isolated(code_and_objects, forked=False) == expected


def test_an_interpreter_that_stores_counts_in_another_way_is_left_alone(monkeypatch):
    monkeypatch.setattr(immortal.sys, "abiflags", "t")
    make_code_immortal()
    assert sys.getrefcount(make_functions) < MANY
