"""``psched import-crontab``: converts a crontab to schedules, and writes or applies them."""

import pwd
import sys
from pathlib import Path

import click

from psched.app import open_schedules, read_config
from psched.base.errors import ConfigError
from psched.cli.exit_status import report_errors
from psched.cli.options import ConfigLocation
from psched.cli.output import one_line, write_file
from psched.cli.schedules.apply import apply_documents
from psched.contrib.crontab import parser
from psched.contrib.crontab.crontab_to_schedules import CrontabContext, convert
from psched.files.document import Document
from psched.files.export import to_yaml
from psched.handlers.permissions import user_name
from psched.triggers.zone import find_zone, zone_names

_LOCALTIME = Path("/etc/localtime")

_SYSTEM = Path("/etc/crontab")


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
@click.option("--dry-run", is_flag=True, help="With --apply: only show the plan.")
@click.option(
    "-o",
    "--output",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write the file for apply to this path. Default: standard output.",
)
@click.option("--force", is_flag=True, help="Replace an existing file.")
@click.pass_obj
@report_errors
def import_crontab(
    location: ConfigLocation,
    file: Path,
    user: str | None,
    timezone: str | None,
    label: str | None,
    output: Path | None,
    *,
    system: bool,
    any_user: bool,
    at_once: bool,
    dry_run: bool,
    force: bool,
) -> None:
    """Read a crontab into schedules of type exec, as a file for apply.

    Without --system or --user, /etc/crontab and the files of a folder cron.d are system crontabs;
    a file below /var/spool/cron is the crontab of the user that it is named after. FILE can be -
    for standard input.

    If a line cannot be imported exactly, a message on standard error names it, and the exit status
    is 1.
    """
    if (system and user) or (at_once and output) or (dry_run and not at_once):
        raise click.UsageError("--system or --user; --apply or --output; --dry-run with --apply")
    settings = read_config(*location)
    is_system, owner = _form(file, system=system, user=user)
    name = "crontab" if str(file) == "-" else file.name
    context = CrontabContext(
        name=name,
        timezone=timezone or host_zone(),
        user=user_name(),
        any_user=any_user,
        owner=owner,
        home=_home,
    )
    find_zone(context.timezone)
    crontab = parser.parse(_content(file), system=is_system)
    declarations, remarks = convert(crontab, context, settings)
    document = Document(label or f"crontab:{name}", list(declarations))
    for remark in remarks:
        click.echo(one_line(f"{file}:{remark.line}: {remark.text}"), err=True)
    if settings.allowed_programs is not True:
        click.echo("Warning: exec_type refuses these schedules here: they need a shell", err=True)
    if at_once:
        with open_schedules(settings) as schedules:
            apply_documents([document], schedules, settings, dry_run=dry_run)
    else:
        _write(document, output, force=force)
    if remarks:
        sys.exit(1)


def host_zone(link: Path = _LOCALTIME) -> str:
    """The time zone of this host, which its cron uses.

    Raises:
        ConfigError: the zone's name cannot be read from the target of /etc/localtime.
    """
    if not link.exists():
        return "UTC"  # the C library also uses UTC then
    name = str(link.resolve()).partition("/zoneinfo/")[2]
    if name not in zone_names():
        raise ConfigError(f"{link} does not tell this host's time zone; give it with -t")
    return name


def _form(file: Path, *, system: bool, user: str | None) -> tuple[bool, str | None]:
    """Whether the file is a system crontab, and the owner of a user's crontab, else None."""
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
    content = to_yaml({document.label: by_key})
    if output is None:
        click.echo(content, nl=False)
    else:
        write_file(output, content, force=force)


def _home(user: str) -> str | None:
    try:
        return pwd.getpwnam(user).pw_dir
    except KeyError:
        return None
