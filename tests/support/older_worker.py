"""A worker of the version without a run history, as far as the table of schedules sees it."""

from psched.core.definition import parse_row

# Neither statement mentions `claimed_at`.
CLAIM = (
    "UPDATE {table} SET owner = :owner, fence = fence + 1, attempt = attempt + 1,"
    " next_run_time = :end WHERE id = :id AND fence = :fence AND version = :version"
)
SETTLE = (
    "UPDATE {table} SET owner = NULL, next_time = :next_time, attempt = 0, status = :status,"
    " reason = NULL, settled_by = :settled_by, retain_until = :retain_until,"
    " next_run_time = :next_run_time"
    " WHERE id = :id AND owner = :owner AND fence = :fence AND version = :version"
)


class OlderWorker:
    """Runs schedules in a store of the present version, and writes no records.

    Args:
        store: where the schedules are.
        sql: executes plain SQL on the store's database.
        settings: the installation's settings.
        nonce: the nonce in the owners of its leases.
    """

    def __init__(self, store, sql, settings, nonce="older"):
        self._store = store
        self._sql = sql
        self._settings = settings
        self._nonce = nonce
        self._claims = 0

    def claim(self, key):
        """Lease a row, whether it is due or not; the leased row."""
        self._claims += 1
        row = self._store.get(key)
        seen = {"id": key, "fence": row.fence, "version": row.version}
        end = int(self._store.now()) + 60
        self._sql(CLAIM, **seen, owner=f"{self._nonce}.{self._claims}", end=end)
        return self._store.get(key)

    def finish(self, row):
        """Settle a lease, as after a run that has succeeded."""
        definition = parse_row(row, self._settings)
        following, ended = row.next_time, definition.trigger is None
        if not ended:
            following = definition.trigger.next_after(row.next_time)
        now = int(self._store.now())
        self._sql(
            SETTLE,
            id=row.key,
            owner=row.owner,
            fence=row.fence,
            version=row.version,
            settled_by=str(row.token),
            status="finished" if ended else "waiting",
            next_time=following,
            next_run_time=None if ended else max(definition.first_run(following), now),
            retain_until=now + definition.settings.retention_time if ended else None,
        )

    def run(self, key):
        """Run the occurrence of a row that is due or runs next."""
        self.finish(self.claim(key))
