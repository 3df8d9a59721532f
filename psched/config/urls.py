"""Database urls: this module converts the forms that users write to the form of SQLAlchemy.

In a converted url, the user and password contain none of the characters that separate the parts of
a url. So no parser can mistake a part of the password for a host or port, and then show this part
in an error.
"""

import os
import re
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import quote, unquote, unquote_plus

from typing_extensions import override

from psched.base.stable_hash import stable_hash
from psched.config import redis_urls, references
from psched.config.kinds import Kind
from psched.config.problems import InvalidValueError
from psched.config.references import Context

_DATABASES = {
    "sqlite": "sqlite",
    "mysql": "mysql+pymysql",
    "mariadb": "mysql+pymysql",
    "postgresql": "postgresql+psycopg",
}
"""The schemes that psched supports, each with SQLAlchemy's scheme that includes the driver."""

_ALIASES = {"mysql2": "mysql", "postgres": "postgresql"}
"""Schemes in urls for PerfectSched (mysql2) and libpq (postgres), each with the scheme that psched
uses instead."""

MEMORY = "memory:"
"""The url of a store in memory. The store is lost when the master exits; see `psched.memory`."""

_SCHEME = re.compile(r"(?P<database>[a-z][a-z0-9]*) (?: \+ (?P<driver>\w+) )?", re.VERBOSE)

_HOST = r"""
    (?: \[ [^],/?\#\s]+ \] | [^],:/?\#\s[]* )  # an IPv6 address, a name, or nothing: this host
    (?: : \d{1,5} )?                           # port
    """

_SERVER = re.compile(
    rf"""
    {_HOST} (?: , {_HOST} )*
    / [^/?]+                                   # database
    (?: \? .* )?                               # options of the driver
    """,
    re.VERBOSE,
)

_PASSWORD = re.compile(r"\A((?>(?:[^:/?#]*://)?)[^:/]*:).*(?=@)", re.DOTALL)
"""Matches the scheme, the user and the password; group 1 is the part before the password. The
password ends before the last @. The pattern does not match a text with a slash between the scheme
and the next colon, because such a text is the path of a file."""

_SECRET_OPTION = re.compile(r"([?&][^=&]*(?:pass|pwd)[^=&]*=)[^&]*", re.IGNORECASE)

_PASSWORD_OPTION = re.compile(r"[?&]pass(?:word|wd)=")

_MYSQL_TLS = re.compile(r"ssl.*")
_TLS_OPTIONS = {
    "mysql+pymysql": _MYSQL_TLS,
    "mariadb+pymysql": _MYSQL_TLS,
    "postgresql+psycopg": re.compile(r"ssl(?:mode|rootcert|cert|key)|requiressl|gssencmode"),
}
"""For each scheme with which the settings for TLS can be used: a pattern for the names of those
options in a url that concern TLS."""


_FILE_OPTIONS = (
    "timeout",
    "isolation_level",
    "detect_types",
    "check_same_thread",
    "cached_statements",
    "uri",
)
"""Options of SQLAlchemy for SQLite; those of SQLite itself need a ``file:``, which is refused."""


class Url(Kind):
    """The url of a database, converted to the form of SQLAlchemy.

    The path of an SQLite file stays relative until `with_absolute_file` converts it.
    """

    description = (
        "a url such as mysql://USER:PASSWORD@HOST:PORT/DATABASE, postgresql://… or"
        " sqlite:////FOLDER/FILE (sqlite:///FILE is a file in the current folder), or memory:"
    )

    @override
    def read(self, value: object, context: Context) -> str:
        # Only the values of references are percent-encoded here, and only in the user and password.
        # Everything else in a url must be percent-encoded by the user who writes it.
        encode = _login(value) if isinstance(value, str) else range(0)
        url = self.text(value, context, encode=encode)
        if url.lower() in {MEMORY, f"{MEMORY}//"}:
            return MEMORY
        if redis_urls.is_redis(url):
            return redis_urls.parse(url).url
        scheme, divider, rest = url.partition("://")
        parts = _SCHEME.fullmatch(scheme.lower())
        if not divider or not parts:
            raise InvalidValueError(f"must be {self.description}")
        database = _ALIASES.get(parts["database"], parts["database"])
        if database not in _DATABASES:
            raise InvalidValueError(
                f"names an unknown kind of database; known are {', '.join(_DATABASES)}, redis"
            )
        dialect = f"{database}+{parts['driver']}" if parts["driver"] else _DATABASES[database]
        place = rest if database == "sqlite" else _server(rest)
        if not all("=" in option for option in _options(url)):
            raise InvalidValueError(
                "has something after its ? that is not an option of the form NAME=VALUE; if the ?"
                " is part of a name, choose a name without it"
            )
        return f"{dialect}://{place}"


def with_absolute_file(url: str, context: Context) -> str:
    """Return a url with the path of its SQLite file made absolute; others stay the same."""
    scheme, divider, rest = url.partition("://")
    if not scheme.startswith("sqlite"):
        return url
    return f"{scheme}{divider}{_absolute_file(rest, context)}"


def from_sequel(url: str) -> str:
    """Convert a url that was written for Ruby's Sequel to the form of psched.

    Sequel, and therefore PerfectSched, reads ``sqlite:///FILE`` as an absolute path and
    ``sqlite://FILE`` as a relative path. The option ``encoding`` is renamed, because Python's
    drivers have other names for it.
    """
    scheme, divider, rest = url.partition("://")
    if scheme.lower().startswith("sqlite") and rest.startswith("/"):
        return f"{scheme}{divider}//{rest.lstrip('/')}"
    login, at, place = rest.rpartition("@")
    encoding = "client_encoding" if scheme.lower().startswith("postgres") else "charset"
    place = re.sub(r"(?<=[?&])encoding=", f"{encoding}=", place)
    return f"{scheme}{divider}{login}{at}{place}"


def default_url(context: Context) -> str:
    """Return the url of the SQLite file that is used if no url is configured."""
    # systemd lists all state folders of the unit, separated by colons. Only the first is used.
    folder, _, _ = context.environ.get("STATE_DIRECTORY", "").partition(":")
    state = Path(folder) if folder else _state_home(context.environ) / "psched"
    return f"sqlite:///{_path(context.absolute(state / 'psched.db'))}"


def file_of(url: str) -> Path | None:
    """Return the SQLite file in a url; None if the url is for another database."""
    scheme, _, place = url.partition("://")
    if not scheme.startswith("sqlite"):
        return None
    return Path(place.removeprefix("/").partition("?")[0])


def each_host(url: str) -> tuple[str, ...]:
    """Return one url for each server in a url. The urls differ only in host and port."""
    scheme, divider, rest = url.partition("://")
    login, at, place = rest.rpartition("@")
    hosts, slash, database = place.partition("/")
    return tuple(
        f"{scheme}{divider}{login}{at}{host}{slash}{database}" for host in hosts.split(",")
    )


def without_secrets(url: str) -> str:
    """Return a url with ``***`` in place of its passwords, so that messages can show the url."""
    return _SECRET_OPTION.sub(r"\1***", _PASSWORD.sub(r"\1***", url))


def secrets(url: str) -> set[str]:
    """Return the passwords in a url, as they are written in it, and decoded."""
    password = _PASSWORD.match(url)
    found = {url[password.end(1) : password.end()]} if password else set()
    found |= {match[0][len(match[1]) :] for match in _SECRET_OPTION.finditer(url)}
    return found | {*map(unquote, found)} | {*map(unquote_plus, found)}


def secret_variables(url: str) -> set[str]:
    """Return the names of those environment variables in a url that can contain a password.

    These are the variables that the password and the options of the unexpanded url refer to.
    Variables for the host, the file or the user are not returned, because they are not secret, and
    programs can need them.
    """
    form = references.masked(url)
    scheme, divider, _ = form.partition("://")
    login, at = len(scheme + divider), form.rfind("@")
    if divider and scheme.lower().startswith("sqlite"):
        return set()
    secret = range(len(url))
    if divider and at >= 0:
        colon = form.find(":", login, at)
        secret = range(colon if colon >= 0 else at, at)
    place, _, _ = form[max(at, 0) :].partition("?")
    options = range(max(at, 0) + len(place), len(url))
    return {
        name
        for position, name in references.variables(url).items()
        if position in secret or position in options
    }


def with_password(url: str, password: str) -> str:
    """Return a url with a password added."""
    if redis_urls.is_redis(url):
        return redis_urls.with_password(url, password)
    scheme, divider, rest = url.partition("://")
    login, at, place = rest.rpartition("@")
    if scheme.startswith("sqlite") or url == MEMORY:
        raise InvalidValueError("is of no use: the url names an SQLite file, which has no password")
    if ":" in login or _PASSWORD_OPTION.search(place):
        raise InvalidValueError(
            "is of no use: the url has a password already; remove one of the two"
        )
    if not at:
        raise InvalidValueError("needs a user in the url, as in mysql://USER@HOST/DATABASE")
    return f"{scheme}{divider}{login}:{quote(password, safe='')}@{place}"


def without_password(url: str) -> str:
    """Return a url without its password: the reverse of `with_password`."""
    if redis_urls.is_redis(url):
        return redis_urls.without_password(url)
    scheme, divider, rest = url.partition("://")
    login, at, place = rest.rpartition("@")
    return f"{scheme}{divider}{login.partition(':')[0]}{at}{place}"


def wake_code(url: str, table: str) -> str:
    """A code of a table, 16 hexadecimal digits: the same for all programs that use the table.

    Names of hosts, users and drivers are left out, because programs can use different ones for one
    database. So two tables can have the same code; a secret is not in it.
    """
    scheme, _, rest = url.partition("://")
    place = rest.partition("?")[0]
    database = unquote(place.rpartition("/")[2])
    if scheme.startswith("sqlite"):
        database = os.path.realpath(f"/{place.lstrip('/')}")  # whatever links lead to it
    return f"{stable_hash(f'{database} {table}', 2**64):016x}"


def why_without_tls(url: str) -> str | None:
    """Return why the settings for TLS cannot be used with a url; None if they can be used."""
    scheme = url.partition("://")[0]
    if scheme == "unix":
        return "is a socket of this host, which has no connection to encrypt"
    if scheme in _TLS_OPTIONS or redis_urls.is_redis(url):
        return None
    if scheme.startswith("sqlite") or url == MEMORY:
        return "is an SQLite file, which has no connection to encrypt"
    return f"names a driver without settings for TLS; there are such for {', '.join(_TLS_OPTIONS)}"


def tls_options(url: str) -> tuple[str, ...]:
    """Return the names of those options in a url that concern TLS."""
    pattern = _TLS_OPTIONS.get(url.partition("://")[0])
    if pattern is None:
        return ()
    options = url.partition("?")[2].split("&")
    names = dict.fromkeys(unquote_plus(option.partition("=")[0]) for option in options)
    return tuple(name for name in names if pattern.fullmatch(name))


def _options(url: str) -> list[str]:
    return [option for option in url.partition("?")[2].split("&") if option]


def _login(url: str) -> range:
    """Return the range of positions with the user and the password; references are not replaced."""
    form = references.masked(url)
    return range(form.find("://"), form.rfind("@"))


def _server(rest: str) -> str:
    login, at, place = rest.rpartition("@")
    if re.search("[/?#]", login):
        raise InvalidValueError(
            "has a / ? or # before its last @; in a user or password write %2F %3F %23 "
            "for them, and anywhere else %40 for @"
        )
    if not _SERVER.fullmatch(place):
        raise InvalidValueError(f"must be {Url.description}")
    return login.replace("@", "%40") + at + place


def _absolute_file(rest: str, context: Context) -> str:
    name, question, options = rest.partition("?")
    if "@" in name and not name.startswith("/"):
        raise InvalidValueError("must name only a file: SQLite has no users and no hosts")
    # One slash at the beginning is removed, because a relative path has two forms: sqlite://FILE
    # (PerfectSched) and sqlite:///FILE (SQLAlchemy). An absolute path begins with two slashes, as
    # in sqlite:////FILE, so one slash remains.
    name = name.removeprefix("/")
    if name in {"", "/", ":memory:"}:
        raise InvalidValueError(
            "is a database in memory, of which each process would have its own; name a file, as in"
            " sqlite:////var/lib/psched/psched.db, or write memory: for one that is lost when its"
            " master exits"
        )
    if any(option.partition("=")[0] not in _FILE_OPTIONS for option in _options(rest)):
        raise InvalidValueError(
            f"has another option than {', '.join(_FILE_OPTIONS)}, which psched would ignore; remove"
            " it, or choose a path without ?"
        )
    if name.startswith("file:"):
        raise InvalidValueError("must be a path; write sqlite:////FOLDER/FILE without file:")
    return f"/{_path(context.absolute(name))}{question}{options}"


def _path(file: Path) -> Path:
    try:
        str(file).encode()
    except UnicodeEncodeError:
        raise InvalidValueError("leads to a path that is not UTF-8 text; choose another") from None
    # A % is refused, because SQLAlchemy 2.1 decodes %XX in a path and 2.0 does not. A ? is refused,
    # because it ends the path in both versions.
    if re.search("[%?]", str(file)):
        raise InvalidValueError("leads to a path with % or ?; choose one without")
    return file


def _state_home(environ: Mapping[str, str]) -> Path:
    state = Path(environ.get("XDG_STATE_HOME", ""))
    if state.is_absolute():  # a relative path is ignored, as the XDG specification requires
        return state
    if home := environ.get("HOME"):
        return Path(home, ".local", "state")
    raise InvalidValueError(
        "is not set, and neither STATE_DIRECTORY nor XDG_STATE_HOME nor HOME names a folder for"
        " an SQLite file; set url"
    )
