"""The settings of what the monitor does: ``expect``, ``hooks`` and ``pings``; and their URLs.

No error text, listing or log shows the URL of a hook or a ping: it contains the identifier of a
receiver, and many receivers trust whoever knows it.
"""

import base64
import json
import re
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, ClassVar, NamedTuple
from urllib.parse import unquote, unquote_to_bytes, urlsplit

from typing_extensions import override

from psched.base.file_rights import refusal_of_file
from psched.config import urls
from psched.config.kinds import (
    FILE,
    SECRET,
    Choice,
    Command,
    FrozenMapping,
    InputFile,
    Kind,
    MatchingText,
    Number,
    Parts,
    Text,
    Texts,
    kinds_of,
    read_parts,
    read_password,
    without_lines,
)
from psched.config.problems import (
    InvalidPartsError,
    InvalidValueError,
    Problem,
    config_error,
    safe_name,
)
from psched.config.references import Context

LONGEST_NAME = 64
"""The most characters in the name of a hook or a ping."""

_NAME = re.compile(rf"[A-Za-z0-9][A-Za-z0-9_.-]{{0,{LONGEST_NAME - 1}}}")


# --- URLs and headers of requests -----------------------------------------------------------

PORTS = {"http": 80, "https": 443}
"""The schemes that psched requests, each with its standard port."""

_SHORTEST_SECRET = 16
"""A part of a URL with fewer characters, such as ``ping``, is no secret. The identifier of a check
has 36 characters, a ping key has 22, and the last part of a URL of Slack 24."""

_HOST_IN_URL = re.compile(r"(?:[a-z0-9_-]{1,63}\.)*[a-z0-9_-]{1,63}\.?|[0-9a-f:.]*:[0-9a-f:.]*")
"""A name, or an IPv6 address without the name of an interface."""

_HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_HEADER_VALUE = re.compile(r"[^\x00-\x08\x0a-\x1f\x7f]*")


class Target(NamedTuple):
    """A URL, taken apart."""

    encrypted: bool
    host: str
    port: int
    path: str  # with the query
    authorization: str | None  # the header for user and password

    @property
    def shown(self) -> str:
        """Host and port, for messages."""
        return f"{self.authority}:{self.port}"

    @property
    def authority(self) -> str:
        """The host as it stands in a URL."""
        return f"[{self.host}]" if ":" in self.host else self.host


def parse_url(url: str) -> Target:
    """Take a URL apart."""
    if not re.fullmatch(r"[!-~]+", url):
        raise ValueError("must have no spaces and only ASCII characters; percent-encode the others")
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError:
        raise ValueError("has a host or a port that is invalid") from None
    if parts.scheme not in PORTS:
        raise ValueError("must begin with https:// or http://")
    if not host or not _HOST_IN_URL.fullmatch(host) or port == 0:
        raise ValueError("must name a host, and a port other than 0 if any")
    authorization = None
    if parts.username is not None:
        login = b":".join(unquote_to_bytes(each or "") for each in (parts.username, parts.password))
        authorization = f"Basic {base64.b64encode(login).decode()}"
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    return Target(parts.scheme == "https", host, port or PORTS[parts.scheme], path, authorization)


def _checked_url(url: str) -> str:
    try:
        parse_url(url)
    except ValueError as error:
        raise InvalidValueError(str(error)) from None
    return url


def header_problem(name: str, value: str) -> str | None:
    """Why a header cannot be sent; None if it can be."""
    if not _HEADER_NAME.fullmatch(name):
        return "has an invalid name"
    if not _HEADER_VALUE.fullmatch(value):
        return "contains a line break or another control character"
    return None


def secret_words(url: str) -> set[str]:
    """The parts of a URL's path and query that are so long that they may be secret, also decoded.

    Many receivers trust whoever knows such a part.
    """
    parts = urlsplit(url)
    words = re.split("[/?&=]", f"{parts.path}?{parts.query}")
    found = {word for word in words if len(word) >= _SHORTEST_SECRET}
    return found | {*map(unquote, found)}


# --- expect: what is expected of schedules --------------------------------------------------

_DURATION = Number(above=0)

PARTS: Mapping[str, Number] = MappingProxyType(
    {
        "late": _DURATION,
        "longest": _DURATION,
        "silent": _DURATION,
        "unusual": Number(unit="", above=1, most=1_000_000),
    }
)
"""For each part of the setting: the kind of its value."""

_OFF = "off"


class Expectations(FrozenMapping[float | None]):
    """What is expected of schedules, by the names of `PARTS`.

    None means that a part is switched off. A part that is missing is not mentioned: that of the
    type, or of the installation, applies. See `over`.
    """

    __slots__ = ()

    @property
    def late(self) -> float | None:
        """By how many seconds an occurrence may start late; None means by any number."""
        return self.get("late")

    @property
    def longest(self) -> float | None:
        """How many seconds a run may take; None means any number."""
        return self.get("longest")

    @property
    def silent(self) -> float | None:
        """For how many seconds a schedule may be without a success; None means any number."""
        return self.get("silent")

    @property
    def unusual(self) -> float | None:
        """How many times the usual duration a run may take; None means any number."""
        return self.get("unusual")

    @property
    def any(self) -> bool:
        """Whether anything is expected."""
        return any(value is not None for value in self.values())

    def over(self, other: "Expectations") -> "Expectations":
        """These expectations, and those parts of others that these do not mention."""
        return Expectations({**other, **self})

    def to_json(self) -> dict[str, Any]:
        """The expectations as a JSON object, which `Expect` reads."""
        return {name: _plain(value) for name, value in self.items()}

    def __repr__(self) -> str:
        return repr(self.to_json())


NO_EXPECTATIONS = Expectations()
"""The expectations of a configuration or a row that sets no part, to a value or to off."""


class Expect(Parts[Expectations]):
    """The kind of value of the setting ``expect``: a mapping, or the word off for all parts.

    YAML reads ``off`` as false, so false is accepted, and so is null.
    """

    description = (
        "a mapping such as {late: 5m, longest: 1h, silent: 1d, unusual: 3}, in which each part can"
        " be off; or off"
    )
    empty = NO_EXPECTATIONS

    @override
    def read(self, value: object, context: Context) -> Expectations:
        if value is False or value == _OFF:
            return Expectations(dict.fromkeys(PARTS))
        return super().read(value, context)

    @override
    def part(self, context: Context, name: object, value: object) -> tuple[str, float | None]:
        if name not in PARTS:
            raise InvalidValueError(f"is not a part of expect; these are {', '.join(PARTS)}")
        if value is None or value is False or value == _OFF:
            return str(name), None
        try:
            return str(name), PARTS[str(name)].read(value, context)
        except InvalidValueError as error:
            raise InvalidValueError(f"{error}; or off") from None


_EXPECT = Expect()
_LITERAL = Context({}, Path("/"), literal=True)


def read_expectations(value: object) -> Expectations:
    """Read expectations as `Expectations.to_json` writes them, or as a program gives them."""
    try:
        return _EXPECT.read(value, _LITERAL)
    except InvalidPartsError as error:
        raise config_error(each._replace(key="expect") for each in error.parts) from None
    except InvalidValueError as error:
        raise config_error([Problem(str(error), "expect")]) from None


def _plain(value: float | None) -> float | str:
    """A part as it is stored in the options of a schedule."""
    if value is None:
        return _OFF
    return int(value) if value == int(value) else value


# --- hooks: who or what is told about alerts, and how ---------------------------------------

MOST_TRIES = 12
"""The largest number of tries of a delivery. With the pauses between them, they take 6 hours."""

TEMPLATES = ("json", "slack", "teams", "ntfy", "pagerduty")
"""The forms of a webhook's body."""

READ_TEMPLATES = ("slack", "teams", "ntfy")
"""The forms that people read."""

ON_SETTINGS = ("on_failed", "on_late", "on_lost", "on_recovered")
"""The settings that name hooks."""

_MOST_NAMES = 20
"""The most hooks that one setting can name."""

# Neither a blank nor a comma, which would separate two addresses; and no option of a program.
_ADDRESS = MatchingText(
    "an address such as ops@example.org, or the name of a user of this host",
    re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+=/'-]{0,63}(@[A-Za-z0-9][A-Za-z0-9.-]{0,254})?"),
)

_SECRET_HEADER = re.compile("auth|cookie|pass|secret|token|credential|key$", re.IGNORECASE)
"""Matches the name of a header whose value is a secret."""


_WEBHOOK_URL = Text(
    "a URL that begins with https:// or http://", lambda url, _context: _checked_url(url)
)


class Headers(Kind):
    """More headers of a request, as pairs of name and value."""

    description = "a mapping from names of headers to texts"

    @override
    def read(self, value: object, context: Context) -> tuple[tuple[str, str], ...]:
        if not isinstance(value, Mapping):
            raise self.mismatch(value)
        headers = tuple(
            (self.text(name, context), self.text(each, context)) for name, each in value.items()
        )
        for name, text in headers:
            if problem := header_problem(name, text):
                raise InvalidValueError(f"one of them {problem}")
        return headers


class _Addresses(Texts):
    def __init__(self) -> None:
        super().__init__(f"{_ADDRESS.description}, or a list of such")

    @override
    def read(self, value: object, context: Context) -> tuple[str, ...]:
        addresses = tuple(_ADDRESS.read(each, context) for each in super().read(value, context))
        if not addresses:
            raise InvalidValueError(f"must be {self.description}, not an empty list")
        return addresses


class Data(Kind):
    """The payload of a task."""

    description = "a mapping"

    @override
    def read(self, value: object, context: Context) -> Mapping[str, Any]:
        if not isinstance(value, Mapping):
            raise self.mismatch(value)
        with suppress(TypeError, ValueError, RecursionError):
            if json.loads(json.dumps(dict(value), allow_nan=False)) == value:
                return dict(value)
        raise InvalidValueError(
            "must be a mapping that JSON can hold; put keys, and values such as dates, in quotes"
        )


_TRIES = Number(whole=True, unit="tries", least=1, most=MOST_TRIES)
_HOST = MatchingText(
    "the name of a server, without a port",
    re.compile(r"(?!.*\.\.)[A-Za-z0-9_][A-Za-z0-9_.-]{0,252}|(?=.*:.*:)[A-Fa-f0-9.:]{2,45}"),
)
_USER = MatchingText("the name of a user", re.compile(r"[!-~]{1,254}"))
_TYPE = MatchingText("the name of a type", re.compile(r"\S(?:.{0,253}\S)?"))


class Webhook(NamedTuple):
    """A hook that sends a request to a server."""

    url: Annotated[str, _WEBHOOK_URL]
    """A secret, because many receivers trust whoever knows it."""
    template: Annotated[str, Choice(*TEMPLATES)] = "json"
    secret: Annotated[str | None, SECRET] = None
    """The key of the signature, or PagerDuty's routing key."""
    secret_file: Annotated[Path | None, InputFile(private=True, needed=False)] = None
    headers: Annotated[tuple[tuple[str, str], ...], Headers()] = ()
    timeout: Annotated[float, Number(above=0, most=60)] = 10.0
    tries: Annotated[int, _TRIES] = MOST_TRIES

    def __repr__(self) -> str:
        return f"<{self.shown}>"

    @property
    def secrets(self) -> set[str]:
        """The texts that must not be shown, except for what `secret_file` contains."""
        found = {self.url, self.secret or ""} | urls.secrets(self.url) | secret_words(self.url)
        for name, value in self.headers:
            if _SECRET_HEADER.search(name):
                found |= {value, value.rpartition(" ")[2]}  # also what follows Bearer or Basic
        return found - {""}

    @property
    def shown(self) -> str:
        """The kind of the hook, and where it leads, without secrets."""
        return f"webhook ({self.template}) to {parse_url(self.url).shown}"


class CommandHook(NamedTuple):
    """A hook that runs a program on the host of the monitor."""

    command: Annotated[tuple[str, ...], Command()]
    timeout: Annotated[float, Number(above=0, most=600)] = 60.0
    tries: Annotated[int, _TRIES] = MOST_TRIES

    @property
    def shown(self) -> str:
        """The kind of the hook, and the program."""
        return f"command {self.command[0]}"


class MailHook(NamedTuple):
    """A hook that sends a mail: to a server, or through a program such as sendmail."""

    to: Annotated[tuple[str, ...], _Addresses()]
    sender: Annotated[str | None, _ADDRESS] = None
    """The address in the header ``From``; None means the user of the monitor."""
    sendmail: Annotated[Path, FILE] = Path("/usr/sbin/sendmail")
    """The program; not used if ``smtp`` is set."""
    smtp: Annotated[str | None, _HOST] = None
    """The name or address of the server; None if the program is used."""
    port: Annotated[int | None, Number(whole=True, least=1, most=65_535)] = None
    """The port of the server; None means the usual one."""
    tls: Annotated[str, Choice("starttls", "tls", "off")] = "starttls"
    user: Annotated[str | None, _USER] = None
    """The name for the login; None means no login."""
    password_file: Annotated[Path | None, InputFile(private=True, needed=False)] = None
    timeout: Annotated[float, Number(above=0, most=600)] = 60.0
    tries: Annotated[int, _TRIES] = MOST_TRIES

    @property
    def shown(self) -> str:
        """The kind of the hook, and the addresses."""
        return f"mail to {', '.join(self.to)}" + (f" by {self.smtp}" if self.smtp else "")


class TaskHook(NamedTuple):
    """A hook that submits a one-off task."""

    type: Annotated[str, _TYPE]
    data: Annotated[Mapping[str, Any], Data()] = MappingProxyType({})
    """The payload, to which the notification is added."""
    tries: Annotated[int, _TRIES] = MOST_TRIES

    def __repr__(self) -> str:
        return f"<{self.shown}>"

    @property
    def shown(self) -> str:
        """The kind of the hook, and the type of the task."""
        return f"task of type {self.type}"


Hook = Webhook | CommandHook | MailHook | TaskHook


class Hooks(FrozenMapping[Hook]):
    """The hooks, by their names."""

    __slots__ = ()

    def __repr__(self) -> str:
        # Secrets are left out by the hooks that have any.
        return repr(dict(self))

    @property
    def secrets(self) -> set[str]:
        """The texts that must not be shown."""
        found = set[str]()
        for hook in self.values():
            if isinstance(hook, Webhook):
                found |= hook.secrets
        return found


NO_HOOKS = Hooks()


class HookNames(Texts):
    """A list of names of hooks."""

    def __init__(self) -> None:
        super().__init__("the name of a hook, or a list of such")

    @override
    def read(self, value: object, context: Context) -> tuple[str, ...]:
        names = tuple(dict.fromkeys(super().read(value, context)))
        if not all(map(_NAME.fullmatch, names)):
            raise InvalidValueError(f"must be {self.description}, which is defined in hooks")
        if len(names) > _MOST_NAMES:
            raise InvalidValueError(f"names more than {_MOST_NAMES} hooks")
        return names


_KINDS: Mapping[str, type[Hook]] = {
    "webhook": Webhook,
    "command": CommandHook,
    "mail": MailHook,
    "task": TaskHook,
}
"""The kinds of hook, by the field that each must have."""

_ATTRIBUTES = {"webhook": "url", "mail": "to", "from": "sender", "task": "type"}
"""The fields that are called otherwise in Python."""


def fields_of(kind: str) -> Mapping[str, Kind]:
    """The kinds of the fields of a kind of hook, by their names in a configuration."""
    names = {attribute: name for name, attribute in _ATTRIBUTES.items()}
    return {names.get(each, each): read for each, read in kinds_of(_KINDS[kind]).items()}


class HooksKind(Parts[Hooks]):
    """The kind of value of the setting ``hooks``: a mapping from names to hooks."""

    description = "a mapping from names to hooks"
    empty = NO_HOOKS
    kinds: ClassVar = {kind: fields_of(kind) for kind in _KINDS}
    """The kinds of the fields of each kind of hook."""

    @override
    def part(self, context: Context, name: object, value: object) -> tuple[str, Hook]:
        if not (isinstance(name, str) and _NAME.fullmatch(name)):
            raise InvalidValueError(
                "must be a name of letters, digits, _, . and -, at most 64 of them"
            )
        if not isinstance(value, Mapping) or len({*_KINDS} & {*value}) != 1:
            raise InvalidValueError(f"must be a mapping with one of {', '.join(_KINDS)}")
        kind = next(each for each in _KINDS if each in value)
        fields = self.kinds[kind]

        def read_field(field_name: object, given: object) -> tuple[str, Any]:
            if field_name not in fields:
                raise InvalidValueError(f"is no field of a {kind}; these are {', '.join(fields)}")
            key = str(field_name)
            return _ATTRIBUTES.get(key, key), fields[key].read(without_lines(given), context)

        values = read_parts(value, read_field)
        if kind == "mail" and (wrong := [*_contradictions(value)]):
            raise InvalidPartsError([Problem(text) for text in wrong])
        hook = _KINDS[kind](**values)
        _check_hook(hook)
        return name, hook


def problems_here(hooks: Mapping[str, Hook]) -> Iterator[str]:
    """Yield what the hooks need that this user does not have on this host, a line for each hook."""
    for name, hook in hooks.items():
        program = None
        if isinstance(hook, CommandHook):
            program = hook.command[0]
        elif isinstance(hook, MailHook) and hook.smtp is None:
            program = str(hook.sendmail)
        for field_name in ("secret_file", "password_file"):
            if (file := getattr(hook, field_name, None)) is not None:
                try:
                    read_password(file)
                except InvalidValueError as error:
                    yield f"{name}: {field_name}: {error}"
        if program is not None:
            from shutil import which  # noqa: PLC0415  # only for this check

            reason: str | None = f"{program} is not on this host, or not executable"
            if path := which(program):
                reason = refusal_of_file(Path(path), owner=False)
            if reason is not None:
                yield f"{name}: {reason}"


def undefined_hooks(values: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield each setting that names a hook that ``hooks`` does not define, and what is wrong."""
    hooks: Collection[str] = values["hooks"]
    for setting in ON_SETTINGS:
        for name in values[setting]:
            if name not in hooks:
                yield setting, _undefined_hook(name, hooks)
        for type_, own in values["types"].items():
            for name in own.get(setting, ()):
                if name not in hooks:
                    yield "types", f"{type_}.{setting}: {_undefined_hook(name, hooks)}"


def secret_parts(value: object) -> Iterator[object]:
    """Yield the parts of an unexpanded value of ``hooks`` that can contain secrets."""
    definitions = without_lines(value)
    for own in definitions.values() if isinstance(definitions, Mapping) else ():
        if isinstance(own, Mapping):
            yield from (own[name] for name in ("webhook", "secret", "headers") if name in own)


def _undefined_hook(name: str, hooks: Collection[str]) -> str:
    there_are = f"; there are {', '.join(hooks)}" if hooks else ", which is empty"
    return f"names the hook {name}, which is not in hooks{there_are}"


def _contradictions(own: Mapping[Any, object]) -> Iterator[str]:
    """Yield what is wrong with the fields of a mail hook together."""
    if "smtp" not in own:
        if needless := {"port", "tls", "user", "password_file"} & {*own}:
            yield f"has {min(needless)} without smtp; set smtp to the name of the server"
        return
    if "sendmail" in own:
        yield "has smtp and sendmail; remove one of the two"
    if "from" not in own:
        yield "needs from, the address of the sender, because a server does not know it"
    if ("user" in own) != ("password_file" in own):
        yield "needs both user and password_file, or none of them"
    if "user" in own and without_lines(own.get("tls")) in {"off", False}:
        yield "would send the password in clear text; set tls to starttls or tls"


def _check_hook(hook: Hook) -> None:
    """Find contradictions between the fields of a hook."""
    if not isinstance(hook, Webhook):
        return
    if hook.secret is not None and hook.secret_file is not None:
        raise InvalidValueError("has secret and secret_file; remove one of the two")
    if hook.template == "pagerduty" and hook.secret is None and hook.secret_file is None:
        raise InvalidValueError("needs PagerDuty's routing key; set secret or secret_file to it")
    if hook.template == "ntfy" and not parse_url(hook.url).path.partition("?")[0].strip("/"):
        raise InvalidValueError("needs the topic at the end of the URL: https://ntfy.sh/TOPIC")


# --- pings: checks of a ping server ---------------------------------------------------------

NO_PING = "none"
"""The value of the setting ``ping`` that means that nothing is pinged."""

KEY = "{key}"
"""In the path of a URL, this stands for the slug of the schedule's key."""

PING_NAME = MatchingText(
    f"the name of a ping in pings (letters, digits, _, . and -, at most {LONGEST_NAME}), or none",
    _NAME,
)
"""The kind of value of the setting ``ping``."""


class Pings(FrozenMapping[str]):
    """The URLs of pings by their names."""

    __slots__ = ()

    def __repr__(self) -> str:
        # Only the names are shown, because the URLs are secrets.
        return f"<{', '.join(self)}>"

    @property
    def secrets(self) -> set[str]:
        """The URLs, and those parts of them that are secret."""
        found = set[str]()
        for url in self.values():
            parts = urlsplit(url)
            if parts.path != f"/{KEY}":
                found.add(url.partition(f"/{KEY}")[0])
            found |= secret_words(url) | urls.secrets(url)
        return (found | {*map(unquote, found)}) - {""}


NO_PINGS = Pings()


class PingUrls(Parts[Pings]):
    """A mapping from names to URLs."""

    description = "a mapping from names to URLs, as in backup: https://hc-ping.com/UUID"
    empty = NO_PINGS

    @override
    def part(self, context: Context, name: object, value: object) -> tuple[str, str]:
        return _read_name(name), _read_url(self.text(value, context))


def undefined_pings(values: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Find the pings that a configuration names and does not define."""
    pings: Mapping[str, str] = values["pings"]
    if values["ping"] not in {NO_PING, *pings}:
        yield "ping", _undefined_ping(values["ping"], pings)
    for of_type, own in values["types"].items():
        name = own.get("ping", NO_PING)
        if name not in {NO_PING, *pings}:
            yield "types", f"{safe_name(of_type)}.ping: {_undefined_ping(name, pings)}"


def _undefined_ping(name: str, pings: Mapping[str, str]) -> str:
    there_are = f"there are {', '.join(pings)}" if pings else "there are none"
    return f"names the ping {safe_name(name)}, which is not in pings; {there_are}"


def _read_name(name: object) -> str:
    if not isinstance(name, str) or not _NAME.fullmatch(name) or name == NO_PING:
        raise InvalidValueError(
            "must have a name of letters, digits, _, . and -, at most"
            f" {LONGEST_NAME} of them, and not none"
        )
    return name


def _read_url(url: str) -> str:
    """Check a URL, and return it without a slash at the end of its path."""
    parts = urlsplit(_checked_url(url))
    if "#" in url:
        raise InvalidValueError("has a #; remove it and what follows")
    if "rid=" in parts.query:
        raise InvalidValueError("has the option rid, which psched adds itself; remove it")
    path = parts.path.rstrip("/")
    if not path:
        raise InvalidValueError("has no path, so it names no check")
    if re.search("[{}]", url.replace(f"/{KEY}", "", 1)) or (
        KEY in path and not path.endswith(f"/{KEY}")
    ):
        raise InvalidValueError(f"has a brace; only {KEY} can stand in it, at the end of its path")
    return parts._replace(path=path).geturl()
