"""A private Galera cluster: MariaDB servers that hold the same data, every one of them writable."""

import contextlib
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Self

import pymysql

from support.servers.base import LOOPBACK, Block, MissingServerError, reserved_port, run_tool
from support.servers.mariadb import MariaDB
from support.waiting import wait_until

LIBRARIES = (
    Path("/usr/lib/galera/libgalera_smm.so"),  # Debian
    Path("/usr/lib64/galera-4/libgalera_smm.so"),  # Fedora
    Path("/usr/lib64/galera/libgalera_smm.so"),
)

# Times as short as a busy machine allows. A node that is silent for suspect_timeout is voted out,
# and until then nobody can commit. Forming a cluster takes a round of join_retrans_period or two.
GROUP = {
    "evs.keepalive_period": "PT0.3S",
    "evs.inactive_check_period": "PT0.2S",
    "evs.join_retrans_period": "PT0.1S",
    "evs.suspect_timeout": "PT1.5S",
    "evs.inactive_timeout": "PT3S",
    "evs.install_timeout": "PT3S",
    "pc.announce_timeout": "PT0.3S",
    "pc.recovery": "no",  # the tests decide which node founds the cluster anew
    "gcache.size": "16M",  # writes that a node can miss and still catch up on
}

STATE = """\
# GALERA saved state
version: 2.1
uuid:    {cluster}
seqno:   {write}
safe_to_bootstrap: {founds}
"""
"""The state file of a node that is down: its last write, and whether it may found a cluster."""


class Node(MariaDB):
    """One server of a cluster.

    No node copies all data from another. All begin with the same data, and a node that was away
    receives only the writes that it missed. The small script wsrep_sst_ist is enough for that; the
    scripts that copy data are in a package that would start a server on installation.
    """

    kind = "galera"

    PACKAGES = "mariadb-server-core, mariadb-client-core and galera-4"

    STARTS = 3

    def __init__(self, home: Path, *flags: str) -> None:
        super().__init__(home, *flags)
        self.peers: list[Self] = []
        self.group_port = self._reserve_port()
        self.transfer_port = self._reserve_port()

    @property
    def primary(self) -> bool:
        """Whether the node runs, in the part of the cluster that may write."""
        return self.running and self._status("wsrep_cluster_status") == "Primary"

    @property
    def members(self) -> int:
        """The number of nodes in the part of the cluster that may write, as this node knows it."""
        return int(str(self._status("wsrep_cluster_size"))) if self.primary else 0

    def position(self) -> tuple[str, int]:
        """The state of a node that is down: the cluster's id, and the number of its last write."""
        said = run_tool([*self._command(), "--wsrep-recover"])
        found = re.search(r"Recovered position: (\S+):(-?\d+)", said)
        assert found, said
        return found[1], int(found[2])

    @classmethod
    def _initialise(cls, data: Path) -> None:
        """Found a cluster of one node, so that all copies of its data belong to one cluster."""
        super()._initialise(data)
        end = data.parent / "end.sql"
        end.write_text("SHUTDOWN;\n")
        with reserved_port() as group_port, reserved_port() as transfer_port:
            wsrep = cls._wsrep("gcomm://", group_port, transfer_port)
            run_tool(
                [*cls._plain_command(data), "--skip-networking", f"--init-file={end}", *wsrep],
            )
        (data / "galera.cache").unlink()

    def _command(self) -> list[str]:
        group = ",".join(f"{LOOPBACK}:{peer.group_port}" for peer in self.peers if peer.running)
        return [
            *super()._command(),
            *self._wsrep(f"gcomm://{group}", self.group_port, self.transfer_port),
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
        scripts = Path(__file__).parent  # the folder with wsrep_sst_ist
        return os.environ | {"PATH": f"{os.environ.get('PATH', os.defpath)}:{scripts}"}

    def _launch(self) -> bool:
        # The node that was to send the missed writes may be voted out meanwhile, if the machine
        # stood still. Then this node exits, and is started again.
        return any(self._launch_with_what_it_has() for _ in range(self.STARTS))

    def _launch_with_what_it_has(self) -> bool:
        # After a kill, or an exit while it was catching up, the node does not know its position,
        # and would request all data.
        cluster, write = self.position()
        founds = int(not any(peer.running for peer in self.peers))
        state = STATE.format(cluster=cluster, write=write, founds=founds)
        (self.data / "grastate.dat").write_text(state)
        return super()._launch()

    def _answers(self) -> bool:
        with contextlib.suppress(pymysql.err.Error):
            return super()._answers() and self._status("wsrep_local_state_comment") == "Synced"
        return False

    def _status(self, name: str) -> object:
        [[_, value]] = self.query(f"SHOW STATUS LIKE '{name}'")
        return value


class Galera(Block):
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

    def __exit__(self, *exception: object) -> None:
        for node in self.nodes:
            node.__exit__(*exception)

    def start(self) -> None:
        """Start the nodes that do not run; wait until all are members and have all data.

        If the running nodes cannot write, because too many others were killed, the cluster is
        founded anew from the node with the latest write.
        """
        wait_until(self._agree, what="all nodes that run to know who else does")
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
        name = self.nodes[0].create_database()
        for node in self.nodes[1:]:  # they apply it a little later
            node.execute(["SET SESSION wsrep_sync_wait = 1", "BEGIN"])
        return name

    def drop_database(self, name: str) -> None:
        """Drop a database, on all nodes, as soon as no lock of an ended session pauses one."""

        def is_dropped() -> bool:
            try:
                self.nodes[0].drop_database(name)
            except pymysql.err.OperationalError as error:
                if error.args[0] != pymysql.constants.ER.UNKNOWN_COM_ERROR:
                    raise
                return False
            return True

        wait_until(is_dropped, what="a node that is not paused")

    def _agree(self) -> bool:
        """Whether each running node counts just the running ones; killed ones count for a while."""
        running = [node for node in self.nodes if node.running]
        try:
            return {node.members for node in running} in (set(), {0}, {len(running)})
        except pymysql.err.Error:  # the node is just ending
            return False


def _library() -> Path:
    for library in LIBRARIES:
        if library.exists():
            return library
    raise MissingServerError("Galera's library is missing: install galera-4")
