"""Stores the standing rules that pause types beside the version of the schema."""

import random
from collections.abc import Sequence

from sqlalchemy import Connection
from typing_extensions import override

from psched.base.clock import Clock
from psched.base.errors import AlreadyExistsError, StoreBusyError
from psched.core.operations.pauses import PauseRule
from psched.stores.parameters import StoreParameters
from psched.stores.sql import raw_execute
from psched.stores.sql.output.store import OutputStore
from psched.stores.sql.pauses.statements import PauseStatements, id_of, rows_of, rules_in
from psched.stores.sql.table_store import S


class PauseStore(OutputStore[S]):
    """A store that keeps rules in ``<table>_info``, as `PausesTypes` describes.

    Args:
        parameters: the settings of the store.
        rng: random generator for the pauses between tries to get SQLite's write lock.
    """

    def __init__(self, parameters: StoreParameters, *, clock: Clock, rng: random.Random) -> None:
        super().__init__(parameters, clock=clock, rng=rng)
        self._pauses = PauseStatements(
            parameters.table, self._connector.quote, self._connector.dialect
        )

    @override
    def try_rights(self) -> None:
        super().try_rights()
        self._try_each(self._pauses.rights, self._pauses.table)

    def pause_rules(self) -> Sequence[PauseRule]:
        """The stored rules, as `PausesTypes.pause_rules` describes."""
        return rules_in(self._query(self._pauses.select, {}))

    def change_pause_rules(self, *, drop: Sequence[str], store: Sequence[PauseRule]) -> None:
        """Delete and store rules, as `PausesTypes.change_pause_rules` describes."""
        replaced = {*drop, *(rule.id for rule in store)}

        def write(connection: Connection) -> None:
            for (name,) in raw_execute.rows(connection, self._pauses.select_names, {}):
                if id_of(name) in replaced:
                    self._connector.renew()
                    raw_execute.count(connection, self._pauses.delete, {"name": name})
            for rule in store:
                for values in rows_of(rule):
                    self._connector.renew()
                    raw_execute.count(connection, self._pauses.insert, values)

        try:
            self._connector.transact(write)
        except AlreadyExistsError as error:
            # Somebody else has stored the same rule at the same time.
            raise StoreBusyError(str(error)) from None
