"""Prepares a master process (background, signals, log, pid file, cgroup) and runs its loop."""

import gc
import logging
import os
import random
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import croniter  # noqa: F401  # load croniter in the master, so that workers share its memory

from psched import memory
from psched.app import CLOCK, ConfigLike, load_store, new_nonce, read_config
from psched.base import log, own_code
from psched.base.errors import ConfigError
from psched.base.log import Log
from psched.base.regular_files import NotRegularError
from psched.config import Config
from psched.config.references import current_folder
from psched.config.remarks import remarks
from psched.master import leftover_processes, nonce_file
from psched.master.generation_spec import GenerationSpec, ReadSpec, SpecError
from psched.master.master import Master
from psched.master.monitor_child import MonitorKeeper
from psched.master.pidfile import AlreadyRunningError, PidFile
from psched.master.reports.sd_notify import Notifier
from psched.master.reports.status import Status
from psched.master.reports.status_socket import StatusSocket
from psched.master.runtime_folders import socket_folders, usable_folder
from psched.master.terminal import ControllingTerminal, Terminal
from psched.master.waking import Looks, WakeSocket
from psched.master.workers import Respawn, Workers
from psched.process import kernel, secrecy
from psched.process.cgroup import MasterCgroup, UnavailableError
from psched.process.child import SystemSpawner
from psched.process.kernel import set_title
from psched.process.signals import SIGNALS, SignalInbox, forget_handlers, unblock
from psched.service.generation import ConfigSource
from psched.service.immortal import make_code_immortal
from psched.service.program import ProgramSource
from psched.service.service_file import ServiceFile
from psched.service.worker_boot import redirect_log
from psched.triggers.zone import find_zone

UPGRADED = (
    "psched itself was changed on this host since this master was started, and a master does not"
    " load its own code again: stop it and start it again (systemctl restart psched)"
)


def unless_upgraded(read_spec: ReadSpec) -> ReadSpec:
    """A function like ``read_spec`` that refuses if psched's code has changed since this call.

    A master never loads its own code again, and forks its workers. So after an upgrade in place, a
    new worker would consist of old modules, which the master has loaded, and of new ones, which the
    worker loads: such a worker fails, or does what no version does.
    """
    before = own_code.at_start()

    def read(reported: Mapping[str, Any] | None) -> GenerationSpec:
        if own_code.checksums(own_code.PACKAGE) != before:
            raise SpecError(UPGRADED)
        return read_spec(reported)

    return read


_log = logging.getLogger("psched.master")

ALREADY_RUNNING = 75
"""Exit status: another master has locked the pid file (EX_TEMPFAIL in sysexits.h)."""


def run_configured(
    given: ConfigLike,
    environment: str | None,
    overrides: Mapping[str, object],
    *,
    daemon: bool,
) -> int:
    """Run a master with a configuration until a signal stops it; return the exit status."""
    _open_closed_streams()
    hidden = secrecy.hide()
    settings = read_config(given, environment, overrides)
    ready = _daemonize(settings) if daemon else None
    journal = log.start(None, settings.log_level, "master")
    journal.json = settings.log_format == "json"
    with ExitStack() as undo:
        terminal = ControllingTerminal(journal, CLOCK)
        inbox = SignalInbox(SIGNALS)
        redirect_log(journal, settings.log, settings.log_level, settings.log_format)
        _open_pid_file(settings.pid_file, undo)
        cgroup = _make_cgroup(settings.cgroup, undo)
        if ready is not None:
            os.write(ready, b".")
            os.close(ready)
        _log.info("psched on %s, table %s", settings.safe_url, settings.table)
        for remark in remarks(settings):
            _log.warning("%s", remark)
        # Now, so that this code is made immortal, too. Later generations can have another store.
        load_store(settings)
        read_spec = ConfigSource(given, environment, overrides, journal).read_spec
        return _run(read_spec, inbox, journal, terminal, cgroup, hidden=hidden)


def run_program(name: str, *, is_module: bool, safe_path: bool, arguments: Sequence[str]) -> int:
    """Run the master of a program that calls `psched.Worker.run` or `psched.start`."""
    _open_closed_streams()
    hidden = secrecy.hide()
    journal = log.start(None, "info", "master")
    with ExitStack() as undo:
        terminal = ControllingTerminal(journal, CLOCK)
        inbox = SignalInbox(SIGNALS)
        cgroup = _make_cgroup("auto", undo)
        is_set_up = False

        def read_spec(reported: Mapping[str, Any] | None) -> GenerationSpec:
            # Set up the log, the pid file and a required cgroup when the first worker reports the
            # settings, because only the program knows them.
            nonlocal is_set_up
            if reported is not None and not is_set_up:
                paths = [Path(reported[n]) if reported[n] else None for n in ("log", "pid_file")]
                level, format_ = reported["log_level"], reported["log_format"]
                try:
                    redirect_log(journal, paths[0], level, format_)
                    _open_pid_file(paths[1], undo)
                    if cgroup is None and reported["cgroup"] == "on":
                        _make_cgroup("on", undo)
                except AlreadyRunningError as error:
                    raise SpecError(str(error), ALREADY_RUNNING) from error
                except ConfigError as error:
                    raise SpecError(str(error)) from error
                is_set_up = True
            return source.read_spec(reported)

        source = ProgramSource(name, is_module, safe_path, arguments, journal)
        return _run(read_spec, inbox, journal, terminal, cgroup, hidden=hidden)


def _run(
    read_spec: ReadSpec,
    inbox: SignalInbox,
    journal: Log,
    terminal: Terminal,
    cgroup: MasterCgroup | None,
    *,
    hidden: bool,
) -> int:
    if not hidden:
        _log.warning(
            "tasks can read the memory of psched's processes, and the secrets in it: psched cannot"
            " hide it here, because it would not see its own processes in /proc. Is /proc mounted"
            " with hidepid? See docs/databases.md"
        )
    # Let the children of a dead worker become children of the master, which then can kill them.
    kernel.adopt_orphans()
    # Log a traceback on ABRT. The watchdog of a service manager sends ABRT to a master that hangs,
    # and the traceback shows where it hangs.
    journal.dump_crashes()
    kernel.handle_signals_on_the_stack()
    leftover_processes.kill()
    nonces = nonce_file.make(os.environ, CLOCK)
    spawner = SystemSpawner()
    workers = Workers(
        CLOCK,
        spawner,
        draw_nonce=new_nonce,
        keep=lambda: journal.descriptors,
        cgroup=cgroup,
        nonce_file=nonces,
        inherited=nonces.inherit(),
        search=leftover_processes.search,
    )
    monitor = MonitorKeeper(
        workers,
        spawner,
        clock=CLOCK,
        respawn=Respawn(random.Random()),  # noqa: S311  # jitter
        keep=lambda: journal.descriptors,
        cgroup=cgroup,
    )
    master = Master(
        unless_upgraded(_in_this_folder(read_spec)),
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
            service_file=ServiceFile(usable_folder(os.environ)),
            monitor=monitor,
        ),
        terminal=terminal,
        monitor=monitor,
        looks=Looks(WakeSocket(socket_folders(os.environ), CLOCK), workers, CLOCK),
    )
    # Load the time zone before any worker is forked, because a worker might have no file descriptor
    # left to open the zone's file.
    find_zone("UTC")
    make_code_immortal()
    # Freeze all objects, because workers share the master's memory only as long as no process
    # writes to it, and a garbage collection writes to every object that is not frozen.
    gc.freeze()
    try:
        with leftover_processes.marked():
            status = master.run(inbox)
        nonces.clear()
        return status
    finally:
        memory.remove(os.getpid())


def _in_this_folder(read_spec: ReadSpec) -> ReadSpec:
    """A function like ``read_spec`` that first changes to the folder of this call, by its path.

    So a restart follows a link to releases, also for the relative paths that tasks use. If the path
    leads nowhere now, the process stays in its folder: absolute paths need none.
    """
    try:
        folder = current_folder()
    except FileNotFoundError:
        return read_spec

    def read(reported: Mapping[str, Any] | None) -> GenerationSpec:
        with suppress(OSError):
            os.chdir(folder)
        return read_spec(reported)

    return read


def _open_closed_streams() -> None:
    """Open /dev/null for each standard stream that is closed.

    Otherwise, a file that is opened later would receive the stream's descriptor number, and output
    to the stream would be written to that file.
    """
    for name, mode in ("stdin", "r"), ("stdout", "w"), ("stderr", "w"):
        if getattr(sys, name) is None:
            # os.open returns the lowest free number. This is the stream's own number, because the
            # loop opens the streams in the order of their numbers.
            number = os.open(os.devnull, os.O_RDWR)
            os.set_inheritable(number, True)  # noqa: FBT003  # it takes no keyword arguments
            setattr(sys, name, os.fdopen(number, mode))


def _open_pid_file(pid_file: Path | None, undo: ExitStack) -> None:
    """Write and lock the pid file."""
    if pid_file is None:
        return
    ours = PidFile(pid_file)
    try:
        ours.acquire()
    except NotRegularError as error:
        # Start without a pid file: a task might have created the folder at its path, and a task
        # must not be able to keep the service from starting.
        _log.error("pid_file: %s %s: running without a pid file", pid_file, error.strerror)
        return
    except OSError as error:
        raise ConfigError(f"pid_file: cannot be written: {error}") from None
    undo.callback(ours.release)


def _make_cgroup(mode: str, undo: ExitStack) -> MasterCgroup | None:
    """Create the master's cgroup; None if it is off, or auto and not possible."""
    if mode == "off":
        return None
    try:
        made = MasterCgroup()
    except UnavailableError as error:
        if mode == "on":
            raise ConfigError(
                f"cgroup: is on, but no cgroup can be made: {error}; set Delegate=yes in the"
                " systemd unit, or cgroup to auto"
            ) from None
        _log.info("running without cgroups: %s", error)
        return None
    undo.callback(made.close)
    _log.info("each task runs in a cgroup of its own, below %s", made.path)
    return made


def _daemonize(settings: Config) -> int:
    """Fork a daemon (a background process); this function returns only in the daemon.

    The process that the user started waits until the daemon reports that it is ready, that is,
    that the daemon's log and pid file are open. The process then exits. The daemon must write a
    byte to the descriptor that is returned when it is ready.
    """
    from daemon import DaemonContext  # noqa: PLC0415

    if settings.log is None:
        raise ConfigError("log: must be set for a daemon, which has no standard error")
    with ExitStack() as undo:
        _open_pid_file(settings.pid_file, undo)
    if str(settings.log) in log.STANDARD:
        raise ConfigError(f"log: must be a file for a daemon, which has no {settings.log.name}")
    try:
        output = os.fdopen(log.open_file(str(settings.log)), "ab", buffering=0)
    except OSError as error:
        raise ConfigError(f"log: cannot be opened: {error}") from None
    reader, writer = os.pipe()
    if os.fork() != 0:  # noqa: TID251  # safe: no lock, thread or connection exists yet
        # This process only waits for the daemon. Restore the default actions of signals, so that
        # the user can interrupt it.
        forget_handlers()
        unblock()
        os.close(writer)
        if not os.read(reader, 1):
            sys.exit(f"Error: the daemon has exited before it was ready; {settings.log} says why")
        sys.exit()
    DaemonContext(
        # Keep the current folder, because handlers might use relative paths.
        working_directory=".",
        umask=_umask(),
        stdout=output,
        stderr=output,
        files_preserve=[writer],
        prevent_core=False,
        # Without this argument, DaemonContext does not detach if standard input is a socket, as
        # under ssh, because DaemonContext assumes that inetd has started the process.
        detach_process=True,
        signal_map={},
    ).open()
    return writer


def _umask() -> int:
    current = os.umask(0o077)
    os.umask(current)
    return current
