"""Run a program for a task: for the built-in type ``exec``, and for the setting ``exec``."""

import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from types import MappingProxyType
from typing import ClassVar

from psched.application.task import Task
from psched.base.errors import CommandError, InvalidError, ProcessStopError
from psched.handlers.permissions import check_enabled, check_fields, find_listed
from psched.process import kernel, tree


class Program:
    """Runs a program; exit status 0 finishes the task.

    The program reads the task's payload from its standard input, byte for byte. The payload is a
    JSON object, unless the client has submitted other text or bytes. These environment variables
    describe the occurrence: ``PSCHED_KEY``, ``PSCHED_TYPE``, ``PSCHED_SCHEDULED_TIME`` (Unix
    seconds), ``PSCHED_OCCURRENCE`` (the idempotency key), ``PSCHED_ATTEMPT``, ``PSCHED_FENCE``.

    Args:
        task: the task that the program runs for.
        arguments: the program and its arguments.
        env: environment variables, added to those of the worker.
        cwd: the program's working folder; None: the worker's.
        stdin: a text for the program's standard input; None: the payload.

    Attributes:
        finishes_by_returning: True: a return from ``run`` finishes the task for every value of the
            setting ``on_return``, because a program cannot call ``finish()``.
    """

    finishes_by_returning: ClassVar[bool] = True

    def __init__(
        self,
        task: Task,
        arguments: Sequence[str],
        *,
        env: Mapping[str, str] = MappingProxyType({}),
        cwd: str | None = None,
        stdin: str | None = None,
    ) -> None:
        self._task = task
        self._arguments = arguments
        self._env = env
        self._cwd = cwd
        self._stdin = stdin
        self._process: subprocess.Popen[bytes] | None = None

    def run(self) -> None:
        """Run the program until it exits.

        Raises:
            CommandError: the program's exit status is not 0.
            OSError: the program cannot be started.
        """
        self._process = subprocess.Popen(
            self._arguments,
            stdin=subprocess.PIPE,
            env={**os.environ, **_environment(self._task), **self._env},
            cwd=self._cwd,
            # The program gets a process group of its own, so that a signal reaches it and its
            # children, but not this process.
            process_group=0,
            # The kernel kills the program when its runner dies, because the worker that would kill
            # it may have died, too.
            preexec_fn=partial(kernel.die_with_parent, os.getpid()),  # noqa: PLW1509  # no threads
        )
        if self._process.stdin is not None:
            # A broken pipe is no error, because a program need not read its standard input.
            with suppress(BrokenPipeError), self._process.stdin as stream:
                stream.write(self._input())
        status = _wait(self._process)
        if status:
            how = (
                f"exited with status {status}" if status > 0 else f"was killed by signal {-status}"
            )
            raise CommandError(f"{self._arguments[0]} {how}")

    def _input(self) -> bytes:
        return self._task.raw_data if self._stdin is None else self._stdin.encode()

    def kill(self, reason: str) -> None:
        """Send TERM to the program and its process group.

        Raises:
            ProcessStopError: the program has not been started.
        """
        if self._process is None:
            raise ProcessStopError(reason)
        if self._process.returncode is None:
            tree.send_group(self._process.pid, signal.SIGTERM)


class Exec(Program):
    """Type ``exec``: runs the program that the task's data name; exit status 0 finishes the task.

    The program reads the data from its standard input, as one JSON object. The data may hold
    further fields for the program beside these:

    ===============  ====================================================================
    ``command``      the program and its arguments, a list of texts; or one text with ``shell``
    ``shell``        true: ``command`` is a text for ``/bin/sh -c``
    ``env``          environment variables, added to those of the worker
    ``cwd``          the program's working folder; default: the worker's
    ``append_key``   true: the schedule's key becomes the last argument
    ``stdin``        a text for the program's standard input, in place of the data
    ===============  ====================================================================

    Args:
        task: the task that the program runs for.

    Attributes:
        allowed: the programs that the setting ``exec_type`` allows: True: any; False: none; or a
            list of them.

    Raises:
        InvalidError: a field of the data is missing or not valid.
        NotAllowedError: ``exec_type`` does not allow the program, or one of the fields.
    """

    allowed: ClassVar[bool | Sequence[str]] = True

    def __init__(self, task: Task) -> None:
        check_enabled(self.allowed)
        programs = None if isinstance(self.allowed, bool) else self.allowed
        if programs is not None:
            check_fields(task.data)
        env = _environment_of(task.data.get("env", {}))
        stdin = task.data.get("stdin")
        if not isinstance(stdin, str | None):
            raise InvalidError("data", '"stdin" must be a text')
        arguments = _arguments(task)
        if programs is not None:
            arguments[0] = find_listed(arguments[0], programs)
        super().__init__(task, arguments, env=env, cwd=task.data.get("cwd"), stdin=stdin)


def _wait(process: subprocess.Popen[bytes]) -> int:
    """Wait until a program exits; reap its orphans, which become children of this process."""
    while process.returncode is None:
        pid, status = os.waitpid(-1, 0)
        if pid == process.pid:
            process.returncode = os.waitstatus_to_exitcode(status)
    return process.returncode


def _arguments(task: Task) -> list[str]:
    command = task.data.get("command")
    last = [task.key] if task.data.get("append_key") else []
    if task.data.get("shell"):
        if not isinstance(command, str) or not command:
            raise InvalidError("data", '"command" must be a text when "shell" is true')
        # sh -c assigns the arguments after the text to $0, $1 …
        return ["/bin/sh", "-c", command, "sh", *last]
    if not isinstance(command, list) or not command or not all(isinstance(c, str) for c in command):
        raise InvalidError(
            "data", '"command" must be a list of texts; one text needs "shell": true'
        )
    return [*command, *last]


def _environment(task: Task) -> dict[str, str]:
    return {
        "PSCHED_KEY": task.key,
        "PSCHED_TYPE": task.type,
        "PSCHED_SCHEDULED_TIME": str(task.scheduled_time),
        "PSCHED_OCCURRENCE": task.idempotency_key,
        "PSCHED_ATTEMPT": str(task.attempt),
        "PSCHED_FENCE": str(task.fence),
    }


def _environment_of(values: object) -> dict[str, str]:
    if isinstance(values, Mapping) and all(isinstance(value, str) for value in values.values()):
        return dict(values)
    raise InvalidError("data", '"env" must map names to texts')
