"""The WSGI application of the pages: it answers a request with a page, or refuses it."""

import json
import logging
import socket
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from hashlib import sha256
from http import HTTPStatus
from math import inf
from pathlib import Path
from threading import Lock
from typing import Any, NamedTuple, Protocol

import jinja2

from psched.app import CLOCK
from psched.base.errors import (
    AlreadyExistsError,
    AlreadyFinishedError,
    InvalidError,
    NotFoundError,
    PschedError,
    StoreBusyError,
    StoreSlowError,
    TransientStoreError,
    UnknownOutcomeError,
)
from psched.base.texts import visible
from psched.cli.daemon.masters import table_of
from psched.cli.time_format import local_times
from psched.cli.top.snapshot import Reader
from psched.client.access import ChangedMeanwhileError
from psched.client.auditor import Author
from psched.client.collection import ScheduleCollection
from psched.config import Config
from psched.reports.redaction import Redaction
from psched.web import actions
from psched.web.asgi import AsgiApplication
from psched.web.asked import DEADLINE, LOOK, POLL, REFRESH, Asked, Page
from psched.web.gate import Gate, Visitor
from psched.web.live import Live, digest_of
from psched.web.openapi import description
from psched.web.pages import PAGES
from psched.web.request import KEEP_OPEN, Request, Response
from psched.web.users import READ, RIGHTS, Right, allows

_FILES = Path(__file__).parent / "templates"
_STATIC = Path(__file__).parent / "static"
_KINDS = {".css": "text/css", ".js": "text/javascript"}
_KEPT_LONG = "Cache-Control", "public, max-age=31536000, immutable"
"""The header for a file whose address contains the digest of its content."""

_LONGEST_WAIT = 5.0  # seconds in which a request waits for those before it

_LOGIN, _LOGOUT, _ACT, _LIVE = "/login", "/logout", "/act", "/live"
_PATHS = {"/": "timeline"} | {f"/{name}": name for name in PAGES if name != "timeline"}
_API_PREFIX = "/api/v1/"
_API = {f"{_API_PREFIX}{name}.json": name for name in PAGES}
"""The names of the pages, by their paths as HTML and as JSON."""
_API_ACTIONS = {f"{_API_PREFIX}{name}": name for name in actions.ACTIONS}
_OPENAPI = f"{_API_PREFIX}openapi.json"

_POLICY = (
    "default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self';"
    " form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
"""No script runs but those of these pages, and no other site shows a page in a frame."""

_HEADERS = (
    ("Content-Security-Policy", _POLICY),
    ("Cross-Origin-Resource-Policy", "same-origin"),
    # A browser tells these pages from where it sends a form, and others nothing.
    ("Referrer-Policy", "same-origin"),
    ("X-Content-Type-Options", "nosniff"),
    ("Cache-Control", "no-store"),
)

_CONFLICTS = (AlreadyExistsError, AlreadyFinishedError, ChangedMeanwhileError)
"""The errors about a schedule that is not as the visitor has seen it."""

_TELLING = (StoreBusyError, actions.PartlyDoneError)
"""The errors of the store that say more than that it has not answered in time."""

_log = logging.getLogger("psched.web")


class StartResponse(Protocol):
    """The function that a WSGI server passes, see PEP 3333."""

    def __call__(self, status: str, headers: list[tuple[str, str]], /) -> object:
        """Begin the response."""


class _Refused(Exception):  # noqa: N818  # no error of the pages
    """A request is answered with a page that says why not."""

    def __init__(self, status: HTTPStatus, text: str, *headers: tuple[str, str]) -> None:
        super().__init__(text)
        page = _refusal(status, text)
        self.page = page._replace(is_away=status == HTTPStatus.SERVICE_UNAVAILABLE)
        self.headers = headers


class _Frame(NamedTuple):
    """What all pages of a visitor have in common."""

    visitor: Visitor | None
    csrf: str = ""
    flash: Sequence[str] = ()


class Source:
    """The store, or its replica, which pages are read from.

    One request after the other reads it, because there is one connection to it; who would wait too
    long is told so. The connection is closed after each request: a page that nobody reads costs the
    database nothing.
    """

    def __init__(
        self,
        schedules: ScheduleCollection,
        reader: Reader,
        told: Callable[[Exception | str], str] = str,
    ) -> None:
        self.schedules = schedules
        self.reader = reader
        self.told = told
        self.away_at = -inf  # when it has last not answered
        self._lock = Lock()

    @contextmanager
    def turn(self, is_gone: Callable[[], bool]) -> Iterator[None]:
        """Wait for those who read the store before; this must not take long if the store hangs.

        All threads of the application around this one could wait here.
        """
        since = CLOCK.monotonic()
        has_to_wait = not self._lock.acquire(blocking=False)
        if has_to_wait and not self._lock.acquire(timeout=_LONGEST_WAIT):
            text = self.told("Others wait for an answer of the store, too. Try again in a minute.")
            raise _Refused(HTTPStatus.SERVICE_UNAVAILABLE, text, ("Retry-After", "60"))
        try:
            if self.away_at > since:  # those before have found out
                text = self.told("The store does not answer. Try again in a minute.")
                raise _Refused(HTTPStatus.SERVICE_UNAVAILABLE, text, ("Retry-After", "60"))
            if has_to_wait and is_gone():
                # Who is tired of waiting sends a form again, which must not be done twice.
                text = "You have hung up while others were answered, so nothing was done."
                raise _Refused(HTTPStatus.SERVICE_UNAVAILABLE, text)
            yield
        finally:
            try:
                self.schedules.close()
            finally:
                self._lock.release()


class Site:
    """A WSGI application that shows the schedules of one table, and changes them for its users.

    Its attribute ``asgi`` is an ASGI application that does the same. With a ``replica``, pages are
    read from it; what an action does, or would do, is read from the ``store``, and so are the
    pages of a browser that has just acted.
    """

    def __init__(
        self, store: Source, settings: Config, gate: Gate, *, replica: Source | None = None
    ) -> None:
        self._store = store
        self._read = replica or store
        self._settings = settings
        self._gate = gate
        self._redaction = Redaction(settings.redact)
        # Read once: after an upgrade, the files are those of another version, or are gone.
        files = {each.name: each.read_text("utf-8") for each in _FILES.glob("*.html")}
        environment = jinja2.Environment(
            loader=jinja2.DictLoader(files),
            autoescape=True,
            undefined=jinja2.StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        self._templates = {name: environment.get_template(name) for name in files}
        self._files = {
            f"/{each.name}": (_KINDS[each.suffix], each.read_bytes())
            for each in _STATIC.iterdir()
            if each.suffix in _KINDS
        }
        self._versions = {
            path[1:]: f"{path[1:]}?v={sha256(content).hexdigest()[:16]}"
            for path, (_, content) in self._files.items()
        }
        self._live = Live(self._look, CLOCK)
        self.asgi = AsgiApplication(self)
        self._table = table_of(settings)

    def __call__(
        self, environ: Mapping[str, Any], start_response: StartResponse
    ) -> Iterable[bytes]:
        """Answer a request, as PEP 3333 defines it."""
        request = Request(environ)
        response = self._answer(request)
        own = {name for name, _ in response.headers}
        headers = [
            ("Content-Type", f"{response.kind}; charset=utf-8"),
            *(each for each in _HEADERS if each[0] not in own),
            *response.headers,
        ]
        if response.follow is not None:
            environ[KEEP_OPEN](response.follow)
            start_response("200 OK", headers)
            return iter([response.body])  # a server must not count its bytes
        headers.append(("Content-Length", str(len(response.body))))
        start_response(f"{response.status.value} {response.status.phrase}", headers)
        return [b"" if request.method == "HEAD" else response.body]

    def close(self) -> None:
        """End all connections that tell open pages of changes, at once."""
        self._live.close()

    # --- who may do what --------------------------------------------------------------------

    def _answer(self, request: Request) -> Response:
        try:
            return self._response(request)
        except _Refused as refused:
            return self._shown(request, refused.page, _Frame(None), refused.headers)
        except (PschedError, OSError) as error:
            return self._shown(request, self._failure(error), _Frame(None))

    def _response(self, request: Request) -> Response:
        gate, path = self._gate, request.path
        if not gate.is_addressed(request):
            raise _Refused(
                HTTPStatus.FORBIDDEN,
                "This host name is not allowed. Start psched web with --allowed-host NAME.",
            )
        if path in self._files:
            is_named = f"{path[1:]}?{request.query_text}" == self._versions[path[1:]]
            kept = [_KEPT_LONG] if is_named else []
            return Response(HTTPStatus.OK, *self._files[path], kept)
        prefix = str(request.environ.get("SCRIPT_NAME", ""))
        if prefix and not request.environ.get("PATH_INFO"):  # links are relative to a folder
            return _redirect(prefix.rpartition("/")[2] + "/")
        if path in {_LOGIN, _LOGOUT} and gate.rules.access is None:
            return self._log_in_or_out(request)
        visitor = gate.visitor(request)
        if visitor is None:
            return self._unknown(request)
        if not request.is_safe:
            return self._changed(request, visitor)
        return self._looked_at(request, visitor)

    def _log_in_or_out(self, request: Request) -> Response:
        gate = self._gate
        if request.is_safe:
            # A link does nothing before somebody has pressed the button: programs follow links.
            return self._login_page(request, request.query.get("code", ""))
        if not gate.is_own(request):
            raise _Refused(HTTPStatus.FORBIDDEN, _other_site(request))
        if request.path == _LOGOUT:
            if (visitor := gate.visitor(request)) is not None and visitor.session:
                self._live.end(visitor.session)  # its other tabs
            return _redirect("./", ("Set-Cookie", gate.log_out(request)))
        if (found := gate.log_in(request)) is None:
            return self._login_page(request, "", is_refused=True)
        return _redirect("./", ("Set-Cookie", found[1]))

    def _unknown(self, request: Request) -> Response:
        """The answer to somebody who may not see the pages."""
        if self._gate.rules.access is not None:
            raise _Refused(HTTPStatus.FORBIDDEN, "You may not see these pages.")
        if request.path.startswith(_API_PREFIX) or not request.is_safe:
            challenge = "WWW-Authenticate", 'Bearer realm="psched"'
            text = "Log in first: send Authorization: Bearer TOKEN, or open /login."
            raise _Refused(HTTPStatus.UNAUTHORIZED, text, challenge)
        return self._login_page(request, "", status=HTTPStatus.UNAUTHORIZED)

    def _login_page(
        self,
        request: Request,
        code: str,
        *,
        is_refused: bool = False,
        status: HTTPStatus = HTTPStatus.OK,
    ) -> Response:
        user = self._gate.link_user(code) if code else None
        problem = ""
        if is_refused:
            problem = "That token or link is unknown, too old, or was used already."
        elif code and user is None:
            problem = "This link is unknown, too old, or was used already."
        if problem:
            status = HTTPStatus.FORBIDDEN
        values = {
            "title": "Log in",
            "problem": problem,
            "code": code if user else "",
            "who": visible(user or ""),
        }
        page = Page("login", values, lambda: {"error": problem or "log in"}, status=status)
        return self._shown(request, page, _Frame(None))

    # --- looking ----------------------------------------------------------------------------

    def _looked_at(self, request: Request, visitor: Visitor) -> Response:
        path, gate, cookies = request.path, self._gate, list[tuple[str, str]]()
        is_api = path.startswith(_API_PREFIX)
        is_again = bool(request.header("HX-Request"))  # by a page that is open
        if path == _LIVE:
            return self._followed(request, visitor)
        flash: Sequence[str] = ()
        if not is_api and not is_again and (found := gate.flash(request)) is not None:
            flash = found[0]
            cookies.append(("Set-Cookie", found[1]))
        if (cookie := gate.visit_cookie(request, visitor)) is not None:
            cookies.append(("Set-Cookie", cookie))
        frame = _Frame(visitor, gate.csrf(visitor), flash)
        if path == _ACT:
            page = self._made(self._plan_page(request.query), request, visitor, request.query)
        elif path in _API_ACTIONS:
            raise _Refused(HTTPStatus.METHOD_NOT_ALLOWED, "Use POST.", ("Allow", "POST"))
        elif path == _OPENAPI:
            page = Page("openapi", {}, description)
        elif (name := _PATHS.get(path) or _API.get(path)) is None:
            page = _refusal(HTTPStatus.NOT_FOUND, "There is no such page.")
        else:
            query = {name: value for name, value in request.query.items() if value}
            what = name if is_again else ""
            has_acted = bool(flash) or gate.has_acted(request)
            source = self._store if has_acted else self._read
            page = self._made(PAGES[name].make, request, visitor, query, what, source=source)
        return self._shown(request, page, frame, cookies)

    def _followed(self, request: Request, visitor: Visitor) -> Response:
        """The events that tell an open page of changes."""
        if KEEP_OPEN not in request.environ or request.method != "GET":
            raise _Refused(HTTPStatus.NOT_FOUND, "This server tells pages of no changes.")
        browser = visitor.session or request.header("User-Agent")
        if not self._live.has_room(browser):
            raise _Refused(HTTPStatus.SERVICE_UNAVAILABLE, "Too many pages are open.")
        # nginx would keep the events until there are many.
        return Response(
            HTTPStatus.OK,
            "text/event-stream",
            b"retry: 1000\n\n",
            [("X-Accel-Buffering", "no")],
            lambda kept: self._live.follow(
                kept,
                browser,
                lambda: self._gate.visitor(request) is not None,
                request.header("Last-Event-ID"),
            ),
        )

    def _look(self) -> str:
        try:
            with self._read.turn(bool):
                return digest_of(self._read.schedules)
        except _Refused as refused:
            raise StoreBusyError(str(refused)) from None

    def _shown(
        self,
        request: Request,
        page: Page,
        frame: _Frame,
        headers: Sequence[tuple[str, str]] = (),
    ) -> Response:
        if request.path.startswith(_API_PREFIX):
            body = json.dumps(page.document()).encode()
            return Response(page.status, "application/json", body, headers)
        query = request.query_text if request.is_safe else ""
        text = self._templates[f"{page.name}.html"].render(
            page.values,
            page=page.name,
            store=self._table if frame.visitor is not None else "",
            json=f"api/v1/{page.name}.json{'?' if query else ''}{query}",
            has_json=page.name in PAGES,
            files=self._versions,
            refresh=page.refresh,
            throttle=max(LOOK, page.refresh // 6),
            poll=page.refresh or POLL,
            follows=KEEP_OPEN in request.environ,
            visitor=frame.visitor,
            csrf=frame.csrf,
            flash=frame.flash,
        )
        if page.is_away and request.is_safe and page.name not in PAGES:
            headers = [*headers, ("Refresh", str(REFRESH))]
        return Response(page.status, "text/html", text.encode(errors="replace"), headers)

    # --- acting -----------------------------------------------------------------------------

    def _changed(self, request: Request, visitor: Visitor) -> Response:
        """Do what a form or a program asks for, if its sender may."""
        gate, path = self._gate, request.path
        if request.method != "POST" or path not in {_ACT, *_API_ACTIONS}:
            allowed = "POST" if path in {_ACT, *_API_ACTIONS} else "GET, HEAD"
            text = "This page changes nothing."
            raise _Refused(HTTPStatus.METHOD_NOT_ALLOWED, text, ("Allow", allowed))
        if path in _API_ACTIONS:
            if visitor.session or not visitor.name:
                text = "Send a token with the request: Authorization: Bearer TOKEN."
                raise _Refused(HTTPStatus.FORBIDDEN, text)
            return self._done_for_program(request, visitor, _API_ACTIONS[path])
        if not gate.is_own(request):
            raise _Refused(HTTPStatus.FORBIDDEN, _other_site(request))
        form = request.form
        if (action := actions.ACTIONS.get(form.get("do", ""))) is None:
            raise _Refused(HTTPStatus.BAD_REQUEST, "do: is no action.")
        self._refuse_without(action.right, visitor)
        if not gate.is_bound(request, visitor):
            text = "This form was not made for you, or is too old. Go back, and load it again."
            raise _Refused(HTTPStatus.FORBIDDEN, text)
        if form.get("stage") == "do":
            return self._done(request, visitor)
        page = self._made(self._plan_page(form), request, visitor, form)
        return self._shown(request, page, _Frame(visitor, gate.csrf(visitor)))

    def _done(self, request: Request, visitor: Visitor) -> Response:
        """Do what a form asks for, and send the browser back to where it came from."""
        gate, form = self._gate, request.form

        def done(asked: Asked) -> Page:
            found = self._do(form["do"], asked, visitor, form.get("note", ""))
            return Page("done", {"done": found, "where": actions.where(asked)}, dict)

        page = self._made(done, request, visitor, form)
        cookies = list[tuple[str, str]]()
        if self._read is not self._store:  # also if it is not known whether it was done
            cookies.append(("Set-Cookie", gate.acted_cookie(request)))
        if page.name == "error":
            # The plan is shown anew, with the reason; if there is none, only the reason.
            plan_page = self._plan_page(form)
            again = page if page.is_away else self._made(plan_page, request, visitor, form)
            if again.name == "act":
                values = {**again.values, "problem": page.values["text"]}
                page = again._replace(values=values, status=page.status)
            return self._shown(request, page, _Frame(visitor, gate.csrf(visitor)), cookies)
        found: actions.Done = page.values["done"]
        cookie = gate.flash_cookie(request, found.text, found.inverse, found.href)
        return _redirect(page.values["where"], ("Set-Cookie", cookie), *cookies)

    def _done_for_program(self, request: Request, visitor: Visitor, name: str) -> Response:
        action = actions.ACTIONS[name]
        self._refuse_without(action.right, visitor)
        fields = request.json

        def done(asked: Asked) -> Page:
            asked.key()
            known = [each.name for each in actions.fields_of(action)]
            if unknown := [each for each in fields if each not in known]:
                problem = f"is no field of {name}; there are {', '.join(known)}"
                raise InvalidError(visible(unknown[0])[:100], problem)
            if fields.get("dry_run"):
                plan = actions.plan_of(name, asked)
                would = {"key": asked.key(), "would": [*plan.lines]}
                return Page("done", {}, lambda: would)
            found = self._do(name, asked, visitor, fields.get("note", ""))
            made = {"key": asked.key(), "done": found.text, "extra_runs": [*found.extra_runs]}
            return Page("done", {}, lambda: made)

        return self._shown(request, self._made(done, request, visitor, fields), _Frame(visitor))

    def _do(self, name: str, asked: Asked, visitor: Visitor, note: str) -> actions.Done:
        """Do something in the name of a visitor."""
        author = Author(visible(visitor.name)[:255], socket.gethostname(), "psched web")
        schedules = self._store.schedules
        signed = schedules.access.auditor.signed(author)
        with signed, schedules.audited(note.strip() or None):
            found = actions.do(name, asked)
        _log.info("%s by %s: %s", name, author.user, found.text)
        return found

    def _refuse_without(self, needed: Right, visitor: Visitor) -> None:
        if allows(visitor.right, needed):
            return
        text = f"You may only {visitor.right}; this needs the right to {needed}."
        if self._gate.rules.most == READ:
            text = "These pages only show; nothing can be changed here."
        elif not visitor.name:
            text = "Log in first: without a login, you may only read."
        elif needed == RIGHTS[-1]:
            text = f"You may {visitor.right}; this needs the right {needed}."
        raise _Refused(HTTPStatus.FORBIDDEN, text)

    def _plan_page(self, fields: Mapping[str, str]) -> Callable[[Asked], Page]:
        """What makes the page that says what an action will do."""

        def make(asked: Asked) -> Page:
            name = fields.get("do", "")
            if (action := actions.ACTIONS.get(name)) is None:
                raise InvalidError("do", f"{name!r} is no action")
            if not allows(asked.right, action.right):
                raise _Refused(HTTPStatus.FORBIDDEN, "You may not do this.")
            names = [each.name for each in (*action.asked, *action.given)]
            problem, plan = "", None
            try:
                plan = actions.plan_of(name, asked)
            except InvalidError as error:
                if error.field not in names:
                    raise
                problem = self._told(error)
            fixed = {} if plan is None else plan.fixed
            chosen = {each: fields[each] for each in ("key", "keys", "q") if fields.get(each)}
            text = fixed.get("text", fields.get("text", ""))
            values = {
                "title": visible(f"{action.title} {_subject(fields)}"),
                "name": name,
                "action": action,
                "problem": problem,
                "lines": [] if plan is None else [visible(each) for each in plan.lines],
                "can_do": plan is not None and plan.verb is not None and bool(plan.keys),
                "is_empty": plan is not None and not plan.keys,
                "chosen": chosen,
                "fixed": {name: each for name, each in fixed.items() if name != "text"},
                "text": text,
                "fields": {each: fixed.get(each, fields.get(each, "")) for each in names},
                "where": actions.where(asked),
            }
            status = HTTPStatus.BAD_REQUEST if problem else HTTPStatus.OK
            return Page("act", values, dict, status=status)

        return make

    # --- the pages --------------------------------------------------------------------------

    def _made(
        self,
        make: Callable[[Asked], Page],
        request: Request,
        visitor: Visitor,
        fields: Mapping[str, str],
        shared: str = "",
        *,
        source: Source | None = None,
    ) -> Page:
        """The page that is asked for, or one that says why there is none.

        ``shared`` is a name; if it is not empty, all open pages of this name share what is read.
        """
        source = source or self._store
        asked = Asked(
            source.schedules,
            self._settings,
            source.reader,
            self._redaction,
            fields,
            request.environ.get("waitress.client_disconnected", bool),
            visitor.right,
        )
        with source.turn(asked.is_gone):
            began = CLOCK.monotonic()
            what = source, self._live.digest, shared, visitor.right, *sorted(fields.items())
            if shared and (known := self._live.shared(what)) is not None:
                return known
            try:
                page = make(asked)
            except (PschedError, OSError) as error:
                took = CLOCK.monotonic() - began
                page = self._failure(error, fields.get("key", ""), took, source.told)
            if page.is_away:
                source.away_at = CLOCK.monotonic()
            elif shared:
                self._live.share(what, page, began)
            return page

    def _failure(
        self,
        error: Exception,
        key: str = "",
        took: float = 0.0,
        told: Callable[[Exception | str], str] = str,
    ) -> Page:
        match error:
            case InvalidError():
                return _refusal(HTTPStatus.BAD_REQUEST, self._told(error))
            case NotFoundError():
                return _refusal(HTTPStatus.NOT_FOUND, self._told(error), key)
            case _ if isinstance(error, _CONFLICTS):
                return _refusal(HTTPStatus.CONFLICT, self._told(error))
        text = self._told(told(error))
        is_away = isinstance(error, TransientStoreError)
        if isinstance(error, StoreBusyError) and not isinstance(error, StoreSlowError):
            is_away = False  # somebody holds a lock: others can read meanwhile
        if is_away and took >= 0.8 * DEADLINE and not isinstance(error, _TELLING):
            _log.warning("the store has not answered for %.1f s: %s", took, text)
            text = told(f"The store has not answered for {took:.0f} s.")
            if isinstance(error, UnknownOutcomeError):
                text += " Look whether this was done before you do it again: that is not known."
        page = _refusal(HTTPStatus.SERVICE_UNAVAILABLE, text)
        return page._replace(is_away=is_away)

    def _told(self, error: Exception | str) -> str:
        return visible(local_times(self._redaction.text(str(error))), lines=True)


def _subject(fields: Mapping[str, str]) -> str:
    """With what something is done, in the heading of a page."""
    if key := fields.get("key"):
        return key
    return f"all that match {fields['q']}" if fields.get("q") else "several"


def _refusal(status: HTTPStatus, text: str, key: str = "") -> Page:
    values = {"title": status.phrase, "text": text, "key": key}
    return Page("error", values, lambda: {"error": text}, status=status)


def _redirect(to: str, *headers: tuple[str, str]) -> Response:
    """Send a browser to another page, whatever it has sent here."""
    return Response(HTTPStatus.SEE_OTHER, "text/plain", b"", [("Location", to), *headers])


def _other_site(request: Request) -> str:
    origin = visible(request.header("Origin") or "an unknown site")
    return (
        f"This form was sent from {origin}, and not from these pages. If a web server passes"
        " requests on, start psched web with --allowed-host NAME, the name in the browser."
    )
