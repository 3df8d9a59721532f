"""Private servers: real binaries, on loopback, in folders that are thrown away.

A server is one process that belongs to the test process which started it. The kernel kills the
server when its parent dies, however the parent dies, so no handler, atexit or signal is needed. Its
folder is in the session's home (see support.home), and is removed with it.
"""

from support.servers.base import (
    LOOPBACK,
    Database,
    MissingServerError,
    SqlServer,
    find_binary,
)
from support.servers.certificates import Certificates
from support.servers.galera import Galera
from support.servers.mariadb import MariaDB
from support.servers.postgresql import PostgreSQL
from support.servers.redis import Redis, Watched

__all__ = [
    "LOOPBACK",
    "Certificates",
    "Database",
    "Galera",
    "MariaDB",
    "MissingServerError",
    "PostgreSQL",
    "Redis",
    "SqlServer",
    "Watched",
    "find_binary",
]
