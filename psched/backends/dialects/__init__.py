"""All that psched knows of the differences between databases.

One `Dialect` value per database, each in a module of its own; statements elsewhere ask it and
never look at a name.
"""

from collections.abc import Mapping

from sqlalchemy.engine import URL

from psched.backends.dialects.dialect import Dialect, Fault
from psched.backends.dialects.mysql import MYSQL
from psched.backends.dialects.postgresql import POSTGRESQL
from psched.backends.dialects.sqlite import SQLITE
from psched.errors import ConfigError

__all__ = ["Dialect", "Fault", "dialect_of"]

_DIALECTS: Mapping[str, Dialect] = {
    "sqlite": SQLITE,
    "mysql": MYSQL,
    "mariadb": MYSQL,
    "postgresql": POSTGRESQL,
}


def dialect_of(url: URL) -> Dialect:
    """The dialect for a database URL.

    Raises:
        ConfigError: psched does not know this kind of database.
    """
    name = url.get_backend_name()
    if name not in _DIALECTS:
        known = ", ".join(sorted(_DIALECTS))
        raise ConfigError(f"url: no support for {name!r} databases; psched knows {known}")
    return _DIALECTS[name]
