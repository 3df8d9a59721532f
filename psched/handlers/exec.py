"""Built-in handlers."""

import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from types import MappingProxyType
from typing import Any, ClassVar

from psched.application.task import Task
from psched.base.errors import AlreadyExistsError, CommandError, InvalidError, ProcessStopError
from psched.config import Config
from psched.handlers.permissions import check_allowed, check_fields, listed
from psched.process import kernel, tree


class Program:
    """Runs a program; exit status 0 has finished the task.

    It gets the task's payload on its standard input, byte for byte: a JSON object, unless something
    else was submitted. The occurrence stands in
    the environment: ``PSCHED_KEY``, ``PSCHED_TYPE``, ``PSCHED_SCHEDULED_TIME`` (Unix seconds),
    ``PSCHED_OCCURRENCE`` (the idempotency key), ``PSCHED_ATTEMPT``, ``PSCHED_FENCE``.

    Args:
        task: what to run.
        arguments: the program and its arguments.
        env: environment variables besides those of the worker.
        cwd: the folder to run in.
        stdin: what it gets on its standard input instead.

    Attributes:
        finishes_by_returning: the setting ``on_return`` is for handlers that can call ``finish()``.
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
        """Run it to its end.

        Raises:
            CommandError: it did not exit with status 0.
            OSError: it cannot be started.
        """
        self._process = subprocess.Popen(
            self._arguments,
            stdin=subprocess.PIPE,
            env={**os.environ, **_environment(self._task), **self._env},
            cwd=self._cwd,
            # A group of its own: a signal to it meets what it has started, and not us.
            process_group=0,
            # It does not outlive a runner that is killed, even when nobody is left to clear up.
            preexec_fn=partial(kernel.die_with_parent, os.getpid()),  # noqa: PLW1509  # no threads
        )
        if self._process.stdin is not None:
            # It need not read them.
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
        """Pass a TERM on to it and to what it has started.

        Raises:
            ProcessStopError: it has not been started.
        """
        if self._process is None:
            raise ProcessStopError(reason)
        if self._process.returncode is None:
            tree.send_group(self._process.pid, signal.SIGTERM)


class Exec(Program):
    """Type ``exec``: runs a program; exit status 0 has finished the task.

    The task's data say which, and may hold more, for the program: it gets all of them on its
    standard input, as one JSON object.

    ===============  ====================================================================
    ``command``      the program and its arguments, a list of texts; or one text with ``shell``
    ``shell``        true: ``command`` is a text for ``/bin/sh -c``
    ``env``          environment variables besides those of the worker
    ``cwd``          the folder to run in
    ``append_key``   true: the schedule's key becomes the last argument
    ``stdin``        a text for its standard input, in place of the data
    ===============  ====================================================================

    Args:
        task: what to run.

    Attributes:
        allowed: what the setting ``exec_type`` allows: any program, none, or those in a list.

    Raises:
        InvalidError: the data do not say what to run.
        NotAllowedError: ``exec_type`` does not allow it.
    """

    allowed: ClassVar[bool | Sequence[str]] = True

    def __init__(self, task: Task) -> None:
        check_allowed(self.allowed)
        programs = None if isinstance(self.allowed, bool) else self.allowed
        if programs is not None:
            check_fields(task.data)
        env = _texts("env", task.data.get("env", {}))
        stdin = task.data.get("stdin")
        if not isinstance(stdin, str | None):
            raise InvalidError("data", '"stdin" must be a text')
        arguments = _arguments(task)
        if programs is not None:
            arguments[0] = listed(arguments[0], programs)
        super().__init__(task, arguments, env=env, cwd=task.data.get("cwd"), stdin=stdin)


def _wait(process: subprocess.Popen[bytes]) -> int:
    """Wait for a program's end, and meanwhile for what it has orphaned: that comes to us."""
    while process.returncode is None:
        pid, status = os.waitpid(-1, 0)
        if pid == process.pid:
            process.returncode = os.waitstatus_to_exitcode(status)
    return process.returncode


class Push:
    """Type ``push``: submits a task for each occurrence, and leaves the work and its tries to it.

    The task's key is the occurrence, ``key.scheduled_time``, so that it is submitted once however
    often this is tried. The schedule's data say what it is:

    ===============  ====================================================================
    ``type``         the task's type
    ``data``         its data
    ``options``      further arguments of `psched.client.queue.Queue.push`, by name
    ===============  ====================================================================

    Args:
        task: the occurrence.

    Raises:
        InvalidError: the data do not say what to submit.

    Attributes:
        finishes_by_returning: see `Program`.
    """

    finishes_by_returning: ClassVar[bool] = True

    def __init__(self, task: Task) -> None:
        self._task = task
        self._type: Any = task.data.get("type")
        self._data, self._options = task.data.get("data", {}), task.data.get("options", {})
        if not isinstance(self._type, str) or not self._type:
            raise InvalidError("data", '"type" must name the type of the task to submit')
        for name, value in (("data", self._data), ("options", self._options)):
            if not isinstance(value, Mapping):
                raise InvalidError("data", f'"{name}" must be an object')
        if {"type", "data", "connection", "key"} & {*self._options}:
            raise InvalidError("data", '"options" holds what stands beside it, or cannot be said')

    def run(self) -> None:
        """Submit it; one that is there already has been submitted by an earlier try."""
        with suppress(AlreadyExistsError):
            self._task.schedules.push(
                self._task.idempotency_key, self._type, self._data, **self._options
            )


BUILT_IN: Mapping[str, Any] = {"exec": Exec, "push": Push}
"""Handlers by type, for those that the user's dispatch does not route."""


def built_in(settings: Config) -> Mapping[str, Any]:
    """`BUILT_IN`, as far as the settings allow.

    Args:
        settings: the installation's.
    """

    class Allowed(Exec):
        allowed = settings.allowed_programs

    return {**BUILT_IN, "exec": Allowed}


def _arguments(task: Task) -> list[str]:
    command = task.data.get("command")
    last = [task.key] if task.data.get("append_key") else []
    if task.data.get("shell"):
        if not isinstance(command, str) or not command:
            raise InvalidError("data", '"command" must be a text when "shell" is true')
        # What follows the text are its $0, $1 …
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


def _texts(name: str, values: object) -> dict[str, str]:
    if isinstance(values, Mapping) and all(isinstance(value, str) for value in values.values()):
        return dict(values)
    raise InvalidError("data", f'"{name}" must map names to texts')
