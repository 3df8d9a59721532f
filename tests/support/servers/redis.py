"""Private Redis servers, and Sentinels that watch over them."""

import itertools
from pathlib import Path

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from support.servers.base import LOOPBACK, Block, Server, find_binary
from support.waiting import wait_until

SERVICE = "psched-test"
"""The name under which Sentinels know their servers."""

NEVER = 3_600_000
"""Milliseconds without an answer after which a server is down; no test takes that long."""

DATABASES = 4096
"""The number of databases of a server; each test gets its own."""


class Redis(Server):
    """A Redis server that saves every write; no password.

    Args:
        primary: the server of which this is a replica; None: it is none.
    """

    kind = "redis"

    def __init__(self, home: Path, *flags: str, certificates=None, primary: "Redis | None" = None):
        super().__init__(home, *flags, certificates=certificates)
        self.tls_port = self._reserve_port()
        self._cluster_port = self._reserve_port()
        self._primary = primary
        self._numbers = itertools.count(1)

    @property
    def socket(self) -> Path:
        """The server's socket on this host."""
        return self.folder / "socket"

    def url(self, database: str = "0") -> str:
        """The url of a database on this server."""
        return f"redis://{LOOPBACK}:{self.port}/{database or 0}"

    def create_database(self) -> str:
        """Choose an empty database; return its number."""
        return str(next(self._numbers))

    def drop_database(self, name: str) -> None:
        """Empty a database."""
        self.query("FLUSHDB", db=int(name))

    def query(self, *command, db: int = 0):
        """Send a command on a new connection; return the answer."""
        retry = Retry(NoBackoff(), 0)
        with redis.Redis(LOOPBACK, self.port, db, protocol=2, retry=retry) as client:
            return client.execute_command(*command)

    def info(self, name: str) -> str:
        """The value of one field of the server's INFO."""
        return str(self.query("INFO").get(name))

    def follow(self, primary: "Redis | None") -> None:
        """Make this server a replica from its next start on."""
        self._primary = primary

    def catch_up(self) -> None:
        """Wait until this replica has all data of its primary."""
        assert self._primary is not None
        offset = int(self._primary.info("master_repl_offset"))
        name = "slave_repl_offset"
        wait_until(lambda: int(self.info(name)) >= offset, what="the replica to catch up")

    @property
    def role(self) -> str:
        """The role that the server reports: master or slave; empty at the moment when it changes.

        A Sentinel that changes the role closes all connections to the server, including this one.
        """
        try:
            return self.info("role")
        except redis.ConnectionError:
            return ""

    @property
    def is_linked(self) -> bool:
        """Whether a replica is connected to its primary."""
        return self.info("master_link_status") == "up"

    @classmethod
    def _initialise(cls, data: Path) -> None:
        data.mkdir()

    @property
    def _program(self) -> str:
        """The server's binary. It is the same program as redis-check-rdb, and acts by its name."""
        link = self.folder / "redis-server"
        if not link.exists():
            link.symlink_to(find_binary("redis-check-rdb", "redis-tools"))
        return str(link)

    def _command(self) -> list[str]:
        words = {
            "bind": LOOPBACK,
            "port": str(self.port),
            "dir": str(self.data),
            "unixsocket": str(self.socket),
            "databases": str(DATABASES),
            # Only a server of a cluster opens this port. By default it is 10,000 above the other
            # port, where another program may listen.
            "cluster-port": str(self._cluster_port),
            "appendonly": "yes",
            "appendfsync": "always",
            "save": "",
            # A new replica must not wait for others.
            "repl-diskless-sync-delay": "0",
            **self._tls(),
        }
        if self._primary is not None:
            words["replicaof"] = f"{LOOPBACK} {self._primary.port}"
        flags = [word for name, value in words.items() for word in (f"--{name}", *_words(value))]
        return [self._program, *flags, *self.flags]

    def _tls(self) -> dict[str, str]:
        if self.certificates is None:
            return {}
        return {
            "tls-port": str(self.tls_port),
            "tls-ca-cert-file": str(self.certificates.authority),
            "tls-cert-file": str(self.certificates.certificate),
            "tls-key-file": str(self.certificates.key),
            "tls-auth-clients": "optional",
        }

    def _answers(self) -> bool:
        try:
            return bool(self.query("PING"))
        except redis.RedisError:
            return False


class Sentinel(Redis):
    """A Sentinel that watches over a server."""

    kind = "sentinel"

    def __init__(self, home: Path, primary: Redis, *, down_after: int) -> None:
        super().__init__(home)
        self._watched = primary
        self._down_after = down_after
        self._file = self.folder / "sentinel.conf"

    def _command(self) -> list[str]:
        if not self._file.exists():  # the Sentinel stores its state in this file
            self._file.write_text(
                f"bind {LOOPBACK}\nport {self.port}\ndir {self.data}\n"
                f"sentinel monitor {SERVICE} {LOOPBACK} {self._watched.port} 2\n"
                f"sentinel down-after-milliseconds {SERVICE} {self._down_after}\n"
                f"sentinel failover-timeout {SERVICE} 3000\n"
            )
        return [self._program, str(self._file), "--sentinel"]

    @property
    def sees(self) -> dict[str, str]:
        """What the Sentinel knows about the primary."""
        found = self.query("SENTINEL", "MASTER", SERVICE)
        if isinstance(found, dict):
            return {str(name): str(value) for name, value in found.items()}
        words = [each.decode() for each in found]
        return dict(zip(words[::2], words[1::2], strict=True))


class Watched(Block):
    """A primary, a replica and three Sentinels, for one failover. A context manager.

    Args:
        home: the folder for the folders of the servers.
        down_after: milliseconds without an answer after which a Sentinel considers a server down.
    """

    def __init__(self, home: Path, *, down_after: int = 500) -> None:
        self.primary = Redis(home)
        self.replica = Redis(home, primary=self.primary)
        self.sentinels = [Sentinel(home, self.primary, down_after=down_after) for _ in range(3)]

    def start(self) -> None:
        """Start all, and wait until the Sentinels have found each other."""
        for server in self._all:
            server.start()
        for sentinel in self.sentinels:
            wait_until(
                lambda sentinel=sentinel: self._is_set_up(sentinel.sees),
                what="Sentinels that know each other and the replica",
            )

    def __exit__(self, *exception: object) -> None:
        for server in reversed(self._all):
            server.__exit__(*exception)

    @property
    def _all(self) -> list[Redis]:
        return [self.primary, self.replica, *self.sentinels]

    def be_patient(self) -> None:
        """Let no Sentinel consider a server down any more, however busy this host is."""
        for sentinel in self.sentinels:
            sentinel.query("SENTINEL", "SET", SERVICE, "down-after-milliseconds", str(NEVER))

    def wait_for_switch(self) -> None:
        """Wait until every Sentinel names the replica as the primary, and has published it."""
        for sentinel in self.sentinels:
            wait_until(
                lambda sentinel=sentinel: sentinel.sees["port"] == str(self.replica.port),
                what="Sentinels that name the new primary",
            )

    def url(self, database: str = "0") -> str:
        """The url that leads to the primary through the Sentinels."""
        places = ",".join(f"{LOOPBACK}:{sentinel.port}" for sentinel in self.sentinels)
        return f"redis+sentinel://{places}/{SERVICE}/{database}"

    @staticmethod
    def _is_set_up(seen: dict[str, str]) -> bool:
        return (seen["num-slaves"], seen["num-other-sentinels"]) == ("1", "2")


def _words(value: str) -> list[str]:
    return value.split() or [""]
