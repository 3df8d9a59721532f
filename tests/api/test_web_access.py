"""Who gets into the web pages, and how: tokens, links, users, proxies, and other sites' forms."""

import logging
import os
from hashlib import sha256
from threading import Event, Thread, current_thread

import pytest

from psched.base.errors import ConfigError
from psched.testing import ManualClock
from psched.web.secret import LINK_AGE, Secret, digest, new_token
from psched.web.users import User, Users
from support.web_pages import Browser, ask, get, site_of

HOURS = 3600


@pytest.fixture
def clock():
    return ManualClock()


@pytest.fixture
def secret(tmp_path, clock):
    return Secret(tmp_path / "state" / "web-token", clock=clock)


@pytest.fixture
def make(schedules, settings, secret, clock):
    """Makes the pages by some rules."""
    schedules.add("k", "t", cron="0 3 * * *", timezone="UTC")
    given = {"secret": secret, "clock": clock}
    return lambda **rules: site_of(schedules, settings, **{**given, **rules})


@pytest.fixture
def users(tmp_path):
    """The path of a file of users, and their tokens."""
    path, tokens = tmp_path / "users", {right: new_token() for right in ("read", "operate")}
    lines = [
        f"{right}er {right} {sha256(token.encode()).hexdigest()}\n"
        for right, token in tokens.items()
    ]
    path.write_text("".join(lines))
    return path, tokens


def bearer(token):
    return {"HTTP_AUTHORIZATION": f"Bearer {token}"}


# --- by default ----------------------------------------------------------------------------


@pytest.mark.parametrize("page", ["", "now", "schedules", "act", "api/v1/now.json", "none"])
def test_without_a_login_nothing_is_shown(make, page):
    refused = get(make(), page, key="k", do="pause")
    assert refused.status == 401
    assert "timeline" not in refused.body.lower()
    assert "key" not in refused.body
    assert "psched on" not in refused.body  # nor which table it is


def test_the_login_page_and_its_style_are_shown_to_everybody(make):
    site = make()
    assert get(site, "login").status == 200
    assert get(site, "style.css").status == 200


def test_the_token_lets_in_and_a_cookie_keeps_in_until_it_is_too_old(make, secret, clock):
    browser = Browser(make()).log_in(secret.token)
    assert browser.get("schedules").links("schedule") == [{"key": "k"}]
    clock.advance(11 * HOURS)
    assert browser.get("schedules").status == 200
    clock.advance(2 * HOURS)
    assert browser.get("schedules").status == 401


def test_no_script_and_no_other_site_gets_the_cookie(make, secret):
    site = make()
    browser = Browser(site)
    [cookie] = browser.post("login", token=secret.token).cookies
    assert "; HttpOnly" in cookie
    assert "; SameSite=Strict" in cookie
    assert "; Path=/;" in cookie
    assert "Secure" not in cookie
    tls = Browser(make(origins=["psched.example.com"]))
    tls.origin = "https://psched.example.com"
    [cookie] = tls.post("login", token=secret.token).cookies
    assert cookie.endswith("; Secure")


@pytest.mark.parametrize("given", ["", "x", "a" * 64, "ä\udc80"])
def test_a_wrong_token_is_refused(make, given):
    browser = Browser(make())
    refused = browser.post("login", token=given.encode(errors="replace").decode())
    assert refused.status == 403
    assert not refused.cookies
    assert get(browser.site, "now", headers=bearer("x")).status == 401


def test_a_cookie_that_was_changed_or_signed_for_another_purpose_is_worth_nothing(make, secret):
    browser = Browser(make()).log_in(secret.token)
    [(name, value)] = browser.cookies.items()
    coded, _, signature = value.partition(".")
    text, forged = "WzE3MDAwMDAwMDAsICJldmUiLCAiIiwgIngiXQ==", secret.sign("visit", coded)
    changed = signature[:-1] + ("1" if signature.endswith("0") else "0")
    for wrong in (
        f"{text}.{signature}", f"{coded}.{changed}", f"{coded}.{forged}", coded, ".", "x.y"
    ):  # fmt: skip
        browser.cookies = {name: wrong}
        assert browser.get("now").status == 401
    browser.cookies = {name: value}
    assert browser.get("now").status == 200


def test_a_new_token_ends_all_logins(make, secret, tmp_path, clock):
    browser = Browser(make()).log_in(secret.token)
    (tmp_path / "state" / "web-token").unlink()
    other = Secret(tmp_path / "state" / "web-token", clock=clock)
    assert other.token != secret.token
    browser.site = make(secret=other)
    assert browser.get("now").status == 401


def test_logging_out_takes_the_cookie_away(make, secret):
    browser = Browser(make()).log_in(secret.token)
    assert browser.post("logout").status == 303
    assert not browser.cookies
    assert browser.get("now").status == 401


def test_a_program_sends_the_token_with_each_request(make, secret):
    page = get(make(), "api/v1/schedules.json", headers=bearer(secret.token))
    assert [each["key"] for each in page.json["schedules"]] == ["k"]
    assert not page.cookies


# --- the file of the token ------------------------------------------------------------------


def test_the_file_of_the_token_is_nobody_elses(secret, tmp_path, clock):
    path = tmp_path / "state" / "web-token"
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o700
    assert Secret(path, clock=clock).token == secret.token  # it is kept
    path.chmod(0o640)
    with pytest.raises(ConfigError, match="is open to others"):
        Secret(path, clock=clock)
    path.unlink()
    path.symlink_to("/etc/hostname")
    with pytest.raises(ConfigError, match="token file: "):
        Secret(path, clock=clock)


def test_a_link_needs_the_file_that_the_pages_have_made(tmp_path, clock):
    with pytest.raises(ConfigError, match="start psched web first"):
        Secret(tmp_path / "none", clock=clock, makes=False)


def test_the_token_stands_in_no_page_no_header_and_no_log(make, secret, caplog):
    caplog.set_level(logging.DEBUG)
    browser = Browser(make())
    seen = [browser.post("login", token="wrong"), browser.post("login", token=secret.token)]
    seen += [browser.get(page, key="k") for page in ("", "now", "schedules", "schedule", "login")]
    seen += [browser.act("pause", key="k"), browser.get("schedule", key="k")]
    code = secret.new_link("ann")
    seen.append(browser.post("login", code=code))
    for response in seen:
        assert secret.token not in response.body
        assert secret.token not in repr(response.headers)
        assert secret.token not in repr(response.cookies)
    assert "has logged in" in caplog.text
    assert secret.token not in caplog.text
    assert code not in caplog.text


# --- links ----------------------------------------------------------------------------------


def test_a_link_lets_in_once_and_only_when_its_button_is_pressed(make, secret):
    code, site = secret.new_link("ann"), make()
    for _ in range(2):
        page = get(site, "login", code=code)  # a program that follows links uses it up
        assert "Log in as ann" in page.text
        assert not page.cookies
    browser = Browser(site)
    assert browser.post("login", code=code).status == 303
    assert "ann, admin" in browser.get("now").text
    assert Browser(site).post("login", code=code).status == 403
    assert "was used already" in get(site, "login", code=code).text


def test_an_old_link_lets_nobody_in(make, secret, clock):
    code = secret.new_link("ann")
    clock.advance(LINK_AGE + 1)
    browser = Browser(make())
    refused = browser.post("login", code=code)
    assert (refused.status, refused.cookies) == (403, ())


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
@pytest.mark.usefixtures("secret")
def test_root_makes_links_to_the_pages_of_another_user_but_does_not_serve_by_their_token(
    tmp_path, clock
):
    os.chown(path := tmp_path / "state" / "web-token", 12345, 12345)
    with pytest.raises(ConfigError, match="belongs to another user"):
        Secret(path, clock=clock)
    Secret(path, clock=clock, makes=False).new_link("ann")
    [link] = (tmp_path / "state").glob("*.link-*")
    assert (link.stat().st_uid, link.stat().st_mode & 0o777) == (12345, 0o600)


@pytest.mark.parametrize("kind", ["open to others", "of another user", "a pipe", "a link"])
def test_a_link_that_another_user_has_put_beside_the_token_lets_nobody_in(
    make, secret, tmp_path, kind
):
    code = secret.new_link("eve")
    [path] = (tmp_path / "state").glob("*.link-*")
    if kind == "open to others":
        path.chmod(0o644)
    elif kind == "of another user":
        if os.geteuid() != 0:
            pytest.skip("only root can give files away")
        os.chown(path, 12345, 12345)
    elif kind == "a pipe":
        path.unlink()
        os.mkfifo(path, 0o600)
    else:
        path.symlink_to(path.rename(tmp_path / "other"))
    browser = Browser(make())
    assert browser.get("login", code=code).status == 403
    refused = browser.post("login", code=code)
    assert (refused.status, refused.cookies) == (403, ())


# --- users ----------------------------------------------------------------------------------


def test_users_of_a_file_may_do_what_it_says_until_it_says_otherwise(make, users):
    path, tokens = users
    site = make(users=Users(path))
    reader, operator = (Browser(site).log_in(tokens[right]) for right in ("read", "operate"))
    assert "reader, read" in reader.get("now").text
    refused = reader.get("act", do="pause", key="k")
    assert refused.status == 403
    assert operator.act("pause", key="k").status == 303
    assert operator.get("act", do="edit", key="k").status == 403
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(line for line in lines if not line.startswith("operateer")))
    assert operator.get("now").status == 401
    assert reader.get("now").status == 200


@pytest.mark.parametrize(
    "line", ["ann", "ann read", "ann write -", "ann read short", "ann read - more"]
)
def test_a_wrong_line_is_refused_with_its_number(tmp_path, line):
    path = tmp_path / "users"
    path.write_text(f"# a comment\n{line}\n")
    with pytest.raises(ConfigError, match=r"line 2: must be NAME RIGHT HASH"):
        Users(path)


def test_a_hash_of_nothing_is_refused_because_everybody_would_get_in(tmp_path):
    path = tmp_path / "users"
    path.write_text(f"ann admin {sha256(b'').hexdigest()}\n")
    with pytest.raises(ConfigError, match="line 1: HASH is that of an empty token"):
        Users(path)


def test_a_user_who_is_removed_while_they_log_in_is_no_administrator(make, users, monkeypatch):
    path, tokens = users
    known = Users(path)
    find = known.by_token

    def found_and_removed(token):
        user = find(token)
        path.write_text("")
        return user

    monkeypatch.setattr(known, "by_token", found_and_removed)
    browser = Browser(make(users=known)).log_in(tokens["read"])
    assert browser.get("now").status == 401


def test_cookies_of_other_programs_of_the_host_keep_nobody_out(make, secret):
    browser = Browser(make()).log_in(secret.token)
    browser.cookies = {"theme": '{"a": 1, "b": [2]}', "odd[]": '"', **browser.cookies, "x": "\\"}
    assert browser.get("now").status == 200


def test_a_file_of_users_that_everybody_may_write_is_refused(users):
    path, _ = users
    path.chmod(0o666)
    with pytest.raises(ConfigError, match="whoever may write it gets in"):
        Users(path)


# --- proxies and applications ---------------------------------------------------------------


@pytest.mark.parametrize(
    ("proxies", "remote", "status"),
    [
        (["10.0.0.0/8"], "10.1.2.3", 200),
        (["10.0.0.0/8"], "192.0.2.1", 401),
        (["10.0.0.0/8"], "", 401),
        (["unix"], "", 200),
        (["unix"], "localhost", 200),  # as waitress calls it
        (["unix"], "127.0.0.1", 401),
        (["unix", "10.0.0.0/8"], "192.0.2.1", 401),
        ([], "127.0.0.1", 401),
    ],
)
def test_a_header_that_names_the_user_counts_only_from_a_proxy(
    make, users, proxies, remote, status
):
    site = make(users=Users(users[0]), user_header="X-Remote-User", proxies=proxies)
    named = {"HTTP_X_REMOTE_USER": "reader", "REMOTE_ADDR": remote}
    assert get(site, "now", headers=named).status == status
    assert get(site, "now", headers={**named, "HTTP_X_REMOTE_USER": "eve"}).status == 401
    assert get(site, "now", headers={**named, "HTTP_X_REMOTE_USER": "*"}).status == 401


def test_every_user_of_a_proxy_can_have_a_right(make, tmp_path):
    path = tmp_path / "users"
    path.write_text("* read -\nann operate -\n")
    site = make(users=Users(path), user_header="X-Remote-User", proxies=["127.0.0.1"])
    assert "bob, read" in get(site, "now", headers={"HTTP_X_REMOTE_USER": "bob"}).text
    assert "ann, operate" in get(site, "now", headers={"HTTP_X_REMOTE_USER": "ann"}).text


def test_the_name_of_a_user_of_a_proxy_may_have_any_letters(make, tmp_path):
    path = tmp_path / "users"
    path.write_text("zoë read -\n", encoding="utf-8")
    site = make(users=Users(path), user_header="X-Remote-User", proxies=["127.0.0.1"])
    named = {"HTTP_X_REMOTE_USER": "zoë".encode().decode("latin-1")}  # as WSGI wants it
    assert "zoë, read" in get(site, "now", headers=named).text


def test_an_earlier_login_does_not_hinder_the_forms_of_a_user_of_a_proxy(make, secret, tmp_path):
    path = tmp_path / "users"
    path.write_text("ann operate -\n")
    earlier = Browser(make()).log_in(secret.token)
    site = make(users=Users(path), user_header="X-Remote-User", proxies=["127.0.0.1"])
    browser = Browser(site, HTTP_X_REMOTE_USER="ann")
    browser.cookies = dict(earlier.cookies)
    assert browser.act("pause", key="k").status == 303


def test_a_function_decides_in_place_of_all_other_rules(make, schedules, secret):
    def access(request):
        right = request.header("X-Right")
        return User("ann", right) if right else None

    site = make(access=access)
    assert get(site, "now").status == 403
    assert get(site, "now", headers=bearer(secret.token)).status == 403
    browser = Browser(site, HTTP_X_RIGHT="operate")
    assert browser.act("pause", key="k").status == 303
    [last] = schedules.audit("k", limit=1)
    assert (last.action, last.user, last.program) == ("pause", "ann", "psched web")
    reader = Browser(site, HTTP_X_RIGHT="read")
    assert reader.get("act", do="resume", key="k").status == 403


def test_everybody_may_read_if_asked_for_and_only_users_may_act(make, secret):
    site = make(is_open=True)
    stranger = Browser(site)
    assert stranger.get("schedule", key="k").status == 200
    assert not stranger.get("schedule", key="k").links("act")
    assert stranger.post("act", do="pause", key="k", stage="do").status == 403
    assert Browser(site).log_in(secret.token).act("pause", key="k").status == 303


def test_where_nobody_may_change_anything_nobody_can(make, schedules, secret):
    browser = Browser(make(most="read")).log_in(secret.token)
    assert not browser.get("schedule", key="k").links("act")
    refused = browser.post("act", do="pause", key="k", stage="do")
    assert refused.status == 403
    assert "nothing can be changed here" in refused.text
    assert schedules["k"].metadata().status == "waiting"


# --- forms of other sites -------------------------------------------------------------------


@pytest.mark.parametrize(
    "origin",
    ["", "null", "http://evil.example", "http://localhost:9999", "http://localhost",
     "https://evil.example:8080", "localhost:8080"],
)  # fmt: skip
def test_a_form_of_another_site_does_nothing(make, schedules, secret, origin):
    browser = Browser(make()).log_in(secret.token)
    page = browser.get("act", do="pause", key="k")
    browser.origin = origin
    refused = browser.send(page)
    assert refused.status == 403
    assert "not from these pages" in refused.text
    assert browser.post("login", token=secret.token).status == 403
    assert schedules["k"].metadata().status == "waiting"


@pytest.mark.parametrize("change", [{"csrf": ""}, {"csrf": "0" * 64}, {"csrf": "ä"}])
def test_a_form_without_the_token_of_the_login_does_nothing(make, schedules, secret, change):
    browser = Browser(make()).log_in(secret.token)
    page = browser.get("act", do="pause", key="k")
    assert browser.send(page, **change).status == 403
    assert schedules["k"].metadata().status == "waiting"
    assert browser.send(page).status == 303


def test_a_form_of_another_login_does_nothing(make, schedules, secret):
    site = make()
    page = Browser(site).log_in(secret.token).get("act", do="pause", key="k")
    refused = Browser(site).log_in(secret.token).send(page)
    assert refused.status == 403
    assert "not made for you" in refused.text
    assert schedules["k"].metadata().status == "waiting"


def test_a_form_through_a_web_server_comes_from_its_name(make, schedules, secret):
    site = make(origins=["psched.example.com"])
    browser = Browser(site)
    browser.origin = "https://psched.example.com"
    browser.log_in(secret.token)
    assert browser.act("pause", key="k").status == 303
    browser.origin = "https://psched.example.com:8443"
    assert browser.post("logout").status == 403
    assert schedules["k"].metadata().status == "paused"


def test_below_a_path_the_pages_begin_at_their_folder(make, secret):
    below = {"SCRIPT_NAME": "/tools/psched", "PATH_INFO": ""}
    moved = ask(make(), "", "GET", headers=below)
    assert (moved.status, moved.headers["Location"]) == (303, "psched/")
    [cookie] = (
        Browser(make(), SCRIPT_NAME="/tools/psched").post("login", token=secret.token).cookies
    )
    assert "; Path=/tools/psched;" in cookie


def test_a_user_who_was_removed_while_another_thread_read_the_file_stays_removed(tmp_path):
    path, token = tmp_path / "users", new_token()
    path.write_text(f"eve admin {digest(token)}\n")
    has_read, has_begun, may_end = Event(), Event(), Event()

    class Held(Users):
        """Two threads read the file: one before it is changed, and is slow, the other after it."""

        def _parse(self, text):
            if text and current_thread() is slow:
                has_read.set()
                assert has_begun.wait(20)
            return super()._parse(text)

        def __setattr__(self, name, value):
            super().__setattr__(name, value)
            if current_thread() is other:  # after the first thing that it has noted
                has_begun.set()
                assert may_end.wait(20)

    slow = other = None
    users = Held(path)
    slow, other = Thread(target=users.read), Thread(target=users.read)
    path.write_text(f"eve admin {digest(token)} # \n")
    slow.start()
    try:
        assert has_read.wait(20)
        path.write_text("")
        other.start()
        assert has_begun.wait(20)
        slow.join(20)
    finally:
        has_begun.set()
        may_end.set()
        slow.join()
        other.join()
    assert users.by_token(token) is None


def test_a_client_that_sends_slowly_makes_nobody_wait(make):
    site, asked, goes_on = make(), Event(), Event()

    class Slow:
        def read(self, length):
            asked.set()
            assert goes_on.wait(20)
            return b"x" * length

    kind = "application/x-www-form-urlencoded"
    form = {"CONTENT_TYPE": kind, "HTTP_ORIGIN": "http://localhost:8080"}
    sent = {**form, "CONTENT_LENGTH": "9", "wsgi.input": Slow()}
    thread = Thread(target=ask, args=(site, "login", "POST"), kwargs={"headers": sent})
    thread.start()
    try:
        assert asked.wait(20)
        other = Thread(target=get, args=(site, "login"))
        other.start()
        other.join(20)
        assert not other.is_alive()
    finally:
        goes_on.set()
        thread.join()


def test_a_store_that_hangs_does_not_hold_those_who_wait_for_it(make, monkeypatch):
    monkeypatch.setattr("psched.web.site._LONGEST_WAIT", 0.05)
    asked, goes_on = Event(), Event()

    def is_gone():  # is asked while rows are read
        asked.set()
        assert goes_on.wait(20)
        return False

    site = make(is_open=True)
    thread = Thread(target=get, args=(site, "schedules"), kwargs={"is_gone": is_gone})
    thread.start()
    try:
        assert asked.wait(20)
        refused = get(site, "api/v1/now.json")
        assert (refused.status, refused.headers["Retry-After"]) == (503, "60")
        assert "Try again" in refused.json["error"]
        assert get(site, "now").headers["Refresh"] == "5"
        # These need no store.
        assert get(site, "style.css").status == get(site, "login").status == 200
        assert get(make(), "now").status == 401
    finally:
        goes_on.set()
        thread.join()
    assert get(site, "now").status == 200


def test_a_body_that_is_too_long_is_not_read(make, secret):
    browser = Browser(make()).log_in(secret.token)
    refused = browser.post("act", do="pause", note="x" * 70_000)
    assert refused.status == 400
    assert "65,536 bytes" in refused.text
