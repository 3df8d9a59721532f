"""The command web."""

import os
import sys
from collections.abc import Collection
from importlib.util import find_spec
from ipaddress import ip_address
from pathlib import Path
from typing import TYPE_CHECKING

import click

from psched.app import CLOCK
from psched.base.errors import ConfigError
from psched.cli import options
from psched.cli.opening import settings_to_read, settings_to_write
from psched.cli.output import are_terminals
from psched.client.auditor import this_process
from psched.config import Config
from psched.monitor.address import Place, listen, place_of
from psched.web.secret import LINK_AGE, Secret, usual_file
from psched.web.users import ADMIN, READ, Users

if TYPE_CHECKING:
    from psched.web.gate import Rules

_THREADS = 8
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
            f"{value!r} can be reached from other hosts, and the connection is not encrypted;"
            " listen on 127.0.0.1, and let a web server with TLS pass requests on."
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
@click.option(
    "--login",
    "prints_link",
    is_flag=True,
    help="Print a link that logs you in, once and within 5 minutes, and end. Pass the same --listen"
    " and --token-file as to the pages.",
)
@click.option("--open", "is_open", is_flag=True, help="Let everybody read without a login.")
@click.option("--read-only", is_flag=True, help="Let nobody change anything.")
@click.option(
    "--users",
    "users_file",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="Users and their rights: a line NAME RIGHT HASH for each.",
)
@click.option(
    "--user-header",
    metavar="NAME",
    default="",
    help="Header in which a web server names the user, who must be in --users. Only with --listen"
    " unix:/PATH: whoever may use the socket is believed.",
)
@click.option(
    "--token-file",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="File of the token, which nobody else may read; it is made if it is missing. Default:"
    " web-token in $STATE_DIRECTORY, $XDG_STATE_HOME/psched or ~/.local/state/psched.",
)
@options.zone()
@options.database
@click.pass_obj
def web(
    location: options.ConfigLocation,
    *,
    place: Place,
    hosts: Collection[str],
    prints_link: bool,
    is_open: bool,
    read_only: bool,
    users_file: Path | None,
    user_header: str,
    token_file: Path | None,
) -> None:
    """Show and change schedules in a browser, until Ctrl-C.

    The first page is a timeline: what ran, what did not and why, and what is planned. Others show
    what needs a person now, each schedule and its next runs, and each run and what it printed.
    Users who may do so trigger, pause, edit and so on. Each page is JSON, too.

    Nobody sees the pages without a login. As the same user, psched web --login prints a link to
    them. With --users, others log in by tokens of their own. Only this host reaches the pages. To
    show them to others, let a web server with TLS pass requests on.

    Needs the packages of psched[web].
    """
    file = token_file or usual_file(os.environ)
    if prints_link:
        _print_link(file, place, hosts)
        return
    if user_header and (place.socket is None or users_file is None):
        raise click.UsageError(
            "--user-header needs --users FILE, and --listen unix:/PATH: at an address, every user"
            " of this host could send that header"
        )
    for package in "jinja2", "waitress":
        if find_spec(package) is None:
            raise ConfigError(f"web: needs the package {package}: pip install psched[web]")
    settings = (settings_to_read if read_only else settings_to_write)(location)
    # Few commands need these packages.
    from psched.web.gate import UNIX, Rules  # noqa: PLC0415

    rules = Rules(
        users=None if users_file is None else Users(users_file),
        user_header=user_header,
        proxies=[UNIX] if user_header else (),
        is_open=is_open,
        most=READ if read_only else ADMIN,
        hosts=None if place.socket is not None else {*_LOCAL, _address(place)[0], *hosts},
        origins=hosts,
    )
    _serve(place, settings, rules, file)


def _print_link(file: Path, place: Place, hosts: Collection[str]) -> None:
    if not are_terminals(sys.stdout):
        raise click.UsageError("--login prints a secret, so only on a terminal")
    code = Secret(file, clock=CLOCK, makes=False).new_link(this_process().user)
    named = next(iter(hosts), None)
    if named is not None:
        where = f"https://{named}/"
    elif place.socket is None:
        where = "http://{}:{}/".format(*_address(place))
    else:
        where = ""
        click.echo("Open this below the address at which the web server shows the pages:", err=True)
    click.echo(f"{where}login?code={code}")
    click.echo(f"It works once, within {LINK_AGE // 60} minutes.", err=True)


def _serve(place: Place, settings: Config, rules: "Rules", file: Path) -> None:
    """Serve the pages until a signal ends this process."""
    from psched.cli import trigger_helper  # noqa: PLC0415
    from psched.monitor.server import HttpServer  # noqa: PLC0415
    from psched.web.mounting import site_of  # noqa: PLC0415

    trigger_helper.start()  # the server has threads
    site = site_of(settings, rules, file)
    where = place.socket or "http://{}:{}/".format(*_address(place))
    try:
        listener = listen(place)
    except OSError as error:
        why = error.strerror or error
        raise click.ClickException(f"cannot listen on {where}: {why}") from None
    try:
        click.echo(f"psched web: {where}")
        sys.stdout.flush()
        # The site reads the store for one request after the other. The threads answer others that
        # need no store, and tell those that wait if it hangs.
        HttpServer(site, listener, CLOCK, threads=_THREADS, notices_hangups=True).run()
    finally:
        site.close()
        listener.close()
        if place.socket is not None:
            place.socket.unlink(missing_ok=True)


def _address(place: Place) -> tuple[str, int]:
    """The host and the port of a place, as in a URL."""
    host, port = place.tcp or ("", 0)
    return (f"[{host}]" if ":" in host else host), port
