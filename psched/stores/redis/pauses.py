"""The standing rules that pause types in Redis, beside the version of the layout."""

import json
from collections.abc import Sequence

from typing_extensions import override

from psched.core.operations.pauses import PauseRule, PausesTypes, rules_of
from psched.stores.redis.connector import Connector


class RedisPauses(PausesTypes):
    """Keeps rules, as `PausesTypes` describes."""

    def __init__(self, connector: Connector) -> None:
        self._connector = connector

    @override
    def pause_rules(self) -> Sequence[PauseRule]:
        return rules_of(self._read_pauses())

    @override
    def change_pause_rules(self, *, drop: Sequence[str], store: Sequence[PauseRule]) -> None:
        replaced = {*drop, *(rule.id for rule in store)}
        is_done = False
        while not is_done:  # the loop is repeated only if somebody else has changed the rules
            seen = self._read_pauses()
            kept = [rule for rule in rules_of(seen) if rule.id not in replaced]
            rules = [rule.to_json() for rule in (*kept, *store)]
            new = json.dumps(rules, ensure_ascii=False).encode(errors="replace") if rules else b""
            is_done = bool(self._connector.run("set_pauses", seen, new))

    def _read_pauses(self) -> bytes:
        found = self._connector.run("pauses")
        return b"" if found is None else bytes(found)
