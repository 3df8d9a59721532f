"""Settings beside each other: what follows from others is set, what contradicts them refused."""

from collections.abc import Callable, Collection, Iterator, Mapping
from functools import partial
from typing import Any, NamedTuple

from psched.base import lease_times
from psched.config import input_files, redis_urls, tls, urls
from psched.config.problems import InvalidValueError, named
from psched.config.references import Context

_TLS = frozenset({"url", *tls.SETTINGS})
_TIMINGS = frozenset({"alive_time", "database_timeout", "child_heartbeat_limit"})

_HANDLERS = frozenset({"exec", "script", "script_class", "dispatch"})

_LACKING = (
    "is missing: type: rdb_compat works in PerfectSched's own table; take it from PerfectSched's"
    " configuration"
)
_UNCOUNTED = "PerfectSched's table does not count attempts; remove it"
_NOT_IN_COMPAT = {
    "jitter": "PerfectSched's table knows of none: what starts later has been leased; remove it",
    "max_attempts": _UNCOUNTED,
    "retry_backoff": _UNCOUNTED,
}
"""Settings that cannot be kept with ``type: rdb_compat``, and why."""


class _Rule(NamedTuple):
    """One of the rules.

    Attributes:
        key: the setting that it is about, and that is to blame.
        reads: the settings that it judges by: it does not, if one of them was refused.
        check: does it.
    """

    key: str
    reads: Collection[str]
    check: Callable[[Mapping[str, Any]], None]


def combine(
    values: dict[str, Any],
    around: Context,
    *,
    given: Collection[str],
    refused: Collection[str],
    before: Mapping[str, Any] | None,
) -> Iterator[tuple[str, str]]:
    """Set what follows from other settings; tell what cannot be, by the settings to blame.

    Args:
        values: of all settings; changed in place.
        around: where the default database is.
        given: the settings that somebody has written.
        refused: those whose values were refused, and are not in `values`.
        before: the values that are being changed, if these are changes.
    """
    if values["type"] == "rdb_compat" and "type" in given and "dst_policy" not in given:
        values["dst_policy"] = "wallclock"  # PerfectSched's
    yield from redis_urls.settle(values, given, before)
    for key in _lacking(values, given, before):
        yield key, _LACKING
        refused = {*refused, key}
    try:
        if "url" not in refused:
            _place(values, around, given)
    except InvalidValueError as refusal:
        yield "url", str(refusal)
        refused = {*refused, "url"}
    for key, reads, check in _RULES:
        if not {*reads} & {*refused}:
            try:
                check(values)
            except InvalidValueError as refusal:
                yield key, str(refusal)
    login = {"url", "password_file", *redis_urls.PARTS}
    if login & {*given} and not login & {*refused}:
        try:
            _log_in(values, given, before)
        except InvalidValueError as refusal:
            yield "password_file", str(refusal)


def _lacking(
    values: Mapping[str, Any], given: Collection[str], before: Mapping[str, Any] | None
) -> list[str]:
    """What must be said of PerfectSched's table, and was not: the defaults are psched's own."""
    is_theirs = values["type"] == "rdb_compat"
    was_theirs = before is not None and before["type"] == "rdb_compat"
    if not is_theirs or was_theirs:
        return []
    return [name for name in ("url", "table") if name not in given]


def _place(values: dict[str, Any], around: Context, given: Collection[str]) -> None:
    """Say where the database is, if it is a file, or nobody has named one."""
    if "url" in given:
        is_theirs = values["type"] == "rdb_compat"
        url = urls.from_sequel(values["url"]) if is_theirs else values["url"]
        values["url"] = urls.placed(url, around)
    elif values["url"] is None:
        own = ":" in values["type"]
        values["url"] = "" if own else urls.in_state_folder(around)


def _log_in(
    values: dict[str, Any], given: Collection[str], before: Mapping[str, Any] | None
) -> None:
    """Put the password from its file into the url."""
    if before is not None and before["password_file"] and "url" not in given:
        values["url"] = urls.without_password(values["url"])
    if values["password_file"]:
        values["url"] = urls.with_password(
            values["url"], input_files.password(values["password_file"])
        )


def _check_margin(values: Mapping[str, Any]) -> None:
    alive_time, database_timeout = values["alive_time"], values["database_timeout"]
    margin = lease_times.margin(alive_time)
    if database_timeout is None or 2 * database_timeout < margin:
        return
    mend = f"set database_timeout below {margin / 2:g}"
    if 2 * database_timeout < lease_times.MARGIN_LIMIT:
        mend += f", or alive_time to at least {lease_times.shortest_alive_time(database_timeout)}"
    raise InvalidValueError(
        f"two timeouts of {database_timeout:g} s do not fit into the {margin:g} s that are left "
        f"to stop a task in time if alive_time is {alive_time}; {mend}"
    )


def _check_heartbeat(values: Mapping[str, Any]) -> None:
    timeout, limit = values["database_timeout"], values["child_heartbeat_limit"]
    if timeout is None:
        timeout = lease_times.default_driver_timeout(values["alive_time"])
    # It connects, and asks; and it speaks before and after.
    if limit < 2 * timeout + 2:
        raise InvalidValueError(
            f"a worker that waits for the database can be silent for {2 * timeout + 2:g} s;"
            " set it to at least that, or a shorter database_timeout"
        )


def _check_exec(values: Mapping[str, Any]) -> None:
    _check_alone("exec", values)


def _check_script(values: Mapping[str, Any]) -> None:
    _check_alone("script", values)


def _check_alone(name: str, values: Mapping[str, Any]) -> None:
    for other in ("script", "dispatch"):
        if other != name and values[name] and values[other]:
            raise InvalidValueError(
                f"runs tasks of every type, and leaves none to {other}; remove one of the two"
            )


def _check_script_class(values: Mapping[str, Any]) -> None:
    if values["script_class"] and not values["script"]:
        raise InvalidValueError("needs script, the file that it is in")


def _check_types(values: Mapping[str, Any]) -> None:
    timeout = values["database_timeout"]
    if timeout is None:
        timeout = lease_times.default_driver_timeout(values["alive_time"])
    shortest = lease_times.shortest_alive_time(timeout)
    for name, own in values["types"].items():
        for setting in _NOT_IN_COMPAT:
            try:
                _check_in_compat(setting, {**own, "type": values["type"]})
            except InvalidValueError as refusal:
                raise InvalidValueError(f"{named(name)}.{setting}: {refusal}") from None
        if "alive_time" not in own:
            continue
        if values["type"] == "rdb_compat":
            raise InvalidValueError(
                f"{named(name)}.alive_time: PerfectSched's table has none for a schedule; remove it"
            )
        if own["alive_time"] < shortest:
            raise InvalidValueError(
                f"{named(name)}.alive_time: must be at least {shortest}, so that a task can be"
                f" stopped in time after two timeouts of {timeout:g} s; set a shorter"
                " database_timeout, or raise it"
            )


def _check_in_compat(setting: str, values: Mapping[str, Any]) -> None:
    chosen = values.get(setting) not in {None, 0, "fixed"}
    if chosen and values["type"] == "rdb_compat":
        raise InvalidValueError(_NOT_IN_COMPAT[setting])


def _check_strategy(values: Mapping[str, Any]) -> None:
    strategy = values["claim_strategy"]
    if strategy == "auto":
        return
    if values["type"] in ("rdb_compat", "redis"):
        raise InvalidValueError(
            f"is of no use with type: {values['type']}, which takes rows in one way only; remove it"
        )
    if strategy != "cas" and values["url"].startswith(("sqlite", urls.MEMORY)):
        raise InvalidValueError(f"an SQLite file cannot do {strategy}; set it to auto or cas")


def _check_only(values: Mapping[str, Any]) -> None:
    if values["only"] and values["type"] == "rdb_compat":
        raise InvalidValueError(
            "cannot be with type: rdb_compat, whose types are hidden in the data"
        )


def _check_store(values: Mapping[str, Any]) -> None:
    if values["store"] and ":" not in values["type"]:
        raise InvalidValueError("is for a store of your own, type: module:Class; remove it")


def _check_wait_replicas(values: Mapping[str, Any]) -> None:
    if values["wait_replicas"] and values["type"] != "redis":
        raise InvalidValueError("is for type: redis; remove it")


def _check_memory(values: Mapping[str, Any]) -> None:
    if values["url"] == urls.MEMORY and values["type"] == "rdb_compat":
        raise InvalidValueError("is new with each master: PerfectSched's table cannot be there")


_RULES = (
    _Rule("type", {"type", "url"}, redis_urls.check_type),
    *(
        _Rule(name, {"type", "url", *redis_urls.PARTS}, partial(redis_urls.check_part, name))
        for name in redis_urls.PARTS
    ),
    _Rule("ssl_cert", _TLS, tls.check_cert),
    _Rule("ssl_key", _TLS, tls.check_key),
    _Rule("ssl_verify", _TLS, tls.check_verify),
    _Rule("url", _TLS, tls.check_url),
    _Rule("claim_strategy", {"claim_strategy", "type", "url"}, _check_strategy),
    _Rule("url", {"url", "type"}, _check_memory),
    _Rule("store", {"store", "type"}, _check_store),
    _Rule("wait_replicas", {"wait_replicas", "type"}, _check_wait_replicas),
    _Rule("only", {"only", "type"}, _check_only),
    _Rule("database_timeout", _TIMINGS, _check_margin),
    _Rule("child_heartbeat_limit", _TIMINGS, _check_heartbeat),
    _Rule("types", {*_TIMINGS, "type", "types"}, _check_types),
    *(_Rule(name, {"type", name}, partial(_check_in_compat, name)) for name in _NOT_IN_COMPAT),
    _Rule("exec", _HANDLERS, _check_exec),
    _Rule("script", _HANDLERS, _check_script),
    _Rule("script_class", _HANDLERS, _check_script_class),
)
