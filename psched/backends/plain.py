"""The path of `psched.stores.plain` in earlier versions."""

from psched.stores.plain import (
    PlainStore,
)

__all__ = [
    "PlainStore",
]
