"""A private Galera cluster: MariaDB servers that hold the same data, every one of them writable."""

import contextlib
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Self

import pymysql

from support.servers.base import LOOPBACK, MissingServerError, free_port, run_tool
from support.servers.mariadb import MariaDB

LIBRARIES = (
    Path("/usr/lib/galera/libgalera_smm.so"),  # Debian
    Path("/usr/lib64/galera-4/libgalera_smm.so"),  # Fedora
    Path("/usr/lib64/galera/libgalera_smm.so"),
)

# As short as a busy machine allows: a node that is not heard of for suspect_timeout is voted
# out, and until then nobody can commit. Forming takes a round of join_retrans_period or two.
GROUP = {
    "evs.keepalive_period": "PT0.3S",
    "evs.inactive_check_period": "PT0.2S",
    "evs.join_retrans_period": "PT0.1S",
    "evs.suspect_timeout": "PT1.5S",
    "evs.inactive_timeout": "PT3S",
    "evs.install_timeout": "PT3S",
    "pc.announce_timeout": "PT0.3S",
    "pc.recovery": "no",  # who founds the cluster anew is decided here
    "gcache.size": "16M",  # what a node may have missed and still be brought up with
}


class Node(MariaDB):
    """One server of a cluster.

    Data is never copied from node to node: all begin with the same, and one that was away is
    brought up with the writes that it missed. That takes no more than a script, wsrep_sst_ist;
    the scripts that copy are in a package that starts a server.
    """

    kind = "galera"

    PACKAGES = "mariadb-server-core, mariadb-client-core and galera-4"

    def __init__(self, home: Path, *flags: str) -> None:
        super().__init__(home, *flags)
        self.peers: list[Self] = []
        self.group_port = 0
        self._transfer_port = 0
        self._position: list[str] = []

    @property
    def primary(self) -> bool:
        """Whether it runs and is in that part of the cluster which may work."""
        return self.running and self._status("wsrep_cluster_status", self.port) == "Primary"

    def position(self) -> tuple[str, int]:
        """Of a node that is down: the cluster's id, and the number of the last write it has."""
        self._position = []
        said = run_tool([*self._command(free_port()), "--wsrep-recover"])
        found = re.search(r"Recovered position: (\S+):(-?\d+)", said)
        assert found, said
        return found[1], int(found[2])

    @classmethod
    def _initialise(cls, data: Path) -> None:
        """Found a cluster of one, so that all copies belong to the same."""
        super()._initialise(data)
        end = data.parent / "end.sql"
        end.write_text("SHUTDOWN;\n")
        wsrep = cls._wsrep("gcomm://", free_port(), free_port())
        run_tool(
            [*cls._plain_command(data), "--skip-networking", f"--init-file={end}", *wsrep],
        )
        (data / "galera.cache").unlink()

    def _command(self, port: int) -> list[str]:
        group = ",".join(f"{LOOPBACK}:{peer.group_port}" for peer in self.peers if peer.running)
        return [
            *super()._command(port),
            *self._wsrep(f"gcomm://{group}", self.group_port, self._transfer_port),
            *self._position,
        ]

    @staticmethod
    def _wsrep(cluster: str, group_port: int, transfer_port: int) -> list[str]:
        options = GROUP | {
            "gmcast.listen_addr": f"tcp://{LOOPBACK}:{group_port}",
            "ist.recv_addr": f"{LOOPBACK}:{transfer_port}",
        }
        return [
            "--wsrep-on=ON",
            f"--wsrep-provider={_library()}",
            f"--wsrep-provider-options={';'.join(f'{key}={options[key]}' for key in options)}",
            f"--wsrep-cluster-address={cluster}",
            f"--wsrep-node-address={LOOPBACK}:{group_port}",
            "--wsrep-sst-method=ist",
            "--binlog-format=ROW",
            "--innodb-autoinc-lock-mode=2",
        ]

    def _environment(self) -> Mapping[str, str]:
        scripts = Path(__file__).parent  # where wsrep_sst_ist is
        return os.environ | {"PATH": f"{os.environ.get('PATH', os.defpath)}:{scripts}"}

    def _launch(self, port: int) -> bool:
        if not self.port:
            self.group_port, self._transfer_port = free_port(), free_port()
        if not any(peer.running for peer in self.peers):
            # Galera would refuse, unless this one had been the last to be shut down.
            state = self.data / "grastate.dat"
            state.write_text(
                state.read_text().replace("safe_to_bootstrap: 0", "safe_to_bootstrap: 1")
            )
        # After a kill, Galera does not know it by itself, and would want all data anew.
        cluster, write = self.position()
        self._position = [f"--wsrep-start-position={cluster}:{write}"]
        return super()._launch(port)

    def _answers(self, port: int) -> bool:
        with contextlib.suppress(pymysql.err.Error):
            return (
                super()._answers(port)
                and self._status("wsrep_local_state_comment", port) == "Synced"
            )
        return False

    def _status(self, name: str, port: int) -> object:
        [[_, value]] = self.query(f"SHOW STATUS LIKE '{name}'", port=port)
        return value


class Galera:
    """A cluster of three nodes.

    As a context manager it starts on entering and leaves nothing behind.

    Args:
        home: the folder under which the nodes make their own.
        flags: for each node's command line.
    """

    SIZE = 3

    def __init__(self, home: Path, *flags: str) -> None:
        self.nodes = [Node(home, *flags) for _ in range(self.SIZE)]
        for node in self.nodes:
            node.peers = [peer for peer in self.nodes if peer is not node]

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *exception: object) -> None:
        for node in self.nodes:
            node.__exit__(*exception)

    def start(self) -> None:
        """Start the nodes that do not run; wait until all are members and have all data.

        Where those that run cannot work, as too many others were killed, the cluster is founded
        anew from the node that has the most.
        """
        if not any(node.primary for node in self.nodes):
            self.kill()
        down = [node for node in self.nodes if not node.running]
        for node in sorted(down, key=Node.position, reverse=True):
            node.start()

    def stop(self) -> None:
        """Shut all nodes down cleanly, one after the other."""
        for node in self.nodes:
            node.stop()

    def kill(self) -> None:
        """Kill all nodes with signal 9."""
        for node in self.nodes:
            node.kill()

    def create_database(self) -> str:
        """Create an empty database, on all nodes, and return its name."""
        return self.nodes[0].create_database()

    def drop_database(self, name: str) -> None:
        """Drop a database, on all nodes."""
        self.nodes[0].drop_database(name)


def _library() -> Path:
    for library in LIBRARIES:
        if library.exists():
            return library
    raise MissingServerError("Galera's library is missing: install galera-4")
