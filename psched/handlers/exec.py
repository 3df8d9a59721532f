"""Run a program for a task: for the built-in type ``exec``, and for the setting ``exec``."""

import os
import signal
import subprocess
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from functools import partial
from types import MappingProxyType
from typing import ClassVar

from psched.application.task import Task
from psched.base.errors import CommandError, NoRoomError, ProcessStopError, no_room, text_of
from psched.base.exec_data import check_exec
from psched.handlers.permissions import check_enabled, check_fields, find_listed
from psched.process import kernel, tree
from psched.runner.messages import ProgramEnd

_OK_EXIT = (0,)


class Program:
    """Runs a program; exit status 0, or another that counts as success, finishes the task.

    The program reads the task's payload from its standard input, byte for byte. The payload is a
    JSON object, unless the client has submitted other text or bytes. These environment variables
    describe the occurrence: ``PSCHED_KEY``, ``PSCHED_SCHEDULE_KEY`` (`Task.schedule_key`),
    ``PSCHED_TYPE``, ``PSCHED_SCHEDULED_TIME`` (Unix seconds), ``PSCHED_OCCURRENCE`` (the
    idempotency key), ``PSCHED_ATTEMPT``, ``PSCHED_FENCE``.
    """

    # True: a return from ``run`` finishes the task for every value of the setting ``on_return``,
    # because a program cannot call ``finish()``.
    finishes_by_returning: ClassVar[bool] = True

    def __init__(
        self,
        task: Task,
        arguments: Sequence[str],
        *,
        env: Mapping[str, str] = MappingProxyType({}),
        # The program's working folder; None means the worker's working folder.
        cwd: str | None = None,
        stdin: str | None = None,  # a text for the program's standard input; None means the payload
        ok_exit: Collection[int] = _OK_EXIT,
    ) -> None:
        self._task = task
        self._arguments = arguments
        self._env = env
        self._cwd = cwd
        self._stdin = stdin
        self._ok_exit = ok_exit
        self._process: subprocess.Popen[bytes] | None = None

    def run(self) -> None:
        """Run the program until it exits."""
        try:
            self._process = self._start()
        except OSError as error:
            if no_room(error):
                raise NoRoomError(text_of(error)) from error
            raise
        if self._process.stdin is not None:
            # Ignore a broken pipe, because a program need not read its standard input.
            with suppress(BrokenPipeError), self._process.stdin as stream:
                stream.write(self._input())
        status, peak_kb = _wait(self._process)
        ProgramEnd.last = ProgramEnd.of_code(status, peak_kb)
        if status not in self._ok_exit:
            how = (
                f"exited with status {status}" if status >= 0 else f"was killed by signal {-status}"
            )
            raise CommandError(f"{self._arguments[0]} {how}")

    def _start(self) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            self._arguments,
            stdin=subprocess.PIPE,
            env={**os.environ, **_environment(self._task), **self._env},
            cwd=self._cwd,
            # Create a process group for the program, so that `kill` can signal the program and its
            # children without signalling this process.
            process_group=0,
            # Let the kernel kill the program when its runner dies. The worker would do this, but
            # the worker might be dead as well.
            preexec_fn=partial(kernel.die_with_parent, os.getpid()),  # noqa: PLW1509  # no threads
        )

    def _input(self) -> bytes:
        return self._task.raw_data if self._stdin is None else self._stdin.encode()

    def kill(self, reason: str) -> None:
        """Send TERM to the program and its process group."""
        if self._process is None:
            raise ProcessStopError(reason)
        if self._process.returncode is None:
            tree.send_group(self._process.pid, signal.SIGTERM)


class Exec(Program):
    """Type ``exec``: runs the program that the task's data name; its success finishes the task.

    The program reads the task's data from its standard input, as one JSON object. These are its
    fields:

    ===============  ====================================================================
    ``command``      the program and its arguments, a list of texts; or one text with ``shell``
    ``shell``        true: ``command`` is a text for ``/bin/sh -c``
    ``env``          environment variables, added to those of the worker
    ``cwd``          the program's working folder; default: the worker's
    ``append_key``   true: the schedule's key becomes the last argument
    ``stdin``        a text for the program's standard input, in place of the data
    ``ok_exit``      the exit statuses that count as success, a list; default: ``[0]``
    ``data``         any value for the program, which psched does not use
    ===============  ====================================================================

    `psched.base.exec_data` has the rules of these fields. psched ignores any other field, which
    only plain SQL can write.
    """

    # The programs that the setting ``exec_type`` allows: a list of programs, True for all programs,
    # or False for none.
    allowed: ClassVar[bool | Sequence[str]] = True

    def __init__(self, task: Task) -> None:
        check_enabled(self.allowed)
        programs = None if isinstance(self.allowed, bool) else self.allowed
        data = task.data
        if programs is not None:
            check_fields(data)
        check_exec(data)
        arguments = _arguments(task)
        if programs is not None:
            arguments[0] = find_listed(arguments[0], programs)
        super().__init__(
            task,
            arguments,
            env=data.get("env") or {},
            cwd=data.get("cwd"),
            stdin=data.get("stdin"),
            ok_exit=data.get("ok_exit") or _OK_EXIT,
        )


def _wait(process: subprocess.Popen[bytes]) -> tuple[int, int]:
    """Wait for a program, and reap its orphans; return its code, and the most KiB of any."""
    peak_kb = 0
    while process.returncode is None:
        pid, status, used = os.wait4(-1, 0)
        peak_kb = max(peak_kb, used.ru_maxrss)
        if pid == process.pid:
            process.returncode = os.waitstatus_to_exitcode(status)
    return process.returncode, peak_kb


def _arguments(task: Task) -> list[str]:
    command = task.data["command"]
    last = [task.key] if task.data.get("append_key") else []
    if task.data.get("shell"):
        # Pass the name "sh" before the key, because sh -c assigns the first argument after the text
        # to $0, and the second to $1.
        return ["/bin/sh", "-c", command, "sh", *last]
    return [*command, *last]


def _environment(task: Task) -> dict[str, str]:
    return {
        "PSCHED_KEY": task.key,
        "PSCHED_SCHEDULE_KEY": task.schedule_key,
        "PSCHED_TYPE": task.type,
        "PSCHED_SCHEDULED_TIME": str(task.scheduled_time),
        "PSCHED_OCCURRENCE": task.idempotency_key,
        "PSCHED_ATTEMPT": str(task.attempt),
        "PSCHED_FENCE": str(task.fence),
    }
