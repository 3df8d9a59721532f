"""Declares a program's jobs as schedules in the store.

Worker 0 of each generation declares the jobs before it claims tasks.
"""

import logging
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from math import ceil
from typing import Any

from psched.app import CLOCK, new_nonce
from psched.base.errors import (
    AlreadyExistsError,
    InvalidError,
    MissingTableError,
    NotFoundError,
    NotSupportedError,
)
from psched.client.author import this_process
from psched.client.collection import ScheduleCollection
from psched.config.urls import file_of
from psched.core.definition import parse_row
from psched.core.model import ENDED
from psched.core.store_protocol import Store
from psched.files.apply import apply_plan, remove
from psched.files.plan import plan
from psched.service.jobs import Jobs
from psched.triggers.trigger import first

_log = logging.getLogger("psched.worker")

_PAGE = 500
"""The number of schedules that are read in one step. Between two steps, the worker does other work.
"""

_TRIES = 5
"""The most attempts to declare the jobs. An attempt fails if another host or a client changes the
same jobs at the same time."""


class JobDeclarer:
    """Declares a program's jobs in the store, as schedules with the program's label.

    Args:
        jobs: the program's jobs and their label.
        prune: True if schedules of the label that are no longer in the program are removed; False
            if only a warning about each of them is logged.
    """

    def __init__(self, jobs: Jobs, *, prune: bool) -> None:
        self._jobs = jobs
        self._settings = jobs.settings
        self._prune = prune

    def declare(self, store: Store) -> Iterator[None]:
        """Declare the jobs in steps.

        Between two steps, the worker extends leases and reads messages.
        """
        # Do not repeat a failed request (tries=1), because a worker that waits for the store
        # neither extends leases nor reads its master's messages.
        schedules = ScheduleCollection(
            store,
            self._settings,
            clock=CLOCK,
            draw_nonce=new_nonce,
            tries=1,
            author=partial(this_process, self._jobs.program),
        )
        file = file_of(self._settings.url)
        if self._settings.type == "rdb" and file is not None and not file.exists():
            try:
                _init(store)
            except OSError as error:
                _log.error("the folder of the database cannot be made: %s", error)
        for tries in range(1, _TRIES + 1):
            try:
                self._apply(schedules)
                break
            except MissingTableError:
                _init(store)
            except (AlreadyExistsError, NotFoundError) as error:
                # Another host has added the same job meanwhile, or a client has deleted a job. Try
                # again: the next attempt reads the store again.
                if tries == _TRIES:
                    _log.error("the program's jobs cannot be declared: %s", error)
            except (InvalidError, NotSupportedError) as error:
                # End the declaration, but do not raise, so that the worker still runs the schedules
                # that are in the store.
                _log.error("the program's jobs cannot be declared: %s", error)
                return
            yield
        yield from self._find_removed(schedules)

    def _apply(self, schedules: ScheduleCollection) -> None:
        wanted = self._jobs.schedules
        found = schedules.read_many([job["key"] for job in wanted])
        now = schedules.now()
        waiting = {key for key, metadata in found.items() if metadata.row.status not in ENDED}
        over = {
            job["key"] for job in wanted if job["key"] not in waiting and self._is_over(job, now)
        }
        for key in sorted(over - {*found}):
            _log.warning("the job %r is not declared: all its times have passed", key)
        made = plan(
            [job for job in wanted if job["key"] not in over],
            [metadata.row for metadata in found.values()],
            self._jobs.label,
            settings=self._settings,
            now=lambda: now,
        )
        for key, why in made.refused.items():
            _log.error("the job %r is not declared: it %s", key, why)
        apply_plan(
            replace(made, refused={}),
            schedules,
            settings=self._settings,
            report=lambda done, key: _log.info("the job %r was %s", key, done),
        )

    def _is_over(self, job: Mapping[str, Any], now: float) -> bool:
        """Whether all times in a job's declaration have passed.

        The job's row is not read, because it might have been deleted after the last of the times.
        """
        row = self._jobs.row(job)
        trigger = parse_row(row, self._settings).trigger
        if trigger is None:
            return row.next_time is not None and row.next_time < now
        return first(trigger, ceil(now)) is None

    def _find_removed(self, schedules: ScheduleCollection) -> Iterator[None]:
        """Find the label's jobs that are no longer in the program, and remove them or log them."""
        label, keys = self._jobs.label, {job["key"] for job in self._jobs.schedules}
        removed: dict[str, None] = {}  # an ordered set, because a row can be listed twice
        for number, metadata in enumerate(schedules.list(label=label), start=1):
            row = metadata.row
            if row.key not in keys and row.status not in ENDED:
                removed[row.key] = None
            if not number % _PAGE:
                yield
        for key in removed:
            if self._prune:
                remove(key, label, schedules, _log_removal)
            else:
                _log.warning(
                    "the job %r is no longer in the program, and is not run; prune=True removes it",
                    key,
                )


def _init(store: Store) -> None:
    """Create the table, as ``psched init`` does, and log each step."""
    for line in store.init():
        _log.info("%s", line)


def _log_removal(_done: str, key: str) -> None:
    _log.warning("the job %r was removed: it is no longer in the program", key)
