"""A terminal in the hands of a program: its alternate screen, single keys, its size.

Plain ANSI sequences, which every terminal of today understands, do all that is needed; curses would
add a database of terminals, and would not know the width of characters better.
"""

import os
import re
import termios
from collections.abc import Sequence
from contextlib import suppress
from types import TracebackType
from typing import Any, Self

from psched.cli.top.rendering import FAILURE, HEADING, QUIET, SELECTED, TITLE, WARNING, Line

_ENTER = "\x1b[?1049h\x1b[?25l\x1b[H\x1b[2J"
"""Switches to the alternate screen, hides the cursor and clears the screen."""

_LEAVE = "\x1b[0m\x1b[?25h\x1b[?1049l"

_SGR = {TITLE: "1", HEADING: "1;36", WARNING: "33", FAILURE: "31", SELECTED: "7", QUIET: "2"}

_INPUT, _LOCAL, _CONTROL = 0, 3, 6
"""The places of these parts in the attributes of a terminal, see `termios.tcgetattr`."""

_DEFAULT_SIZE = (80, 24)

_SEQUENCE = re.compile(rb"\x1b(?:\[[0-9;?]*[ -/]*[@-~]|O[@-~])")
_BEGUN = re.compile(rb"\x1b(?:\[[0-9;?]*[ -/]*|O)?\Z")

_NAMES = {
    b"\x1b[A": "up",
    b"\x1bOA": "up",
    b"\x1b[B": "down",
    b"\x1bOB": "down",
    b"\x1b[5~": "page up",
    b"\x1b[6~": "page down",
    b"\x1b[H": "home",
    b"\x1bOH": "home",
    b"\x1b[1~": "home",
    b"\x1b[F": "end",
    b"\x1bOF": "end",
    b"\x1b[4~": "end",
    b"\x03": "quit",
    b"\x0c": "redraw",
    b"\x1a": "suspend",
    b"\x1b": "escape",
    b"\r": "enter",
    b"\n": "enter",
}


class Screen:
    """The screen of a terminal, within a ``with`` block.

    At the end of the block, the terminal is as it was before, whatever has happened; if nobody can
    write to it any more, that is no error. Keys are read from the file descriptor ``source``.
    """

    def __init__(self, source: int, target: int, *, colours: bool) -> None:
        self.source = source
        self._target = target
        self._colours = colours
        self._before: list[Any] | None = None

    def __enter__(self) -> Self:
        self._before = termios.tcgetattr(self.source)
        try:
            self.take()
        except BaseException:
            self.give_back()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.give_back()

    def take(self) -> None:
        """Take the terminal: keys arrive one by one, without a signal and without an echo."""
        if self._before is None:
            raise TypeError("the screen is used within a with block")
        raw = [*self._before]
        raw[_LOCAL] &= ~(termios.ICANON | termios.ECHO | termios.ISIG | termios.IEXTEN)
        raw[_INPUT] &= ~termios.IXON
        raw[_CONTROL] = [*raw[_CONTROL]]
        raw[_CONTROL][termios.VMIN], raw[_CONTROL][termios.VTIME] = 1, 0
        try:
            termios.tcsetattr(self.source, termios.TCSANOW, raw)
        except termios.error as error:
            raise OSError(*error.args) from None  # it is no OSError by itself
        self._write(_ENTER)

    def give_back(self) -> None:
        """Restore the terminal; `take` can take it again."""
        with suppress(OSError):
            self._write(_LEAVE)
        if self._before is not None:
            with suppress(termios.error):
                termios.tcsetattr(self.source, termios.TCSANOW, self._before)

    def size(self) -> tuple[int, int]:
        """The columns and the lines of the terminal; 80 and 24 if it does not know."""
        try:
            columns, lines = os.get_terminal_size(self._target)
        except OSError:
            return _DEFAULT_SIZE
        return columns or _DEFAULT_SIZE[0], lines or _DEFAULT_SIZE[1]

    def draw(self, lines: Sequence[Line]) -> None:
        """Replace what the screen shows."""
        # Each line is erased before it is written. After a character in the last column, the cursor
        # is still on this character, which would be erased then.
        erased = ["\x1b[K"] * (len(lines) - 1) + ["\x1b[J"]
        shown = (f"{erase}{self._styled(line)}" for erase, line in zip(erased, lines, strict=True))
        self._write("\x1b[H" + "\r\n".join(shown))

    def clear(self) -> None:
        """Clear the screen, which another program may have written to."""
        self._write("\x1b[H\x1b[2J")

    def _styled(self, line: Line) -> str:
        code = _SGR.get(line.style)
        if not self._colours or code is None:
            return line.text
        return f"\x1b[{code}m{line.text}\x1b[0m"

    def _write(self, text: str) -> None:
        left = text.encode(errors="backslashreplace")
        while left:
            left = left[os.write(self._target, left) :]


def keys_in(received: bytes) -> tuple[list[str], bytes]:
    """The keys that a terminal has sent, by name; those with a character are named by it.

    Also the beginning of a sequence that has not arrived completely.
    """
    keys: list[str] = []
    while received:
        if found := _SEQUENCE.match(received):
            keys.append(_NAMES.get(found[0], ""))
            received = received[found.end() :]
        elif _BEGUN.match(received):
            return keys, received
        else:
            first = received[:1]
            keys.append(_NAMES.get(first) or first.decode("ascii", errors="ignore"))
            received = received[1:]
    return [key for key in keys if key], b""
