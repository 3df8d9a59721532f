"""The messages between a worker, its fork server and its runners."""

from psched.application.task import LONGEST_WAIT
from psched.core.definition import LONGEST_CRON
from psched.core.history.records import LARGEST_RESULT, LONGEST_ERROR
from psched.process.message_shapes import (
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
from psched.runner.standard_streams import PLACES

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
        "fork": {"fork": listed(whole(0, 100_000), 64)},
        "bury": {"bury": listed(pid, 100_000)},
    },
    longest=2**17,
)
"""The messages that a fork server accepts from its worker."""
