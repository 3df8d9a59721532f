"""A worker whose collector loses answers, cannot be started, or dies with messages unread."""

import os
import resource
from contextlib import suppress

import pytest

from psched.base.clock import SystemClock
from psched.output.captured import FROM_COLLECTOR, TO_COLLECTOR
from psched.output.collection import OutputCollection
from psched.process.link import Channel
from support.isolated import isolated


class Clock(SystemClock):
    """A clock that can be set forward; collectors that are forked use it, too."""

    def __init__(self):
        self._ahead = 0.0

    def monotonic(self):
        return super().monotonic() + self._ahead

    def advance(self, seconds):
        self._ahead += seconds


class Worker:
    """A worker's side of the collector; the test plays the collector."""

    def __init__(self, pipes):
        self.clock = Clock()
        self.collection = OutputCollection(clock=self.clock)
        own, self.collector = Channel.pair(FROM_COLLECTOR, TO_COLLECTOR)
        own.never_wait()
        self.collection._channel, self.collection._start_at = own, 0.0
        self.pipes = [self.collection.open() for _ in range(pipes)]
        self.collection.watch(self.pipes)
        for pipe in self.pipes:
            self.collection.begin(pipe)
        self.take_messages()

    def take_messages(self):
        """Take what the worker has told the collector."""
        while (received := self.collector.receive()) is not None:
            for descriptor in received[1]:
                os.close(descriptor)


def never_answered():
    worker = Worker(2)
    silent, other = worker.pipes
    worker.collector.send({"prints": silent.number})
    worker.collection.take()
    os.write(silent.writer, b"the rest\n")
    assert worker.collection.end(silent) is None
    begun = worker.clock.monotonic()
    for half_seconds in range(1, 100):
        worker.clock.advance(0.5)
        # The collector works, but its answer was lost.
        with suppress(ConnectionError):
            worker.collector.send({"prints": other.number})
        other.prints = False
        worker.take_messages()
        if answers := worker.collection.take():
            output = answers[silent.number]
            passed = worker.clock.monotonic() - begun
            worker.collection.stop()
            return passed, half_seconds / 2, output.tail.decode(), output.dropped
    return None


def test_a_task_does_not_wait_for_ever_for_an_answer_that_was_lost():
    passed, advanced, output, dropped = isolated(never_answered)
    # The clock has also gone on by itself.
    assert passed >= 2
    assert advanced <= 12
    assert (output, dropped) == ("the rest\n", None)


def without_descriptors():
    collection = OutputCollection(clock=Clock())
    collection._start_at = 0.0
    taken = []
    resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
    with suppress(OSError):
        while True:
            taken.append(os.dup(1))
    collection.take()  # it tries to start a collector
    has_started = bool(collection.links)
    for descriptor in taken:
        os.close(descriptor)
    collection._clock.advance(2)
    collection.take()
    has_started_later = bool(collection.links)
    collection.stop()
    return has_started, has_started_later


def test_a_worker_without_descriptors_goes_on_and_starts_a_collector_later():
    assert isolated(without_descriptors) == [False, True]


def died(is_told_first):
    worker = Worker(2)
    first, second = worker.pipes
    # The collector announces output, reads it, and is killed.
    worker.collector.send({"prints": second.number})
    os.write(second.writer, b"read by the collector\n")
    os.read(second.reader, 100)
    worker.collector.close()
    os.write(second.writer, b"not read\n")
    if is_told_first:
        first.prints = True
        worker.collection.end(first)  # this finds that the collector has died
    worker.collection.take()
    worker.clock.advance(2)
    worker.collection.take()
    is_lost = second.lost
    worker.collection.stop()
    return is_lost


@pytest.mark.parametrize("is_told_first", [False, True])
def test_what_a_dead_collector_has_announced_is_noted_as_lost(is_told_first):
    assert isolated(died, is_told_first) is True
