"""Makes the code of a master immortal, so that its processes share more memory.

CPython counts the references to each object, so it writes even to an object that it only reads, and
the kernel copies each page that a forked process writes to. CPython does not count the references
to immortal objects (PEP 683, since Python 3.12). The modules, classes and functions that a process
has loaded live as long as the processes that it forks, so they can be immortal, and what they alone
hold, too.
"""

import ctypes
import gc
import logging
import sys
from collections.abc import Iterator
from types import (
    BuiltinFunctionType,
    ClassMethodDescriptorType,
    CodeType,
    FunctionType,
    GetSetDescriptorType,
    MemberDescriptorType,
    MethodDescriptorType,
    ModuleType,
    WrapperDescriptorType,
)
from typing import Any

_log = logging.getLogger("psched.master")

_CODE = (
    ModuleType,
    type,
    FunctionType,
    BuiltinFunctionType,
    MethodDescriptorType,
    ClassMethodDescriptorType,
    GetSetDescriptorType,
    MemberDescriptorType,
    WrapperDescriptorType,
    property,
    classmethod,
    staticmethod,
)
"""The types of the objects that become immortal. Objects of other types do not, because they can
have a destructor, which must be called as soon as the last reference is gone."""

_PLAIN = frozenset({int, float, complex, str, bytes})
"""The types of constants, which have no destructor and refer to nothing."""

_mro_of: Any = vars(type)["__mro__"].__get__
_namespace_of: Any = vars(ModuleType)["__dict__"].__get__
"""A class, or a module that loads lazily, can have an attribute of its own with such a name."""

_MANY = 2**30
"""An immortal object seems to have at least so many references; no other object has so many."""

_count_of = ctypes.c_uint32.from_address


def make_code_immortal() -> None:
    """Make the modules, classes and functions of this process immortal.

    Call this before processes are forked: each write to a page that is shared already copies it.
    Nothing changes if this interpreter has no immortal objects, or stores the numbers of references
    in a way that is not known here.
    """
    if not _can_be_immortal():
        _log.debug("this Python cannot make code immortal: runners copy more memory")
        return
    immortal = _count_of(id(None)).value
    for found in gc.get_objects():
        # Ask for the type itself: an object can answer for another one, and `isinstance` would ask
        # it, which calls its code.
        kind = type(found)
        if issubclass(kind, _CODE):
            for each in (found, *_held_by(found, kind)):
                # Nothing is written that an earlier call has written, before a fork.
                if (count := _count_of(id(each))).value != immortal:
                    count.value = immortal


def _can_be_immortal() -> bool:
    """Whether the first four bytes of each object count its references, and None is immortal."""
    if sys.implementation.name != "cpython" or "t" in sys.abiflags:
        return False
    example = object()
    before = _count_of(id(example)).value
    further = [example] * 3
    added = _count_of(id(example)).value - before
    return added == len(further) and _count_of(id(None)).value >= _MANY


def _held_by(code: Any, kind: type) -> Iterator[object]:  # noqa: ANN401
    """What a module, a class or a function holds that is counted whenever its code runs."""
    if kind is FunctionType:
        yield from _parts(code.__code__)
        yield from code.__closure__ or ()  # the variables, not what they have as values
    elif issubclass(kind, type):
        yield _mro_of(code)
    elif issubclass(kind, ModuleType):
        yield (namespace := _namespace_of(code))
        yield from (each for each in namespace.values() if type(each) in _PLAIN)


def _parts(code: CodeType) -> Iterator[object]:
    """A function's code, its constants, and those of the functions within it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _parts(constant)
        else:
            yield constant
