"""Moving another system's table into psched's, while the workers of both systems run.

The two tables may be in different databases, so no transaction spans them. Instead each row is
moved by four writes. Each write is one statement, which changes a row only if the row is in the
expected state::

    old table                   psched's table
    ---------                   --------------
    a row                       -
    a row                       1. a staged copy, which no worker claims
    2. the row, marked as moved    a staged copy
    the row, marked as moved    3. the schedule
    4. -                        the schedule

Old workers can run the row until the second write, psched's workers after the third; no worker can
run it between these two. The second write marks the row only if every column still has the value
from which the copy was made. If a worker has leased the row meanwhile, or a person has changed it,
the copy is deleted.

**The mark** is a state of the old row that no worker of the old system ever claims, extends,
finishes or deletes, not even a worker that has lost its lease. After a crash at any moment, the
mark shows whether the row was moved. If the row is not marked, only step 1 was done, and the old
system still owns the row. If the row is marked, its staged copy becomes a schedule. If step 2
deleted the row instead, its staged copy would look like the copy of a row that old workers have
finished and deleted since. Activating that copy would run a finished task again.

**A repeated migration** therefore continues an interrupted one. Two simultaneous migrations do no
harm: a staged copy is deleted only if the old row, read *after* the copy, is missing or differs.

Reading order: `source_systems` (what an old row means), `source` and `destination` (the tables),
`planner` (what to do with one row), `migrator` (the four writes, page by page), `command`.
"""
