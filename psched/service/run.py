"""Running a master: pid file, daemon, log, signals, and the loop."""

import gc
import logging
import os
import random
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import croniter  # noqa: F401  # all workers share what the master has loaded

from psched import memory
from psched.app import CLOCK, Configuration, draw_nonce
from psched.base import log
from psched.base.errors import ConfigError
from psched.base.log import Log
from psched.base.regular_files import NotRegularError
from psched.config import Config
from psched.master import leftover_processes, nonce_file
from psched.master.generation_spec import GenerationSpec, ReadSpec, SpecError
from psched.master.master import Master
from psched.master.pidfile import AlreadyRunningError, PidFile
from psched.master.respawn import Respawn
from psched.master.runtime_folders import socket_folders
from psched.master.sd_notify import Notifier
from psched.master.status import Status
from psched.master.status_socket import StatusSocket
from psched.master.workers import Workers
from psched.process import kernel, secrecy
from psched.process.cgroup import MasterCgroup, UnavailableError
from psched.process.signals import SIGNALS, SignalInbox, forget_handlers, unblock
from psched.process.spawner import SystemSpawner
from psched.process.titles import set_title
from psched.service.generation import FromFile, FromProgram, read_settings
from psched.service.worker_boot import log_by
from psched.triggers.zone import find_zone

_log = logging.getLogger("psched.master")

ALREADY_RUNNING = 75
"""Exit status: another master holds the pid file (sysexits.h: EX_TEMPFAIL)."""


def run_configured(
    given: Configuration,
    environment: str | None,
    overrides: Mapping[str, object],
    *,
    daemon: bool,
) -> int:
    """Be a master by a configuration until told to stop; the exit status.

    Args:
        given: where the settings come from; read again at every restart.
        environment: which section of a file.
        overrides: settings from the command line.
        daemon: leave the terminal and go on in the background.

    Raises:
        AlreadyRunningError: another master holds the pid file.
        ConfigError: the settings cannot be used, or a file they name cannot be written.
    """
    _open_closed_streams()
    hidden = secrecy.hide()
    settings = read_settings(given, environment, overrides)
    told = _leave_terminal(settings) if daemon else None
    journal = log.start(None, settings.log_level, "master")
    with ExitStack() as undo:
        inbox = SignalInbox(SIGNALS)
        _go_by(settings.log, settings.log_level, settings.pid_file, journal, undo)
        cgroup = _make_cgroup(settings.cgroup, undo)
        if told is not None:
            os.write(told, b".")
            os.close(told)
        _log.info("psched on %s, table %s", settings.safe_url, settings.table)
        read_spec = FromFile(given, environment, overrides, journal).read_spec
        return _run(read_spec, inbox, journal, cgroup, hidden=hidden)


def run_program(name: str, *, is_module: bool, safe_path: bool, arguments: Sequence[str]) -> int:
    """Be the master of a program that calls `psched.Worker.run`; the exit status.

    Args:
        name: the path of its file, or its module's name.
        is_module: it is a module's name.
        safe_path: its folder, or for a module the current one, is not searched for modules.
        arguments: its ``sys.argv[1:]``.
    """
    _open_closed_streams()
    hidden = secrecy.hide()
    journal = log.start(None, "info", "master")
    with ExitStack() as undo:
        inbox = SignalInbox(SIGNALS)
        cgroup = _make_cgroup("auto", undo)
        taken = False

        def read_spec(reported: Mapping[str, Any] | None) -> GenerationSpec:
            nonlocal taken
            if reported is not None and not taken:
                paths = [Path(reported[n]) if reported[n] else None for n in ("log", "pid_file")]
                try:
                    _go_by(paths[0], reported["log_level"], paths[1], journal, undo)
                    if cgroup is None and reported["cgroup"] == "on":
                        _make_cgroup("on", undo)
                except AlreadyRunningError as error:
                    raise SpecError(str(error), ALREADY_RUNNING) from error
                except ConfigError as error:
                    raise SpecError(str(error)) from error
                taken = True
            return source.read_spec(reported)

        source = FromProgram(name, is_module, safe_path, arguments, journal)
        return _run(read_spec, inbox, journal, cgroup, hidden=hidden)


def _run(
    read_spec: ReadSpec,
    inbox: SignalInbox,
    journal: Log,
    cgroup: MasterCgroup | None,
    *,
    hidden: bool,
) -> int:
    if not hidden:
        _log.warning(
            "psched would not see its own processes in /proc if their memory were kept from tasks:"
            " tasks can read it, and the secrets in it. Is /proc mounted with hidepid? See"
            " docs/tls.md"
        )
    # Orphans of a worker that has died come to us, and are killed.
    kernel.adopt_orphans()
    # A service manager's watchdog sends ABRT first: it says where the master hangs.
    journal.dump_crashes()
    kernel.handle_signals_on_the_stack()
    leftover_processes.kill()
    nonces = nonce_file.make(os.environ, CLOCK)
    workers = Workers(
        CLOCK,
        SystemSpawner(),
        draw_nonce=draw_nonce,
        keep=lambda: journal.descriptors,
        cgroup=cgroup,
        nonce_file=nonces,
        inherited=nonces.inherit(),
    )
    master = Master(
        read_spec,
        workers,
        clock=CLOCK,
        respawn=Respawn(random.Random()),  # noqa: S311  # jitter
        reopen_logs=journal.reopen,
        status=Status(
            notifier=Notifier(),
            socket=StatusSocket(socket_folders(os.environ), CLOCK),
            set_title=lambda state: set_title(f"master: {state}"),
            recent=journal.recent,
            clock=CLOCK,
        ),
        on_terminal=sys.stdin is not None and sys.stdin.isatty(),
    )
    # Read once for all: no worker is to need a descriptor for that, when there may be none.
    find_zone("UTC")
    # What is here stays as it is. Workers share it, if they do not search it for garbage: that
    # writes to all of it.
    gc.freeze()
    try:
        with leftover_processes.marked():
            return master.run(inbox)
    finally:
        memory.remove(os.getpid())


def _open_closed_streams() -> None:
    """Have standard streams, if only of nothing: another file must not get such a number."""
    for name, mode in ("stdin", "r"), ("stdout", "w"), ("stderr", "w"):
        if getattr(sys, name) is None:
            # It gets the lowest number that is free, and so the stream's own.
            number = os.open(os.devnull, os.O_RDWR)
            os.set_inheritable(number, True)  # noqa: FBT003  # its parameter has no name
            setattr(sys, name, os.fdopen(number, mode))


def _go_by(
    path: Path | None, level: str, pid_file: Path | None, journal: Log, undo: ExitStack
) -> None:
    """Log where and what the settings say, and take the pid file.

    Raises:
        AlreadyRunningError: another master holds it.
        ConfigError: one of the two cannot be written.
    """
    log_by(journal, path, level)
    if pid_file is None:
        return
    ours = PidFile(pid_file)
    try:
        ours.acquire()
    except NotRegularError as error:
        # A task can have put a folder there, and is not to keep the service down by it.
        _log.error("pid_file: %s %s: going on without", pid_file, error.strerror)
        return
    except OSError as error:
        raise ConfigError(f"pid_file: cannot be written: {error}") from None
    undo.callback(ours.release)


def _make_cgroup(mode: str, undo: ExitStack) -> MasterCgroup | None:
    """The master's cgroup, as the setting of that name says; None: it has none.

    Raises:
        ConfigError: it must have one, and cannot.
    """
    if mode == "off":
        return None
    try:
        made = MasterCgroup()
    except UnavailableError as error:
        if mode == "on":
            raise ConfigError(
                f"cgroup: is on, but cannot be: {error}; set Delegate=yes in the systemd unit,"
                " or cgroup to auto"
            ) from None
        _log.info("without cgroups: %s", error)
        return None
    undo.callback(made.close)
    _log.info("each task runs in a cgroup of its own, below %s", made.path)
    return made


def _leave_terminal(settings: Config) -> int:
    """Go on in the background; what can be refused is refused before.

    Whoever started us is kept waiting until the pid file can be read.

    Returns:
        A descriptor to write a byte to when that is so.
    """
    from daemon import DaemonContext  # noqa: PLC0415

    if settings.log is None:
        raise ConfigError("log: must be set for a daemon, which has no standard error")
    with ExitStack() as undo:
        _go_by(None, settings.log_level, settings.pid_file, Log(None, ""), undo)
    if str(settings.log) in log.STANDARD:
        raise ConfigError(f"log: must be a file for a daemon, which has no {settings.log.name}")
    try:
        output = os.fdopen(log.open_file(str(settings.log)), "ab", buffering=0)
    except OSError as error:
        raise ConfigError(f"log: cannot be opened: {error}") from None
    told, tell = os.pipe()
    if os.fork() != 0:  # noqa: TID251  # nothing is there yet that a child should not have
        # This process is no master, and an end of it is none of the daemon's.
        forget_handlers()
        unblock()
        os.close(tell)
        if not os.read(told, 1):
            sys.exit(f"Error: it has ended before it was ready; {settings.log} says why")
        sys.exit()
    DaemonContext(
        # Where it was started, as in the foreground: handlers may name files relatively.
        working_directory=str(Path.cwd()),
        umask=_umask(),
        stdout=output,
        stderr=output,
        files_preserve=[tell],
        prevent_core=False,
        # It is not to guess: by ssh, standard input is a socket as if inetd had started us.
        detach_process=True,
        signal_map={},
    ).open()
    return tell


def _umask() -> int:
    current = os.umask(0o077)
    os.umask(current)
    return current
