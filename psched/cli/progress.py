"""Shows on standard error how far a command has come: a bar on a terminal, lines elsewhere."""

import sys
from collections.abc import Callable, Iterable, Iterator, Sized
from contextlib import contextmanager
from math import ceil
from typing import TypeVar

import click

from psched.app import CLOCK
from psched.base.clock import Clock
from psched.cli.output import are_terminals
from psched.cli.time_format import format_span

T = TypeVar("T")

_PATIENCE = 1.0  # work that takes less than this number of seconds shows nothing
_PAUSE = 10.0  # the seconds between two lines about work whose length is not known
_BLINK = 0.1  # the least seconds between two changes of a `Footer`

quiet_option = click.option("-q", "--quiet", is_flag=True, help="Show no progress.")


class Progress:
    """Passes items on, and shows how many of them have been passed on.

    On a terminal it shows a bar. Elsewhere it prints a line for every tenth of the items, or a line
    every ten seconds if the number of the items is not known.
    """

    def __init__(self, *, quiet: bool = False, clock: Clock = CLOCK) -> None:
        self._quiet = quiet
        self._clock = clock

    def __call__(self, items: Iterable[T], what: str) -> Iterator[T]:
        """Yield the items; ``what`` names the work that the caller does with them."""
        total, done = len(items) if isinstance(items, Sized) else None, 0
        with self.meter(what, total) as show:
            for done, item in enumerate(items):
                show(done)
                yield item
            if total is None or total:
                show(done + 1)

    @contextmanager
    def meter(self, what: str, total: int | None) -> Iterator[Callable[[int], None]]:
        """Return a function that shows how many items are done; the number must not shrink."""
        begun, meter = self._clock.monotonic(), list[_Bar | _Lines]()

        def show(done: int) -> None:
            now = self._clock.monotonic()
            if not self._quiet and not meter and now - begun >= _PATIENCE:
                meter.append(_meter(what, total, now))
            if meter:
                meter[0].show(done, now)

        try:
            yield show
        finally:
            if meter:
                meter[0].close()


class Footer:
    """A line about the progress below the other lines that a command prints on a terminal.

    Elsewhere nothing is shown, because the other lines tell the progress there.
    """

    def __init__(self, clock: Clock = CLOCK) -> None:
        self._clock = clock
        self._begun = self._shown_at = clock.monotonic()
        self._is_shown = False
        self._is_able = _is_terminal()

    def clear(self) -> None:
        """Remove the line, so that another one can be printed in its place."""
        if self._is_shown and sys.__stderr__ is not None:
            sys.__stderr__.write("\r\x1b[K")
            sys.__stderr__.flush()
            self._is_shown = False

    def show(self, what: str, done: int, total: int) -> None:
        """Show how far the work has come, but not more often than a person can read."""
        now = self._clock.monotonic()
        took = now - self._begun
        if not self._is_able or took < _PATIENCE or now - self._shown_at < _BLINK:
            return
        self._shown_at, self._is_shown = now, True
        left = format_span(ceil(took / done * (total - done)), most=2)
        if sys.__stderr__ is not None and done < total:
            sys.__stderr__.write(f"{what} {done} of {total}, about {left} left")
            sys.__stderr__.flush()


class _Bar:
    """A bar on the terminal. It writes to the original stream, because psched's would escape it."""

    def __init__(self, what: str, total: int | None) -> None:
        # click shows a moving bar for an iterator whose length is not known, such as a filter.
        unknown: Iterator[None] | None = filter(None, ()) if total is None else None
        self._bar = click.progressbar(unknown, length=total, label=what, file=sys.__stderr__)
        self._bar.__enter__()
        self._done = 0

    def close(self) -> None:
        """End the bar's line."""
        self._bar.render_finish()

    def show(self, done: int, _now: float) -> None:
        """Show that so many items are done."""
        self._bar.update(done - self._done)
        self._done = done


class _Lines:
    """Lines for a log."""

    def __init__(self, what: str, total: int | None, now: float) -> None:
        self._what = what
        self._total = total
        self._tenths = 0
        self._shown_at = now

    def close(self) -> None:
        """Do nothing: each line is complete."""

    def show(self, done: int, now: float) -> None:
        """Show that so many items are done."""
        if self._total is None:
            if now - self._shown_at >= _PAUSE:
                self._shown_at = now
                click.echo(f"{self._what}: {done}", err=True)
        elif (tenths := done * 10 // max(1, self._total)) > self._tenths:
            self._tenths = tenths
            click.echo(f"{self._what}: {tenths * 10} %", err=True)


def _meter(what: str, total: int | None, now: float) -> _Bar | _Lines:
    return _Bar(what, total) if _is_terminal() else _Lines(what, total, now)


def _is_terminal() -> bool:
    # The present stream is no terminal if a test or a caller has redirected it.
    return are_terminals(sys.__stderr__, sys.stderr)
