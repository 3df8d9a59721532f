"""Pseudo-random numbers that depend only on a name, so that all hosts compute the same number."""

from hashlib import blake2b


def stable_hash(name: str, below: int) -> int:
    """A whole number from 0 to ``below`` - 1; equal names always give equal numbers."""
    digest = blake2b(name.encode(errors="backslashreplace"), digest_size=8).digest()
    return int.from_bytes(digest) % below
