"""The messages between a worker and its runners; see `psched.process.message_shapes`."""

from psched.application.task import LONGEST_WAIT
from psched.core.definition import LONGEST_CRON
from psched.process.message_shapes import (
    Shapes,
    any_whole,
    attached,
    brief_text,
    each,
    flag,
    line,
    maybe,
    number,
    one_of,
    record,
    text,
    whole,
)

FROM_RUNNER = Shapes(
    {
        "done": {"done": maybe(brief_text), "last": flag, "store": flag},
        # The payload cannot be understood: nothing was run.
        "quarantine": {"quarantine": brief_text, "last": flag},
        "decide": {"decide": one_of("finish", "release")},
        "retry": {"retry": maybe(brief_text), "wait": maybe(number(0, LONGEST_WAIT))},
        "extend": {"extend": flag},
        "update_data": {"update_data": flag, "data": attached},
    },
    longest=2**18,
)
"""What a worker accepts from a runner. `Tasks` sees to it that the two take turns."""

FROM_TRIGGER_HELPER = Shapes(
    {
        "run": {"run": flag, "last": flag},
        "settle": {"settle": record(), "last": flag},
        "failed": {"failed": brief_text, "last": flag},
    },
    longest=2**16,
)
"""What a worker accepts from a runner that asks a trigger; `remote_policy` judges the rest."""

TO_RUNNER = Shapes(
    {
        "judge": {"judge": record()},
        "run": {
            "run": record(
                key=line,
                type=line,
                scheduled_time=whole(),
                # Any client may have written these, and a row runs with any number there.
                attempt=any_whole,
                cron=maybe(text(LONGEST_CRON)),
                timezone=line,
                delay=whole(),
                owner=line,
                fence=any_whole,
                data_limit=whole(),
                on_return=one_of("finish", "retry"),
            ),
            "data": attached,
        },
        "held": {"held": flag},
        "unavailable": {"unavailable": brief_text},
        "invalid": {"invalid": each(line, brief_text)},
    },
    longest=2**20,
)
"""What a runner accepts from its worker."""
