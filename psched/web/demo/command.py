"""The command demo."""

import ctypes
import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from types import FrameType

import click

import psched
from psched.app import CLOCK
from psched.base.errors import ConfigError
from psched.cli.output import are_terminals
from psched.client.auditor import this_process
from psched.web.demo.past import NAMED, fill
from psched.web.secret import Secret

_HOURS = 72  # of the past
_ENDS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_PR_SET_PDEATHSIG = 1
_LONGEST_END = 15.0  # seconds in which the processes must have ended

_CONFIG = """\
url: sqlite:///{folder}/psched.db
processors: 2
concurrency: 9
alive_time: 30
retry_wait: 10
kill_interval: 2
graceful_kill_limit: 2
graceful_timeout: 2
types:
  hangs: {{kill_timeout: 15}}
output: both
dispatch: psched.web.demo.handlers:Dispatch
"""

_NEW: Sequence[tuple[str, str, str, Mapping[str, float]]] = (
    ("demo.report", "work", "@every 20", {"seconds": 8, "fails": 0.2}),
    ("demo.long", "work", "@every 5m", {"seconds": 240, "fails": 0.0}),
    ("demo.flaky", "flaky", "@every 1m", {}),
    ("demo.hangs", "hangs", "@every 40", {}),
)
"""What can be watched at once, beside the schedules with a past."""


@click.command()
@click.option(
    "--port", type=click.IntRange(1, 65_535), help="Port of the pages; default: a free one."
)
def demo(*, port: int | None) -> None:
    """Try psched: a service with fake work, until Ctrl-C.

    It makes up three days of history of 40 schedules: some fail, are late, retried, stopped, paused
    or take long. Then it runs them with two workers, shows their log, and prints a link to the web
    pages, which works once. At the end nothing of it is left.

    Needs the packages of psched[web].
    """
    for package in "jinja2", "waitress":
        if find_spec(package) is None:
            raise ConfigError(f"demo: needs the package {package}: pip install psched[web]")
    for number in _ENDS:
        signal.signal(number, _end)
    with tempfile.TemporaryDirectory(prefix="psched-demo-") as name:
        _run(Path(name), port or _free_port())


def _run(folder: Path, port: int) -> None:
    config, token = folder / "psched.yml", folder / "web-token"
    config.write_text(_CONFIG.format(folder=folder))
    click.echo("making up three days of history ...")
    fill(f"sqlite:///{folder}/psched.db", len(NAMED), _HOURS)
    with psched.open(str(config)) as schedules:
        for key, type_, cron, data in _NEW:
            schedules.add(key, type_, cron=cron, data=data)
    secret = Secret(token, clock=CLOCK)
    # Its master and its pages find each other there, and no other service of this host does.
    env = {**os.environ, "PSCHED_CONFIG": str(config), "RUNTIME_DIRECTORY": str(folder)}
    where = f"127.0.0.1:{port}"
    with (
        _process(env, "run") as master,
        _process(env, "web", "--listen", where, "--token-file", str(token)) as pages,
    ):
        click.echo(f"The pages: http://{where}/")
        if are_terminals(sys.stdout):
            link = secret.new_link(this_process().user)
            click.echo(f"This link logs you in, once: http://{where}/login?code={link}")
        else:
            click.echo("A link that logs you in is printed on a terminal only.")
        click.echo(f"Other commands: PSCHED_CONFIG={config} psched list; Ctrl-C ends it.")
        sys.stdout.flush()
        while master.poll() is None and pages.poll() is None:
            found = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOWAIT)
            # As the first process of a container, it is the parent of all that lose theirs.
            if found is not None and found.si_pid not in {master.pid, pages.pid}:
                os.waitpid(found.si_pid, 0)
        ended = "pages have" if master.returncode is None else "master has"
        raise click.ClickException(f"the {ended} ended, so the demonstration ends, too")


@contextmanager
def _process(env: Mapping[str, str], *words: str) -> Iterator[subprocess.Popen[bytes]]:
    """A command of psched, which is ended at the end; the terminal's signals do not reach it."""
    command = [sys.executable, "-m", "psched", *words]
    process = subprocess.Popen(
        command,
        env=env,
        start_new_session=True,  # ours
        preexec_fn=_end_with_parent,  # noqa: PLW1509  # there are no threads
    )
    try:
        yield process
    finally:
        with suppress(ProcessLookupError):
            process.terminate()
        try:
            process.wait(_LONGEST_END)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _end_with_parent() -> None:
    """Let the kernel end this process if the demonstration is killed."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGTERM), 0, 0, 0)


def _end(_signal: int, _frame: FrameType | None) -> None:
    """End in good order: the second signal finds the end under way."""
    for number in _ENDS:
        signal.signal(number, signal.SIG_IGN)
    raise SystemExit(0)


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port: int = free.getsockname()[1]
    return port
