"""Rules between settings: they derive some settings from others, and refuse contradictions."""

import os
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from psched.base import lease_times
from psched.base.quantities import format_duration
from psched.config import urls
from psched.config.kinds import read_password
from psched.config.monitoring import NO_EXPECTATIONS, ON_SETTINGS, undefined_hooks, undefined_pings
from psched.config.problems import InvalidValueError, safe_name
from psched.config.references import Context
from psched.config.urls import (
    AWS_KINDS,
    REDIS_FORMS,
    REDIS_PORT,
    AwsAddress,
    RedisAddress,
    aws_kind,
    is_redis,
)

_URL_PARTS = ("host", "port", "db", "path", "password")
"""Settings that together replace the url of a Redis server. They have the same names as in the
library Allora."""

_MOST_AUTOMATIC_PROCESSORS = 4
"""The largest number of workers that ``processors: auto`` can mean."""

USUAL_CLOCK_OFFSET = 5.0
"""The default of ``max_clock_offset``, in seconds."""

_MOST_METRICS_KEYS = 100
"""The most keys in ``metrics_keys``: each costs a request to the store."""

_MISSING = (
    "is missing: type: rdb_compat works in PerfectSched's own table; copy it from PerfectSched's"
    " configuration"
)
_UNCOUNTED = "PerfectSched's table does not count attempts; remove it"
_NOT_IN_COMPAT = {
    "jitter": "PerfectSched's table shows a later start as a lease; remove it",
    "max_attempts": _UNCOUNTED,
    "pause_after_failures": "PerfectSched's table keeps no status; remove it",
    "retry_backoff": _UNCOUNTED,
    "only": "cannot be used with type: rdb_compat, which keeps the type in the data",
    "expect": "PerfectSched's table has no table of alerts beside it; remove it",
}
"""For each setting that cannot be used with ``type: rdb_compat``: an error text that says why."""


def apply_rules(
    values: dict[str, Any],
    context: Context,
    *,
    given: Collection[str],
    invalid: Collection[str],
    before: Mapping[str, Any] | None,
) -> Iterator[tuple[str, str]]:
    """Derive settings from others, and find contradictions."""
    _derive_defaults(values, given)
    if before is not None and "url" in given and "read_url" not in given:
        values["read_url"] = None  # it is a replica of another database
    yield from _derive_url_and_type(values, given, before)
    for key in _missing(values, given, before):
        yield key, _MISSING
        invalid = {*invalid, key}
    try:
        if "url" not in invalid:
            _complete_url(values, context, given)
    except InvalidValueError as error:
        yield "url", str(error)
        invalid = {*invalid, "url"}
    valid = {name: value for name, value in values.items() if name not in invalid}
    for key, check in _RULES:
        try:
            check(valid)
        except KeyError:  # the rule reads a setting that is invalid
            continue
        except InvalidValueError as error:
            yield key, str(error)
    yield from _undefined(values, given, invalid, before)
    yield from _impossible(values, given, invalid, before)
    login = {"url", "password_file", *_URL_PARTS}
    if login & {*given} and not login & {*invalid}:
        try:
            _add_password(values, given, before)
        except InvalidValueError as error:
            yield "password_file", str(error)


def _impossible(
    values: Mapping[str, Any],
    given: Collection[str],
    invalid: Collection[str],
    before: Mapping[str, Any] | None,
) -> Iterator[tuple[str, str]]:
    """Find what a configuration expects of schedules, and the monitor cannot judge.

    What a row expects itself is not checked: the row must run nevertheless.
    """
    needed = {"monitor", "types", "history_keep"}
    if {"expect", *needed} & {*invalid} or (before is not None and not needed & {*given}):
        return
    found = [("expect", "", values["expect"])]
    for name, own in values["types"].items():
        found.append(("types", f"{safe_name(name)}.expect", own.get("expect", NO_EXPECTATIONS)))
    keep = values["history_keep"]
    for setting, part, expect in found:
        if expect.any and not values["monitor"]:
            text = "is judged by the monitor; set monitor to on, or remove it"
            yield setting, f"{part}: {text}" if part else text
        if keep and expect.silent is not None and expect.silent >= keep:
            text = (
                f"must be shorter than history_keep, which is {format_duration(keep)}: the run"
                " history says when a schedule has last succeeded; raise history_keep"
            )
            yield setting, f"{part}.silent: {text}" if part else f"silent: {text}"


def _undefined(
    values: Mapping[str, Any],
    given: Collection[str],
    invalid: Collection[str],
    before: Mapping[str, Any] | None,
) -> Iterator[tuple[str, str]]:
    """Find the hooks and pings that a configuration names and does not define.

    A row that names an unknown one must run nevertheless, so its own settings are not checked.
    """
    for name, users, find in (
        ("hooks", ON_SETTINGS, undefined_hooks),
        ("pings", ("ping",), undefined_pings),
    ):
        if (before is None or name in given) and not {name, "types", *users} & {*invalid}:
            yield from find(values)


def _derive_defaults(values: dict[str, Any], given: Collection[str]) -> None:
    """Set the defaults that depend on the host or on the setting ``type``."""
    if values["processors"] is None:
        values["processors"] = automatic_processors()
    if values["type"] == "rdb_compat" and "type" in given:
        # What PerfectSched does at a clock change; and if a handler does not call finish, or
        # raises: its lease is left to expire.
        theirs = {"dst_policy": "wallclock", "retry_wait": values["alive_time"]}
        if not values["script"]:  # a script is PerfectQueue's, where a return is a success
            theirs["on_return"] = "retry"
        values |= {name: value for name, value in theirs.items() if name not in given}


def automatic_processors() -> int:
    """The number of workers that ``processors: auto`` means on this host, from 1 to 4.

    It is the number of cores that this process may use. More than 4 workers are started only on
    request, because each worker has a connection to the database.
    """
    return min(len(os.sched_getaffinity(0)), _MOST_AUTOMATIC_PROCESSORS)


def _derive_url_and_type(
    values: dict[str, Any], given: Collection[str], before: Mapping[str, Any] | None
) -> Iterator[tuple[str, str]]:
    """Derive the url of a Redis server from `_URL_PARTS`, or refuse them; and the type."""
    if "url" in given and "type" not in given:
        if is_redis(values["url"]):
            values["type"] = "redis"
        elif kind := aws_kind(values["url"]):
            values["type"] = kind
        elif values["type"] in {"redis", *AWS_KINDS}:
            values["type"] = "rdb"
    kind = values["type"]
    if kind in AWS_KINDS and "url" not in given and aws_kind(values["url"]) != kind:
        values["url"] = AwsAddress(kind).url
    if "url" in given or (before is not None and _was_given_as_url(before)):
        for name in _URL_PARTS:
            if name in given and values[name] is not None:
                yield name, "repeats what the url says; remove one of the two"
            values[name] = None
    elif values["type"] == "redis" and (values["url"] is None or {*_URL_PARTS, "type"} & {*given}):
        values["url"] = _address(values).url


def _was_given_as_url(values: Mapping[str, Any]) -> bool:
    """Whether a Redis url was configured, and not derived from `_URL_PARTS`."""
    if not is_redis(values["url"]):
        return False
    has_file = values["password_file"] is not None
    url = urls.without_password(values["url"]) if has_file else values["url"]
    return bool(url != _address(values).url)


def _address(values: Mapping[str, Any]) -> RedisAddress:
    place: dict[str, Any] = {"db": values["db"] or 0, "password": values["password"]}
    if values["path"] is not None:
        return RedisAddress(path=str(values["path"]), **place)
    return RedisAddress(
        hosts=((values["host"] or "localhost", values["port"] or REDIS_PORT),), **place
    )


def _missing(
    values: Mapping[str, Any], given: Collection[str], before: Mapping[str, Any] | None
) -> list[str]:
    """What ``type: rdb_compat`` lacks: the defaults of url and table are for psched's own table."""
    is_theirs = values["type"] == "rdb_compat"
    was_theirs = before is not None and before["type"] == "rdb_compat"
    if not is_theirs or was_theirs:
        return []
    return [name for name in ("url", "table") if name not in given]


def _complete_url(values: dict[str, Any], context: Context, given: Collection[str]) -> None:
    """Make the path of an SQLite file absolute, or set the default url if there is no url."""
    if "url" in given:
        is_theirs = values["type"] == "rdb_compat"
        url = urls.from_sequel(values["url"]) if is_theirs else values["url"]
        values["url"] = urls.with_absolute_file(url, context)
    elif values["url"] is None:
        is_users_class = ":" in values["type"]
        values["url"] = "" if is_users_class else urls.default_url(context)


def _add_password(
    values: dict[str, Any], given: Collection[str], before: Mapping[str, Any] | None
) -> None:
    """Copy the password from ``password_file`` into the url.

    If settings are being changed, but not the url, the password from the old file is removed first.
    """
    if before is not None and before["password_file"] and "url" not in given:
        values["url"] = urls.without_password(values["url"])
    if values["password_file"]:
        values["url"] = urls.with_password(values["url"], read_password(values["password_file"]))


def _check_type(values: Mapping[str, Any]) -> None:
    if (values["type"] == "redis") != is_redis(values["url"]):
        if is_redis(values["url"]):
            raise InvalidValueError("must be redis with such a url; you can leave it out")
        raise InvalidValueError(
            f"redis needs a url of the form {REDIS_FORMS}, or host, port, db, path"
        )
    kind, wanted = values["type"], aws_kind(values["url"])
    if wanted is not None and kind != wanted:
        raise InvalidValueError(f"must be {wanted} with such a url; you can leave it out")
    if kind in AWS_KINDS and wanted is None:
        raise InvalidValueError(f"{kind} needs a url of the form {kind}://REGION, or none")


def _check_url_part(name: str, values: Mapping[str, Any]) -> None:
    if values[name] is None:
        return
    if values["type"] != "redis":
        instead = "password_file" if name == "password" else "the url"
        raise InvalidValueError(f"is for type: redis; for any other use {instead}")
    if values["path"] is not None and name in ("host", "port"):
        raise InvalidValueError(
            "is of no use beside path, the server's socket; remove one of the two"
        )
    if name == "password" and values["password_file"] is not None:
        raise InvalidValueError("is set twice, here and in password_file; remove one of the two")


def _check_cert(values: Mapping[str, Any]) -> None:
    if values["ssl_cert"] and not values["ssl_key"]:
        raise InvalidValueError(
            "needs ssl_key, the file with its private key; if that is in the same file, name it"
            " in both"
        )
    if values["ssl_cert"] and not values["ssl_ca"] and not values["ssl_verify"]:
        raise InvalidValueError(
            "does not say how the server is checked; set ssl_ca to the file with the certificate"
            " of its authority"
        )


def _check_key(values: Mapping[str, Any]) -> None:
    if values["ssl_key"] and not values["ssl_cert"]:
        raise InvalidValueError("needs ssl_cert, the file with the certificate that it belongs to")


def _check_verify(values: Mapping[str, Any]) -> None:
    if values["ssl_verify"] in ("full", "ca") and not values["ssl_ca"]:
        raise InvalidValueError(
            "needs ssl_ca, the file with the certificate of the server's authority; for the public"
            " ones that is the system's file, such as /etc/ssl/certs/ca-certificates.crt"
        )
    if values["ssl_verify"] == "none" and values["ssl_ca"]:
        raise InvalidValueError(
            "must not be none beside ssl_ca, which would not be used; remove one"
        )


def _check_read_url(values: Mapping[str, Any]) -> None:
    if (url := values["read_url"]) is None:
        return
    kinds = [_server_kind(each) for each in (values["url"], url)]
    if values["type"] != "rdb" or None in kinds:
        raise InvalidValueError(
            "is for type: rdb with PostgreSQL, MySQL or MariaDB, in url and here; remove it"
        )
    if kinds[0] != kinds[1]:
        raise InvalidValueError(
            f"is a {kinds[1]} database, and url a {kinds[0]} database; name a replica of url"
        )
    if len(urls.each_host(url)) > 1:
        raise InvalidValueError("names several servers; name one, or an address that leads to one")
    _check_tls_options("read_url", values)


def _server_kind(url: str) -> str | None:
    """The kind of database server in a url; None for files and what has no such replicas."""
    kind = url.partition("://")[0].partition("+")[0].replace("mariadb", "mysql")
    return kind if kind in {"mysql", "postgresql"} else None


def _check_tls_options(name: str, values: Mapping[str, Any]) -> None:
    options = urls.tls_options(values[name])
    if urls.tls_of(values) is not None:
        if reason := urls.why_without_tls(values[name]):
            raise InvalidValueError(f"{reason}; remove the settings {_tls_settings(values)}")
        if options:
            raise InvalidValueError(
                f"has {', '.join(options)} among its options, beside the settings"
                f" {_tls_settings(values)}; use one or the other"
            )
    # If one of these two options is in the url, any further TLS option is refused, because PyMySQL
    # would ignore the further option, even one with the authority's certificate.
    verifying = {"ssl_verify_cert", "ssl_verify_identity"} & {*options}
    if verifying and {*options} - verifying:
        raise InvalidValueError(
            f"has {min(verifying)} among its options, which makes the driver ignore the others;"
            " use the settings ssl_ca and ssl_verify instead"
        )


def _tls_settings(values: Mapping[str, Any]) -> str:
    return ", ".join(name for name in urls.TLS_SETTINGS if values[name])


def _check_margin(values: Mapping[str, Any]) -> None:
    alive_time, database_timeout = values["alive_time"], values["database_timeout"]
    margin = lease_times.margin(alive_time)
    if database_timeout is None or 2 * database_timeout < margin:
        return
    fix = f"set database_timeout below {margin / 2:g}s"
    if 2 * database_timeout < lease_times.MARGIN_LIMIT:
        fix += f", or alive_time to at least {lease_times.shortest_alive_time(database_timeout)}s"
    raise InvalidValueError(
        f"two timeouts of {database_timeout:g} s do not fit into the {margin:g} s that are left "
        f"to stop a task in time if alive_time is {alive_time} s; {fix}"
    )


def _check_heartbeat(values: Mapping[str, Any]) -> None:
    timeout = lease_times.effective_driver_timeout(values["database_timeout"], values["alive_time"])
    # Between two heartbeats, a worker connects to the database at most once, and sends at most one
    # request. Connecting and the request take at most one timeout each, so the limit must be at
    # least two timeouts plus 2 s.
    if values["child_heartbeat_limit"] < 2 * timeout + 2:
        raise InvalidValueError(
            f"a worker that waits for the database can be silent for {2 * timeout + 2:g} s;"
            " set it to at least that, or a shorter database_timeout"
        )


def _check_alone(name: str, values: Mapping[str, Any]) -> None:
    for other in ("script", "dispatch"):
        if other != name and values[name] and values[other]:
            raise InvalidValueError(
                f"runs tasks of every type, so that none is left for {other}; remove one of the two"
            )


def _check_script_class(values: Mapping[str, Any]) -> None:
    if values["script_class"] and not values["script"]:
        raise InvalidValueError("needs script, the file that it is in")


def _check_types(values: Mapping[str, Any]) -> None:
    timeout = lease_times.effective_driver_timeout(values["database_timeout"], values["alive_time"])
    shortest = lease_times.shortest_alive_time(timeout)
    for name, own in values["types"].items():
        for setting in _NOT_IN_COMPAT:
            try:
                _check_in_compat(setting, {**own, "type": values["type"]})
            except InvalidValueError as error:
                raise InvalidValueError(f"{safe_name(name)}.{setting}: {error}") from None
        if "alive_time" not in own:
            continue
        if values["type"] == "rdb_compat":
            raise InvalidValueError(
                f"{safe_name(name)}.alive_time: PerfectSched's table has no such column; remove it"
            )
        if own["alive_time"] < shortest:
            raise InvalidValueError(
                f"{safe_name(name)}.alive_time: must be at least {shortest}s, so that a task can be"
                f" stopped in time after two timeouts of {timeout:g} s; set a shorter"
                " database_timeout, or raise it"
            )


def _check_in_compat(setting: str, values: Mapping[str, Any]) -> None:
    chosen = values.get(setting) not in {None, 0, "fixed", (), NO_EXPECTATIONS}
    if chosen and values["type"] == "rdb_compat":
        raise InvalidValueError(_NOT_IN_COMPAT[setting])


def _check_strategy(values: Mapping[str, Any]) -> None:
    strategy = values["claim_strategy"]
    if strategy == "auto":
        return
    if values["type"] in ("rdb_compat", "redis", *AWS_KINDS):
        raise InvalidValueError(
            f"is of no use with type: {values['type']}, which takes rows in one way only; remove it"
        )
    if strategy == "cas":
        return
    if values["url"].startswith(("sqlite", urls.MEMORY)):
        raise InvalidValueError(f"an SQLite file cannot do {strategy}; set it to auto or cas")
    if values["url"].startswith(("mysql", "mariadb")):
        raise InvalidValueError(
            f"{strategy} was removed for MySQL and MariaDB; set it to auto, or delete the line"
        )


def _check_takeover(values: Mapping[str, Any]) -> None:
    own = ":" in values["type"]
    if values["takeover"] != "clock" and (own or values["type"] == "rdb_compat"):
        whose = "a store of your own" if own else "PerfectSched's table"
        raise InvalidValueError(f"must not be observed with {whose}; remove it")


def _check_store(values: Mapping[str, Any]) -> None:
    if values["store"] and ":" not in values["type"]:
        raise InvalidValueError("is for a store of your own, type: module:Class; remove it")


def _check_wait_replicas(values: Mapping[str, Any]) -> None:
    if values["wait_replicas"] and values["type"] != "redis":
        raise InvalidValueError("is for type: redis; remove it")


def _check_clock_offset(values: Mapping[str, Any]) -> None:
    if values["max_clock_offset"] != USUAL_CLOCK_OFFSET and values["type"] not in AWS_KINDS:
        raise InvalidValueError(f"is for type: {' or '.join(AWS_KINDS)}; remove it")


def _check_memory(values: Mapping[str, Any]) -> None:
    if values["url"] == urls.MEMORY and values["type"] == "rdb_compat":
        raise InvalidValueError(
            "is created anew by each master, so PerfectSched's table cannot be in it"
        )


def _check_metrics_keys(values: Mapping[str, Any]) -> None:
    if values["metrics_keys"] and not values["metrics"]:
        raise InvalidValueError("are shown with the metrics; set metrics, or remove it")
    if len(values["metrics_keys"]) > _MOST_METRICS_KEYS:
        raise InvalidValueError(f"has more than {_MOST_METRICS_KEYS} keys; name fewer schedules")


def _check_wake(values: Mapping[str, Any]) -> None:
    can = is_redis(values["url"]) or values["url"].startswith("postgresql")
    own = ":" in values["type"]
    if values["wake"] == "notify" and not own and (values["type"] == "rdb_compat" or not can):
        raise InvalidValueError("must not be notify, which needs PostgreSQL or Redis; use local")


def _check_monitor(name: str, does: str, values: Mapping[str, Any]) -> None:
    # The names in on_failed and so on must be in hooks, and that in ping in pings.
    if values[name] and not values["monitor"]:
        it = "it" if name == "metrics" else "them"
        raise InvalidValueError(f"are {does} by the monitor; set monitor to on, or remove {it}")


_RULES: Sequence[tuple[str, Callable[[Mapping[str, Any]], None]]] = (
    ("type", _check_type),
    *((name, partial(_check_url_part, name)) for name in _URL_PARTS),
    ("ssl_cert", _check_cert),
    ("ssl_key", _check_key),
    ("ssl_verify", _check_verify),
    ("url", partial(_check_tls_options, "url")),
    ("read_url", _check_read_url),
    ("claim_strategy", _check_strategy),
    ("takeover", _check_takeover),
    ("url", _check_memory),
    ("store", _check_store),
    ("wait_replicas", _check_wait_replicas),
    ("max_clock_offset", _check_clock_offset),
    ("database_timeout", _check_margin),
    ("child_heartbeat_limit", _check_heartbeat),
    ("types", _check_types),
    *((name, partial(_check_in_compat, name)) for name in _NOT_IN_COMPAT),
    ("wake", _check_wake),
    ("metrics", partial(_check_monitor, "metrics", "shown")),
    ("metrics_keys", _check_metrics_keys),
    ("pings", partial(_check_monitor, "pings", "sent")),
    ("hooks", partial(_check_monitor, "hooks", "told")),
    ("exec", partial(_check_alone, "exec")),
    ("script", partial(_check_alone, "script")),
    ("script_class", _check_script_class),
)
"""For each rule: the setting for which a violation is reported, and what raises an error of it."""
