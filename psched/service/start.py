"""``psched.start``: a user's program calls it to become a service that runs its own jobs."""

import atexit
import os
import signal
import subprocess
import threading
from collections.abc import Callable, Mapping
from functools import partial
from types import TracebackType
from typing import Any, Self, TypeVar, Unpack

from psched import config
from psched.app import CLOCK, ConfigLike, called, open_schedules, read_config
from psched.base.errors import ConfigError, InvalidError
from psched.config import Config
from psched.config.urls import MEMORY as MEMORY_URL
from psched.core.arguments import JobFields, Settings
from psched.core.columns import check_name
from psched.process import early_signals
from psched.process.spawn import flush_output
from psched.service.functions import App
from psched.service.jobs import JobDeclarer, Jobs
from psched.service.program import (
    WorkerExit,
    become_master,
    current_worker_boot,
    master_command,
    program_name,
    with_program_folder,
)
from psched.service.worker_boot import WorkerBoot

F = TypeVar("F", bound=Callable[..., object])


def start(
    given: ConfigLike = None,
    /,
    *,
    backend: object = None,
    label: str | None = None,
    prune: bool = False,
    join: bool = True,
    **settings: Unpack[Settings],
) -> "Program":
    """Make this program a service that runs its own jobs.

    The result is a context manager. The program adds its jobs within the ``with`` block.

    ::

        with psched.start(url="mysql+pymysql://…") as s:
            s.add("empty_cache", every=3600, run=empty_cache)

    At the end of the block, the process becomes a master. The master runs the program again, from
    its first line, in each of its workers. A restart starts new workers, which run the program
    again. If the program runs on several hosts, each occurrence of a job is run by only one of the
    hosts. If a job has missed several occurrences, only the newest of them is run, unless the
    setting ``catchup`` says otherwise.

    Args:
        given: a mapping of settings, the path of a configuration file, or a
            `psched.config.Config`; or a function that returns one of these. None means
            the configuration file at one of the default paths.
        backend: replaces the setting ``url`` or ``type``: ``"memory"``, a url; or ``"redis"``, a
            store class of your own, or the name of such a class (``"module:Class"``). None if the
            settings say where the jobs are stored.
        label: the owner of the jobs. None means the program's name. A program with another label
            never changes, removes or runs these jobs.
        prune: True to remove jobs of this label that are no longer in the program; False to log
            them only.
        join: True if this process becomes the master. False if the program continues after the
            block, and a child process becomes the master, which runs the jobs until `Program.stop`
            is called or the program exits.
        settings: further settings, by name, such as ``url``.

    Raises:
        ConfigError: the settings cannot be used.
        InvalidError: the label is empty, not a text, or contains a slash.
        RuntimeError: the program cannot be run again, because it is neither a file nor a module. Or
            this call is in a module that psched imports for its handlers or triggers. Or the caller
            is not in the program's main thread. Or the program has started a master already: its
            workers would never reach a second block.
    """
    if threading.current_thread() is not threading.main_thread():
        raise RuntimeError("psched.start must be called in the program's main thread")
    if _has_master:
        # Its workers would run the program from its first line to the first block, and no further.
        raise RuntimeError(
            "psched.start: this program has started a master already; add all jobs in one block"
        )
    own: dict[str, Any] = {**settings}
    if backend is not None:
        meant = _settings_of(backend)
        if clash := {*meant} & {*own}:
            raise ConfigError(
                f"backend: and {min(clash)} both say where the jobs are stored; leave one out"
            )
        own |= meant
    given = called(given)
    whole = read_config(given)
    if "catchup" not in own and not _is_catchup_set(given, whole):
        own["catchup"] = "latest"
    whole = whole.with_settings(**own)
    if not whole.store_kind.keeps_options:
        raise ConfigError(f"type: a store of type {whole.type} keeps no labels; use another")
    name = program_name()
    label = name if label is None else label
    if "/" in check_name("label", label):
        raise InvalidError(
            "label", "must not contain /, which separates the label from a job's key"
        )
    jobs = Jobs(name, label, with_program_folder(whole), CLOCK.wall)
    return Program(jobs, prune=prune, join=join)


_has_master = False
"""Whether this process has started a master as its child, which may have ended since."""


class Program:
    """The jobs of one program, and the master that runs them; created by `start`.

    `start` must be called in the main thread. When a worker runs the program again, the program
    must have no other thread at the end of the ``with`` block, because the worker forks.

    Args:
        jobs: the jobs. `add` adds to them.
        prune: True to remove jobs of the label that are no longer in the program.
        join: True if this process becomes the master at the end of the ``with`` block; False if the
            master is a child process.
    """

    def __init__(self, jobs: Jobs, *, prune: bool, join: bool) -> None:
        self.label = jobs.label
        self._jobs = jobs
        self._prune = prune
        self._join = join
        self._master: subprocess.Popen[bytes] | None = None

    def add(self, key: str, run: object, **fields: Unpack[JobFields]) -> None:
        """Add a job.

        Args:
            key: the job's name.
            run: the code to run, in a process of its own. It is a function, with the task as its
                parameter or without parameters; a class with ``run()``, which is called with the
                task to create an object; or an object with ``run()``. Of an object, the store
                receives the name of the class and the attributes. Each run creates the object again
                from them. An object with ``next_at(after)`` is its own trigger if ``fields``
                contain no times.
            fields: the times of the job (``every``, ``cron``, ``at`` or ``trigger``), and other
                arguments of `ScheduleCollection.add`. A job without fields, unless it is its own
                trigger, has no schedule and runs the pushed tasks whose type is its key.

        Raises:
            InvalidError: a value is not valid; the error's ``field`` is the name of the value.
        """
        self._jobs.add(key, run, fields)

    def task(self, key: str, **fields: Unpack[JobFields]) -> Callable[[F], F]:
        """Add the decorated function as a job; see `add` for the arguments.

        Raises:
            InvalidError: a value is not valid; the error's ``field`` is the name of the value.
        """
        # Checked now, too, because `@s.task` without parentheses never decorates anything.
        self._jobs.check_key(key)

        def decorate(function: F) -> F:
            self.add(key, run=function, **fields)
            return function

        return decorate

    def include(self, app: App) -> None:
        """Run the tasks of an app, too, and call its hooks in all processes of tasks.

        Functions that you add to the app later are not included. From now on, the app uses the
        settings of this program.

        Raises:
            InvalidError: a job of this program has the type of one of the functions as its key, or
                the app has routes.
        """
        if app.routes:
            raise InvalidError("app", "has routes; add their handlers to the program by add()")
        for type_ in app.functions:  # either all are added, or none
            self._jobs.check_key(type_)
        for type_, function in app.functions.items():
            self.add(type_, run=function)
        self._jobs.included.append(app)
        app.use(partial(open_schedules, self._jobs.settings))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        global _has_master  # noqa: PLW0603  # a property of the process
        if kind is not None:
            return
        if not self._jobs.routes:
            raise RuntimeError("psched.start: no job was added")
        boot = current_worker_boot()
        if boot is not None:
            raise WorkerExit(self._serve(boot))
        if self._join:
            become_master()
        self._master = _start_beside()
        _has_master = True
        atexit.register(self.stop)

    @property
    def pid(self) -> int | None:
        """The pid of the master that this program has started as a child; None if there is none."""
        return None if self._master is None else self._master.pid

    def stop(self) -> int | None:
        """Stop the master that this program has started as a child, and wait until it has exited.

        Running tasks have ``graceful_timeout`` seconds to finish.

        Returns:
            The master's exit status. None if no master was started.
        """
        if self._master is None:
            return None
        if self._master.poll() is None:
            self._master.terminate()
        return self._master.wait()

    def _serve(self, boot: WorkerBoot) -> int:
        jobs = self._jobs
        settings = jobs.settings.with_settings(only=[*jobs.routes])
        # Let only worker 0 declare the schedules, because one declaration per generation is enough.
        declare = JobDeclarer(jobs, prune=self._prune).declare
        prepare = declare if boot.place.number == 0 else None
        return boot.serve(settings, jobs.dispatch(), report=True, prepare=prepare)


def _settings_of(backend: object) -> dict[str, str]:
    """The settings ``type`` or ``url`` that follow from the argument ``backend`` of `start`."""
    if isinstance(backend, type):
        return {"type": f"{backend.__module__}:{backend.__qualname__}"}
    if not isinstance(backend, str):
        raise ConfigError(
            f"backend: must be memory, redis, a url, or a store class of your own, not"
            f" {backend!r}; the class's arguments are the setting store"
        )
    if backend.rstrip("/:") == "memory":
        return {"url": MEMORY_URL}
    return {"url" if "://" in backend else "type": backend}


def _is_catchup_set(given: ConfigLike, settings: Config) -> bool:
    """Whether the user has set ``catchup``; always true if ``given`` is a `Config`."""
    if isinstance(given, Mapping):
        return "catchup" in given
    if isinstance(given, Config):
        return True
    return "catchup" in config.raw_settings(settings)


def _start_beside() -> subprocess.Popen[bytes]:
    """Start a master of this program as a child process, which stops when this process exits."""
    command = master_command("--parent", str(os.getpid()))
    flush_output()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    try:
        # The child inherits it: signals stay pending until the master has installed its handlers.
        early_signals.hold()
        return subprocess.Popen(command, stdin=subprocess.DEVNULL)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
