"""A program that is a schedule: ``psched.start``."""

import atexit
import logging
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from math import ceil
from types import TracebackType
from typing import Any, Self, TypeVar

from psched import config
from psched.app import CLOCK, Configuration, draw_nonce, read_config
from psched.base.errors import (
    AlreadyExistsError,
    ConfigError,
    InvalidError,
    MissingTableError,
    NotFoundError,
    NotSupportedError,
)
from psched.client.collection import ScheduleCollection
from psched.config import Config
from psched.config.urls import MEMORY as MEMORY_URL
from psched.config.urls import file_of
from psched.core.columns import check_name
from psched.core.declare import declare
from psched.core.definition import parse_row
from psched.core.model import ENDED, Row
from psched.core.store_protocol import Store
from psched.files.applying import carry_out, remove
from psched.files.plan import is_of, plan
from psched.process import early_signals, kernel
from psched.service.embedded import become_master, program_command, program_name, with_program
from psched.service.generation import Served, current_worker_boot
from psched.service.jobs import Jobs
from psched.service.worker_boot import WorkerBoot
from psched.triggers.trigger import first

F = TypeVar("F", bound=Callable[..., object])
T = TypeVar("T")

_log = logging.getLogger("psched.worker")

_LOT = 500
"""Schedules that are looked at between two signs of life."""

_TRIES = 5
"""How often it is tried to declare what others declare at the same time."""


def start(
    given: Configuration = None,
    /,
    *,
    backend: object = None,
    label: str | None = None,
    prune: bool = False,
    join: bool = True,
    **settings: Any,  # noqa: ANN401  # see etc/psched.yml
) -> "Program":
    """Make this program a scheduler: a context manager that jobs are added to.

    ::

        with psched.start(url="mysql+pymysql://…") as s:
            s.add("empty_cache", every=3600, run=empty_cache)

    At the end of the block the process becomes a master, which runs the program anew, from its
    first line, in each of its workers; so does every restart. The same program may run on many
    hosts: each occurrence is run once. Of missed occurrences only the newest is run, unless
    ``catchup`` is set.

    Args:
        given: a mapping of settings, the path of a file, or settings; None: the file that is found.
        backend: another word for ``url`` and ``type``: ``"memory"``, ``"redis"``, a url, or the
            class of a store of one's own, or its name.
        label: whose the jobs are; default: the program's name. Programs with other labels never
            change, remove or run them.
        prune: remove jobs of this label that are not in the program any more.
        join: False: the rest of the program goes on, and the master runs beside it until `stop` is
            called or the program ends.
        settings: further settings, by name, such as ``url``.

    Raises:
        ConfigError: the settings cannot be used.
        InvalidError: the label cannot be one.
        RuntimeError: the program is neither a file nor a module, and cannot be run anew; or this
            is not its main thread.
    """
    if threading.current_thread() is not threading.main_thread():
        raise RuntimeError("psched.start must be called in the program's main thread")
    if backend is not None:
        if clash := {"url", "type"} & {*settings}:
            raise ConfigError(f"backend: and {min(clash)} both say where jobs are; leave one out")
        settings |= _of_backend(backend)
    whole = read_config(given)
    if "catchup" not in settings and not _says_catchup(given, whole):
        settings["catchup"] = "latest"
    name = program_name()
    if whole.type == "rdb_compat":
        raise ConfigError(
            "type: PerfectSched's table has no room for labels; use one of psched's own"
        )
    label = name if label is None else label
    if "/" in check_name("label", label):
        raise InvalidError("label", "must be without /, which divides it from a job's key")
    return Program(
        with_program(whole.with_settings(**settings)),
        name=name,
        label=label,
        prune=prune,
        join=join,
    )


class Program:
    """The jobs of one program; made by `start`.

    Args:
        settings: the installation's.
        name: the program's.
        label: whose the jobs are.
        prune: see `start`.
        join: see `start`.
    """

    def __init__(self, settings: Config, *, name: str, label: str, prune: bool, join: bool) -> None:
        self.label = label
        self._settings = settings
        self._jobs = Jobs(name, label, self._understood)
        self._prune = prune
        self._join = join
        self._master: subprocess.Popen[bytes] | None = None

    def add(self, key: str, run: object, **fields: Any) -> None:  # noqa: ANN401  # see declare
        """Add a job.

        Args:
            key: its name.
            run: what is run, in a process of its own: a function that takes the task or nothing; a
                class that is made of the task, with ``run()``; or an object with ``run()``, which
                is stored as its class's name and its attributes, and made again from these. An
                object that has ``next_at(after)`` as well is its own trigger, if none is given.
            fields: when it runs, ``every``, ``cron``, ``at`` or ``trigger``; and all else that
                `ScheduleCollection.add` takes. With none at all it is no schedule, but runs the
                tasks of this type that are pushed.

        Raises:
            InvalidError: a value makes no sense; its ``field`` names it.
        """
        self._jobs.add(key, run, fields)

    def task(self, key: str, **fields: Any) -> Callable[[F], F]:  # noqa: ANN401  # see add
        """The same for the function that follows, as a decorator.

        Raises:
            InvalidError: see `add`.
        """

        def note(function: F) -> F:
            self.add(key, run=function, **fields)
            return function

        return note

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if kind is not None:
            return
        if not self._jobs.routes:
            raise RuntimeError("psched.start: no job was added")
        seat = current_worker_boot()
        if seat is not None:
            raise Served(self._serve(seat))
        if self._join:
            become_master()
        self._master = _beside()
        atexit.register(self.stop)

    @property
    def pid(self) -> int | None:
        """The master's, if it runs beside this program."""
        return None if self._master is None else self._master.pid

    def stop(self) -> int | None:
        """Stop a master that runs beside this program; running tasks may finish.

        Returns:
            Its exit status; None: there is none.
        """
        if self._master is None:
            return None
        if self._master.poll() is None:
            self._master.terminate()
        return self._master.wait()

    def _serve(self, seat: WorkerBoot) -> int:
        ours = self._settings.with_settings(only=[*self._jobs.routes])
        # One worker of a generation is enough.
        prepare = self._declaring if seat.place.number == 0 else None
        return seat.serve(ours, self._jobs.dispatch(), report=True, prepare=prepare)

    def _declaring(self, store: Store) -> Iterator[None]:
        """Make the schedules those of the program, in steps between which there is other work."""
        schedules = _Impatient(store, self._settings, clock=CLOCK, draw_nonce=draw_nonce)
        file = file_of(self._settings.url)
        if self._settings.type == "rdb" and file is not None and not file.exists():
            try:
                _init(store)
            except OSError as error:
                _log.error("the folder of the database cannot be made: %s", error)
        for tries in range(1, _TRIES + 1):
            try:
                self._declare(schedules)
                break
            except MissingTableError:
                _init(store)
            except (AlreadyExistsError, NotFoundError) as error:
                # Another host declares the same, or a person deletes it.
                if tries == _TRIES:
                    _log.error("the jobs of this program are not as it says: %s", error)
            except (InvalidError, NotSupportedError) as error:
                # What is there already is run all the same.
                _log.error("the jobs of this program are not as it says: %s", error)
                return
            yield
        yield from self._look_for_others(schedules)

    def _declare(self, schedules: ScheduleCollection) -> None:
        wanted = self._jobs.schedules
        found = schedules.read_many([job["key"] for job in wanted])
        now = schedules.now()
        waiting = {key for key, metadata in found.items() if metadata.row.status not in ENDED}
        over = {
            job["key"] for job in wanted if job["key"] not in waiting and self._is_over(job, now)
        }
        for key in sorted(over - {*found}):
            _log.warning("the job %r is not declared: none of its times is still to come", key)
        made = plan(
            [job for job in wanted if job["key"] not in over],
            [metadata.row for metadata in found.values()],
            self.label,
            settings=self._settings,
        )
        for key, why in made.refused.items():
            _log.error("the job %r is not declared: it %s", key, why)
        carry_out(
            replace(made, refused={}),
            schedules,
            settings=self._settings,
            tell=lambda done, key: _log.info("the job %r was %s", key, done),
        )

    def _is_over(self, job: Mapping[str, Any], now: float) -> bool:
        """Whether none of its times is still to come: it has run, and its row is kept no longer."""
        row = self._understood(job)
        trigger = parse_row(row, self._settings).trigger
        if trigger is None:
            return row.next_time is not None and row.next_time < now
        return first(trigger, ceil(now)) is None

    def _understood(self, job: Mapping[str, Any]) -> Row:
        """A job's row, whether or not its last time has come."""
        fields = {name: value for name, value in job.items() if name != "key"}
        return declare(job["key"], {**fields, "label": self.label}, self._settings, lambda: 0)

    def _look_for_others(self, schedules: ScheduleCollection) -> Iterator[None]:
        """Report, or remove, the jobs of this label that the program has no more."""
        keys = {job["key"] for job in self._jobs.schedules}
        left: dict[str, None] = {}  # one that runs meanwhile may come twice
        for number, metadata in enumerate(schedules.list(), start=1):
            row = metadata.row
            if is_of(row, self.label) and row.key not in keys and row.status not in ENDED:
                left[row.key] = None
            if not number % _LOT:
                yield
        for key in left:
            if self._prune:
                remove(key, self.label, schedules, _tell_removed)
            else:
                _log.warning(
                    "the job %r is not in the program any more, and is not run;"
                    " prune=True removes it",
                    key,
                )


def _init(store: Store) -> None:
    """Do what ``psched init`` does."""
    for line in store.init():
        _log.info("%s", line)


def _tell_removed(_done: str, key: str) -> None:
    _log.warning("the job %r was removed: the program has it no more", key)


class _Impatient(ScheduleCollection):
    """A worker's, which waits for no store: it would extend no lease and not hear its master."""

    def _patiently(self, request: Callable[[], T]) -> T:
        return request()


def _of_backend(backend: object) -> dict[str, str]:
    """The settings that a backend stands for.

    Raises:
        ConfigError: it is none.
    """
    if isinstance(backend, type):
        return {"type": f"{backend.__module__}:{backend.__qualname__}"}
    if not isinstance(backend, str):
        raise ConfigError(
            f"backend: must be memory, redis, a url, or the class of a store of your own, not"
            f" {backend!r}; its arguments are the setting store"
        )
    if backend.rstrip("/:") == "memory":
        return {"url": MEMORY_URL}
    return {"url" if "://" in backend else "type": backend}


def _says_catchup(given: Configuration, settings: Config) -> bool:
    """Whether somebody has chosen how missed occurrences are made up for."""
    if isinstance(given, Mapping):
        return "catchup" in given
    if isinstance(given, Config):
        return True
    return "catchup" in config.raw_settings(settings)


def _beside() -> subprocess.Popen[bytes]:
    """Start a master of this program beside it; it stops when the program ends."""
    command = program_command()
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    program = os.getpid()

    def prepare() -> None:
        # It may be told to stop before it has handlers.
        early_signals.hold()
        kernel.stop_with_parent(program)

    return subprocess.Popen(command, stdin=subprocess.DEVNULL, preexec_fn=prepare)  # noqa: PLW1509
