"""Runs a function of a test in a process of its own, which has a single thread.

psched does not fork beside a second thread, and the process that runs the tests may have one.

    def doubled(number):
        return 2 * number

    def test_doubling():
        assert isolated(doubled, 21) == 42

The process finds the function by its module's file and its name; arguments and result are sent as
JSON. Whatever the function starts dies with the test at the latest, and warnings in it are errors.
"""

import contextlib
import importlib.util
import json
import os
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from support.commands import INTERPRETER, READ_AT_ITS_START
from support.owned_process import OwnedProcess
from support.waiting import PATIENCE, wait_until

TESTS = Path(__file__).resolve().parent.parent


class IsolatedCall(OwnedProcess):
    """A function that runs isolated.

    Args:
        function: a function of a module, not a nested one.
        arguments: the function's arguments.
        folder: an empty folder, which becomes the function's current folder.
        forked: whether the process may be forked, see `support.commands`, instead of being a fresh
            interpreter.
    """

    def __init__(
        self,
        function: Callable[..., object],
        arguments: Sequence[object],
        *,
        folder: Path,
        forked: bool = True,
    ) -> None:
        self._output = folder / "output"
        self._result = folder / "result"
        work = folder / "work"
        work.mkdir()
        subject = [function.__code__.co_filename, function.__name__, json.dumps(arguments)]
        env = INTERPRETER | {
            name: text
            for name, text in os.environ.items()
            if not name.startswith(READ_AT_ITS_START)
        }
        super().__init__(
            [sys.executable, "-m", "support.isolated", str(self._result), *subject],
            output=self._output,
            cwd=work,
            env=env if forked else env | {"PYTHONPATH": str(TESTS), "PYTHONSAFEPATH": "1"},
        )

    @property
    def text(self) -> str:
        """All that the function has written to standard output and standard error."""
        return self._output.read_text(errors="replace")

    def said(self, beginning: str, *, timeout: float = PATIENCE) -> str:
        """Wait for a line that begins with this; return the rest of the line."""

        def rest() -> list[str]:
            whole = self.text.rpartition("\n")[0].splitlines()
            return [line for line in whole if line.startswith(beginning)]

        what = f"a line that begins with {beginning!r}"
        wait_until(lambda: rest() or self.status is not None, timeout=timeout, what=what)
        assert rest(), f"ended with {self.status}:\n{self.text}"
        return rest()[0].removeprefix(beginning).strip()

    def result(self, *, timeout: float = PATIENCE) -> Any:
        """Wait for the function's end; return its result.

        Raises:
            AssertionError: the function raised, or its process died; the text has all that was
                written.
        """
        status = self.wait(timeout=timeout)
        assert status == 0, f"ended with {status}:\n{self.text}"
        return json.loads(self._result.read_text())


@contextlib.contextmanager
def started_isolated(
    function: Callable[..., object], *arguments: object, forked: bool = True
) -> Iterator[IsolatedCall]:
    """Run a function beside the test; a context manager that kills what is left of it."""
    with tempfile.TemporaryDirectory(prefix="psched-call-") as folder:
        process = IsolatedCall(function, arguments, folder=Path(folder), forked=forked)
        try:
            yield process
        finally:
            process.close()


def isolated(
    function: Callable[..., object],
    *arguments: object,
    timeout: float = PATIENCE,
    forked: bool = True,
) -> Any:
    """Run a function to its end; what it returned."""
    with started_isolated(function, *arguments, forked=forked) as process:
        return process.result(timeout=timeout)


def say(*words: object) -> None:
    """In a function that runs isolated: tell the test something, in a line."""
    os.write(1, f"{' '.join(map(str, words))}\n".encode())


class _Decorator:
    """In the place of pytest's decorators and their arguments: leaves functions as they are."""

    def __getattr__(self, _name: str) -> "_Decorator":
        return self

    def __call__(self, *arguments: Any, **_named: object) -> Any:
        decorates = len(arguments) == 1 and callable(arguments[0])
        return arguments[0] if decorates else self


class _Pytest(ModuleType):
    """In the place of pytest, which takes longer to import than most functions to run.

    A test's module needs it for decorators alone; whatever else is asked for is the real one's.
    """

    mark = fixture = param = _Decorator()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if sys.modules["pytest"] is self:
            del sys.modules["pytest"]
        return getattr(importlib.import_module("pytest"), name)


def main() -> None:
    """Run a function: the arguments are a file for its result, its file, its name, and its own."""
    result, file, name, arguments = sys.argv[1:]
    warnings.simplefilter("error")
    # Files that a function leaves open are closed with its process.
    warnings.simplefilter("ignore", ResourceWarning)
    stand_in = sys.modules["pytest"] = _Pytest("pytest")
    function = getattr(_module(file), name)
    if "pytest" in function.__code__.co_names:
        _ = stand_in.raises  # imported now: the function may give up its rights
    with Path(result).open("w") as written:  # now: the function may give up its rights
        json.dump(function(*json.loads(arguments)), written)


def _module(file: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location("subject", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["subject"] = module
    spec.loader.exec_module(module)
    return module


if __name__ == "__main__":
    main()
