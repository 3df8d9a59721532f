"""A fork server that loads the handlers itself: executed anew, with no more than runners need.

A fork costs the less, the less memory and the fewer mappings the parent has. A worker has the
database's driver and all that decides about rows; its fork server needs none of that. So it is not
a copy of the worker, but a Python of its own, with the same folder, environment, limits and
descriptors for output::

    worker                               fork server
      fork, execve ───────────────────▶   hides its memory, dies with the worker
              ◀─────────────── hello ──   the checksums of its code
      compares them
              ── go, and three files ─▶   the settings, the flags of runners, the log
              ◀────────────── loaded ──   the types that have a handler, or why there are none

The settings can contain secrets. So they are sent to a process that is hidden already, and not in
its arguments or its environment.

After an upgrade of psched, or during one, other code is on disk than that of the worker. A worker
that finds this forks its fork server, which then loads the handlers in the same way.

This module is the program of that process, so what it imports at its top is what every runner has.
"""

import json
import logging
import os
import socket
import sys
from collections.abc import Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NoReturn

from psched.application.dispatch import Dispatch, Router
from psched.base import own_code, withheld
from psched.base.errors import LoadError
from psched.base.log import Log, allow_basic_config, attach
from psched.base.texts import brief
from psched.handlers.configured import (
    Named,
    built_in_handlers,
    handled_types,
    leaves_programs,
    load_handlers,
)
from psched.process import kernel
from psched.process.inheritance import UserDescriptors, open_descriptors
from psched.process.link import Channel, Link
from psched.process.spawn import exit_with, fork, prepare, run_users_code
from psched.runner.forker import Forker, Origin
from psched.runner.messages import TO_FORK_SERVER
from psched.runner.rehearsal import rehearse
from psched.runner.runner import Runner
from psched.runner.shared_memory import StopFlagTable
from psched.runner.stop import Stop
from psched.service.immortal import make_code_immortal

if TYPE_CHECKING:
    from psched.client.collection import ScheduleCollection
    from psched.config import Config

_log = logging.getLogger("psched.worker")

_NOT_LOADED = 65
"""Exit status: the handlers cannot be loaded (sysexits.h: EX_DATAERR)."""

_MOST_TYPES = 400
"""If more types than these have a handler, their names may be too long for a message."""

_LONG = 3600.0
"""The seconds for which the answer of the worker is awaited at a time."""

_PROGRAM = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[2]);"
    # Before the next module, which imports logging, too.
    " from psched.process import fork_hooks; fork_hooks.load();"
    # Soon, because other processes of the user can read the memory until then.
    " from psched.process import kernel; kernel.allow_dump(allowed=sys.argv[4] == 'dumpable');"
    " from psched.service.lean_server import main; main(sys.argv[3], int(sys.argv[1]))"
)


class HandlerProcesses:
    """Says how the fork servers of one worker come into being; see the module.

    Args:
        settings: the settings; they name the handlers.
        log: the worker's log.
        master: the pid of the master.
        collects: whether the output of runners is collected.
        is_first: whether this worker warns of what tasks find closed.
        options: the options of Python itself.
    """

    def __init__(
        self,
        settings: "Config",
        *,
        log: Log,
        master: int,
        collects: bool,
        is_first: bool,
        options: Sequence[str],
    ) -> None:
        # Not at the top, because only workers need them.
        import copyreg  # noqa: PLC0415
        import pickle  # noqa: PLC0415

        copyreg.pickle(MappingProxyType, lambda each: (_unchangeable, ({**each},)))
        self._log = log
        self._options = options
        self._executes = bool(sys.executable)
        self._config = pickle.dumps(settings)
        self._plan = {
            "named": Named.of(settings),
            "tasks": settings.max_tasks_per_child,
            "confined": settings.task_signals == "own",
            "collects": collects,
            "is_first": is_first,
            "master": master,
            "argv": sys.argv,
            "withheld": withheld.VALUES,
            "log": [str(log.path), log.process, log.json, log.level, logging.root.level],
        }

    def origin(self, flags: StopFlagTable) -> Origin:
        """How the next fork server comes into being."""
        log, worker = self._log, os.getpid()
        if not self._executes:

            def become(channel: Channel) -> int:
                return serve(channel, worker, flags, log, plan=self._plan, config=self._config)

            return Origin(become, [flags.descriptor, *log.descriptors], loads=True)
        return Origin(
            partial(_execute, worker=worker, options=self._options),
            [],
            loads=True,
            code=own_code.at_start(),
            contents=[json.dumps(self._plan).encode(), self._config],
            files=[flags.descriptor, *log.descriptors],
        )

    def fall_back(self) -> None:
        """Have the next fork server forked, because the code on disk is not that of the worker."""
        self._executes = False
        _log.error(
            "psched itself was changed on this host since this service was started: until it is"
            " restarted (systemctl restart psched), its runners are forked from its workers"
        )


def _unchangeable(given: dict[Any, Any]) -> "MappingProxyType[Any, Any]":
    """For pickle, which finds functions by their names, but not this type."""
    return MappingProxyType(given)


def _execute(channel: Channel, *, worker: int, options: Sequence[str]) -> int:
    """Execute the program; this function returns only if that fails."""
    kernel.die_with_parent(worker)
    os.set_inheritable(channel.fileno(), True)  # noqa: FBT003  # it takes no keyword arguments
    # -P keeps the folder of the worker out of the path while Python starts.
    safe = () if sys.flags.safe_path else ("-P",)
    program = [sys.executable, *options, *safe, "-c", _PROGRAM, str(channel.fileno())]
    memory = "hidden" if kernel.is_hidden() else "dumpable"
    os.execv(sys.executable, [*program, json.dumps(sys.path), str(worker), memory])  # noqa: S606


def main(worker: str, descriptor: int) -> NoReturn:
    """Be the fork server of the worker with this pid."""
    # What modules have registered for the end of Python is for the processes of tasks.
    exit_with(partial(_main, int(worker), descriptor))


def _main(worker: int, descriptor: int) -> int:
    kernel.die_with_parent(worker)
    kernel.set_title("fork server")
    os.set_inheritable(descriptor, False)  # noqa: FBT003
    channel = Channel(socket.socket(fileno=descriptor), TO_FORK_SERVER)
    channel.send({"hello": own_code.loaded()})
    received = None
    while received is None and not channel.closed:
        received = channel.receive(wait=_LONG)
    if received is None:
        return 0
    _, (plan, config, flags, *log) = received
    given = json.loads(_content(plan))
    path, process, is_json, level, root_level = given["log"]
    journal = Log(Path(path), process, *log)
    journal.json = is_json
    journal.setLevel(level)
    logging.root.setLevel(root_level)
    sys.argv = given["argv"]
    withheld.VALUES.update(given["withheld"])
    table = StopFlagTable(descriptor=flags)
    table.close()
    allow_basic_config(journal)
    return serve(channel, worker, table, journal, plan=given, config=_content(config))


def _content(descriptor: int) -> bytes:
    """The content of a file, which is closed."""
    with os.fdopen(descriptor, "rb") as file:
        file.seek(0)
        return file.read()


def serve(
    channel: Channel,
    worker: int,
    flags: StopFlagTable,
    log: Log,
    *,
    plan: Mapping[str, Any],
    config: bytes,
) -> int:
    """Load the handlers, tell the worker, and obey its orders; return the exit status."""
    stop = Stop()
    # First, so that none of the users' code takes part.
    rehearse(stop, log)
    inbox = run_users_code(log, "fork server")
    named = Named(*plan["named"])
    settings = _Settings(config, plan["master"])
    own = open_descriptors()
    try:
        dispatch = load_handlers(named)
        opened = UserDescriptors(own)
        attach(log)
        if "psched.service.functions" in sys.modules:
            from psched.service.functions import App  # noqa: PLC0415

            if isinstance(dispatch, App):
                dispatch.use(settings.open_schedules)
        runner = Runner(
            find=Router(dispatch, built_in_handlers(named)).find,
            log=log,
            open_schedules=settings.open_schedules,
            judge=settings.judge,
            tasks=plan["tasks"],
            hooks=dispatch or Dispatch(),
            stop=stop,
        )
        make_code_immortal()
        for number in inbox.take_over():
            _log.error("a module has replaced the handler of %s, which psched needs", number.name)
        prepare()
        _try_fork()
    except (LoadError, RuntimeError) as error:
        attach(log)
        # If an exception in the user's code has caused the error, its traceback is logged, too.
        _log.error("%s", error, exc_info=error.__cause__)
        channel.send({"loaded": None, "failed": brief(str(error)), "programs": False})
        return _NOT_LOADED
    if plan["is_first"]:  # the others have opened the same
        for text in opened.lost():
            _log.warning("%s", text)
    types = handled_types(dispatch)
    few = types is not None and len(types) <= _MOST_TYPES
    told = {"loaded": types if few else None, "failed": None}
    channel.send({**told, "programs": leaves_programs(dispatch)})
    return Forker(
        channel,
        partial(run_confined, runner, flags) if plan["confined"] else partial(runner.run, flags),
        keep=[*log.descriptors, *opened.inherited()],
        before_fork=partial(runner.before_fork, collects=plan["collects"]),
        load_store=settings.load_store,
        inbox=inbox,
    ).run(worker)


def _try_fork() -> None:
    """Raise the error of a child that finds threads, which modules of users have started in it."""
    reader, writer = os.pipe()

    def live() -> int:
        try:
            prepare()
        except RuntimeError as error:
            os.write(writer, str(error).encode())
        return 0

    pid = fork(live)
    os.close(writer)
    with os.fdopen(reader, "rb") as told:
        text = told.read().decode()
    os.waitpid(pid, 0)
    if text:
        raise RuntimeError(text)


class _Settings:
    """The settings; they, and the modules that use them, are loaded when they are first needed."""

    def __init__(self, stored: bytes, master: int) -> None:
        self._stored = stored
        self._master = master

    @cache  # noqa: B019  # there is one, which lives as long as the process
    def read(self) -> "Config":
        """The settings of the worker."""
        import pickle  # noqa: PLC0415

        from psched.config.urls import MEMORY as MEMORY_URL  # noqa: PLC0415
        from psched.memory import MEMORY  # noqa: PLC0415

        settings: Config = pickle.loads(self._stored)  # noqa: S301  # the worker has made it
        if settings.url == MEMORY_URL:
            MEMORY.join(self._master, holds=False)
        return settings

    def open_schedules(self) -> "ScheduleCollection":
        """Open the schedules for a task."""
        from psched.app import open_in_worker  # noqa: PLC0415

        return open_in_worker(self.read())

    def load_store(self) -> None:
        """Load what tasks need that use the store."""
        import croniter  # noqa: F401, PLC0415

        from psched.app import load_store  # noqa: PLC0415
        from psched.client.collection import preload  # noqa: PLC0415

        preload()
        load_store(self.read())

    def judge(self, question: Mapping[str, Any]) -> Mapping[str, Any]:
        """Decide what to do with a row whose trigger a user has written."""
        from psched.core.remote_policy import answer_request  # noqa: PLC0415

        return answer_request(question, self.read())


def run_confined(runner: Runner, flags: StopFlagTable, place: int, link: Link) -> int:
    """Run the tasks of a runner in a process that can send signals only to its own."""
    kernel.confine_signals()
    return runner.run(flags, place, link)
