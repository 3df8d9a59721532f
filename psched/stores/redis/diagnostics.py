"""Describes a Redis server for the report of `psched check`, mainly how safe its data are."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from psched.base.clock import Clock
from psched.base.errors import StoreError, TransientStoreError
from psched.stores.redis.connector import Connector
from psched.stores.round_trips import measure

_FSYNC = {
    "always": "every write, at once (appendfsync always)",
    "everysec": "every second (appendfsync everysec): a crash of its host loses up to two",
    "no": "when the system does (appendfsync no): a crash of its host loses the rest",
}

_UNTOLD = "the server does not tell"


def examine(
    connector: Connector, now: Callable[[], float], clock: Clock
) -> Sequence[tuple[str, str]]:
    """Return the name and value of each line of the report; see `Store.examine`."""
    offset, took = measure(now, clock)
    info = {**_info(connector), **_configured(connector)}
    return [
        ("server", f"Redis {connector.server.version} on {connector.shown}"),
        ("claims by", "script"),
        ("saves", _saves(info)),
        ("memory", _memory(info)),
        ("replicas", _replicas(info)),
        ("sentinels", connector.sentinels),
        ("a failover loses", _lost(info, connector.replicas)),
        ("encrypted", connector.encryption or "no"),
        ("clock", offset),
        ("writable", "yes"),
        ("round trip", took),
    ]


def _info(connector: Connector) -> Mapping[str, str]:
    lines = (_ask(connector, "INFO") or b"").decode(errors="replace").splitlines()
    return {name: value for name, colon, value in (line.partition(":") for line in lines) if colon}


def _configured(connector: Connector) -> Mapping[str, str]:
    names = ("appendfsync", "save", "min-replicas-to-write", "min-replicas-max-lag")
    found = [each.decode() for each in _ask(connector, "CONFIG", "GET", *names) or ()]
    return dict(zip(found[::2], found[1::2], strict=True))


def _ask(connector: Connector, *command: str) -> Any:  # noqa: ANN401  # any type of answer
    """Send a command and return its answer, or None if the server refuses the command."""
    try:
        return connector.ask(*command)
    except TransientStoreError:
        raise
    except StoreError:
        return None


def _saves(info: Mapping[str, str]) -> str:
    if "aof_enabled" not in info:
        return _UNTOLD
    if info["aof_enabled"] == "1":
        return _FSYNC.get(info.get("appendfsync", ""), "every write (appendonly yes)")
    if info.get("save") == "":
        return "NOTHING: a restart loses all schedules; set appendonly to yes"
    return "now and then only: a crash loses what is newer; set appendonly to yes"


def _memory(info: Mapping[str, str]) -> str:
    policy = info.get("maxmemory_policy", _UNTOLD)
    limit = info.get("maxmemory_human", "?") if info.get("maxmemory", "0") != "0" else "no limit"
    if policy in ("noeviction", _UNTOLD):
        return f"{limit}, {policy}"
    if policy.startswith("volatile"):
        return f"{limit}, {policy}: schedules are safe from it, they have no end of life"
    return f"{limit}, {policy.upper()}: schedules may be thrown away; set it to noeviction"


def _replicas(info: Mapping[str, str]) -> str:
    count = info.get("connected_slaves")
    if count is None:
        return _UNTOLD
    needed = info.get("min-replicas-to-write")
    if count == "0" and needed in (None, "0"):
        return "none"
    if needed is None:
        return count
    if needed == "0":
        return f"{count}, written without them, too (min-replicas-to-write 0)"
    return f"{count}, of which {needed} must follow (min-replicas-to-write)"


def _lost(info: Mapping[str, str], waited_for: int) -> str:
    """Describe which writes are lost when another server becomes the primary."""
    if waited_for:
        return f"what {waited_for} of the replicas did not acknowledge (wait_replicas)"
    if info.get("min-replicas-to-write", "0") != "0":
        lag = info.get("min-replicas-max-lag", "10")
        return f"up to {lag} s of writes (min-replicas-max-lag); set wait_replicas for less"
    return (
        "all that the replicas do not have, up to the end of the old primary; set wait_replicas,"
        " or min-replicas-to-write on the server"
    )
