"""The databases' own clients: programs that know nothing of psched."""

from pathlib import Path

import sqlalchemy
from sqlalchemy.pool import NullPool

from support.servers import find_binary

PACKAGES = {
    "sqlite": ("sqlite3", "sqlite3"),
    "mysql": ("mariadb", "mariadb-client-core"),
    "postgresql": ("psql", "postgresql-client"),
}


def engine_of(url: str) -> sqlalchemy.Engine:
    """An engine of SQLAlchemy's whose statements are committed at once; without TLS."""
    place = sqlalchemy.make_url(url)
    # PyMySQL would make a context for TLS at each connection, which takes longer than a statement.
    plain = {"ssl_disabled": True} if place.get_backend_name() == "mysql" else {}
    return sqlalchemy.create_engine(
        place, poolclass=NullPool, isolation_level="AUTOCOMMIT", connect_args=plain
    )


def client_of(url: str) -> list[str]:
    """The command line of a database's own client; it reads SQL on its standard input.

    Raises:
        MissingServerError: the client is not on this machine.
    """
    place = sqlalchemy.make_url(url)
    kind = place.get_backend_name()
    program = str(find_binary(*PACKAGES[kind]))
    if kind == "sqlite":
        return [program, "-batch", "-bail", "-cmd", ".timeout 10000", str(place.database)]
    host, port, user = str(place.host), str(place.port), str(place.username)
    if kind == "postgresql":
        server = ["-h", host, "-p", port, "-U", user, "-d", str(place.database or "")]
        return [program, "-X", "-q", "-t", "-A", "-v", "ON_ERROR_STOP=1", *server]
    server = ["--protocol=tcp", "--skip-ssl", "-h", host, "-P", port, "-u", user]
    return [
        program,
        "--no-defaults",
        *server,
        "--batch",
        "--skip-column-names",
        str(place.database or ""),
    ]


def documented_sql() -> tuple[str, str, str]:
    """The statements in docs/queue.md that push ``mail-7``, cancel it and remove it."""
    page = Path(__file__).parents[2].joinpath("docs/queue.md").read_text()
    block = page.partition("```sql\n")[2].partition("```")[0]
    insert, cancel, delete = (line for line in block.splitlines() if "'mail-7'" in line)
    return insert, cancel, delete
