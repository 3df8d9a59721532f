"""The shapes of the messages between a master and its workers, and of a master's status document.

A shape says which fields a message must have, and which values each field can have. The receiver
rejects a message of any other shape; see `psched.process.link`. ``psched status``
receives the status document.
"""

from collections.abc import Mapping

from psched.process.link import (
    LONGEST_TIME,
    Check,
    Shapes,
    any_whole,
    attached,
    brief_text,
    each,
    extended,
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
"""A master's pid. 1 is allowed, because a master can be process 1 of a container."""

_LOAD = {"slots": whole(), "free": whole(), "due": whole(), "late": number()}
"""The fields of `psched.master.reports.health.Load`."""

_READINESS = {"claim_age": maybe(number()), "waited": number(), "no_fork": maybe(brief_text)}
"""Whether a worker could claim rows lately; see `psched.master.reports.health.WorkerFacts`. Older
versions do not send these fields."""

_nonces = listed(text(64), 100_000)
_MOST_TASKS = 10_000

TASK = extended(
    record(
        occurrence=line,
        type=line,
        attempt=any_whole,
        pid=pid,
        running_for=number(-LONGEST_TIME),
        lease_left=number(-LONGEST_TIME),
        state=text(20),
    ),
    progress=maybe(record(percent=maybe(number(0, 100)), text=line)),
)
"""A running task in a worker's report; see `psched.worker.running_task.RunningTask.report`."""

SETTINGS = record(
    processors=whole(1, 1000),
    start_timeout=number(),
    child_heartbeat_limit=number(),
    graceful_timeout=number(),
    graceful_kill_limit=number(),
    log_level=one_of("debug", "info", "warning", "error"),
    log_format=one_of("text", "json"),
    cgroup=one_of("auto", "on", "off"),
    wake=one_of("local", "notify", "off"),
    log=maybe(text(4096)),
    pid_file=maybe(text(4096)),
    about=record(
        url=brief_text, table=line, config=brief_text, programs=brief_text, triggers=brief_text
    ),
)
"""The settings that the master needs, as a worker reports them after it has loaded them."""

LONGEST_PIECE = 2**16  # the most bytes of a running task's output in one message

_FOLLOWED = {
    "follows": {
        "follows": whole(),
        "scheduled_time": any_whole,
        "attempt": any_whole,
        "owner": line,
        "collected": flag,
    },
    # Carries the next bytes of the output. "dropped" is the number of bytes that were left out
    # before them; None if output was lost. "waiting" is the number of bytes that are sent soon.
    "output": {
        "output": whole(),
        "dropped": maybe(whole()),
        "waiting": whole(),
        "data": attached,
    },
    # Nothing was printed so far.
    "nothing": {"nothing": whole()},
}
"""Messages about the output of a running task, which the master passes on unchanged. The field by
which a message is recognized is the number of its reader."""

MOST_COUNTS = 20_000
"""The most counts in one message, and the most that a master keeps. Workers send far fewer."""

COUNTED = listed(each(text(40), line, line, whole()), MOST_COUNTS)
"""Counts with their labels; see `psched.core.history.counts`."""

LONGEST_RUN = 36  # the characters of a run's id, which is a UUID

_PINGS: Mapping[str, Mapping[str, Check]] = {
    # An attempt of a schedule with a ping has begun or ended. "exit" is the exit status of the
    # attempt's program if it has failed with one.
    "ping": {
        "ping": text(64),
        "key": line,
        "run": text(LONGEST_RUN),
        "what": one_of("start", "success", "fail", "log"),
        "exit": maybe(whole(1, 255)),
        "text": brief_text,
    },
    # Part of "ping": the end of what the attempt has printed.
    "tail": {"tail": flag, "data": attached},
    # How many messages "ping" were dropped since the last message of this kind.
    "lost_pings": {"lost_pings": whole()},
}
"""What a worker tells about runs, and the master passes on to the monitor."""

FROM_WORKER = Shapes(
    {
        "ready": {"ready": maybe(SETTINGS)},
        "failed": {"failed": brief_text},
        "looked": {"looked": flag},
        # The answer to "look" of a worker that has no free slot, or has filled its last one.
        "full": {"full": flag},
        # It has given back rows that it had leased and not started.
        "gave_back": {"gave_back": flag},
        "recovered": {"recovered": _nonces},
        "tasks": {
            "tasks": whole(0, _MOST_TASKS),
            "away": maybe(brief_text),
            "enough": line,
            **_LOAD,
        },
        # What the worker has counted since its last message of this kind.
        "counted": {"counted": COUNTED},
        "report": {
            "report": extended(
                record(tasks=listed(TASK, _MOST_TASKS), errors=listed(line, 100)),
                lost_records=whole(),
                lost_outputs=whole(),
            )
        },
        **_PINGS,
        # Parts of "tasks"; the first is also part of "report".
        **{name: {name: accepts} for name, accepts in _READINESS.items()},
        # Answers to "follow", and the output of a running task that its reader has not seen yet.
        **_FOLLOWED,
        "absent": {"absent": whole()},
        "ended": {"ended": whole()},
    },
    # The most bytes of a message. A report of a thousand tasks with the longest keys is shorter.
    longest=16 * 2**20,
)
"""The messages that a master accepts from a worker."""

FROM_MASTER = Shapes(
    {
        "go": {"go": flag},
        "stop": {"stop": maybe(number()), "hurry": flag},
        "recover": {"recover": _nonces},
        "pause": {"pause": flag},
        # Rows may be due: see `psched.master.waking`.
        "look": {"look": flag},
        "reopen": {"reopen": flag},
        "report": {"report": flag},
        # Asks for the output of the running task with this key; "reader" identifies the request.
        "follow": {"follow": line, "reader": whole()},
        "unfollow": {"unfollow": whole()},
    },
    longest=16 * 2**20,
)
"""The messages that a worker accepts from its master."""

FROM_MONITOR = Shapes({"beat": {"beat": flag}}, longest=2**14)
"""The messages that a master accepts from its monitor: signs of life."""

TO_MONITOR = Shapes(
    {
        "stop": {"stop": flag},
        "reopen": {"reopen": flag},
        # The totals that have changed, and what is true now of the workers: `psched.master.totals`.
        "totals": {
            "totals": COUNTED,
            "host": record(
                slots=whole(),
                free=whole(),
                tasks=whole(),
                due=whole(),
                late=whole(),
                deaths=whole(),
                last_death=maybe(number()),
                problem=maybe(brief_text),
            ),
        },
        **_PINGS,
    },
    longest=64 * 2**20,
)
"""The messages that a monitor accepts from its master."""

FROM_READER = Shapes({"follow": {"follow": line}}, longest=2**14)
"""The message that a master accepts from a client of its socket, as `Link` sends it. A client that
sends nothing receives the status document."""

OVER = ("ended", "absent", "worker ended", "too slow", "too many", "no answer")
"""Why a reader of a task's output gets no more of it."""

TO_READER = Shapes({**_FOLLOWED, "over": {"over": one_of(*OVER)}}, longest=2**14)
"""The messages that such a client accepts from a master."""

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
                extended(
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
                    **_LOAD,
                    **_READINESS,
                    lost_records=whole(),
                    lost_outputs=whole(),
                ),
                10_000,
            ),
            "errors": listed(line, 100),
        },
        # The master adds the following fields to the object above once it knows them. Each entry
        # requires "pid", because the fields are never sent without the object above.
        "url": {"pid": _master, "url": brief_text, "table": line},
        "config": {"pid": _master, "config": brief_text},
        "programs": {"pid": _master, "programs": brief_text},
        # Masters of older versions do not send these fields.
        "slots": {"pid": _master, **_LOAD},
        "triggers": {"pid": _master, "triggers": brief_text},
        "monitor": {"pid": _master, "monitor": maybe(record(pid=pid, state=text(20)))},
    },
    longest=64 * 2**20,
)
"""The document that ``psched status`` accepts from a master."""
