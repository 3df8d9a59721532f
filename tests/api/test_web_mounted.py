"""The web pages below a path of other web applications, which decide who may do what."""

import asyncio
import re

import django
import pytest
from django.conf import settings as django_settings
from django.core.handlers.wsgi import WSGIHandler
from django.http import HttpResponse
from django.urls import path
from fastapi import FastAPI
from flask import Flask
from werkzeug.middleware.dispatcher import DispatcherMiddleware
from werkzeug.test import Client

import psched.web

FORM = "application/x-www-form-urlencoded"


def access(request):
    name = request.header("X-User")
    return psched.web.User(name, "operate") if name else None


@pytest.fixture
def pages(settings, schedules, tmp_path):
    schedules.add("k", "t", cron="0 3 * * *")
    return psched.web.app(settings, access=access, token_file=tmp_path / "web-token")


def home(_request):
    return HttpResponse("home")


@pytest.fixture(scope="module")
def site_of_django():
    if not django_settings.configured:
        urls = (path("", home),)
        django_settings.configure(ROOT_URLCONF=urls, ALLOWED_HOSTS=["*"], SECRET_KEY="x")
        django.setup()
    return WSGIHandler()


@pytest.fixture(params=["flask", "django"])
def site(request, pages):
    """A WSGI application with the pages below a path."""
    if request.param == "django":
        application = request.getfixturevalue("site_of_django")
    else:
        application = Flask("site")
        application.add_url_rule("/", view_func=lambda: "home", endpoint="home")
    return DispatcherMiddleware(application, {"/tools/psched": pages})


def test_below_a_path_of_a_wsgi_application_its_users_look_and_act(site, schedules):
    client, user = Client(site), {"X-User": "ann"}
    assert client.get("/").text == "home"
    assert client.get("/tools/psched/now").status_code == 403
    moved = client.get("/tools/psched", headers=user)
    assert (moved.status_code, moved.headers["Location"]) == (303, "psched/")
    assert "Timeline" in client.get("/tools/psched/", headers=user).text
    page = client.get("/tools/psched/act?do=pause&key=k", headers=user)
    fields = {"do": "pause", "key": "k", "stage": "do", "csrf": csrf_of(page.text)}
    other = {**user, "Origin": "http://evil.example"}
    assert client.post("/tools/psched/act", headers=other, data=fields).status_code == 403
    own = {**user, "Origin": "http://localhost"}
    done = client.post("/tools/psched/act", headers=own, data=fields)
    assert (done.status_code, done.headers["Location"]) == (303, "schedule?key=k")
    assert schedules["k"].metadata().status == "paused"
    [record] = schedules.audit("k", limit=1)
    assert record.user == "ann"
    shown = client.get("/tools/psched/schedule?key=k", headers=user)
    assert "k: paused" in shown.text


def test_below_a_path_of_an_asgi_application_its_users_look_and_act(pages, schedules):
    site = FastAPI()
    site.mount("/psched", pages.asgi)
    user = [(b"x-user", b"ann"), (b"host", b"localhost")]
    assert asked(site, "GET", "/psched/now", user[1:])[0] == 403
    status, headers, page = asked(site, "GET", "/psched/act", user, query=b"do=pause&key=k")
    assert status == 200
    [cookie] = [value for name, value in headers if name == b"set-cookie"]
    sent = [
        *user,
        (b"cookie", cookie.partition(b";")[0]),
        (b"content-type", FORM.encode()),
        (b"origin", b"http://localhost"),
    ]
    body = f"do=pause&key=k&stage=do&csrf={csrf_of(page)}".encode()
    sent.append((b"content-length", str(len(body)).encode()))
    assert asked(site, "POST", "/psched/act", sent, body=body)[0] == 303
    assert schedules["k"].metadata().status == "paused"


def csrf_of(page):
    [found] = re.findall('name="csrf" value="([^"]+)"', page)
    return found


def asked(site, method, where, headers, *, query=b"", body=b""):
    """The answer of an ASGI application: its status, headers and text."""
    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": method,
        "scheme": "http",
        "path": where,
        "raw_path": where.encode(),
        "root_path": "",
        "query_string": query,
        "headers": headers,
        "server": ("localhost", 80),
        "client": ("127.0.0.1", 1),
    }
    sent, given = [], [{"type": "http.request", "body": body, "more_body": False}]

    async def receive():
        return given.pop() if given else await asyncio.Event().wait()

    async def send(message):
        sent.append(message)

    asyncio.run(site(scope, receive, send))
    text = b"".join(each.get("body", b"") for each in sent)
    return sent[0]["status"], [*sent[0]["headers"]], text.decode()


def test_the_header_of_a_proxy_needs_users_and_the_proxy(settings, tmp_path):
    with pytest.raises(psched.ConfigError, match="needs users and proxies"):
        psched.web.app(settings, user_header="X-User", token_file=tmp_path / "t")
    users = tmp_path / "users"
    users.write_text("* read -\n")
    with pytest.raises(psched.ConfigError, match="proxies: "):
        psched.web.app(
            settings, users=users, user_header="X-User", proxies=["x"], token_file=tmp_path / "t"
        )
