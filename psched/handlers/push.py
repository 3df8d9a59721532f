"""The built-in type ``push``: submits a task to the queue for each occurrence of a schedule."""

from collections.abc import Mapping
from contextlib import suppress
from typing import Any, ClassVar

from psched.application.task import Task
from psched.base.errors import AlreadyExistsError, InvalidError


class Push:
    """Type ``push``: submits a task for each occurrence; the queue runs and retries that task.

    The submitted task's key is the occurrence's idempotency key, ``key.scheduled_time``, so that
    an occurrence that is attempted twice submits only one task. The schedule's data describe the
    task:

    ===============  ====================================================================
    ``type``         the task's type
    ``data``         the task's data
    ``options``      further arguments of `psched.ScheduleCollection.push`, by name
    ===============  ====================================================================
    """

    # True: a return from ``run`` finishes the occurrence for every value of the setting
    # ``on_return``.
    finishes_by_returning: ClassVar[bool] = True

    def __init__(self, task: Task) -> None:
        self._task = task
        self._type: Any = task.data.get("type")
        self._data, self._options = task.data.get("data", {}), task.data.get("options", {})
        if not isinstance(self._type, str) or not self._type:
            raise InvalidError("data", '"type" must name the type of the task to submit')
        for name, value in (("data", self._data), ("options", self._options)):
            if not isinstance(value, Mapping):
                raise InvalidError("data", f'"{name}" must be an object')
        if refused := sorted({"type", "data", "connection", "key"} & {*self._options}):
            raise InvalidError("data", f'"options" must not hold {", ".join(refused)}')

    def run(self) -> None:
        """Submit the task, unless an earlier attempt has submitted it."""
        with suppress(AlreadyExistsError):
            self._task.schedules.push(
                self._task.idempotency_key, self._type, self._data, **self._options
            )
