"""Checks the keys that a user has typed."""

from psched.base.errors import NotFoundError


def refuse_surrogates(key: str) -> None:
    """Refuse a key that was typed as bytes that are not UTF-8, because no schedule can have it.

    Raises:
        NotFoundError: the key contains half of a surrogate pair.
    """
    if any("\ud800" <= character <= "\udfff" for character in key):
        raise NotFoundError(f"no schedule has the key {key!r}: it is not UTF-8")
