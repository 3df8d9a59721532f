"""Private servers: real binaries, on loopback, in folders that are thrown away.

A server is one process that belongs to the test process which started it. It needs no handler,
no atexit and no signal to go with it: the kernel kills it when its parent dies, however that
comes about. Its folder is in the session's home (see support.session_folders), and goes with that.
"""

from support.servers.base import (
    LOOPBACK,
    Database,
    MissingServerError,
    SqlServer,
    find_binary,
)
from support.servers.certificates import Certificates
from support.servers.dynalite import Dynalite
from support.servers.galera import Galera
from support.servers.mariadb import MariaDB
from support.servers.postgresql import PostgreSQL
from support.servers.redis import Redis, Watched
from support.servers.simpledb import SimpleDB

__all__ = [
    "LOOPBACK",
    "Certificates",
    "Database",
    "Dynalite",
    "Galera",
    "MariaDB",
    "MissingServerError",
    "PostgreSQL",
    "Redis",
    "SimpleDB",
    "SqlServer",
    "Watched",
    "find_binary",
]
