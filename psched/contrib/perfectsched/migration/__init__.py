"""Moving another system's table into psched's, while the workers of both systems run.

The two tables may be in different databases, so no transaction spans them. Instead each row goes
through four writes, each of which is one statement, conditional on what it expects to find::

    old table                   psched's table
    ---------                   --------------
    a row                       -
    a row                       1. a staged copy, which no worker claims
    2. the row, marked as moved    a staged copy
    the row, marked as moved    3. the schedule
    4. -                        the schedule

Old workers run the row until the second write, psched's workers after the third; neither run it in
between. The second write requires that every column of the row is still what the copy was made of.
If a worker has leased the row meanwhile, or a person has changed it, the copy is deleted.

**The mark** is a state of the old row that no worker of the old system ever claims, extends,
finishes or deletes, not even a worker that has lost its lease. Whatever dies and whenever, the mark
tells that the row was moved: a staged copy whose row is not marked means nothing (step 1 and no
more); a staged copy whose row is marked becomes a schedule. If the row were deleted instead, its
staged copy would look like the copy of a row that old workers have finished and deleted since, and
a finished task would run again.

**Running it again**, at any time, therefore continues where it was interrupted. Two migrations at
once do no harm: a staged copy is deleted only if the row is read *after* the copy, and differs.

Reading order: `source_systems` (what an old row means), `source` and `destination` (the tables),
`planner` (what to do with one row), `migrator` (the four writes, page by page), `command`.
"""
