"""How a configuration names a store of the user's own, and what it tells that."""

import re
from collections.abc import Iterator, Mapping
from types import MappingProxyType

from psched.config import references
from psched.config.kinds import text, unlike
from psched.config.problems import InvalidValueError
from psched.config.references import Context


class StoreOptions(Mapping[str, object]):
    """Values by names, as a file has them. Cannot be changed, and can be a key."""

    __slots__ = ("_values",)

    def __init__(self, values: Mapping[str, object] = MappingProxyType({})) -> None:
        self._values = dict(values)

    def __getitem__(self, name: str) -> object:
        return self._values[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __hash__(self) -> int:
        return hash(frozenset(self._values))

    def __repr__(self) -> str:
        # A secret may be among them.
        return f"<{', '.join(self._values)}>"


NO_OPTIONS = StoreOptions()


class StoreType:
    """One of the kinds of store that there are, or a class of the user's own."""

    KNOWN = ("rdb", "rdb_compat", "redis")

    def describe(self) -> str:
        """See `Kind.describe`."""
        return f"{', '.join(self.KNOWN)}, or module:Class, the import path of a store of your own"

    def read(self, value: object, around: Context) -> str:
        """See `Kind.read`."""
        word = text(self, value, around)
        if word not in self.KNOWN and not re.fullmatch(r"\w[\w.]*:\w+", word):
            raise InvalidValueError(f"must be {self.describe()}")
        return word


class Options:
    """What a store of the user's own wants to know: anything, by names."""

    def describe(self) -> str:
        """See `Kind.describe`."""
        return "a mapping from names to values"

    def read(self, value: object, around: Context) -> "StoreOptions":
        """See `Kind.read`. References are expanded in texts that stand by themselves."""
        if value is None:
            return NO_OPTIONS
        if not isinstance(value, Mapping) or not all(isinstance(name, str) for name in value):
            raise unlike(self, value)
        plain = {name: getattr(each, "value", each) for name, each in value.items()}
        return StoreOptions(
            {
                name: references.expand(each, around) if isinstance(each, str) else each
                for name, each in plain.items()
            }
        )
