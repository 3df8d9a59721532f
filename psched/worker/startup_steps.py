"""What a program has to do in the store first, in steps beside everything else."""

from collections.abc import Callable, Iterator

from psched.base.errors import TransientStoreError
from psched.worker.store_backoff import StoreBackoff


class StartupSteps:
    """Steps that are taken one by one; from the first again if the store has been away.

    Args:
        begin: begins anew; each step is short, and may be taken twice. None: there are none.
        asker: how the store is asked.
    """

    def __init__(self, begin: Callable[[], Iterator[None]] | None, asker: StoreBackoff) -> None:
        self._begin = begin
        self._asker = asker
        self._steps: Iterator[None] | None = None

    @property
    def pending(self) -> bool:
        """Whether there are steps left."""
        return self._begin is not None

    def go_on(self) -> None:
        """Take a step.

        Raises:
            TransientStoreError: the store did not answer.
        """
        if self._begin is None:
            return
        steps = self._steps = self._steps or self._begin()
        over = object()
        try:
            if self._asker.ask(lambda: next(steps, over)) is over:
                self._begin = None
        except TransientStoreError:
            self._steps = None
            raise
