"""Numbers that are drawn by a name: spread as if by chance, and the same on every host."""

from hashlib import blake2b


def stable_hash(name: str, below: int) -> int:
    """A whole number from 0 to less than ``below``, always the same for the same name."""
    digest = blake2b(name.encode(errors="backslashreplace"), digest_size=8).digest()
    return int.from_bytes(digest) % below
