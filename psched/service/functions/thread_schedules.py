"""The schedules of one store, for a program with threads that also forks."""

import os
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

from psched.application.calling import running_task
from psched.client.collection import ScheduleCollection
from psched.core.schedule import Schedule, Schedules


class _Mark:
    """Lives as long as the thread that has created it, because only a thread-local refers to it."""

    __slots__ = ("__weakref__",)


class ThreadSchedules:
    """Stands for a collection of schedules, in every thread and after every fork.

    Each thread uses a collection of its own, because a collection has one connection and must not
    be used by two threads at once. It is opened when the thread first needs it. After a fork, the
    child uses none of those of its parent, because both would send requests over one connection. A
    thread that runs a task uses the collection of the task.

    Args:
        open_schedules: opens a collection.
    """

    def __init__(self, open_schedules: Callable[[], ScheduleCollection]) -> None:
        self._open = open_schedules
        self._left: list[object] = []
        self._begin()
        _ALL.add(self)

    def _begin(self) -> None:
        self._local = threading.local()
        self._lock = threading.Lock()
        self._opened: list[tuple[weakref.ref[_Mark], ScheduleCollection]] = []

    def after_fork(self) -> None:
        """Leave alone what the parent has opened; the child calls this."""
        # They are kept: if they were collected as garbage, their drivers could tell the server to
        # end the parent's session.
        self._left.append((self._local, self._opened))
        self._begin()

    def current(self) -> Schedules:
        """The collection that the calling thread uses now.

        Raises:
            ConfigError: the settings cannot be used.
        """
        if (task := running_task()) is not None:
            return task.schedules
        found: ScheduleCollection | None = getattr(self._local, "schedules", None)
        if found is None:
            found = self._open()
            mark = self._local.mark = _Mark()
            self._local.schedules = found
            with self._lock:
                self._close_unused()
                self._opened.append((weakref.ref(mark), found))
        return found

    def _close_unused(self) -> None:
        """Close the connections of threads that have ended."""
        for mark, schedules in self._opened:
            if mark() is None:
                with suppress(Exception):
                    schedules.close()
        self._opened = [each for each in self._opened if each[0]() is not None]

    def close(self) -> None:
        """Close the connections of this thread, and of threads that have ended.

        A later request opens a new connection.
        """
        with self._lock:
            self._close_unused()
        found: ScheduleCollection | None = getattr(self._local, "schedules", None)
        if found is not None:
            found.close()

    # Python looks these methods up in the class, not by `__getattr__`.

    def __getitem__(self, key: str) -> Schedule:
        # The reference uses this object, so it can be passed to another thread.
        stands_for_schedules: Any = self
        return Schedule(stands_for_schedules, key)

    def __contains__(self, key: object) -> bool:
        return key in self.current()

    def __iter__(self) -> Iterator[Schedule]:
        return iter(self.current())

    def __len__(self) -> int:
        return len(self.current())

    def __bool__(self) -> bool:
        return True

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401  # that of the collection
        if name.startswith("__"):  # those that `copy` and `pickle` look for, before `__init__`
            raise AttributeError(name)
        return getattr(self.current(), name)


_ALL: weakref.WeakSet[ThreadSchedules] = weakref.WeakSet()


def _after_fork() -> None:
    for each in [*_ALL]:
        each.after_fork()


os.register_at_fork(after_in_child=_after_fork)
