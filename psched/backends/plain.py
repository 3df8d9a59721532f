"""The former import path of `psched.stores.plain`."""

from psched.stores.plain import PlainStore

__all__ = [
    "PlainStore",
]
