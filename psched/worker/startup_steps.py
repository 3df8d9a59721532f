"""A program's work in the store before its first task, one step per tick of the worker."""

from collections.abc import Callable, Iterator

from psched.base.errors import TransientStoreError
from psched.worker.store_gateway import StoreGateway


class StartupSteps:
    """Does the steps one by one; starts again with the first if the store did not answer.

    Args:
        begin: returns an iterator that does one step at a time, beginning with the first. Each
            step is short, and may be done twice. None if there are no steps.
        gateway: guards the tasks before each step, and does the step.
    """

    def __init__(self, begin: Callable[[], Iterator[None]] | None, gateway: StoreGateway) -> None:
        self._begin = begin
        self._gateway = gateway
        self._steps: Iterator[None] | None = None

    @property
    def pending(self) -> bool:
        """Whether some steps have not been done yet."""
        return self._begin is not None

    def step(self) -> None:
        """Do the next step, if there is one.

        Raises:
            TransientStoreError: the store did not answer.
        """
        if self._begin is None:
            return
        steps = self._steps = self._steps or self._begin()
        over = object()
        try:
            if self._gateway.request(lambda: next(steps, over)) is over:
                self._begin = None
        except TransientStoreError:
            self._steps = None
            raise
