"""The store on SimpleDB: creates the domain, and describes it; the rest is `ConditionalStore`."""

import random
from collections.abc import Sequence
from xml.etree import ElementTree as ET

from typing_extensions import override

from psched.base.clock import Clock
from psched.base.errors import MissingTableError, StoreError, TransientStoreError
from psched.config import Config
from psched.stores.conditional.store import ConditionalStore
from psched.stores.simpledb.connector import Connector
from psched.stores.simpledb.domain import SimpleDBDomain


class SimpleDBStore(ConditionalStore):
    """Schedules in one domain of SimpleDB."""

    def __init__(self, settings: Config, *, clock: Clock, rng: random.Random) -> None:
        self._connector = Connector(settings, clock=clock, rng=rng)
        self._domain = SimpleDBDomain(self._connector)
        super().__init__(self._domain, settings, clock=clock)

    @override
    def init(self, *, force: bool = False) -> Sequence[str]:
        try:
            self._described()
        except MissingTableError:
            self._create()
            return [f"created {self._connector.table} in {self._connector.shown}"]
        else:
            return []
        finally:
            self.disconnect()

    def _create(self) -> None:
        self._connector.begin()
        try:
            self._connector.ask("CreateDomain", {}, writing=True)
        except TransientStoreError:
            raise
        except StoreError as error:
            fix = f"let somebody who may create it run: {self._command()}"
            raise StoreError(f"{error}; {fix}") from None

    @override
    def plan_init(self) -> Sequence[tuple[str, str]]:
        try:
            self._described()
        except MissingTableError:
            return [(self._command(), "nothing; the domain is ready after some seconds")]
        return []

    def _command(self) -> str:
        """The command of AWS' command line that creates the domain."""
        service = self._connector
        return f"aws sdb create-domain --region {service.region} --domain-name {service.table}"

    @override
    def try_rights(self) -> None:
        self._connector.begin()
        self._domain.try_rights()

    @override
    def examine(self) -> Sequence[tuple[str, str]]:
        before = self._clock.monotonic()
        found = self._described()
        took = self._clock.monotonic() - before
        count = found.findtext(".//ItemCount") or "?"
        return [
            ("server", self._connector.shown),
            *self.facts,
            ("size", f"{count} items"),
            ("encrypted", self._connector.encryption or "no"),
            ("round trip", f"{took * 1000:.3f} ms"),
        ]

    @override
    def disconnect(self) -> None:
        self._connector.disconnect()

    def _described(self) -> ET.Element:
        self._connector.begin()
        return self._connector.ask("DomainMetadata", {})
