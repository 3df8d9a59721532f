"""Decides who asks for a page, and whether a form was sent by them and not by another site."""

import json
import logging
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from ipaddress import ip_address, ip_network
from typing import Any, NamedTuple

from psched.base.clock import Clock
from psched.base.errors import ConfigError
from psched.base.file_rights import user_name
from psched.base.texts import visible
from psched.web.request import Request
from psched.web.secret import Secret, digest, is_same, new_token
from psched.web.users import ADMIN, READ, Right, User, Users, allows

UNIX = "unix"
"""In place of the address of a proxy: whoever may use the Unix socket on which the pages listen."""

_LOGIN_AGE = 12 * 3600  # seconds after which somebody has to log in again
_FLASH_AGE = 60  # seconds in which a browser shows what an action has done
_ACTED_AGE = 10  # seconds after an action in which no replica is read
_LONGEST_COOKIE = 3800  # browsers drop longer ones

Access = Callable[[Request], "Right | User | None"]
"""Returns what the sender of a request may do, or also who it is; None if nothing."""

_log = logging.getLogger("psched.web")


class Visitor(NamedTuple):
    """Who asks for a page.

    Attributes:
        name: the name of the user; empty for somebody who has not logged in.
        right: what they may do.
        session: what a form of theirs is bound to; empty if they send a token with each request,
            which no other site can do.
        by_login: whether they have logged in here, and can log out.
    """

    name: str
    right: Right
    session: str = ""
    by_login: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """Who gets in.

    Attributes:
        access: decides in place of all the others; None if they decide.
        users: those of a file; None without a file.
        user_header: the header in which a proxy names the user; empty for none.
        proxies: from whom this header counts: addresses, networks, or `UNIX`.
        is_open: whether anybody may read.
        most: the most that anybody may do.
        hosts: the host names that a request may be addressed to; None means every name.
        origins: host names at which a proxy shows the pages.
    """

    access: Access | None = None
    users: Users | None = None
    user_header: str = ""
    proxies: Collection[str] = ()
    is_open: bool = False
    most: Right = "admin"
    hosts: Collection[str] | None = None
    origins: Collection[str] = ()


class Gate:
    """Decides by some rules who a visitor is; a secret signs what browsers keep."""

    def __init__(self, rules: Rules, secret: Secret, clock: Clock) -> None:
        self.rules = rules
        self._secret = secret
        self._clock = clock
        self._hosts = None if rules.hosts is None else {host.lower() for host in rules.hosts}
        self._origins = {host.lower() for host in rules.origins}
        try:
            self._proxies = [ip_network(each) for each in rules.proxies if each != UNIX]
        except ValueError as error:
            raise ConfigError(f"proxies: {error}; give addresses, networks or unix") from None

    # --- who it is --------------------------------------------------------------------------

    def visitor(self, request: Request) -> Visitor | None:
        """Who sends a request; None if nobody who may see the pages."""
        found = self._visitor(request)
        if found is not None and not allows(self.rules.most, found.right):
            return found._replace(right=self.rules.most)
        return found

    def _visitor(self, request: Request) -> Visitor | None:
        rules = self.rules
        if rules.access is not None:
            decided = rules.access(request)
            if isinstance(decided, str):
                decided = User(str(request.environ.get("REMOTE_USER") or "web"), decided)
            return None if decided is None else self._bound(request, decided)
        if given := request.header("Authorization"):
            kind, _, token = given.partition(" ")
            if kind.lower() == "bearer":
                user = self.by_token(token.strip())
                return None if user is None else Visitor(*user)
        if rules.user_header and self._is_proxy(request.remote):
            # WSGI gives the bytes of a header as if each were a character.
            name = (
                request.header(rules.user_header)
                .encode("latin-1", "replace")
                .decode("utf-8", "replace")
            )
            if name and rules.users is not None and (user := rules.users.named(name)) is not None:
                return self._bound(request, user)
        return self._logged_in(request) or (Visitor("", READ) if rules.is_open else None)

    def by_token(self, token: str) -> User | None:
        """The user who has a token."""
        if is_same(token, self._secret.token):
            return User(user_name(), ADMIN)
        return None if self.rules.users is None else self.rules.users.by_token(token)

    def _is_proxy(self, remote: str) -> bool:
        try:
            address = ip_address(remote)
        except ValueError:  # servers name none, or a word, at a Unix socket
            return UNIX in self.rules.proxies
        return any(address in network for network in self._proxies)

    def _bound(self, request: Request, user: User) -> Visitor:
        """A visitor whom another program has logged in; a cookie of ours binds their forms."""
        session = self._opened("visit", request.cookies.get(self._name(request, "visit"), ""))
        return Visitor(*user, session=str(session[0]) if session else new_token())

    # --- logging in -------------------------------------------------------------------------

    def log_in(self, request: Request) -> tuple[User, str] | None:
        """Log somebody in who has sent a link's code or a token; return also their cookie."""
        code, token = request.form.get("code", ""), request.form.get("token", "").strip()
        # What the file says of a user counts at each request, so that a line can be removed.
        by_file = ""
        if code:
            name = self._secret.follow(code, remove=True)
            user = None if name is None else User(name, ADMIN)
        else:
            user = self.by_token(token)
            by_file = "" if is_same(token, self._secret.token) else digest(token)
        if user is None:
            _log.warning("a login from %s was refused", visible(request.remote or "the socket"))
            return None
        _log.info("%s has logged in", visible(user.name))
        value = self._closed("login", user.name, by_file, new_token())
        return user, self._cookie(request, "login", value, _LOGIN_AGE)

    def link_user(self, code: str) -> str | None:
        """The user whom a link would let in."""
        return self._secret.follow(code, remove=False)

    def log_out(self, request: Request) -> str:
        """The cookie that takes the login away."""
        return self._cookie(request, "login", "", 0)

    def _logged_in(self, request: Request) -> Visitor | None:
        text = request.cookies.get(self._name(request, "login"), "")
        if (found := self._opened("login", text, _LOGIN_AGE)) is None:
            return None
        name, by_file, session = map(str, found)
        if not by_file:
            return Visitor(name, ADMIN, session, by_login=True)
        users = self.rules.users
        if users is None or (user := users.named(name)) is None or users.hash_of(name) != by_file:
            return None
        return Visitor(*user, session=session, by_login=True)

    # --- what browsers keep -----------------------------------------------------------------

    def visit_cookie(self, request: Request, visitor: Visitor) -> str | None:
        """The cookie to which a visitor's forms are bound; None if they have one."""
        if not visitor.session or visitor.by_login:
            return None
        text = request.cookies.get(self._name(request, "visit"), "")
        if self._opened("visit", text) is not None:
            return None
        return self._cookie(request, "visit", self._closed("visit", visitor.session), None)

    def flash_cookie(self, request: Request, *parts: str) -> str:
        """The cookie by which the next page says what an action has done."""
        value = self._closed("flash", *parts)
        if len(value) > _LONGEST_COOKIE:
            value = self._closed("flash", f"{parts[0][:500]}…", *("" for _ in parts[1:]))
        return self._cookie(request, "flash", value, _FLASH_AGE)

    def flash(self, request: Request) -> tuple[Sequence[str], str] | None:
        """What an action has done, and the cookie that takes it away; None if there is nothing."""
        text = request.cookies.get(self._name(request, "flash"), "")
        if (found := self._opened("flash", text, _FLASH_AGE)) is None:
            return None
        return [str(each) for each in found], self._cookie(request, "flash", "", 0)

    def acted_cookie(self, request: Request) -> str:
        """The cookie by which a browser that has just acted reads no replica, which may lag."""
        return self._cookie(request, "acted", self._closed("acted"), _ACTED_AGE)

    def has_acted(self, request: Request) -> bool:
        """Whether the browser has just acted."""
        text = request.cookies.get(self._name(request, "acted"), "")
        return self._opened("acted", text, _ACTED_AGE) is not None

    def _closed(self, purpose: str, *parts: str) -> str:
        text = json.dumps([int(self._clock.wall()), *parts])
        coded = urlsafe_b64encode(text.encode()).decode()
        return f"{coded}.{self._secret.sign(purpose, coded)}"

    def _opened(self, purpose: str, value: str, age: int = _LOGIN_AGE) -> Sequence[Any] | None:
        """What was signed for a purpose; None if somebody else has made it, or it is too old."""
        coded, _, signature = value.partition(".")
        if not signature or not is_same(signature, self._secret.sign(purpose, coded)):
            return None
        made, *parts = json.loads(urlsafe_b64decode(coded))
        return parts if -_FLASH_AGE <= self._clock.wall() - made <= age else None

    def _name(self, request: Request, purpose: str) -> str:
        # Browsers send the cookies of one port of a host to its other ports, too.
        port = str(request.environ.get("SERVER_PORT") or "0")
        return f"psched-{purpose}-{port if port.isdecimal() else '0'}"

    def _cookie(self, request: Request, purpose: str, value: str, age: int | None) -> str:
        name, path = self._name(request, purpose), request.environ.get("SCRIPT_NAME") or "/"
        # A proxy that ends TLS need not say so: the browser says from where it sends the form.
        is_tls = request.header("Origin").startswith("https://")
        secure = "; Secure" if is_tls or request.environ.get("wsgi.url_scheme") == "https" else ""
        until = "" if age is None else f"; Max-Age={age}"
        return f"{name}={value}; Path={path}{until}; HttpOnly; SameSite=Strict{secure}"

    # --- other sites ------------------------------------------------------------------------

    def is_addressed(self, request: Request) -> bool:
        """Whether a request names an allowed host.

        A page of another site could otherwise let a browser read this one, by a name that it makes
        resolve to this address (DNS rebinding).
        """
        host = request.header("Host")
        name = host.partition("]")[0] + "]" if host.startswith("[") else host.partition(":")[0]
        return self._hosts is None or name.lower() in self._hosts

    def is_own(self, request: Request) -> bool:
        """Whether a form was sent from these pages, as the browser says."""
        scheme, _, host = request.header("Origin").lower().partition("://")
        if scheme not in {"http", "https"} or not host:
            return False
        return host == request.header("Host").lower() or host in self._origins

    def csrf(self, visitor: Visitor) -> str:
        """What each form of a visitor has, and that no other site can know."""
        if not visitor.session:
            return ""
        return self._secret.sign("form", f"{visitor.session} {visitor.name}")

    def is_bound(self, request: Request, visitor: Visitor) -> bool:
        """Whether a form was made for its sender."""
        wanted = self.csrf(visitor)
        return bool(wanted) and is_same(request.form.get("csrf", ""), wanted)
