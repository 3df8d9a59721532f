"""The settings that say where the schedules are, and how they are reached."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from psched.config import redis_urls, urls, words
from psched.config.input_files import Input
from psched.config.kinds import Choice, File, Number
from psched.config.own_store import NO_OPTIONS, Options, StoreOptions, StoreType
from psched.config.tls import VERIFY


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class StoreSettings:
    """A part of `psched.config.settings.Config`."""

    type: Annotated[
        str,
        StoreType(),
        "Kind of store: a relational database, PerfectSched's table in one (rdb_compat), Redis.",
    ] = "rdb"
    store: Annotated[
        StoreOptions,
        Options(),
        "What a store of your own, a type module:Class, wants to know.",
    ] = NO_OPTIONS
    url: Annotated[str, urls.Url(), "The database; by default an SQLite file on this host."]
    host: Annotated[
        str | None, redis_urls.HOST, "Redis in the place of a url: the server's host."
    ] = None
    port: Annotated[
        int | None, Number(unit="", whole=True, least=1, most=65_535), "Redis: the server's port."
    ] = None
    db: Annotated[
        int | None, Number(unit="", whole=True, most=999_999), "Redis: the database's number."
    ] = None
    path: Annotated[
        Path | None, File(), "Redis: the server's socket, in the place of host and port."
    ] = None
    password: Annotated[str | None, redis_urls.Secret(), "Redis: the password."] = None
    wait_replicas: Annotated[
        int,
        Number(unit="replicas", whole=True, most=100),
        "Redis: so many replicas must have a write before it counts as done; 0 is none.",
    ] = 0
    password_file: Annotated[
        Path | None, Input(private=True), "A file with the password that the url leaves out."
    ] = None
    ssl_ca: Annotated[
        Path | None, Input(), "The authority's certificate; with it, all connections are encrypted."
    ] = None
    ssl_cert: Annotated[
        Path | None, Input(), "Our own certificate, for a server that wants one."
    ] = None
    ssl_key: Annotated[
        Path | None, Input(private=True), "The private key of our own certificate."
    ] = None
    ssl_verify: Annotated[
        str | None,
        Choice(*VERIFY),
        "What of a server is checked: certificate and name, the certificate, nothing.",
    ] = None
    table: Annotated[str, words.TABLE, "The table that holds the schedules."] = "psched"
    database_timeout: Annotated[
        float | None,
        Number(above=0),
        "Longest wait for an answer of the database; by default what suits alive_time.",
    ] = None

    claim_strategy: Annotated[
        str,
        Choice("auto", "skip_locked", "update_first", "cas"),
        "How due rows are taken; auto is the best way that the server can do.",
    ] = "auto"
