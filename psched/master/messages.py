"""The messages between a master and its workers, and the document that ``psched status`` reads."""

from psched.process.message_shapes import (
    LONGEST_TIME,
    Shapes,
    any_whole,
    brief_text,
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

_master = whole(1, 2**31 - 1)
"""A master's pid. It may be 1, because a master may be process 1 of a container."""

_nonces = listed(text(64), 100_000)
_MOST_TASKS = 10_000

TASK = record(
    occurrence=line,
    type=line,
    attempt=any_whole,
    pid=pid,
    running_for=number(-LONGEST_TIME),
    lease_left=number(-LONGEST_TIME),
    state=text(20),
)
"""A task in a worker's report; see `psched.worker.running_task.RunningTask.report`."""

SETTINGS = record(
    processors=whole(1, 1000),
    start_timeout=number(),
    child_heartbeat_limit=number(),
    graceful_timeout=number(),
    graceful_kill_limit=number(),
    log_level=one_of("debug", "info", "warning", "error"),
    cgroup=one_of("auto", "on", "off"),
    log=maybe(text(4096)),
    pid_file=maybe(text(4096)),
    about=record(url=brief_text, table=line, programs=brief_text, triggers=brief_text),
)
"""The settings that the master needs, in the report of a worker that has loaded them."""

FROM_WORKER = Shapes(
    {
        "ready": {"ready": maybe(SETTINGS)},
        "looked": {"looked": flag},
        "recovered": {"recovered": _nonces},
        "tasks": {"tasks": whole(0, _MOST_TASKS), "away": maybe(brief_text), "enough": line},
        "report": {"report": record(tasks=listed(TASK, _MOST_TASKS), errors=listed(line, 100))},
    },
    # A report of a thousand tasks with the longest keys fits into this.
    longest=16 * 2**20,
)
"""What a master accepts from a worker."""

FROM_MASTER = Shapes(
    {
        "go": {"go": flag},
        "stop": {"stop": maybe(number()), "hurry": flag},
        "recover": {"recover": _nonces},
        "pause": {"pause": flag},
        "reopen": {"reopen": flag},
        "report": {"report": flag},
    },
    longest=16 * 2**20,
)
"""What a worker accepts from its master."""

STATUS = Shapes(
    {
        "pid": {
            "pid": _master,
            "phase": text(20),
            "generation": whole(),
            "uptime": number(),
            "problem": maybe(brief_text),
            "worker_deaths": whole(),
            "workers": listed(
                record(
                    pid=pid,
                    number=whole(-1),
                    generation=whole(),
                    state=text(20),
                    uptime=number(-LONGEST_TIME),
                    silent_for=number(-LONGEST_TIME),
                    store_away=maybe(brief_text),
                    tasks=listed(TASK, _MOST_TASKS),
                ),
                10_000,
            ),
            "errors": listed(line, 100),
        },
        # The following fields are missing until the master knows them. They are sent in the same
        # object as the fields above, so each of these kinds also requires "pid".
        "url": {"pid": _master, "url": brief_text, "table": line},
        "programs": {"pid": _master, "programs": brief_text},
        "triggers": {"pid": _master, "triggers": brief_text},
    },
    longest=64 * 2**20,
)
"""What ``psched status`` accepts from a master."""
