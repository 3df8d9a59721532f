"""Redis urls: their forms, and functions that parse and change them.

==========================================  ==================================================
``redis://USER:PASSWORD@HOST:PORT/DB``      a server; only the host is required
``rediss://…``                              a server, with TLS
``unix://USER:PASSWORD@/PATH?db=DB``        a server on this host, through its socket
``redis+sentinel://…@HOST,HOST/NAME/DB``    the primary that these Sentinels report
                                            (``rediss+sentinel://``: with TLS)
==========================================  ==================================================
"""

import re
from collections.abc import Collection
from dataclasses import dataclass, field, replace
from urllib.parse import quote, unquote, unquote_plus

from psched.config.kinds import MatchingText
from psched.config.problems import InvalidValueError

SCHEMES = ("redis", "rediss", "unix", "redis+sentinel", "rediss+sentinel")

HOST = MatchingText("the name or address of a host", re.compile(r"[^\s,/?#@\[\]]+"))

PORT = 6379
SENTINEL_PORT = 26379

_LARGEST_PORT = 65_535

FORMS = (
    "redis://USER:PASSWORD@HOST:PORT/DB, rediss://…, unix:///PATH?db=DB or"
    " redis+sentinel://HOST:PORT,HOST:PORT/NAME/DB"
)
_HOST = re.compile(
    r"(?P<name> \[ [^],/?\#\s]+ \] | [^],:/?\#\s[]+ ) (?: : (?P<port>\d+) )?", re.VERBOSE
)
_OPTIONS = {
    "unix": {"db"},
    "sentinel": {"sentinel_user", "sentinel_password"},
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    """The address of a Redis server, and the user and password for it."""

    hosts: tuple[tuple[str, int], ...] = ()  # of the server, or of each Sentinel
    path: str | None = None  # the socket, instead of hosts
    service: str | None = None  # the name under which the Sentinels know the server
    db: int = 0
    user: str | None = None
    password: str | None = field(default=None, repr=False)
    sentinel_user: str | None = None
    sentinel_password: str | None = field(default=None, repr=False)
    encrypted: bool = False

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
    """Whether the scheme of a url is one of `SCHEMES`; False for None."""
    return url is not None and url.partition("://")[0].lower() in SCHEMES


def parse(url: str) -> Address:
    """Parse a Redis url."""
    scheme, _, rest = url.partition("://")
    scheme = scheme.lower()
    login, at, place = rest.rpartition("@")
    place, _, query = place.partition("?")
    if scheme == "unix" and not place.startswith("/"):
        raise InvalidValueError(f"must be {FORMS}; a socket's path begins with a slash")
    if re.search("[/?#]", login) and scheme != "unix":
        raise InvalidValueError(
            "has a / ? or # before its last @; in a user or password write %2F %3F %23 for them,"
            " and anywhere else %40 for @"
        )
    kind = "unix" if scheme == "unix" else "sentinel" if scheme.endswith("+sentinel") else ""
    options = _options(query, _OPTIONS.get(kind, set()))
    user, colon, password = login.partition(":")
    address = Address(
        user=unquote(user) or None if at else None,
        password=unquote(password) if colon else None,
        encrypted=scheme.startswith("rediss"),
    )
    if kind == "unix":
        return replace(address, path=unquote(place), db=_db(options.get("db", "")))
    hosts, _, path = place.partition("/")
    if not kind:
        if "," in hosts:
            raise InvalidValueError(
                "names several hosts; if they are Sentinels, write redis+sentinel://HOST,HOST/NAME"
            )
        return replace(address, hosts=(_host(hosts, PORT),), db=_db(path))
    service, _, db = path.partition("/")
    if not service:
        raise InvalidValueError(
            "needs the name under which the Sentinels know the server, as in"
            " redis+sentinel://HOST:PORT,HOST:PORT/mymaster/0"
        )
    return replace(
        address,
        hosts=tuple(_host(each, SENTINEL_PORT) for each in hosts.split(",")),
        service=unquote(service),
        db=_db(db),
        sentinel_user=options.get("sentinel_user"),
        sentinel_password=options.get("sentinel_password"),
    )


def with_password(url: str, password: str) -> str:
    """Return a url with a password added."""
    address = parse(url)
    if address.password is not None:
        raise InvalidValueError(
            "is of no use: the url has a password already; remove one of the two"
        )
    return replace(address, password=password).url


def without_password(url: str) -> str:
    """Return a url without its password: the reverse of `with_password`."""
    return replace(parse(url), password=None).url


def _options(query: str, known: Collection[str]) -> dict[str, str]:
    options = {}
    for option in query.split("&") if query else ():
        name, _, value = option.partition("=")
        if name not in known:
            there_are = f"; there are {', '.join(sorted(known))}" if known else ""
            raise InvalidValueError(f"has an unknown option after its question mark{there_are}")
        options[name] = unquote_plus(value)
    return options


def _host(name: str, default: int) -> tuple[str, int]:
    found = _HOST.fullmatch(name)
    port = int(found["port"] or default) if found else 0
    if not found or not 0 < port <= _LARGEST_PORT:
        raise InvalidValueError(f"must be {FORMS}")
    return found["name"].strip("[]"), port


def _db(number: str) -> int:
    if not re.fullmatch(r"\d{0,6}", number):
        raise InvalidValueError("must end in the number of a database, as in redis://HOST:PORT/0")
    return int(number or 0)
