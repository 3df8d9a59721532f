"""A terminal's window: what a program writes to it, and what a user sees of that."""

import contextlib
import os
import re
import sys
import unicodedata
from collections.abc import Callable
from pathlib import Path

from support.service import Master, Service
from support.waiting import wait_until

SCRIPT = Path(__file__).with_name("on_terminal.py")

_SEQUENCE = re.compile(r"\x1b\[([?0-9;]*)([A-Za-z])|[\r\n]|[^\x1b]", re.DOTALL)


class Emulator:
    """The screen that results from what was written to a terminal; only what psched top uses.

    Attributes:
        lines: the lines of the main screen and of the alternate screen.
        alternate: whether the alternate screen is shown.
        cursor: whether the cursor is visible.
        styles: the codes of all styles that were used.
    """

    def __init__(self) -> None:
        self.alternate = False
        self.cursor = True
        self.styles: set[str] = set()
        self.screens: dict[bool, dict[int, str]] = {False: {}, True: {}}
        self._at = {False: [0, 0], True: [0, 0]}

    @property
    def lines(self) -> list[str]:
        """The lines of the screen that is shown."""
        screen = self.screens[self.alternate]
        return [screen.get(i, "").rstrip() for i in range(max(screen, default=-1) + 1)]

    def feed(self, text: str) -> None:
        """Show what was written."""
        for found in _SEQUENCE.finditer(text):
            if found[2]:
                self._control(found[1], found[2])
            else:
                self._print(found[0])

    def _print(self, character: str) -> None:
        at, screen = self._at[self.alternate], self.screens[self.alternate]
        if character == "\r":
            at[1] = 0
        elif character == "\n":
            at[0] += 1
        else:
            line = screen.get(at[0], "").ljust(at[1])
            screen[at[0]] = line[: at[1]] + character + line[at[1] + 1 :]
            at[1] += 1

    def _control(self, numbers: str, name: str) -> None:
        at, screen = self._at[self.alternate], self.screens[self.alternate]
        if numbers in {"?1049", "?25"}:
            shown = name == "h"
            if numbers == "?25":
                self.cursor = shown
            else:
                self.alternate = shown
        elif name == "H":
            at[:] = [0, 0]
        elif name == "K":
            screen[at[0]] = screen.get(at[0], "")[: at[1]]
        elif name == "J" and numbers == "2":
            screen.clear()
        elif name == "J":
            for line in [each for each in screen if each > at[0]]:
                del screen[line]
        elif name == "m":
            self.styles.add(numbers)
        else:
            raise AssertionError(f"the emulator does not know CSI {numbers} {name}")


class Terminal:
    """A terminal's window in which a command runs.

    Args:
        service: the service, in whose folder the command runs.
        command: the command.
        name: the name of the log.
    """

    def __init__(self, service: Service, *command: str | Path, name: str = "terminal") -> None:
        self._keys = service.folder / f"{name}.keys"
        words = [sys.executable, "-I", "-S", str(SCRIPT), str(self._keys), *map(str, command)]
        self.process: Master = service.start(*words, log=name, generation=0)
        wait_until(self._keys.exists, what="the terminal")

    def type(self, keys: bytes | str) -> None:
        """Type keys."""
        # Without a reader, because the terminal is gone, this fails and does not wait for one.
        with contextlib.suppress(OSError):
            descriptor = os.open(self._keys, os.O_WRONLY | os.O_NONBLOCK)
            try:
                os.write(descriptor, keys.encode() if isinstance(keys, str) else keys)
            finally:
                os.close(descriptor)

    def close(self) -> None:
        """Close the window."""
        self.type(b"\0")

    def resize(self, lines: int, columns: int) -> None:
        """Change the size of the window."""
        self.type(f"\x01{lines}x{columns}\n")

    @property
    def emulator(self) -> Emulator:
        """The terminal, after all that was written so far."""
        made = Emulator()
        made.feed(self.process.log.read_bytes().decode(errors="replace"))
        return made

    def wait_for(self, condition: Callable[[Emulator], object], *, what: str) -> Emulator:
        """Wait until the terminal fulfils a condition, and return it."""

        def fulfilled() -> Emulator | None:
            seen = self.emulator
            return seen if condition(seen) else None

        try:
            found = wait_until(fulfilled, what=what)
        except AssertionError as error:
            error.add_note("the screen:\n" + "\n".join(self.emulator.lines))
            raise
        assert found is not None
        return found

    def shows(self, pattern: str) -> Emulator:
        """Wait until a line of the screen contains the pattern."""
        return self.wait_for(
            lambda seen: any(re.search(pattern, line) for line in seen.lines),
            what=f"{pattern!r} on the screen",
        )


def width_of(text: str) -> int:
    """The columns that a terminal needs for a text."""
    return sum(2 if unicodedata.east_asian_width(each) in "WF" else 1 for each in text)
