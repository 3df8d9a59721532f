"""Moves another system's table into psched's, while the workers of both systems run.

The two tables can be in different databases, so one transaction cannot change both. Instead each
row is moved by four writes. Each write is one statement, which changes a row only if the row is in
the expected state::

    old table                   psched's table
    ---------                   --------------
    a row                       -
    a row                       1. a staged copy, which no worker claims
    2. the row, marked as moved    a staged copy
    the row, marked as moved    3. the schedule
    4. -                        the schedule

The third write is called activating the copy. Old workers can run the row until the second write,
and psched's workers can run the schedule after the third; between these two writes, no worker can
run either. The second write marks the row only if every column still has the value from which the
copy was made. If a worker has leased the row meanwhile, or a person has changed it, the row is not
marked, and the copy is deleted.

**The mark** is a state of the old row that no worker of the old system ever claims, extends,
finishes or deletes, not even a worker that has lost its lease. After a crash at any moment, the
mark shows whether the row was moved. If the row is not marked, only step 1 was done, and the old
system still owns the row. If the row is marked, the next migration activates its staged copy. If
step 2 deleted the row instead of marking it, a staged copy without an old row could have two
reasons: step 2 has deleted the row, or old workers have finished the task and deleted the row. In
the second case, activating the copy would run a finished task again.

**A repeated migration** therefore continues an interrupted one. Two migrations of one table can
run at the same time, because a staged copy is deleted only if the old row, read *after* the copy,
is missing or differs.

Reading order: `source_systems` (what an old row means), `tables` (the old one and psched's),
`migrator` (what to do with one row, and the four writes, page by page), `command`.
"""
