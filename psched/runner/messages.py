"""The messages between a worker, its fork server and its runners; how a program has ended."""

from dataclasses import dataclass
from typing import ClassVar, Self

from psched.application.task import LONGEST_WAIT
from psched.core.columns import LONGEST_CRON
from psched.core.history.records import LARGEST_RESULT, LONGEST_ERROR
from psched.process.link import (
    Shapes,
    any_whole,
    attached,
    brief_text,
    each,
    flag,
    line,
    listed,
    maybe,
    number,
    one_of,
    pid,
    record,
    text,
    whole,
)

PIPE, RAW, NONE = "pipe", "raw", "none"
"""Where a task's output goes: to the collector, to the service's output unchanged, nowhere."""

PLACES = (PIPE, RAW, NONE)

FROM_RUNNER = Shapes(
    {
        "done": {
            "done": maybe(brief_text),
            "error": maybe(text(LONGEST_ERROR)),
            "exit": each(maybe(whole(0, 255)), maybe(whole(1, 64))),
            "used": maybe(each(whole(), maybe(whole()))),
            "last": flag,
            "store": flag,
            "result": maybe(text(LARGEST_RESULT)),
        },
        # Sent instead of "done" if the payload could not be read, so that the task was not run.
        "quarantine": {"quarantine": brief_text, "last": flag},
        # Sent instead of "done" if the system had no process left, so that the task did not begin.
        "no_room": {"no_room": brief_text, "last": flag},
        "decide": {"decide": one_of("finish", "release")},
        "retry": {"retry": maybe(brief_text), "wait": maybe(number(0, LONGEST_WAIT))},
        "extend": {"extend": flag},
        "update_data": {"update_data": flag, "data": attached},
    },
    longest=2**19,
)
"""The messages that a worker accepts from a runner, which must wait for the answer to one message
before it sends the next."""

FROM_PROGRAM_RUNNER = Shapes(
    {
        # It is executed, and can be given a program.
        "ready": {"ready": flag},
        # The program's exit status, or the signal that has ended it; microseconds; KiB.
        "exited": {
            "exited": each(maybe(whole(0, 255)), maybe(whole(1, 64)), whole(), whole()),
        },
        # The number of the error; whether something was lacking (0), or what is wrong: the program
        # (1), its folder (2).
        "unstarted": {"unstarted": each(whole(0, 4095), whole(0, 2))},
        # It is to run as another user, and is not started.
        "refused": {"refused": brief_text},
    },
    longest=2**13,
)
"""The messages that a worker accepts from a process that runs programs."""

FROM_TRIGGER_HELPER = Shapes(
    {
        "run": {"run": flag, "last": flag},
        "settle": {"settle": record(), "last": flag},
        "failed": {"failed": brief_text, "last": flag},
    },
    longest=2**16,
)
"""The messages that a worker accepts from a runner that calls users' triggers. The contents of
``settle`` are checked by `remote_policy`."""

TO_RUNNER = Shapes(
    {
        "judge": {"judge": record()},
        "run": {
            "run": record(
                key=line,
                type=line,
                scheduled_time=whole(),
                # ``attempt`` and ``fence`` can be any whole numbers, because any client of the
                # database can write these columns, and such a row is run nevertheless.
                attempt=any_whole,
                cron=maybe(text(LONGEST_CRON)),
                timezone=line,
                delay=whole(),
                run_as=maybe(line),
                owner=line,
                fence=any_whole,
                data_limit=whole(),
                on_return=one_of("finish", "retry"),
                output=one_of(*PLACES),
                result=one_of("explicit", "return"),
            ),
            "data": attached,
        },
        "held": {"held": flag},
        "unavailable": {"unavailable": brief_text},
        "unanswered": {"unanswered": brief_text},
        "invalid": {"invalid": each(line, brief_text)},
    },
    longest=2**20,
)
"""The messages that a runner accepts from its worker."""

FROM_FORK_SERVER = Shapes(
    {
        # A server that was executed tells of which files its own code was loaded, before the code
        # of users.
        "hello": {"hello": record()},
        # The types that have a handler, why the handlers cannot be loaded, and whether program
        # runners may run programs.
        "loaded": {
            "loaded": maybe(listed(line, 1000)),
            "failed": maybe(brief_text),
            "programs": flag,
        },
        "born": {
            "born": listed(pid, 64),
            "error": maybe(whole(1, 4095)),
            "refused": maybe(brief_text),
        },
        "ended": {
            "ended": listed(
                each(
                    pid, maybe(whole(0, 255)), maybe(whole(1, 64)), maybe(whole()), maybe(whole())
                ),
                100_000,
            )
        },
    },
    longest=2**17,
)
"""The messages that a worker accepts from its fork server."""

TO_FORK_SERVER = Shapes(
    {
        "fork": {"fork": listed(whole(0, 100_000), 64), "programs": flag},
        "bury": {"bury": listed(pid, 100_000)},
        # Tasks seem to use the store.
        "load": {"load": flag},
        # The answer to "hello"; it carries files with the rest.
        "go": {"go": flag},
    },
    longest=2**17,
)
"""The messages that a fork server accepts from its worker."""


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
