"""The command top, whose loop waits for keys, signals and answers, and draws the screen."""

import json
import os
import queue
import select
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import click

from psched.app import CLOCK, open_schedules
from psched.base.clock import Clock
from psched.base.errors import PschedError
from psched.cli import options
from psched.cli.daemon.masters import table_of
from psched.cli.opening import settings_to_read
from psched.cli.output import are_terminals, one_line
from psched.cli.text_table import is_coloured, line_width
from psched.cli.top.rendering import Place, Window, render, tasks
from psched.cli.top.screen import Screen, keys_in
from psched.cli.top.snapshot import (
    ComingTask,
    LateTask,
    PausedTask,
    Reader,
    RunningTask,
    Snapshot,
    Task,
)
from psched.client.collection import ScheduleCollection
from psched.client.verbs import Verb
from psched.client.verbs.extra_runs import Trigger
from psched.client.verbs.pausing import Pause, Resume
from psched.core.model import PAUSED
from psched.core.operations.extra_runs import schedule_key
from psched.master.reports.queries import ask_all
from psched.master.runtime_folders import socket_folders
from psched.process.signals import SignalInbox, end_by, suspend


class Background:
    """A thread that runs requests one after the other.

    The thread alone uses the store: a store is used by one thread. It does not keep the program
    from ending, so that a request which nobody answers does not either. ``notify`` is called in the
    thread when a request has ended.
    """

    def __init__(self, notify: Callable[[], None]) -> None:
        self._notify = notify
        self._requests: queue.SimpleQueue[
            tuple[Callable[[], object], Callable[[object], None]] | None
        ] = queue.SimpleQueue()
        self._answers: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="psched top", daemon=True)
        self._thread.start()

    def send(self, request: Callable[[], object], take: Callable[[object], None]) -> None:
        """Run a request in the thread."""
        self._requests.put((request, take))

    def deliver(self) -> None:
        """Pass on the results of the requests that have ended, in the caller's thread."""
        while not self._answers.empty():
            self._answers.get()()

    def close(self, patience: float) -> bool:
        """Let the thread end; return whether it has ended within so many seconds."""
        self._requests.put(None)
        self._thread.join(patience)
        return not self._thread.is_alive()

    def _run(self) -> None:
        while (request := self._requests.get()) is not None:
            work, take = request
            try:
                self._answers.put(partial(take, work()))
            except BaseException as error:  # noqa: BLE001  # it is raised where it is delivered
                self._answers.put(partial(_raise, error))
            self._notify()


def _raise(error: BaseException) -> None:
    raise error


NOTE = "psched top"  # the note in the audit trail of what is done here


PAUSE, RESUME, TRIGGER = Pause(), Resume(), Trigger()

ACTIONS: Mapping[str, Callable[[Task], Verb[object]]] = {
    "p": lambda task: RESUME if _is_paused(task) else PAUSE,
    "t": lambda _task: TRIGGER,
}
"""For each key of the keyboard: what it does with the schedule of a row."""


def perform(schedules: ScheduleCollection, verb: Verb[object], key: str) -> str:
    """Do something with a schedule, and return a message for the user."""
    with schedules.audited(NOTE):
        verb.apply(schedules.access, key)
    return f"{verb.done} {key}"


def _is_paused(task: Task) -> bool:
    if isinstance(task, PausedTask):
        return True
    return isinstance(task, RunningTask | ComingTask) and task.status == PAUSED


def target_of(task: Task) -> str:
    """The key of the schedule that an action changes: of an extra run, that of its schedule."""
    return schedule_key(task.key)


_ESCAPE_PAUSE = 0.05
"""The seconds after which an escape character that nothing follows is the key Escape."""

_TICK = 1.0  # the seconds after which the screen is drawn again at the latest
_PATIENCE = 0.5  # the seconds for which the end waits for a request that still runs

_ENDING = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT, signal.SIGQUIT)
_NOTICED = (signal.SIGWINCH, signal.SIGTSTP, signal.SIGCONT)
"""Signals after which the screen is drawn again: it has another size, or was not ours."""

_STEPS = {"up": -1, "k": -1, "down": 1, "j": 1, "page up": -10, "page down": 10}
_ENDS = {"home": 0, "g": 0, "end": -1, "G": -1}


class _Source(NamedTuple):
    """A file descriptor that a `SignalInbox` can wait for."""

    descriptor: int
    unsent: bool = False
    closed: bool = False

    def fileno(self) -> int:
        return self.descriptor


@dataclass(slots=True)
class _Question:
    """A question that is answered by a single key."""

    verb: Verb[object]
    key: str

    @property
    def text(self) -> str:
        return f"{self.verb.name} {one_line(self.key)}? [y/N]"


@dataclass(slots=True)
class State:
    """What the user sees, and what the loop waits for.

    Attributes:
        read_at: when the snapshot was read, in seconds of the monotonic clock.
        position: the number of the selected row.
        message: a text at the bottom of the screen.
        helps: whether the keys are explained.
        reading: whether a snapshot is being read.
        next_read: when the next one is read, in seconds of the monotonic clock.
        over: the signal that ends the loop, 0 for a key; None while it goes on.
        partial: the beginning of a key's sequence, the rest of which has not arrived yet.
    """

    snapshot: Snapshot
    read_at: float
    selected: Place | None = None
    position: int = 0
    message: str = ""
    question: _Question | None = None
    helps: bool = False
    reading: bool = False
    next_read: float = 0.0
    over: int | None = None
    partial: bytes = b""

    def move(self, step: int) -> None:
        """Select a row: so many rows further."""
        self._select(self.position + step if self.selected is not None else max(step - 1, 0))

    def jump(self, position: int) -> None:
        """Select a row by its number; -1 is the last one."""
        self._select(len(tasks(self.snapshot)) - 1 if position < 0 else position)

    def _select(self, position: int) -> None:
        places = [*tasks(self.snapshot)]
        self.position = max(0, min(position, len(places) - 1))
        self.selected = places[self.position] if places else None

    def take(self, snapshot: Snapshot) -> None:
        """Replace the snapshot; the selected row stays selected, or the one at its position."""
        self.snapshot = snapshot
        if self.selected is None:
            return
        places = [*tasks(snapshot)]
        if self.selected in places:
            self.position = places.index(self.selected)
        else:
            self._select(self.position)

    @property
    def task(self) -> Task | None:
        """The task of the selected row; None for none."""
        return None if self.selected is None else tasks(self.snapshot).get(self.selected)


class Top:
    """Shows snapshots on a screen until the user or a signal ends it.

    ``read`` reads a snapshot, and ``perform`` applies a verb to the schedule with a key and
    returns a message; both are called in a thread of its own. ``show_logs`` shows the output of the
    task with a key, while the screen is given back, and follows it if asked. ``interval`` is the
    seconds between two snapshots.
    """

    def __init__(
        self,
        screen: Screen,
        *,
        read: Callable[[], Snapshot],
        perform: Callable[[Verb[object], str], str],
        show_logs: Callable[[str, bool], None],
        interval: float,
        clock: Clock,
        first: Snapshot,
    ) -> None:
        self._screen = screen
        self._read = read
        self._perform = perform
        self._show_logs = show_logs
        self._interval = interval
        self._clock = clock
        self._state = State(first, clock.monotonic(), message="reading ...")
        self._inbox = SignalInbox((*_ENDING, *_NOTICED))
        self._wake, self._waker = socket.socketpair()
        for end in self._wake, self._waker:
            end.setblocking(False)  # noqa: FBT003  # setblocking takes no keywords
        self._inbox.watch((_Source(screen.source), _Source(self._wake.fileno())))
        self._ended = False

    def run(self) -> int:
        """Run until the user quits, and return the number of the signal that has ended it.

        It is 0 if it was a key, or if the terminal is gone.
        """
        background = Background(self._notify)
        try:
            self._loop(background)
        finally:
            self._ended = background.close(_PATIENCE)
        return self._state.over or 0

    @property
    def is_idle(self) -> bool:
        """Whether no request runs any more, so that the store can be closed."""
        return self._ended

    def _loop(self, background: Background) -> None:
        state = self._state
        while state.over is None:
            now = self._clock.monotonic()
            if not state.reading and now >= state.next_read:
                state.reading = True
                background.send(self._read, self._take)
            self._draw(now)
            self._wait(now)
            background.deliver()
            for key in self._keys():
                self._press(key, background)
                if state.over is not None:
                    break

    def _draw(self, now: float) -> None:
        columns, lines = self._screen.size()
        state = self._state
        view = Window(
            width=columns,
            height=lines,
            selected=state.selected,
            message=state.question.text if state.question else state.message,
            helps=state.helps,
            age=now - state.read_at,
        )
        with self._ending_with_terminal():
            self._screen.draw(render(state.snapshot, view))

    def _wait(self, now: float) -> None:
        """Wait for a key, a signal or an answer, but not beyond the next thing to do."""
        state = self._state
        until = now + _TICK
        if not state.reading:
            until = min(until, state.next_read)
        if state.partial:
            until = min(until, now + _ESCAPE_PAUSE)
        self._inbox.sleep(max(0.0, until - now))
        with suppress(BlockingIOError):
            while self._wake.recv(4096):
                pass
        for number in self._inbox.take():
            if number in _ENDING:
                state.over = number
            elif number == signal.SIGTSTP:
                self._suspend()
            elif number == signal.SIGCONT:
                self._take_screen()

    def _keys(self) -> Iterator[str]:
        waiter = select.poll()
        waiter.register(self._screen.source, select.POLLIN)
        state = self._state
        if not waiter.poll(0):
            if state.partial:
                state.partial = b""
                yield "escape"
            return
        try:
            received = os.read(self._screen.source, 4096)
        except OSError:
            received = b""
        if not received:
            state.over = 0  # the terminal is gone
            return
        keys, state.partial = keys_in(state.partial + received)
        yield from keys

    def _press(self, key: str, background: Background) -> None:
        state = self._state
        if key == "quit":
            state.over = 0
        elif key == "suspend":
            self._suspend()
        elif state.question is not None:
            question, state.question = state.question, None
            state.message = ""
            if key in {"y", "Y"}:
                self._apply(question, background)
        elif state.helps:
            state.helps = False
        else:
            state.message = ""
            self._command(key)

    def _command(self, key: str) -> None:
        state = self._state
        if key == "q":
            state.over = 0
        elif key in {"?", "h"}:
            state.helps = True
        elif key == "r":
            state.next_read = 0.0
        elif key == "redraw":
            with self._ending_with_terminal():
                self._screen.clear()
        elif key in _STEPS:
            state.move(_STEPS[key])
        elif key in _ENDS:
            state.jump(_ENDS[key])
        elif key in ACTIONS or key == "l":
            task = state.task
            if task is None:
                state.message = "select a row first: up and down, or j and k"
            elif key == "l":
                self._logs(task)
            else:
                state.question = _Question(ACTIONS[key](task), target_of(task))

    def _apply(self, question: _Question, background: Background) -> None:
        state = self._state
        state.message = f"{question.verb.name} {one_line(question.key)} ..."

        def request() -> str:
            try:
                return self._perform(question.verb, question.key)
            except (PschedError, OSError) as error:
                return f"cannot {question.verb.name} {question.key}: {error}"

        def take(message: object) -> None:
            state.message = one_line(str(message))
            state.next_read = 0.0

        background.send(request, take)

    def _logs(self, task: Task) -> None:
        follows = isinstance(task, RunningTask | LateTask)
        self._screen.give_back()
        try:
            with self._inbox.standing_by():
                self._show_logs(task.key, follows)
        finally:
            self._take_screen()

    def _suspend(self) -> None:
        """Stop this process, as Ctrl-Z does; go on when it is continued."""
        self._screen.give_back()
        self._inbox.let_go(signal.SIGTSTP)
        suspend()
        self._inbox.take_over()
        self._take_screen()

    def _take_screen(self) -> None:
        with self._ending_with_terminal():
            self._screen.take()

    @contextmanager
    def _ending_with_terminal(self) -> Iterator[None]:
        """End the loop if the terminal is gone, which a ``with`` block uses."""
        try:
            yield
        except OSError:
            if self._state.over is None:
                self._state.over = 0

    def _take(self, snapshot: object) -> None:
        state = self._state
        if not isinstance(snapshot, Snapshot):
            raise TypeError(f"{snapshot!r} is no snapshot")
        if state.message == "reading ...":
            state.message = ""
        if not snapshot.away:
            state.read_at = self._clock.monotonic()
        state.take(snapshot)
        state.reading = False
        state.next_read = self._clock.monotonic() + self._interval

    def _notify(self) -> None:
        with suppress(OSError):  # the buffer is full, so the loop wakes anyway; or it has ended
            self._waker.send(b"\0")


# --- the command -----------------------------------------------------------------------------

_SHORTEST = 0.2  # the shortest interval, in seconds


@click.command()
@options.lasting(
    "--interval", least=_SHORTEST, default="2s", help="Time between two screens. Default: 2s."
)
@click.option("--once", is_flag=True, help="Print one screen as plain text.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@options.zone()
@options.database
@click.pass_context
def top(context: click.Context, *, interval: float, once: bool, as_json: bool) -> None:
    """Show what runs now, and what is late, next or failed.

    The screen is drawn again every two seconds. Select a row with the arrow keys; p pauses or
    resumes its schedule, t runs it now, l shows what it prints, ? explains all keys, q quits.

    Without a terminal, and with --once, one screen is printed as plain text.

    It shows the tasks of all hosts, as far as the store knows them. The progress of a task is shown
    if it runs on this host.
    """
    settings = settings_to_read(options.location_of(context))
    schedules = open_schedules(settings)
    reader = Reader(
        schedules,
        settings,
        ask_masters=partial(ask_all, socket_folders(os.environ)),
        clock=CLOCK,
    )
    if as_json or once or not _is_terminal():
        with schedules:
            snapshot = reader.read()
            _print(snapshot, as_json=as_json)
        if snapshot.away:
            sys.exit(1)
        return
    screen = Screen(sys.stdin.fileno(), sys.stdout.fileno(), colours=is_coloured())
    shown = Top(
        screen,
        read=reader.read,
        perform=partial(perform, schedules),
        show_logs=partial(_show_logs, context, screen),
        interval=interval,
        clock=CLOCK,
        first=Snapshot(now=None, table=table_of(settings)),
    )
    # From here on no signal ends the process before the terminal is given back.
    with screen:
        number = shown.run()
    if shown.is_idle:
        schedules.close()
    if number:
        end_by(number)


def _is_terminal() -> bool:
    """Whether there is a terminal that a screen can be drawn on."""
    if os.environ.get("TERM", "dumb") == "dumb":
        return False
    return are_terminals(sys.stdin, sys.stdout)


def _print(snapshot: Snapshot, *, as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps(snapshot.as_object()))
        return
    for line in render(snapshot, Window(width=line_width(), height=None)):
        click.echo(line.text)


def _show_logs(context: click.Context, screen: Screen, key: str, follows: bool) -> None:  # noqa: FBT001
    """Run the command logs, then wait for a key."""
    from psched.cli.commands import load  # noqa: PLC0415  # it loads this module

    click.echo(f"psched logs {'-f ' if follows else ''}{one_line(key)}", err=True)
    try:
        context.invoke(load("logs"), key=key, follow=follows)
    except click.ClickException as error:
        error.show()
    except (KeyboardInterrupt, click.Abort):
        click.echo(err=True)
    except click.exceptions.Exit:
        pass
    click.echo("-- Enter returns to psched top --", err=True)
    with suppress(KeyboardInterrupt):
        os.read(screen.source, 1024)
