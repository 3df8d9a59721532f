"""``psched import-crontab``: converts a crontab to schedules; writes a file, or applies them."""

import pwd
import re
import sys
from collections.abc import Mapping
from pathlib import Path

import click

from psched.app import CLOCK, open_schedules, read_config
from psched.base.errors import AlreadyExistsError, ConfigError, MissingTableError, StoreError
from psched.cli import options
from psched.cli.changes import open_to_change
from psched.cli.exit_status import report_errors
from psched.cli.options import ConfigLocation
from psched.cli.other_database import settings_to_write
from psched.cli.output import one_line, write_file
from psched.cli.progress import Progress, quiet_option
from psched.cli.schedules.apply import apply_documents, warn_of_all_steps
from psched.config import Config
from psched.config.urls import file_of
from psched.contrib.crontab import parser
from psched.contrib.crontab.crontab_to_schedules import (
    KILL_TIMEOUT,
    CrontabContext,
    Imported,
    convert,
)
from psched.contrib.crontab.former_lines import Line, line_of
from psched.contrib.crontab.service_user import ServiceUser
from psched.core.model import Row
from psched.core.operations.changes.fields import fields_of
from psched.files.apply import read_all
from psched.files.document import Document, Reader
from psched.files.export import to_yaml
from psched.files.track import Track
from psched.triggers.zone import find_zone, zone_names

_LOCALTIME = Path("/etc/localtime")

_SYSTEM = Path("/etc/crontab")

_TIME_LIMIT = "one day, after which psched stops the command; cron sets no limit"
"""The comment that the file has on the line of each ``kill_timeout``."""


@click.command("import-crontab")
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False, allow_dash=True))
@click.option(
    "--system", is_flag=True, help="FILE is a system crontab: a user precedes each command."
)
@click.option(
    "--user",
    metavar="NAME",
    help="FILE is the crontab of this user; no user precedes the commands.",
)
@click.option(
    "-t", "--timezone", metavar="ZONE", help="Time zone of the crontab. Default: this host's."
)
@click.option(
    "--label",
    metavar="LABEL",
    help="Label of the schedules. Default: crontab: and the file's name.",
)
@click.option("--any-user", is_flag=True, help="Also import lines that cron runs as another user.")
@click.option(
    "--apply", "at_once", is_flag=True, help="Apply the schedules instead of writing a file."
)
@click.option(
    "--service-user",
    metavar="NAME",
    help="User that runs psched's workers. Default: psched, the user of its unit, if this host has"
    " it; else the user who types this.",
)
@click.option(
    "--prune", is_flag=True, help="Delete the schedules of lines that have left the crontab."
)
@click.option(
    "--keep", is_flag=True, help="Keep the schedules of lines that have left the crontab."
)
@click.option("--dry-run", is_flag=True, help="With --apply: only show the plan.")
@click.option(
    "-o",
    "--output",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write the file for apply to this path. Default: standard output.",
)
@click.option("--force", is_flag=True, help="Replace an existing file.")
@quiet_option
@options.database
@click.pass_obj
@report_errors
def import_crontab(
    location: ConfigLocation,
    file: Path,
    user: str | None,
    timezone: str | None,
    label: str | None,
    output: Path | None,
    service_user: str | None,
    *,
    system: bool,
    any_user: bool,
    at_once: bool,
    prune: bool,
    keep: bool,
    dry_run: bool,
    force: bool,
    quiet: bool,
) -> None:
    """Convert a crontab to a file of schedules for apply.

    The schedules have the type exec. Without --system or --user, /etc/crontab and the files of a
    folder cron.d are system crontabs; a file below /var/spool/cron is the crontab of the user that
    it is named after. FILE can be - for standard input.

    If the crontab was imported before, the schedule of an edited line keeps its key, so that only
    the new version of the line runs. The former lines are those of the file that -o replaces, else
    those in the database. If lines have left the crontab while others are new, the command asks
    whether the former are kept; --prune or --keep answers.

    If a line cannot be imported exactly, or the service's user cannot run it, a message on standard
    error names the line, and the exit status is 1.
    """
    if (system and user) or (at_once and output) or (dry_run and not at_once) or (prune and keep):
        raise click.UsageError(
            "--system or --user; --apply or --output; --dry-run with --apply; --prune or --keep"
        )
    settings = settings_to_write(location) if at_once else read_config(*location)
    track = Progress(quiet=quiet)
    is_system, owner = _form(file, system=system, user=user)
    name = "crontab" if str(file) == "-" else file.name
    label = label or f"crontab:{name}"
    replaced = output if output is not None and output.exists() and force else None
    former = (
        _lines_of_file(replaced, label, settings, track)
        if replaced is not None
        else _lines_of_database(label, settings, track, needed=at_once)
    )
    context = CrontabContext(
        name=name,
        timezone=timezone or host_zone(),
        user=ServiceUser.find(service_user),
        any_user=any_user,
        owner=owner,
        home=_home,
        former=former,
    )
    find_zone(context.timezone)
    made = convert(parser.parse(_content(file), system=is_system), context, settings)
    document = Document(label, list(made.declarations))
    for remark in made.remarks:
        click.echo(one_line(f"{file}:{remark.line}: {remark.text}"), err=True)
    if settings.allowed_programs is not True:
        click.echo("Warning: exec_type refuses these schedules here: they need a shell", err=True)
    _show_edited(made, file)
    if not (prune or keep or dry_run):
        prune = _ask(made)
    if at_once:
        with open_to_change(settings) as schedules:
            apply_documents(
                [document], schedules, settings, dry_run=dry_run, prune=prune, track=track
            )
    else:
        warn_of_all_steps([document])
        _write(document, output, force=force)
        if prune and made.gone:
            click.echo("Apply the file with --prune, which deletes them", err=True)
    if made.remarks:
        sys.exit(1)


def _lines_of_file(path: Path, label: str, settings: Config, track: Track) -> Mapping[str, Line]:
    """The former lines in a file that an earlier import has written, by key.

    Raises:
        ConfigError: there are mistakes in the file.
    """
    documents = Reader(settings, now=CLOCK.wall, track=track).read([path])
    found = [each for document in documents if document.label == label
             for each in document.schedules]  # fmt: skip
    return {each["key"]: line_of(each) for each in found}


def _lines_of_database(
    label: str, settings: Config, track: Track, *, needed: bool
) -> Mapping[str, Line]:
    """The former lines in the database, by key.

    Args:
        label: the label of the crontab's schedules.
        settings: psched's settings.
        track: shows how many schedules have been read.
        needed: whether it is an error if the database cannot be read. Otherwise a warning is shown.

    Raises:
        StoreError: the database is needed, but cannot be read.
    """
    database = file_of(settings.url)
    if not needed and database is not None and not database.exists():
        return {}
    try:
        with open_schedules(settings) as schedules:
            rows = read_all(schedules, label, track=track)
    except StoreError as error:
        if needed:
            raise
        if isinstance(error, MissingTableError):
            return {}
        text = f"Warning: edited lines get new keys, because the database cannot be read: {error}"
        click.echo(one_line(text), err=True)
        return {}
    return {row.key: line_of(fields_of(row, settings)) for row in sorted(rows, key=_key_of)}


def _key_of(row: Row) -> str:
    return row.key


def _show_edited(made: Imported, file: Path) -> None:
    """Name the edited lines, and those that have left the crontab, on standard error."""
    for key, (old, new) in made.edited.items():
        click.echo(one_line(f"{key}: edited: {old.shown} -> {new.shown}"), err=True)
    for key, old in made.gone.items():
        text = f"{key}: not imported from {file} any more: {old.shown}"
        click.echo(one_line(text), err=True)


def _ask(made: Imported) -> bool:
    """Ask whether the schedules of lines that have left the crontab are deleted.

    Nothing is asked if no line is new, because no former line can then be replaced by a new one.

    Raises:
        AlreadyExistsError: standard input is not a terminal, so nobody can be asked.
    """
    if not made.gone or not made.added:
        return False
    question = (
        f"{', '.join(made.gone)}: no longer in the crontab, while {', '.join(made.added)} is new."
        " If one replaces the other, both would run"
    )
    if not sys.stdin.isatty():
        raise AlreadyExistsError(f"{question}; delete the former (--prune), or keep them (--keep)")
    return click.confirm(one_line(f"{question}. Delete the former?"), err=True)


def host_zone(link: Path = _LOCALTIME) -> str:
    """The name of this host's time zone, in which the host's cron runs commands.

    Raises:
        ConfigError: the target of the link /etc/localtime does not contain a zone's name.
    """
    if not link.exists():
        return "UTC"  # as the C library does if the link is missing
    name = str(link.resolve()).partition("/zoneinfo/")[2]
    if name not in zone_names():
        raise ConfigError(f"{link} does not tell this host's time zone; give it with -t")
    return name


def _form(file: Path, *, system: bool, user: str | None) -> tuple[bool, str | None]:
    """Return whether the file is a system crontab; and its owner, None for a system crontab.

    Raises:
        UsageError: neither the options nor the path show whose crontab the file is.
    """
    if system or user:
        return system, user
    path = file.absolute()
    if path == _SYSTEM or path.parent.name == "cron.d":
        return True, None
    if path.is_relative_to("/var/spool/cron"):
        return False, path.name
    raise click.UsageError(
        f"does a user precede each command of {file}? Use --system if so, else --user NAME"
    )


def _content(file: Path) -> str:
    try:
        content = sys.stdin.buffer.read() if str(file) == "-" else file.read_bytes()
        return content.decode()
    except OSError as error:
        raise ConfigError(f"{file}: cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        raise ConfigError(f"{file}:{line}: not UTF-8 text") from None


def _write(document: Document, output: Path | None, *, force: bool) -> None:
    by_key = {
        each["key"]: {name: value for name, value in each.items() if name != "key"}
        for each in document.schedules
    }
    # A line that is indented so is a field of a schedule; lines of its data are indented more.
    limit = re.compile(rf"^    kill_timeout: {KILL_TIMEOUT}$", re.MULTILINE)
    content = limit.sub(rf"\g<0>  # {_TIME_LIMIT}", to_yaml({document.label: by_key}))
    if output is None:
        click.echo(content, nl=False)
    else:
        write_file(output, content, force=force)


def _home(user: str) -> str | None:
    try:
        return pwd.getpwnam(user).pw_dir
    except KeyError:
        return None
