"""Processes: the master's loop, forking, watching, stopping. Nothing here knows of schedules.

Signals to the master::

    TERM, INT   stop: claim no more, running tasks may finish for ``graceful_timeout``, then the
                kill ladder, leases released, exit 0. A second INT (1 s later or more): at once
    QUIT        the same; while a stop is under way: at once
    HUP, USR1   restart: a new generation of workers, the old ones finish what they run
    USR2        reopen the log, nothing else
    TTIN, TTOU  one worker more, one fewer
    WINCH       start no more tasks until the next restart (ignored on a terminal)

CONT is not bound: service managers send it after TERM. CHLD is never ignored, or the kernel would
take the children's exit statuses.

Reading order: `signals`, `link`, `spawn`, `child`, `kill`, `tree`, then `workers` and `master`; for
runners `note`, `channel`, `forkserver` and `forker`.
"""
