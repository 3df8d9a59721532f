"""Moving another system's table into psched's, live: while both systems' workers run.

The two tables may be in different databases, so no transaction spans them. Each row goes
through four writes instead, each of them one statement, conditional on what it expects to find::

    old table                   psched's table
    ---------                   --------------
    a row                       -
    a row                       1. its copy, at rest: no worker takes it
    2. the row, marked as moved    its copy, at rest
    the row, marked as moved    3. the schedule
    4. -                        the schedule

Old workers run the row until the second write, psched's after the third; neither in between. The
second write asks that the row is still, in every column, what the copy was made of: if a worker
has leased it meanwhile, or a person has changed it, the copy is withdrawn.

**The mark** is what no worker of the old system ever takes, extends, finishes or clears away, one
that has lost its lease included. It tells, whatever dies and whenever, that we have taken the row:
a copy at rest whose row is not marked is nothing (step 1 and no more), one whose row is marked is
released. If the row were deleted instead, a copy at rest could not be told from that of a row
that others have finished and deleted since, and a finished task would run again.

**Again.** So running it again, at any time, goes on where it was left. Two that run at once do no
harm: a copy is withdrawn only if the row is seen to be another *after* the copy was.
"""
