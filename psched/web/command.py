"""The command web."""

import os
import sys
from collections.abc import Collection
from functools import partial
from importlib.util import find_spec
from ipaddress import ip_address
from pathlib import Path

import click

from psched.app import CLOCK, open_schedules
from psched.base.errors import ConfigError
from psched.cli import options
from psched.cli.opening import settings_to_read
from psched.config import Config
from psched.master.reports.queries import ask_all
from psched.master.runtime_folders import socket_folders
from psched.monitor.address import Place, listen, place_of

_LOCAL = ("localhost", "127.0.0.1", "[::1]")  # the host names of requests from this host


def _place(_context: click.Context, _option: click.Parameter, value: str) -> Place:
    wrong = click.BadParameter(
        f"{value!r} is neither a loopback address, such as 127.0.0.1:8080, nor unix:/PATH."
    )
    kind, _, path = value.partition(":")
    if kind == "unix":
        if not Path(path).is_absolute():
            raise wrong
        return place_of(value)
    host, _, port = value.rpartition(":")
    if not (port.isascii() and port.isdecimal()):
        raise wrong
    try:
        is_here = host == "localhost" or ip_address(host.strip("[]")).is_loopback
        place = place_of(value)
    except ValueError:
        raise wrong from None
    if not is_here:
        raise click.BadParameter(
            f"{value!r} can be reached from other hosts, and the pages ask for no password; listen"
            " on 127.0.0.1, and let a web server that asks for one pass requests on."
        )
    return place


@click.command()
@click.option(
    "--listen",
    "place",
    metavar="ADDRESS",
    default="127.0.0.1:8080",
    show_default=True,
    callback=_place,
    help="Loopback address; or unix:/PATH, a socket for this user and their group.",
)
@click.option(
    "--allowed-host",
    "hosts",
    metavar="NAME",
    multiple=True,
    help="Host name that requests may be addressed to, as by a web server that passes them on; may"
    " be repeated. localhost, 127.0.0.1, [::1] and that of --listen always are.",
)
@options.zone()
@options.database
@click.pass_obj
def web(location: options.ConfigLocation, *, place: Place, hosts: Collection[str]) -> None:
    """Show schedules and runs in a browser, until Ctrl-C.

    The first page is a timeline: what ran, what did not and why, and what is planned. Others show
    what needs a person now, each schedule and its next runs, and each run and what it printed. They
    change nothing. Each page is JSON, too.

    The pages ask for no password, so only this host can reach them: any of its users can. With
    --listen unix:/PATH, it is only those who may use the socket. To show them to others, let a web
    server that asks for a password pass requests on.

    Needs the packages of psched[web].
    """
    for package in "jinja2", "waitress":
        if find_spec(package) is None:
            raise ConfigError(f"web: needs the package {package}: pip install psched[web]")
    settings = settings_to_read(location)
    allowed = None if place.socket is not None else {*_LOCAL, _address(place)[0], *hosts}
    _serve(place, settings, allowed)


def _serve(place: Place, settings: Config, hosts: Collection[str] | None) -> None:
    """Serve the pages until a signal ends this process."""
    # Few commands need these packages.
    from psched.cli import trigger_helper  # noqa: PLC0415
    from psched.cli.top.snapshot import Reader  # noqa: PLC0415
    from psched.monitor.server import HttpServer  # noqa: PLC0415
    from psched.web.asked import PATIENCE  # noqa: PLC0415
    from psched.web.site import Site  # noqa: PLC0415

    trigger_helper.start()  # the server has threads
    schedules = open_schedules(settings)
    ask = partial(ask_all, socket_folders(os.environ), PATIENCE)
    reader = Reader(schedules, settings, ask_masters=ask, clock=CLOCK)
    site = Site(schedules, settings, reader, hosts=hosts)
    where = place.socket or "http://{}:{}/".format(*_address(place))
    try:
        listener = listen(place)
    except OSError as error:
        why = error.strerror or error
        raise click.ClickException(f"cannot listen on {where}: {why}") from None
    try:
        click.echo(f"psched web: {where}")
        sys.stdout.flush()
        # One thread answers, because the site has one connection to the store.
        HttpServer(site, listener, CLOCK, threads=1, notices_hangups=True).run()
    finally:
        listener.close()
        if place.socket is not None:
            place.socket.unlink(missing_ok=True)


def _address(place: Place) -> tuple[str, int]:
    """The host and the port of a place, as in a URL."""
    host, port = place.tcp or ("", 0)
    return (f"[{host}]" if ":" in host else host), port
