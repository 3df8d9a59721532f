"""The refusal to upgrade a store while workers run that cannot use it afterwards."""

from collections.abc import Sequence

from psched.base.errors import SchemaError


def refuse_older(table: str, workers: Sequence[str]) -> None:
    """Refuse to upgrade a table, or what takes its place, if there are such workers.

    Args:
        table: the setting ``table``.
        workers: the workers that are registered, for people.
    """
    if workers:
        raise SchemaError(
            f"workers of an older psched run on the table {table!r}: {', '.join(workers)}; stop"
            " psched on these hosts, run `psched init`, and start the new version (a worker that"
            " has died is forgotten after 90 s); `psched init --force` upgrades now, and their"
            " tasks are killed and run again"
        )
