"""Which server is the primary, as the Sentinels say, and their news of a change.

Sentinels promote a replica first and turn the old primary into a replica some 10 s later (Redis
7.0: ``SENTINEL FAILOVER``, and also after a primary stood still for longer than
``down-after-milliseconds``). Until then the old primary accepts writes, and loses all of them when
it becomes a replica. It does not know this: ``ROLE`` says ``master`` all that time. Therefore each
Sentinel is subscribed to, and is asked again when it publishes something about a failover.

A Sentinel that has not heard of the failover yet names the old primary. Therefore all of them are
asked, and the answer with the highest ``config-epoch`` counts: Sentinels raise that number with
every failover.

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
from psched.stores.redis import faults
from psched.stores.redis.line import Line

ASKED_AGAIN = 10.0
"""Seconds after which one Sentinel is asked although none has published anything.

A host that is cut off from the Sentinels does not hear them.
"""

_CHANNELS = (
    "+failover-state-send-slaveof-noone",  # the replica is about to be promoted
    "+promoted-slave",  # it was
    "-failover-abort-*",  # it was not
    "+switch-master",  # every Sentinel publishes this when it has heard of the new primary
)

_PROMOTING = "failover_in_progress"
"""The flag of a server while the Sentinel that is asked replaces it."""


class Said(NamedTuple):
    """What a Sentinel says of the primary.

    Attributes:
        epoch: which failover this is the outcome of; a higher number is newer.
        host: the primary's address.
        port: the same.
        promoting: it is about to be replaced.
    """

    epoch: int
    host: str
    port: int
    promoting: bool

    @property
    def place(self) -> tuple[str, int]:
        """The primary's address."""
        return self.host, self.port


class Sentinels:
    """Asks the Sentinels of one service, and listens to them.

    Args:
        hosts: their addresses.
        service: the name under which they know the primary.
        dial: opens a connection to one of them.
        budget: how long all this may take.
        clock: this host's clocks.

    Attributes:
        sure: when it was last known that the primary has not changed, seconds of the wall clock.
    """

    def __init__(
        self,
        hosts: tuple[tuple[str, int], ...],
        service: str,
        *,
        dial: Callable[[str, int], Line],
        budget: Budget,
        clock: Clock,
    ) -> None:
        self._hosts = deque(hosts)
        self._service = service
        self._dial = dial
        self._budget = budget
        self._clock = clock
        self._lines: dict[tuple[str, int], Line] = {}
        self._said: Said | None = None
        self._asked = 0.0
        self._answered = 0.0
        self._unanswered = False
        self.sure = 0.0

    def find(self) -> tuple[str, int]:
        """Ask all Sentinels; the address of the primary.

        Raises:
            StoreUnavailableError: none of them answers, or the primary is being replaced: a write
                that it acknowledges now would be lost.
        """
        answers: list[Said] = []
        failure: StoreError | None = None
        for number, place in enumerate([*self._hosts]):
            # One that does not answer leaves time for the others and for the primary.
            share = 1 / (len(self._hosts) - number + 1)
            try:
                with self._budget.part(share):
                    answers.append(self._ask(place))
            except StoreError as error:
                failure = error
                # Those that answered are asked first the next time.
                self._hosts.remove(place)
                self._hosts.append(place)
                # What it has published before, the others were just asked about.
                if not self._is_quiet(place):
                    self._leave(place)
        if not answers:
            raise failure or StoreUnavailableError("no Sentinel was asked")
        self._said = max(answers, key=lambda said: (said.epoch, said.promoting))
        self._asked = self._clock.monotonic()
        self._has_answered()
        if self._said.promoting:
            raise StoreUnavailableError(
                "the database is unavailable: a failover is under way, and what"
                f" {self._said.host}:{self._said.port} acknowledges now would be lost"
            )
        return self._said.place

    @property
    def heard(self) -> bool:
        """Whether a Sentinel has published something, or has closed its connection."""
        if not all(map(self._is_quiet, self._lines)):
            return True
        # One that does not answer may have published something that has not arrived.
        if self._lines and not self._unanswered:
            self.sure = self._clock.wall()
        return False

    def may_have_changed(self) -> bool:
        """Whether to ask all Sentinels again before anything is sent to the primary."""
        if self._said is None or self._said.promoting or self.heard:
            return True
        if self._clock.monotonic() - self._asked < ASKED_AGAIN:
            return False
        self._asked = self._clock.monotonic()
        self._hosts.rotate()  # the last did not answer, perhaps, and is not listened to
        try:
            with self._budget.part(1 / 4):
                said = self._ask(self._hosts[0])
        except StoreError:
            self._unanswered = True
            self.sure = min(self.sure, self._answered)
            return False  # the next one may know
        self._has_answered()
        newer = said.epoch >= self._said.epoch and said.place != self._said.place
        return newer or said.promoting

    def __str__(self) -> str:
        """How many there are, and how many are listened to."""
        deaf = len(self._hosts) - len(self._lines)
        missing = f"; {deaf} cannot be reached: a failover by it is heard of late" if deaf else ""
        return f"{len(self._hosts)} in the url{missing}"

    def close(self) -> None:
        """Close the connections to all Sentinels."""
        for place in [*self._lines]:
            self._leave(place)

    def _has_answered(self) -> None:
        self._unanswered = False
        self._answered = self.sure = self._clock.wall()

    def _is_quiet(self, place: tuple[str, int]) -> bool:
        """Whether there is nothing to read from a Sentinel that is listened to."""
        line = self._lines.get(place)
        if line is None:
            return True
        if line.socket is None:
            return False
        poll = select.poll()  # select() refuses descriptors from 1024 on
        poll.register(line.socket, select.POLLIN)
        return not poll.poll(0)

    def _leave(self, place: tuple[str, int]) -> None:
        if (line := self._lines.pop(place, None)) is not None:
            line.disconnect()

    def _ask(self, place: tuple[str, int]) -> Said:
        """Subscribe to a Sentinel, then ask it.

        In this order, on two connections, so that nothing that it publishes after its answer is
        overlooked: `heard` sees what is in the socket, not what the driver has read already. If it
        does not answer, the connection on which it was listened to before stays: it may be busy,
        and have something to publish later.
        """
        line = self._dial(*place)
        asking: Line | None = None
        try:
            line.send_command("PSUBSCRIBE", *_CHANNELS)
            for _ in _CHANNELS:
                line.read_response()
            asking = self._dial(*place)
            said = self._answer(asking, place)
        except RedisError as error:
            line.disconnect()
            raise StoreUnavailableError(
                f"the Sentinel {place[0]}:{place[1]} does not tell where the primary is:"
                f" {faults.explain(error)}"
            ) from None
        except BaseException:
            line.disconnect()
            raise
        finally:
            if asking is not None:
                asking.disconnect()
        self._leave(place)
        self._lines[place] = line
        return said

    def _answer(self, asking: Line, place: tuple[str, int]) -> Said:
        # In one go: of a promotion in between, half could be told.
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
        # After the promotion the flag stands until the failover ends, beside the old address.
        old = (facts["ip"], int(facts["port"])) == (host, port)
        promoting = old and _PROMOTING in facts["flags"].split(",")
        return Said(int(facts["config-epoch"]), host, port, promoting)
