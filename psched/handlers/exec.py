"""Run a program for a task: for the built-in type ``exec``, and for the setting ``exec``."""

import errno
import os
import signal
from collections.abc import Callable, Collection, Mapping, Sequence
from types import MappingProxyType
from typing import Any, ClassVar, NamedTuple, cast

from psched.application.task import Holder, Task
from psched.base.errors import (
    CommandError,
    NoRoomError,
    NotAllowedError,
    ProcessStopError,
    described,
    text_of,
)
from psched.base.exec_data import check_exec
from psched.core.columns import plain_text
from psched.handlers.permissions import check_enabled, check_fields, find_listed
from psched.process import tree
from psched.process.program_runner import RefusedError, packed_order, start, usage
from psched.runner.messages import ProgramEnd

_OK_EXIT = (0,)

_NO_ROOM = {errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE}
"""The errors of a start by which the system lacks processes, memory or descriptors."""

_LARGEST_PARSED = 1 << 16
"""The most bytes of a payload that a worker reads itself: it takes a millisecond at most."""


class Command(NamedTuple):
    """What a program is started with; see `psched.process.program_runner.packed_order`.

    Attributes:
        arguments: the program and its arguments.
        environment: variables that are added.
        folder: its working folder; None for that of the worker.
        stdin: what it reads from its standard input.
        user: as whom it runs; None: as the user of the service.
        ok_exit: the exit statuses that count as success.
    """

    arguments: Sequence[str]
    environment: Mapping[str, str]
    folder: str | None
    stdin: bytes
    user: str | None
    ok_exit: Collection[int]

    def packed(self, title: str, *, quiet: bool) -> bytes:
        """The order for a program runner."""
        arguments, environment, folder, stdin, user, _ = self
        added = {**environment}
        return packed_order(title, [*arguments], added, folder, stdin, quiet=quiet, user=user)

    def failure_of(self, end: ProgramEnd) -> str | None:
        """Why a program that has ended so has failed; None if it has not."""
        if end.status in self.ok_exit:
            return None
        how = (
            f"was killed by signal {end.signal}"
            if end.status is None
            else f"exited with status {end.status}"
        )
        return f"{self.arguments[0]} {how}"

    def start_failure(self, error: OSError) -> CommandError | NoRoomError:
        """What is raised if the program could not be started."""
        if error.errno in _NO_ROOM:
            return NoRoomError(text_of(error))
        return CommandError(described(error))


class Program:
    """Runs a program; exit status 0, or another that counts as success, finishes the task.

    The program reads the task's payload from its standard input, byte for byte. The payload is a
    JSON object, unless the client has submitted other text or bytes. These environment variables
    describe the occurrence: ``PSCHED_KEY``, ``PSCHED_SCHEDULE_KEY`` (`Task.schedule_key`),
    ``PSCHED_TYPE``, ``PSCHED_SCHEDULED_TIME`` (Unix seconds), ``PSCHED_OCCURRENCE`` (the
    idempotency key), ``PSCHED_ATTEMPT``, ``PSCHED_FENCE``.

    Usually a program runner runs it, see `find_command`; else a runner does, by `run`.
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
        self.command = Command(
            arguments=arguments,
            environment={**_environment(task), **env},
            folder=cwd,
            stdin=task.raw_data if stdin is None else stdin.encode(),
            user=task.run_as,
            ok_exit=ok_exit,
        )
        self._pid: int | None = None
        self._is_over = False

    def run(self) -> None:
        """Run the program until it exits."""
        arguments, environment, folder, stdin, user, _ = self.command
        added = {os.fsencode(name): os.fsencode(value) for name, value in environment.items()}
        used = -1 if user is None else os.memfd_create("used")
        try:
            self._pid = start(
                [os.fsencode(each) for each in arguments],
                {**os.environb, **added} if user is None else added,
                None if folder is None else os.fsencode(folder),
                stdin,
                user=None if user is None else os.fsencode(user),
                used=used,
            )
        except OSError as error:
            raise self.command.start_failure(error) from None
        except RefusedError as refusal:
            os.close(used)
            raise NotAllowedError(refused_text(user, str(refusal))) from None
        code, peak_kb = self._wait(self._pid)
        if user is not None:
            _, peak_kb = usage(used)
        ProgramEnd.last = ProgramEnd.of_code(code, peak_kb)
        if (failure := self.command.failure_of(ProgramEnd.last)) is not None:
            raise CommandError(failure)

    def _wait(self, program: int) -> tuple[int, int]:
        """Wait for the program, and reap its orphans; return its code, and the most KiB of any."""
        peak_kb = 0
        while True:
            pid, status, used = os.wait4(-1, 0)
            peak_kb = max(peak_kb, used.ru_maxrss)
            if pid == program:
                self._is_over = True
                return os.waitstatus_to_exitcode(status), peak_kb

    def kill(self, reason: str) -> None:
        """Send TERM to the program and its process group."""
        if self._pid is None:
            raise ProcessStopError(reason)
        if not self._is_over:
            tree.send_group(self._pid, signal.SIGTERM)


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

    # Of other users' programs, root's list says which a row may run.
    runs_as_others: ClassVar[bool] = True

    def __init__(self, task: Task) -> None:
        programs = None
        if task.run_as is None:
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


def find_command(
    handler: Any,  # noqa: ANN401  # users' objects
    assignment: Mapping[str, Any],
    stored: bytes,
) -> Command | None:
    """What a worker has a program runner execute for a task; None if a runner must run its handler.

    A runner also reports what is wrong with a row. And it runs what the worker must not: code of
    users, and what can take long, such as reading a large payload or asking a file system for the
    programs that ``exec_type`` lists.
    """
    if not (isinstance(handler, type) and issubclass(handler, Program)):
        return None
    is_of_other = assignment.get("run_as") is not None
    if is_of_other and not issubclass(handler, Exec):
        return None
    if issubclass(handler, Exec) and not is_of_other and not isinstance(handler.allowed, bool):
        return None
    try:
        text = plain_text("data", stored, most=_LARGEST_PARSED)
        make: Callable[[Task], Program] = handler
        # The task asks for nothing, so it needs no holder.
        return make(Task({**assignment, "data": text}, cast("Holder", None))).command
    except Exception:  # noqa: BLE001  # the runner meets it again
        return None


def refused_text(user: str | None, why: str) -> str:
    """Why a program was not started as another user."""
    return f"run_as: {user}: refused: {why}"


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
