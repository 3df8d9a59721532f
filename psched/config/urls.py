"""Database urls: the forms that users write, made the one form that SQLAlchemy reads.

A url that was read here can be handed to any parser: its user and password hold none of
the characters that divide a url, so no part of them is taken for a host or a port and
then shown in somebody's error text.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import quote, unquote_plus

from psched.config import redis_urls, references
from psched.config.kinds import text
from psched.config.problems import InvalidValueError
from psched.config.references import Context

_DATABASES = {
    "sqlite": "sqlite",
    "mysql": "mysql+pymysql",
    "mariadb": "mysql+pymysql",
    "postgresql": "postgresql+psycopg",
}
"""The schemes psched can use, and what each means to SQLAlchemy if it names no driver."""

_ALIASES = {"mysql2": "mysql", "postgres": "postgresql"}
"""Schemes of Ruby's PerfectSched, and of libpq."""

MEMORY = "memory:"
"""The url of schedules that are gone with their master; see `psched.memory`."""

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
"""The scheme and the user, then the password, which reaches to the last @. What has a slash
before its first colon is the path of a file."""

_SECRET_OPTION = re.compile(r"([?&][^=&]*(?:pass|pwd)[^=&]*=)[^&]*", re.IGNORECASE)

_PASSWORD_OPTION = re.compile(r"[?&]pass(?:word|wd)=")

_MYSQL_TLS = re.compile(r"ssl.*")
_TLS_OPTIONS = {
    "mysql+pymysql": _MYSQL_TLS,
    "mariadb+pymysql": _MYSQL_TLS,
    "postgresql+psycopg": re.compile(r"ssl(?:mode|rootcert|cert|key)|requiressl|gssencmode"),
}
"""The schemes with settings for TLS, and the options of a url which say the same in the
driver's words."""


class Url:
    """The url of a database, as SQLAlchemy reads it; `placed` makes a relative file absolute."""

    def describe(self) -> str:
        """See `Kind.describe`."""
        return (
            "a url such as mysql://USER:PASSWORD@HOST:PORT/DATABASE, postgresql://… or"
            " sqlite:////FOLDER/FILE (sqlite:///FILE is a file in the current folder), or memory:"
        )

    def read(self, value: object, around: Context) -> str:
        """See `Kind.read`. References among user and password are percent-encoded."""
        encode = _login(value) if isinstance(value, str) else range(0)
        url = text(self, value, around, encode=encode)
        if url.lower() in {MEMORY, f"{MEMORY}//"}:
            return MEMORY
        if redis_urls.is_redis(url):
            return redis_urls.parse(url).url
        scheme, divider, rest = url.partition("://")
        parts = _SCHEME.fullmatch(scheme.lower())
        if not divider or not parts:
            raise InvalidValueError(f"must be {self.describe()}")
        database = _ALIASES.get(parts["database"], parts["database"])
        if database not in _DATABASES:
            raise InvalidValueError(
                f"is of no known kind; known are {', '.join(_DATABASES)}, redis"
            )
        dialect = f"{database}+{parts['driver']}" if parts["driver"] else _DATABASES[database]
        place = rest if database == "sqlite" else _server(rest)
        return f"{dialect}://{place}"


def placed(url: str, around: Context) -> str:
    """`url`, which `Url` has read, with the file that it names, if it names one, made absolute.

    Raises:
        RefusedError: it names no file that can be used.
    """
    scheme, divider, rest = url.partition("://")
    if not scheme.startswith("sqlite"):
        return url
    return f"{scheme}{divider}{_file(rest, around)}"


def from_sequel(url: str) -> str:
    """A url as Ruby's Sequel reads it, written as psched does.

    To Sequel, and so to PerfectSched, ``sqlite:///FILE`` is an absolute path and ``sqlite://FILE``
    a relative one; and the option ``encoding`` has another name in each of our drivers.
    """
    scheme, divider, rest = url.partition("://")
    if scheme.lower().startswith("sqlite") and rest.startswith("/"):
        return f"{scheme}{divider}//{rest.lstrip('/')}"
    login, at, place = rest.rpartition("@")
    encoding = "client_encoding" if scheme.lower().startswith("postgres") else "charset"
    place = re.sub(r"(?<=[?&])encoding=", f"{encoding}=", place)
    return f"{scheme}{divider}{login}{at}{place}"


def in_state_folder(around: Context) -> str:
    """The url of the embedded database that serves where none is configured.

    Raises:
        RefusedError: no environment variable tells where state is kept.
    """
    # systemd lists all folders of the unit, divided by colons.
    folder, _, _ = around.environ.get("STATE_DIRECTORY", "").partition(":")
    state = Path(folder) if folder else _state_home(around.environ) / "psched"
    return f"sqlite:///{_path(around.cwd / state / 'psched.db')}"


def file_of(url: str) -> Path | None:
    """The file that a `url` names; None: it names none."""
    scheme, _, place = url.partition("://")
    if not scheme.startswith("sqlite"):
        return None
    return Path(place.removeprefix("/").partition("?")[0])


def each_host(url: str) -> tuple[str, ...]:
    """The urls of the servers that one url names, which differ in host and port only."""
    scheme, divider, rest = url.partition("://")
    login, at, place = rest.rpartition("@")
    hosts, slash, database = place.partition("/")
    return tuple(
        f"{scheme}{divider}{login}{at}{host}{slash}{database}" for host in hosts.split(",")
    )


def safe(url: str) -> str:
    """`url` with ``***`` in place of its password, to be shown to people."""
    return _SECRET_OPTION.sub(r"\1***", _PASSWORD.sub(r"\1***", url))


def secret_variables(url: str) -> set[str]:
    """The environment variables in which a password may stand, of a url as it was written.

    What stands for a host, a file or a user's name is no secret: others may need that variable.
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
    """`url`, which has none, with a password.

    Raises:
        RefusedError: it has one, or there is no place for one.
    """
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
    """`url` without what `with_password` has put into it."""
    if redis_urls.is_redis(url):
        return redis_urls.without_password(url)
    scheme, divider, rest = url.partition("://")
    login, at, place = rest.rpartition("@")
    return f"{scheme}{divider}{login.partition(':')[0]}{at}{place}"


def why_without_tls(url: str) -> str | None:
    """Why there are no settings for TLS on the database of a `url`; None if there are."""
    scheme = url.partition("://")[0]
    if scheme == "unix":
        return "is a socket of this host, which has no connection to encrypt"
    if scheme in _TLS_OPTIONS or redis_urls.is_redis(url):
        return None
    if scheme.startswith("sqlite") or url == MEMORY:
        return "is an SQLite file, which has no connection to encrypt"
    return f"names a driver without settings for TLS; those with are {', '.join(_TLS_OPTIONS)}"


def tls_options(url: str) -> tuple[str, ...]:
    """The options of a `url` that say something of TLS, by name."""
    pattern = _TLS_OPTIONS.get(url.partition("://")[0])
    if pattern is None:
        return ()
    options = url.partition("?")[2].split("&")
    names = dict.fromkeys(unquote_plus(option.partition("=")[0]) for option in options)
    return tuple(name for name in names if pattern.fullmatch(name))


def _login(url: str) -> range:
    """Where user and password stand in a url as it was written, references and all."""
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
        raise InvalidValueError(f"must be {Url().describe()}")
    return login.replace("@", "%40") + at + place


def _file(rest: str, around: Context) -> str:
    name, question, options = rest.partition("?")
    if "@" in name and not name.startswith("/"):
        raise InvalidValueError("must name only a file: SQLite has no users and no hosts")
    # Two slashes are PerfectSched's way to write a relative file, three are SQLAlchemy's;
    # with four it is absolute.
    name = name.removeprefix("/")
    if name in {"", "/", ":memory:"}:
        raise InvalidValueError(
            "is a database in memory, of which each process would have its own; name a file, as in"
            " sqlite:////var/lib/psched/psched.db, or write memory: for what goes with its master"
        )
    if name.startswith("file:"):
        raise InvalidValueError("must be a path; write sqlite:////FOLDER/FILE without file:")
    return f"/{_path(around.cwd / name)}{question}{options}"


def _path(file: Path) -> Path:
    try:
        str(file).encode()
    except UnicodeEncodeError:
        raise InvalidValueError("leads to a path that is not UTF-8 text; choose another") from None
    # SQLAlchemy 2.1 decodes %XX in a path, 2.0 does not; a ? ends the path in both.
    if re.search("[%?]", str(file)):
        raise InvalidValueError("leads to a path with % or ?; choose one without")
    return file


def _state_home(environ: Mapping[str, str]) -> Path:
    state = Path(environ.get("XDG_STATE_HOME", ""))
    if state.is_absolute():  # the XDG specification has others ignored
        return state
    if home := environ.get("HOME"):
        return Path(home, ".local", "state")
    raise InvalidValueError(
        "is not set, and neither STATE_DIRECTORY nor XDG_STATE_HOME nor HOME tells "
        "where a database of our own could be; set url"
    )
