"""The urls of stores, in the forms that users write and that stores read; and their encryption.

A database's url is converted to the form of SQLAlchemy. In a converted url, the user and password
contain none of the characters that separate the parts of a url. So no parser can mistake a part of
the password for a host or port, and then show this part in an error. `RedisAddress` is a Redis url,
taken apart:

==========================================  ==================================================
``redis://USER:PASSWORD@HOST:PORT/DB``      a server; only the host is required
``rediss://…``                              a server, with TLS
``unix://USER:PASSWORD@/PATH?db=DB``        a server on this host, through its socket
``redis+sentinel://…@HOST,HOST/NAME/DB``    the primary that these Sentinels report
                                            (``rediss+sentinel://``: with TLS)
==========================================  ==================================================

The settings for TLS (encrypted connections) are combined in one `Tls` object.
"""

import os
import re
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote, unquote, unquote_plus

from typing_extensions import override

from psched.config import references
from psched.config.kinds import Kind, MatchingText
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
        if is_redis(url):
            return redis_address(url).url
        if aws_kind(url):
            return aws_address(url).url
        scheme, divider, rest = url.partition("://")
        parts = _SCHEME.fullmatch(scheme.lower())
        if not divider or not parts:
            raise InvalidValueError(f"must be {self.description}")
        database = _ALIASES.get(parts["database"], parts["database"])
        if database not in _DATABASES:
            raise InvalidValueError(
                f"names an unknown kind of database; known are {', '.join(_DATABASES)}, redis,"
                f" {', '.join(AWS_KINDS)}"
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
    scheme, divider, rest = url.partition("://")
    login, at, place = rest.rpartition("@")
    if scheme.startswith("sqlite") or url == MEMORY:
        raise InvalidValueError("is of no use: the url names an SQLite file, which has no password")
    address = redis_address(url) if is_redis(url) else None
    if address is not None:
        has_one = address.password is not None
    else:
        has_one = ":" in login or _PASSWORD_OPTION.search(place) is not None
    if has_one:
        raise InvalidValueError(
            "is of no use: the url has a password already; remove one of the two"
        )
    if address is not None:
        return address._replace(password=password).url
    if not at:
        raise InvalidValueError("needs a user in the url, as in mysql://USER@HOST/DATABASE")
    return f"{scheme}{divider}{login}:{quote(password, safe='')}@{place}"


def without_password(url: str) -> str:
    """Return a url without its password: the reverse of `with_password`."""
    if is_redis(url):
        return redis_address(url)._replace(password=None).url
    scheme, divider, rest = url.partition("://")
    login, at, place = rest.rpartition("@")
    return f"{scheme}{divider}{login.partition(':')[0]}{at}{place}"


def with_login(url: str, other: str) -> str:
    """Return a url with the user and the password of another one, unless it has a user."""
    scheme, divider, rest = url.partition("://")
    login, at, _ = other.partition("://")[2].rpartition("@")
    return url if "@" in rest else f"{scheme}{divider}{login}{at}{rest}"


def wake_code(url: str, table: str) -> str:
    """A code of a table, 16 hexadecimal digits: the same for all programs that use the table.

    Names of hosts, users and drivers are left out, because programs can use different ones for one
    database. So two tables can have the same code; a secret is not in it.
    """
    # To hash, OpenSSL is loaded: nothing else in the settings needs it.
    from psched.base.stable_hash import stable_hash  # noqa: PLC0415

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
    if scheme in _TLS_OPTIONS or is_redis(url):
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


# --- Redis ----------------------------------------------------------------------------------


_REDIS = ("redis", "rediss", "unix", "redis+sentinel", "rediss+sentinel")

REDIS_HOST_NAME = MatchingText("the name or address of a host", re.compile(r"[^\s,/?#@\[\]]+"))

REDIS_PORT = 6379
_SENTINEL_PORT = 26379

_LARGEST_PORT = 65_535

REDIS_FORMS = (
    "redis://USER:PASSWORD@HOST:PORT/DB, rediss://…, unix:///PATH?db=DB or"
    " redis+sentinel://HOST:PORT,HOST:PORT/NAME/DB"
)
_REDIS_HOST = re.compile(
    r"(?P<name> \[ [^],/?\#\s]+ \] | [^],:/?\#\s[]+ ) (?: : (?P<port>\d+) )?", re.VERBOSE
)
_REDIS_OPTIONS = {
    "unix": {"db"},
    "sentinel": {"sentinel_user", "sentinel_password"},
}


class RedisAddress(NamedTuple):
    """The address of a Redis server, and the user and password for it."""

    hosts: tuple[tuple[str, int], ...] = ()  # of the server, or of each Sentinel
    path: str | None = None  # the socket, instead of hosts
    service: str | None = None  # the name under which the Sentinels know the server
    db: int = 0
    user: str | None = None
    password: str | None = None
    sentinel_user: str | None = None
    sentinel_password: str | None = None
    encrypted: bool = False

    def __repr__(self) -> str:
        return f"RedisAddress({without_secrets(self.url)})"

    @property
    def url(self) -> str:
        """The url in its normal form. It contains all passwords, so messages must not show it."""
        login = "" if self.user is None else quote(self.user, safe="")
        if self.password is not None:
            login += f":{quote(self.password, safe='')}"
        at = f"{login}@" if login else ""
        if self.path is not None:
            return f"unix://{at}{quote(self.path, safe='/:')}" + (f"?db={self.db}" * (self.db > 0))
        places = ",".join(f"[{h}]:{p}" if ":" in h else f"{h}:{p}" for h, p in self.hosts)
        scheme = "rediss" if self.encrypted else "redis"
        if self.service is None:
            return f"{scheme}://{at}{places}/{self.db}"
        secrets = {"user": self.sentinel_user, "password": self.sentinel_password}
        options = "&".join(
            f"sentinel_{name}={quote(value, safe='')}" for name, value in secrets.items() if value
        )
        path = f"{quote(self.service, safe='')}/{self.db}"
        return f"{scheme}+sentinel://{at}{places}/{path}" + (f"?{options}" if options else "")


def is_redis(url: str | None) -> bool:
    """Whether a url is that of a Redis server; False for None."""
    return url is not None and url.partition("://")[0].lower() in _REDIS


def redis_address(url: str) -> RedisAddress:
    """Parse a Redis url."""
    scheme, _, rest = url.partition("://")
    scheme = scheme.lower()
    login, at, place = rest.rpartition("@")
    place, _, query = place.partition("?")
    if scheme == "unix" and not place.startswith("/"):
        raise InvalidValueError(f"must be {REDIS_FORMS}; a socket's path begins with a slash")
    if re.search("[/?#]", login) and scheme != "unix":
        raise InvalidValueError(
            "has a / ? or # before its last @; in a user or password write %2F %3F %23 for them,"
            " and anywhere else %40 for @"
        )
    kind = "unix" if scheme == "unix" else "sentinel" if scheme.endswith("+sentinel") else ""
    options = _redis_options(query, _REDIS_OPTIONS.get(kind, set()))
    user, colon, password = login.partition(":")
    address = RedisAddress(
        user=unquote(user) or None if at else None,
        password=unquote(password) if colon else None,
        encrypted=scheme.startswith("rediss"),
    )
    if kind == "unix":
        return address._replace(path=unquote(place), db=_redis_db(options.get("db", "")))
    hosts, _, path = place.partition("/")
    if not kind:
        if "," in hosts:
            raise InvalidValueError(
                "names several hosts; if they are Sentinels, write redis+sentinel://HOST,HOST/NAME"
            )
        return address._replace(hosts=(_redis_host(hosts, REDIS_PORT),), db=_redis_db(path))
    service, _, db = path.partition("/")
    if not service:
        raise InvalidValueError(
            "needs the name under which the Sentinels know the server, as in"
            " redis+sentinel://HOST:PORT,HOST:PORT/mymaster/0"
        )
    return address._replace(
        hosts=tuple(_redis_host(each, _SENTINEL_PORT) for each in hosts.split(",")),
        service=unquote(service),
        db=_redis_db(db),
        sentinel_user=options.get("sentinel_user"),
        sentinel_password=options.get("sentinel_password"),
    )


def _redis_options(query: str, known: Collection[str]) -> dict[str, str]:
    options = {}
    for option in query.split("&") if query else ():
        name, _, value = option.partition("=")
        if name not in known:
            there_are = f"; there are {', '.join(sorted(known))}" if known else ""
            raise InvalidValueError(f"has an unknown option after its question mark{there_are}")
        options[name] = unquote_plus(value)
    return options


def _redis_host(name: str, default: int) -> tuple[str, int]:
    found = _REDIS_HOST.fullmatch(name)
    port = int(found["port"] or default) if found else 0
    if not found or not 0 < port <= _LARGEST_PORT:
        raise InvalidValueError(f"must be {REDIS_FORMS}")
    return found["name"].strip("[]"), port


def _redis_db(number: str) -> int:
    if not re.fullmatch(r"\d{0,6}", number):
        raise InvalidValueError("must end in the number of a database, as in redis://HOST:PORT/0")
    return int(number or 0)


# --- DynamoDB and SimpleDB ------------------------------------------------------------------

AWS_KINDS = ("dynamodb", "simpledb")
"""The services of AWS; each is a scheme of urls, and a value of the setting ``type``."""

_AWS = re.compile(
    r"""
    (?P<kind>dynamodb|simpledb):
    (?:
        // (?P<region>[a-z0-9-]*)
        (?: \?endpoint= (?P<endpoint>https?://[\w.-]+(?::\d{1,5})?) /? )?
    )?
    """,
    re.VERBOSE,
)


class AwsAddress(NamedTuple):
    """A service in a region of AWS; None means the region that AWS' variables or files name.

    The endpoint is the address of another server with the same protocol, such as a test's.
    """

    kind: str
    region: str | None = None
    endpoint: str | None = None

    @property
    def url(self) -> str:
        """The url in its normal form."""
        endpoint = "" if self.endpoint is None else f"?endpoint={self.endpoint}"
        return f"{self.kind}://{self.region or ''}{endpoint}"


def aws_kind(url: str | None) -> str | None:
    """Which of `AWS_KINDS` a url is of; None for any other."""
    kind = (url or "").partition(":")[0].lower()
    return kind if kind in AWS_KINDS else None


def aws_address(url: str) -> AwsAddress:
    """Parse a url of one of `AWS_KINDS`."""
    found = _AWS.fullmatch(url)
    if found is None:
        kind = aws_kind(url)
        raise InvalidValueError(
            f"must be {kind}://REGION, or {kind}:// for the region that AWS' variables or files"
            " name; AWS' keys are no part of it, but are in these variables and files, or a role's"
        )
    return AwsAddress(found["kind"], found["region"] or None, found["endpoint"])


# --- TLS ------------------------------------------------------------------------------------


TLS_SETTINGS = ("ssl_ca", "ssl_cert", "ssl_key", "ssl_verify")
"""The names of the settings for TLS."""

TLS_VERIFY = ("full", "ca", "none")
"""The values of the setting ``ssl_verify``. They select what psched checks when it connects to a
server: the server's certificate and name (``full``), only the certificate (``ca``), or nothing
(``none``)."""


class Tls(NamedTuple):
    """How a connection is encrypted; the fields are the settings ``ssl_…``."""

    verify: str
    ca: Path | None  # None only if nothing is verified
    cert: Path | None
    key: Path | None

    @property
    def checklist(self) -> str:
        """What the operator can check if psched cannot connect, as questions for an error text."""
        questions = ["Does the server offer TLS"]
        match self.verify:
            case "full":
                questions.append(
                    "is its certificate in date, by the authority in ssl_ca, and for this host's"
                    " name (ssl_verify: ca accepts any name)"
                )
            case "ca":
                questions.append("is its certificate in date and by the authority in ssl_ca")
        if self.cert is None:
            questions.append("does it want a client's certificate (set ssl_cert and ssl_key)")
        else:
            questions.append("does it accept the one in ssl_cert")
        return ", ".join(questions) + "?"


def tls_of(values: Mapping[str, Any]) -> Tls | None:
    """Convert valid settings to a `Tls` object.

    Return None if no setting requires TLS. Then the options in the url decide whether a connection
    is encrypted, or else the default of the database driver.
    """
    given = {name: values[f"ssl_{name}"] for name in ("ca", "cert", "key")}
    verify = values["ssl_verify"] or ("full" if given["ca"] else None)
    return None if verify is None else Tls(verify=verify, **given)
