"""Asks Sentinels which server is the primary, and listens for their messages about failovers.

In a failover, the Sentinels first promote a replica. They turn the old primary into a replica about
10 s later (Redis 7.0: after ``SENTINEL FAILOVER``, and after a primary was unresponsive for longer
than ``down-after-milliseconds``). During these seconds, the old primary still reports the role
``master`` and accepts writes, but these writes are lost when it becomes a replica. Therefore psched
subscribes to the messages of each Sentinel. When a Sentinel publishes a message about a failover,
psched asks all Sentinels again which server is the primary.

A Sentinel that does not know of the failover yet answers with the old primary's address. Therefore
psched asks all Sentinels, and trusts the answer with the highest ``config-epoch``, because the
Sentinels increase this number with every failover.

https://redis.io/docs/latest/operate/oss_and_stack/management/sentinel/ describes the commands and
the channels.
"""

import select
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from redis.exceptions import RedisError

from psched.base.clock import Clock
from psched.base.errors import StoreError, StoreUnavailableError
from psched.stores.deadline_socket import Budget
from psched.stores.redis import errors
from psched.stores.redis.connection import DriverConnection

ASKED_AGAIN = 10.0
"""Seconds after which psched asks one Sentinel again even if no Sentinel has published a message.

This is necessary because a host that is cut off from the Sentinels receives no messages.
"""

_CHANNELS = (
    "+failover-state-send-slaveof-noone",  # a replica is about to be promoted
    "+promoted-slave",  # a replica was promoted
    "-failover-abort-*",  # a failover was aborted without a promotion
    "+switch-master",  # the publishing Sentinel has learned of the new primary
)

_PROMOTING = "failover_in_progress"
"""The flag with which a Sentinel says that it is replacing the primary by a replica."""


class Answer(NamedTuple):
    """A Sentinel's answer to the question which server is the primary.

    Attributes:
        epoch: the number of the failover that made this server the primary. A later failover
            has a larger number.
        host: the primary's host.
        port: the primary's port.
        promoting: whether a failover is replacing this primary.
    """

    epoch: int
    host: str
    port: int
    promoting: bool

    @property
    def place(self) -> tuple[str, int]:
        """The host and the port of the primary."""
        return self.host, self.port


class Sentinels:
    """Asks Sentinels which server is the primary, and listens for messages about failovers.

    Args:
        budget: limits the time of a request, including the questions to the Sentinels.

    Attributes:
        sure: the last time at which the primary was certainly still the primary, in Unix seconds of
            this host's wall clock; 0 means never.
    """

    def __init__(
        self,
        hosts: tuple[tuple[str, int], ...],
        service: str,
        *,
        dial: Callable[[str, int], DriverConnection],
        budget: Budget,
        clock: Clock,
    ) -> None:
        self._hosts = deque(hosts)
        self._service = service
        self._dial = dial
        self._budget = budget
        self._clock = clock
        self._connections: dict[tuple[str, int], DriverConnection] = {}
        self._current: Answer | None = None
        self._asked = 0.0
        self._answered = 0.0
        self._unanswered = False
        self.sure = 0.0

    def find(self) -> tuple[str, int]:
        """Ask all Sentinels which server is the primary; return its host and port."""
        answers: list[Answer] = []
        failure: StoreError | None = None
        for number, place in enumerate([*self._hosts]):
            # Each Sentinel gets only a share of the time that is left, so that time remains for the
            # next Sentinels and the primary.
            share = 1 / (len(self._hosts) - number + 1)
            try:
                with self._budget.part(share):
                    answers.append(self._ask(place))
            except StoreError as error:
                failure = error
                # This Sentinel is moved to the end, so that the next call first asks the Sentinels
                # that have answered.
                self._hosts.remove(place)
                self._hosts.append(place)
                # If this Sentinel has published a message, the message is dropped and the
                # connection closed, because the message only means that all Sentinels must be
                # asked, which happens here.
                if not self._is_quiet(place):
                    self._unsubscribe(place)
        if not answers:
            raise failure or StoreUnavailableError("no Sentinel was asked")
        self._current = max(answers, key=lambda answer: (answer.epoch, answer.promoting))
        self._asked = self._clock.monotonic()
        self._has_answered()
        if self._current.promoting:
            raise StoreUnavailableError(
                "the database is unavailable: a failover is under way, and what"
                f" {self._current.host}:{self._current.port} acknowledges now would be lost"
            )
        return self._current.place

    @property
    def heard(self) -> bool:
        """Whether a Sentinel has published a message or closed its connection.

        If no Sentinel has done so, the primary has not changed, so ``sure`` is updated.
        """
        if not all(map(self._is_quiet, self._connections)):
            return True
        # If the last question to a Sentinel was not answered, messages may have been lost. Then
        # ``sure`` is not updated, because the absence of messages proves nothing.
        if self._connections and not self._unanswered:
            self.sure = self._clock.wall()
        return False

    def may_have_changed(self) -> bool:
        """Whether `find` must ask all Sentinels again before the next request to the primary.

        Once in `ASKED_AGAIN` seconds, this method asks one Sentinel which server is the primary.
        """
        if self._current is None or self._current.promoting or self.heard:
            return True
        if self._clock.monotonic() - self._asked < ASKED_AGAIN:
            return False
        self._asked = self._clock.monotonic()
        self._hosts.rotate()  # ask another Sentinel each time, because one might be down
        try:
            with self._budget.part(1 / 4):
                answer = self._ask(self._hosts[0])
        except StoreError:
            self._unanswered = True
            self.sure = min(self.sure, self._answered)
            return False  # the next Sentinel is asked after `ASKED_AGAIN` seconds
        self._has_answered()
        newer = answer.epoch >= self._current.epoch and answer.place != self._current.place
        return newer or answer.promoting

    def __str__(self) -> str:
        """The number of Sentinels, and the number of Sentinels that cannot be reached, as text."""
        unreachable = len(self._hosts) - len(self._connections)
        missing = (
            f"; {unreachable} cannot be reached: a failover may be noticed late"
            if unreachable
            else ""
        )
        return f"{len(self._hosts)} in the url{missing}"

    def close(self) -> None:
        """Close the connections to all Sentinels."""
        for place in [*self._connections]:
            self._unsubscribe(place)

    def _has_answered(self) -> None:
        self._unanswered = False
        self._answered = self.sure = self._clock.wall()

    def _is_quiet(self, place: tuple[str, int]) -> bool:
        """Whether a Sentinel has sent nothing since psched subscribed to its messages.

        This is true if there is no subscription.
        """
        connection = self._connections.get(place)
        if connection is None:
            return True
        if connection.socket is None:
            return False
        poll = select.poll()  # because select() refuses file descriptors above 1023
        poll.register(connection.socket, select.POLLIN)
        return not poll.poll(0)

    def _unsubscribe(self, place: tuple[str, int]) -> None:
        if (connection := self._connections.pop(place, None)) is not None:
            connection.disconnect()

    def _ask(self, place: tuple[str, int]) -> Answer:
        """Subscribe to a Sentinel's messages, then ask for the primary on a second connection.

        Because psched subscribes first, it misses no message that the Sentinel publishes after its
        answer. The second connection is necessary because `heard` detects only messages that are
        still unread in the socket: on a single connection, the driver could read a message together
        with the answer. If the Sentinel does not answer, an earlier subscription to this Sentinel
        stays open, because the Sentinel might only be busy and publish a message later.
        """
        connection = self._dial(*place)
        asking: DriverConnection | None = None
        try:
            connection.send_command("PSUBSCRIBE", *_CHANNELS)
            for _ in _CHANNELS:
                connection.read_response()
            asking = self._dial(*place)
            answer = self._answer(asking, place)
        except RedisError as error:
            connection.disconnect()
            raise StoreUnavailableError(
                f"the Sentinel {place[0]}:{place[1]} does not tell where the primary is:"
                f" {errors.explain(error)}"
            ) from None
        except BaseException:
            connection.disconnect()
            raise
        finally:
            if asking is not None:
                asking.disconnect()
        self._unsubscribe(place)
        self._connections[place] = connection
        return answer

    def _answer(self, asking: DriverConnection, place: tuple[str, int]) -> Answer:
        # Both questions are sent at once. Otherwise a replica could be promoted between the
        # questions, and the answers would be about different primaries.
        asking.send_packed_command(
            asking.pack_commands(
                [
                    ("SENTINEL", "GET-MASTER-ADDR-BY-NAME", self._service),
                    ("SENTINEL", "MASTER", self._service),
                ]
            )
        )
        found = asking.read_response()
        if found is None:
            raise StoreUnavailableError(
                f"the Sentinel {place[0]}:{place[1]} knows no server by the name {self._service!r}"
            )
        host, port = found[0].decode(), int(found[1])
        words = [word.decode() for word in asking.read_response()]
        facts = dict(zip(words[::2], words[1::2], strict=True))
        # From the promotion to the end of the failover, the first answer contains the new address,
        # but the second answer still contains the old address and the flag. So the flag counts
        # only if both answers contain the same address.
        old = (facts["ip"], int(facts["port"])) == (host, port)
        promoting = old and _PROMOTING in facts["flags"].split(",")
        return Answer(int(facts["config-epoch"]), host, port, promoting)
