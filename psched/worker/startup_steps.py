"""A program's work in the store before its first task, done in steps beside everything else."""

from collections.abc import Callable, Iterator

from psched.base.errors import TransientStoreError
from psched.worker.store_gateway import StoreGateway


class StartupSteps:
    """Takes steps one by one; begins with the first again if the store did not answer.

    Args:
        begin: begins anew; each step is short, and may be taken twice. None: there are no steps.
        gateway: sends the requests of each step.
    """

    def __init__(self, begin: Callable[[], Iterator[None]] | None, gateway: StoreGateway) -> None:
        self._begin = begin
        self._gateway = gateway
        self._steps: Iterator[None] | None = None

    @property
    def pending(self) -> bool:
        """Whether there are steps left."""
        return self._begin is not None

    def step(self) -> None:
        """Take the next step, if there is one.

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
