"""What the upgrade of a SQL table and that of Redis have in common."""

from collections.abc import Sequence

from psched.base.errors import InvalidError, SchemaError
from psched.core.columns import NAME_LENGTH, encode, parse_options


def refuse_older(table: str, workers: Sequence[str]) -> None:
    """Refuse to upgrade a table, or what takes its place, if there are such workers."""
    if workers:
        raise SchemaError(
            f"workers of an older psched run on the table {table!r}: {', '.join(workers)}; stop"
            " psched on these hosts, run `psched init`, and start the new version (a worker that"
            " has died is forgotten after 90 s); `psched init --force` upgrades now, and their"
            " tasks are killed and run again"
        )


def label_and_rest(options: str | bytes) -> tuple[str, str | None] | None:
    """The label that earlier versions have stored in a row's options, and the options without it.

    None if there is no label, or one that is too long for its column.
    """
    try:
        rest = parse_options(options)
        label = rest.pop("label", None)
        if not isinstance(label, str) or len(label) > NAME_LENGTH:
            return None
        return label, encode("options", rest) if rest else None
    except InvalidError:
        return None
