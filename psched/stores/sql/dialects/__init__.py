"""All that psched knows of the differences between databases.

One `Dialect` value per database, each in a module of its own; statements elsewhere ask it and
never look at a name.
"""

from sqlalchemy.engine import URL

from psched.base.errors import ConfigError
from psched.stores.sql.dialects.dialect import Dialect, Fault, Standing

__all__ = ["Dialect", "Fault", "Standing", "dialect_of"]


def dialect_of(url: URL) -> Dialect:
    """The dialect for a database URL.

    Raises:
        ConfigError: psched does not know this kind of database.
    """
    # Only that of the database in use is loaded: SQLite's brings a library with it.
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
