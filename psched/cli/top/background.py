"""Runs the requests of the command top in a thread, so that its keys always answer."""

import queue
import threading
from collections.abc import Callable
from typing import NamedTuple


class Answer(NamedTuple):
    """The end of a request.

    Attributes:
        value: its result; None if it has raised an exception.
        error: the exception; None if there is none.
        take: what the caller does with the result; see `Background.send`.
    """

    value: object
    error: BaseException | None
    take: Callable[[object], None]


class Background:
    """A thread that runs requests one after the other.

    The thread alone uses the store: a store is used by one thread. It does not keep the program
    from ending, so that a request which nobody answers does not either.

    Args:
        notify: called in the thread when a request has ended.
    """

    def __init__(self, notify: Callable[[], None]) -> None:
        self._notify = notify
        self._requests: queue.SimpleQueue[
            tuple[Callable[[], object], Callable[[object], None]] | None
        ] = queue.SimpleQueue()
        self._answers: queue.SimpleQueue[Answer] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="psched top", daemon=True)
        self._thread.start()

    def send(self, request: Callable[[], object], take: Callable[[object], None]) -> None:
        """Run a request in the thread."""
        self._requests.put((request, take))

    def deliver(self) -> None:
        """Pass on the results of the requests that have ended, in the caller's thread."""
        while not self._answers.empty():
            answer = self._answers.get()
            if answer.error is not None:
                raise answer.error
            answer.take(answer.value)

    def close(self, patience: float) -> bool:
        """Let the thread end; return whether it has ended within so many seconds."""
        self._requests.put(None)
        self._thread.join(patience)
        return not self._thread.is_alive()

    def _run(self) -> None:
        while (request := self._requests.get()) is not None:
            work, take = request
            try:
                answer = Answer(work(), None, take)
            except BaseException as error:  # noqa: BLE001  # it is raised where it is delivered
                answer = Answer(None, error, take)
            self._answers.put(answer)
            self._notify()
