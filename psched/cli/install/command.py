"""The command install-systemd."""

import os
import shlex
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import click

from psched.base.errors import CommandError, ConfigError
from psched.cli.install.files import (
    CONFIG,
    USER,
    Environment,
    State,
    SystemFile,
    run_as_files,
    service_files,
    service_group,
    user_files,
)
from psched.cli.options import ConfigLocation

_RUNNING = Path("/run/systemd/system")
"""A folder that exists if systemd is process 1, see sd_booted(3)."""

_HOST = Path("/")


@click.command("install-systemd")
@click.option("--dry-run", is_flag=True, help="Show what would be done; change nothing.")
@click.option(
    "--run-as",
    is_flag=True,
    help="Also install psched-run-as, the helper of root that starts programs as other users.",
)
@click.option("--remove", is_flag=True, help="Stop the service, and remove what was installed.")
@click.option(
    "--root",
    type=click.Path(exists=True, file_okay=False, resolve_path=True, path_type=Path),
    default=_HOST,
    help="Install below this folder, the root of an image in which psched has the same path.",
)
@click.pass_obj
def install_systemd(
    location: ConfigLocation, *, dry_run: bool, run_as: bool, remove: bool, root: Path
) -> None:
    """Install the systemd unit, its user, and a configuration.

    As root. The unit starts the psched-master of the environment in which this command runs. Files
    that were changed since they were installed are kept. The service is not started: the last lines
    of the output say what to run next.

    With --remove, files that were changed are kept, and so are the database, the log and the user.
    """
    if location.config or location.environment:
        raise click.UsageError(
            f"-c and -e have no effect on the unit, which reads {CONFIG}; to change its command"
            " line, run: systemctl edit psched"
        )
    environment = Environment.current()
    if not remove:
        environment.check()
        if run_as:
            environment.check_for_root()
    installation = Installation(environment, root, dry_run=dry_run, run_as=run_as)
    if not dry_run and os.geteuid() != 0:
        raise ConfigError(
            f"only root can {'remove' if remove else 'install'} a unit; run: sudo"
            f" {environment.master.with_name('psched')} install-systemd"
            f"{' --remove' if remove else ''} (with --dry-run, any user can)"
        )
    installation.remove() if remove else installation.run()


class Installation:
    """Installs the files below a root folder, and prints each step."""

    def __init__(
        self, environment: Environment, root: Path, *, dry_run: bool, run_as: bool = False
    ) -> None:
        self._environment = environment
        self._root = root
        self._dry_run = dry_run
        self._run_as = run_as_files(environment, root)
        self._installs_run_as = run_as

    def run(self) -> None:
        """Take all steps, and print what to run next."""
        if self._dry_run:
            click.echo("Nothing is changed. Without --dry-run, these steps are taken:")
        elif shutil.which("systemd-sysusers") is None:
            service_group(self._root)  # before anything is written
        for file in user_files(self._environment, self._root):
            self._install(file)
        below = [] if self._root == _HOST else [f"--root={self._root}"]
        self._call_if_installed("systemd-sysusers", *below, "psched.conf")
        self._call_if_installed("systemd-tmpfiles", "--create", *below, "psched.conf")
        for file in service_files(self._environment, self._root):
            self._install(file)
        for file in self._run_as if self._installs_run_as else ():
            self._install(file)
        if self._systemd_runs():
            self._call("systemctl", "daemon-reload")
        self._print_next()

    def remove(self) -> None:
        """Stop the service, and remove the files that `run` has written and nobody has changed."""
        if self._dry_run:
            click.echo("Nothing is changed. Without --dry-run, these steps are taken:")
        files = service_files(self._environment, self._root)
        helpers = [file for file in self._run_as if file.target.is_file()]
        for units, found in (
            (("psched",), files),
            (("psched-run-as.socket", "psched-run-as"), helpers),
        ):
            if any(
                file.master and file.target.is_file() for file in found
            ):  # a masked unit is none
                where = "--now" if self._systemd_runs() else f"--root={self._root}"
                self._call_if_installed("systemctl", "disable", where, *units)
        for file in helpers + files + user_files(self._environment, self._root):
            state = file.state() if self._dry_run else file.remove()
            word = {State.SAME: "remove", State.REPLACE: "remove", State.WRITE: "missing"}
            click.echo(f"{word.get(state, state.value):8} {file.target}")
        if self._systemd_runs():
            self._call("systemctl", "daemon-reload")
        click.echo(f"The user {USER}, its database and its log stay, and what was changed (keep).")

    def _install(self, file: SystemFile) -> None:
        """Install a file and say so."""
        state = file.state() if self._dry_run else file.write()
        text = f"{state.value:8} {file.target}"
        match state:
            case State.WRITE | State.REPLACE:
                text += f"  (mode {file.mode:04o}, from {file.source})"
            case State.KEEP:
                text += (
                    f"  (it was changed; psched's own is {file.source}; to install that, move yours"
                    " away and run this command again)"
                )
            case State.UNKNOWN:
                text += "  (only root can read it; it is kept if it was changed)"
            case State.SAME:
                pass
        click.echo(text)
        if file.master is not None and state is not State.KEEP:
            click.echo(f"{'':8} ExecStart={file.master} -c {CONFIG}")

    def _call_if_installed(self, program: str, *arguments: str) -> None:
        if shutil.which(program):
            self._call(program, *arguments)
        else:
            click.echo(f"skip     {program}, which is not installed")

    def _call(self, *command: str) -> None:
        """Run a program and say so."""
        text = shlex.join(command)
        click.echo(f"run      {text}")
        if self._dry_run:
            return
        status, output = _result(command)
        if status != 0:
            raise CommandError(
                f"`{text}` failed with status {status}: {output or 'it printed nothing'}; when that"
                " is repaired, run this command again, which continues"
            )

    def _systemd_runs(self) -> bool:
        return self._root == _HOST and _RUNNING.is_dir()

    def _print_next(self) -> None:
        """Print what the administrator has to run."""
        init = f"{self._environment.master.with_name('psched')} -c {CONFIG} init"
        config = self._root / CONFIG.lstrip("/")
        edit = f"edit {config}", "url: your database; dispatch: your handlers"
        steps = [edit, (init, "creates the tables, or upgrades them"), _enable(self._root)]
        if self._installs_run_as:
            where = "--now" if self._root == _HOST else f"--root={self._root}"
            example = self._run_as[0].target
            steps = [
                (f"cp {example} {example.with_suffix('')}", "which programs run as whom: edit it"),
                (f"systemctl enable {where} psched-run-as.socket", "tasks can ask the helper"),
                *steps,
            ]
        if self._systemd_runs():
            active, _ = _result(["systemctl", "is-active", "--quiet", "psched"])
            if active == 0:
                steps[-1] = "systemctl restart psched", "stops it, and starts this version"
        elif self._root != _HOST:
            steps[-2:] = [_enable(self._root), (init, "in the image, when it has been started")]
        width = max(len(step) for step, _ in steps)
        click.echo("\nNext:")
        for step, comment in steps:
            click.echo(f"  {step:{width}}  # {comment}")


def _enable(root: Path) -> tuple[str, str]:
    """Return the command that has the service started at each boot, and its comment."""
    if root != _HOST:
        return f"systemctl --root={root} enable psched", "it starts when the image is booted"
    return "systemctl enable --now psched", "starts it now, and at each boot"


def _result(command: Sequence[str]) -> tuple[int, str]:
    """Run a program; return its exit status and what it printed."""
    done = subprocess.run(
        command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
    )
    return done.returncode, (done.stderr + done.stdout).strip()
