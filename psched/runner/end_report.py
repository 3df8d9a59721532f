"""What a runner tells its worker about the end of a task, besides whether the task has failed."""

import signal
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Self

from psched.process.child import Exit

_KILLED_IN_A_SHELL = 128 + signal.SIGKILL
"""The exit status of a shell whose last command was killed by SIGKILL."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EndReport:
    """How a task ended, and what it has used.

    Attributes:
        exit_status: the exit status of the program that ran the task, or of the runner, if the
            runner has exited within the task; None if there is none.
        exit_signal: the number of the signal that ended this program or the runner.
        cpu_us: the CPU time in microseconds; None if the runner has not measured it.
        peak_kb: the most memory that one of the processes has used, in KiB; None if the runner has
            not measured it.
        error: the exception with its traceback; None if there is no more than the failure's line.
        result: the result that the task has set, as JSON text; None if it has set none, or if the
            runner has ended without a message.
    """

    exit_status: int | None = None
    exit_signal: int | None = None
    cpu_us: int | None = None
    peak_kb: int | None = None
    error: str | None = None
    result: str | None = None

    @classmethod
    def of_message(cls, message: Mapping[str, Any]) -> Self:
        """The report in a message ``done``."""
        (status, number), (cpu_us, peak_kb) = message["exit"], message["used"] or (None, None)
        return cls(
            exit_status=status,
            exit_signal=number,
            cpu_us=cpu_us,
            peak_kb=peak_kb,
            error=message["error"],
            result=message["result"],
        )

    @classmethod
    def of_exit(cls, how: Exit | None) -> Self:
        """What is known about a task whose runner has ended without a message."""
        if how is None:
            return cls()
        return cls(exit_status=how.status, exit_signal=how.signal)

    @property
    def was_killed(self) -> bool:
        """Whether SIGKILL has ended the runner, its program, or the last command of a shell."""
        return self.exit_signal == signal.SIGKILL or self.exit_status == _KILLED_IN_A_SHELL


@dataclass(frozen=True, slots=True)
class ProgramEnd:
    """How the program that runs a task has ended.

    Attributes:
        status: the exit status; None if a signal has ended the program.
        signal: the number of the signal that has ended the program; None if it has exited.
        peak_kb: the most memory that the program, or a child for which it has waited, has used, in
            KiB.
        last: the end of the last program that the current task has run; None if there is none. A
            runner runs one task at a time, so that one attribute of the class is enough.
    """

    status: int | None
    signal: int | None
    peak_kb: int | None = None

    last: ClassVar["ProgramEnd | None"] = None

    @classmethod
    def of_code(cls, code: int, peak_kb: int | None = None) -> Self:
        """Create a `ProgramEnd` from a return code of `subprocess`: minus the signal's number."""
        return cls(code, None, peak_kb) if code >= 0 else cls(None, -code, peak_kb)
