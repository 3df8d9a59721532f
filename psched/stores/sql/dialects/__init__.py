"""The differences between the kinds of databases.

Each kind of database is one `Dialect` value in its own module; no other code depends on the name of
a database.
"""

from sqlalchemy.engine import URL

from psched.base.errors import ConfigError
from psched.stores.sql.dialects.dialect import Dialect, ServerInfo

__all__ = ["Dialect", "ServerInfo", "dialect_of"]


def dialect_of(url: URL) -> Dialect:
    """The dialect for a database URL."""
    # Only the module of this database is imported, because the module for SQLite loads a library.
    match url.get_backend_name():
        case "sqlite":
            from psched.stores.sql.dialects.sqlite import SQLITE  # noqa: PLC0415

            return SQLITE
        case "mysql" | "mariadb":
            from psched.stores.sql.dialects.mysql import MYSQL  # noqa: PLC0415

            return MYSQL
        case "postgresql":
            from psched.stores.sql.dialects.postgresql import POSTGRESQL  # noqa: PLC0415

            return POSTGRESQL
        case name:
            known = "mariadb, mysql, postgresql, sqlite"
            raise ConfigError(f"url: no support for {name!r} databases; psched knows {known}")
