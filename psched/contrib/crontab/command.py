"""``psched import-crontab``: converts a crontab to schedules; writes a file, or applies them."""

import pwd
import re
import socket
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import Any

import click

from psched.app import CLOCK, open_schedules
from psched.base.errors import AlreadyExistsError, ConfigError, MissingTableError, StoreError
from psched.cli import options
from psched.cli.opening import open_to_change, read_settings, settings_to_write
from psched.cli.options import ConfigLocation
from psched.cli.output import one_line, write_file
from psched.cli.progress import Progress, quiet_option
from psched.cli.schedules.apply import apply_documents, warn_of_all_steps
from psched.client.collection import ScheduleCollection
from psched.config import Config
from psched.config.urls import file_of
from psched.contrib.crontab import parser
from psched.contrib.crontab.crontab_to_schedules import (
    KILL_TIMEOUT,
    CrontabContext,
    Imported,
    allowing_lines,
    convert,
)
from psched.contrib.crontab.earlier_imports import Known, Origin, Source, line_of, some
from psched.contrib.crontab.service_user import ServiceUser
from psched.contrib.crontab.shell_command import slug
from psched.core.model import BEING_DELETED, Row
from psched.core.operations.rescheduled import fields_of
from psched.files.apply import read_all
from psched.files.document import Document, Reader, Track
from psched.files.export import to_yaml
from psched.process.run_as_list import PATH as ROOTS_LIST
from psched.triggers.zone import find_zone, zone_names

_FILES = {"debian": ("/etc/environment", "/etc/default/locale"), "cronie": ("/etc/environment",)}
"""The files that pam_env reads, as the package of a cron sets it up."""

_LINE = re.compile(r"\s*(?:export\s+)?(\w+)=(.*)", re.ASCII)


def session_variables(dialect: str, files: Sequence[Path] | None = None) -> Mapping[str, str]:
    """Read the variables as pam_env does, from the files of a dialect or from others."""
    found = dict[str, str]()
    for file in map(Path, _FILES.get(dialect, ())) if files is None else files:
        if file.is_file():
            for line in file.read_text(errors="replace").splitlines():
                if setting := _LINE.fullmatch(line.partition("#")[0].rstrip()):
                    found[setting[1]] = re.sub(r"^[\"']|[\"']$", "", setting[2])
    return found


_LOCALTIME = Path("/etc/localtime")

_SYSTEM = Path("/etc/crontab")
_FOLDERS = (Path("/etc"), Path("/etc/cron.d"))
_SPOOL = Path("/var/spool/cron")

_NAMES = {"debian": r"[A-Za-z0-9_-]+", "cronie": r"[^.#].*(?<!~)(?<!\.rpmnew)(?<!\.rpm....)"}
"""Patterns of the names of files in cron.d that a cron reads."""

_TIME_LIMIT = "one day; 0 sets no limit"
"""The comment that the file has on the line of each ``kill_timeout``."""


any_user_option = click.option(
    "--any-user", is_flag=True, help="Also import what runs as another user up to now."
)

_DELIVERY_OPTIONS = (
    click.option(
        "--apply", "at_once", is_flag=True, help="Apply the schedules instead of writing a file."
    ),
    click.option(
        "--service-user",
        metavar="NAME",
        help="User that runs psched's workers. Default: psched, the user of its unit, if this host"
        " has it; else the user who types this.",
    ),
    click.option("--prune", is_flag=True, help="Delete the schedules of what is no longer there."),
    click.option("--keep", is_flag=True, help="Keep the schedules of what is no longer there."),
    click.option("--also", is_flag=True, help="Also import commands that others run already."),
    click.option("--dry-run", is_flag=True, help="With --apply: only show the plan."),
    click.option(
        "-o",
        "--output",
        type=click.Path(dir_okay=False, path_type=Path),
        help="Write the file for apply to this path. Default: standard output.",
    ),
    click.option("--force", is_flag=True, help="Replace an existing file."),
    quiet_option,
    options.database,
)


def delivery_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options that all importers share; those of `Delivery` are passed as ``delivery``."""

    @wraps(command)
    def delivering(**given: Any) -> None:  # noqa: ANN401  # the values of options
        own = {name: given.pop(name) for name in Delivery.__slots__}
        command(delivery=Delivery(**own), **given)

    for option in reversed(_DELIVERY_OPTIONS):
        delivering = option(delivering)
    return delivering


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivery:
    """What becomes of imported schedules: the values of options; see `delivery_options`."""

    output: Path | None
    at_once: bool
    prune: bool
    keep: bool
    also: bool
    dry_run: bool
    force: bool
    quiet: bool

    def __post_init__(self) -> None:
        at_once = self.at_once
        excluded = ((at_once, self.output), (self.dry_run, not at_once), (self.prune, self.keep))
        if any(map(all, excluded)):
            raise click.UsageError("--apply or --output; --dry-run with --apply; --prune or --keep")

    @property
    def track(self) -> Progress:
        """Shows the progress of reading and applying."""
        return Progress(quiet=self.quiet)

    def settings(self, location: ConfigLocation) -> Config:
        """Read the settings."""
        return settings_to_write(location) if self.at_once else read_settings(location)

    def known(self, label: str, settings: Config) -> tuple[Sequence[Known] | None, Sequence[Known]]:
        """The stored schedules with a label, None if unknown; and what the last import has made.

        The last import has made the schedules of the file to be replaced, else the stored ones.
        """

        def with_label(schedules: ScheduleCollection) -> Iterable[Row]:
            return read_all(schedules, label, track=self.track)

        stored = self._in_database(with_label, settings)
        if self.output is not None and self.output.exists() and self.force:
            return stored, _in_file(self.output, settings, self.track)
        return stored, stored or ()

    def finish(
        self,
        document: Document,
        made: Imported,
        source: Path,
        settings: Config,
        remarks: Sequence[str],
        *,
        origin: Source,
        stored: Sequence[Known] | None,
        is_copy: bool = False,
    ) -> None:
        """Show what differs, then apply or write schedules; exit with 1 if there are remarks."""
        _show(made, source, remarks, settings)
        changed = [*made.edited, *made.gone]
        if is_copy and changed:
            raise AlreadyExistsError(
                f"{source} may be a copy from any host, and {some(changed)} may be of another host:"
                f" name its host, with --source {origin.source} if it is this one"
            )
        if made.added and stored is not None and not self.also:
            others = self._in_database(_commands, settings) or ()
            if twice := [*origin.ways_out(origin.twice(made.added.values(), others))]:
                raise AlreadyExistsError("\n".join(twice))
        prune = self.prune or (not self.keep and not self.dry_run and _ask(made, source))
        foreign = [each.key for each in stored or () if not origin.is_own(each)]
        if prune and foreign:
            raise AlreadyExistsError(
                f"--prune would delete {some(foreign)}, too: the label {document.label} is not of"
                " this import alone. Give this import a label of its own"
            )
        if self.at_once:
            with open_to_change(settings) as schedules:
                apply_documents(
                    [document],
                    schedules,
                    settings,
                    dry_run=self.dry_run,
                    prune=prune,
                    track=self.track,
                )
        else:
            warn_of_all_steps([document])
            _write(document, self.output, force=self.force)
            if prune and made.gone:
                click.echo("Apply the file with --prune, which deletes them", err=True)
        if remarks:
            sys.exit(1)

    def finish_by_key(
        self,
        document: Document,
        source: str,
        path: Path,
        settings: Config,
        remarks: Sequence[str],
        *,
        is_copy: bool = False,
    ) -> None:
        """`finish` the import of schedules whose keys do not depend on their commands."""
        origin = Source(source=source)
        stored, known = self.known(document.label or "", settings)
        own = [each for each in known if each.label == document.label and origin.is_own(each)]
        former = {each.key: each.line for each in own}
        lines = {each["key"]: line_of(each) for each in document.schedules}
        edited = {k: (former[k], new) for k, new in lines.items() if former.get(k, new) != new}
        added = {key: line for key, line in lines.items() if key not in former}
        gone = {key: old for key, old in former.items() if key not in lines}
        made = Imported(document.schedules, (), edited, added, gone)
        self.finish(
            document,
            made,
            path,
            settings,
            remarks,
            origin=origin,
            stored=stored,
            is_copy=is_copy,
        )

    def _in_database(
        self, read: Callable[[ScheduleCollection], Iterable[Row]], settings: Config
    ) -> Sequence[Known] | None:
        """The schedules that ``read`` finds in the database, without those that run once.

        None, after a warning, if the database cannot be read and is not to be changed.
        """
        database = file_of(settings.url)
        if not self.at_once and database is not None and not database.exists():
            return ()
        try:
            with open_schedules(settings) as schedules:
                rows = {row.key: row for row in read(schedules) if _is_imported(row)}
        except StoreError as error:
            if self.at_once:
                raise
            if isinstance(error, MissingTableError):
                return ()
            text = "Warning: earlier imports are not known, because the database cannot be read"
            click.echo(one_line(f"{text}: {error}"), err=True)
            return None
        return [
            Known(
                key, row.label, line_of(fields_of(row, settings)), _where(fields_of(row, settings))
            )
            for key, row in sorted(rows.items())
        ]


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
    "--source",
    metavar="NAME",
    help="Name of the host that the crontab belongs to. Default: this host's name.",
)
@click.option(
    "--label",
    metavar="LABEL",
    help="Label of the schedules. Default: crontab:, the source, and the file or ~USER.",
)
@click.option(
    "--dialect",
    type=click.Choice(parser.DIALECTS),
    default=parser.DIALECTS[0],
    show_default=True,
    help="The cron that reads the crontab: with busybox, % and \\ have no meaning in commands.",
)
@click.option(
    "--each-host",
    is_flag=True,
    help="Let each host with a host_name run the new schedules by itself.",
)
@click.option(
    "--anywhere",
    is_flag=True,
    help="Let every host run the new schedules. Default: only the host that the crontab belongs to,"
    " unless an earlier import of it runs on every host.",
)
@any_user_option
@click.option(
    "--run-as",
    is_flag=True,
    help="Run the lines of other users by runuser, if the workers are root's.",
)
@delivery_options
@click.pass_obj
def import_crontab(
    location: ConfigLocation,
    file: Path,
    user: str | None,
    timezone: str | None,
    source: str | None,
    label: str | None,
    service_user: str | None,
    dialect: str,
    *,
    system: bool,
    any_user: bool,
    run_as: bool,
    anywhere: bool,
    each_host: bool,
    delivery: Delivery,
) -> None:
    """Convert a crontab to a file of schedules for apply.

    The schedules have the type exec. Without --system or --user, /etc/crontab and the files of a
    folder cron.d are system crontabs; a file below /var/spool/cron is the crontab of the user that
    it is named after. FILE can be - for standard input.

    A crontab belongs to its host: its schedules are never those of another host. Give --source if
    FILE can be a copy. If another host runs one of the commands already, the command is refused. If
    that host is this one under an earlier name, give that name as --source; if both are to run it,
    give --also.

    What ran on one host goes on to run there: new schedules have this host in their field hosts,
    unless --anywhere or --each-host is given. A schedule that exists keeps its hosts.

    If the crontab was imported before, the schedule of an edited line keeps its key, so that only
    the new version of the line runs. The former lines are those of the file that -o replaces, else
    those in the database. If lines have left the crontab while others are new, the command asks
    whether the former are kept; --prune or --keep answers.

    If a line cannot be imported exactly, or the service's user cannot run it, a message on standard
    error names the line, and the exit status is 1.
    """
    if (system and user) or (any_user and run_as) or (anywhere and each_host):
        raise click.UsageError(
            "--system or --user; --any-user or --run-as; --anywhere or --each-host"
        )
    settings = delivery.settings(location)
    is_system, owner = _form(file, system=system, user=user)
    origin = Origin(source=source_of(source), file=file.name, owner=owner, given_label=label)
    is_here = origin.source == source_of(None)
    stored, known = delivery.known(origin.label, settings)
    context = CrontabContext(
        key_prefix=origin.key_prefix,
        timezone=timezone or host_zone(),
        user=_service_user(service_user, run_as=run_as),
        any_user=any_user,
        owner=owner,
        home=home_of,
        find_user=_user,
        run_as=_user if run_as else None,
        former={each.key: each.line for each in known if origin.is_own(each)},
        session=session_variables(dialect) if is_here else {},
        dialect=dialect,
    )
    find_zone(context.timezone)
    content = content_of(file)
    crontab = parser.parse(content, system=is_system, dialect=dialect)
    made = convert(crontab, context, settings)
    own = {each.key: each.where for each in (*(stored or ()), *known) if origin.is_own(each)}
    new: Mapping[str, Any] = {"each_host": True} if each_host else {}
    placed = any(own.values()) or not own
    if settings.store_kind.keeps_lanes and placed and not (each_host or anywhere):
        new = {"hosts": [(is_here and settings.host_name) or origin.source]}
    document = Document(origin.label, [*_placed(made.declarations, own, new)])
    remarks = [f"{file}:{each.line}: {each.text}" for each in made.remarks]
    remarks += _ignored(file, content, crontab, dialect, is_here=is_here)
    if lines := allowing_lines(made, home_of):
        needed = "psched-run-as runs them as their users if root's list has these lines"
        click.echo("\n".join([f"{needed}, in {ROOTS_LIST}:", *lines]), err=True)
    delivery.finish(
        document,
        made,
        file,
        settings,
        remarks,
        origin=origin,
        stored=stored,
        is_copy=source is None and not _is_in_place(file),
    )


def _is_imported(row: Row) -> bool:
    return row.cron is not None and row.template is None


def _where(fields: Mapping[str, Any]) -> Mapping[str, Any]:
    return {name: fields[name] for name in ("hosts", "each_host") if fields.get(name)}


def _placed(
    declarations: Iterable[Mapping[str, Any]],
    known: Mapping[str, Mapping[str, Any]],
    new: Mapping[str, Any],
) -> Iterator[dict[str, Any]]:
    """Yield the schedules with the hosts that they have, or with those of new ones."""
    return ({**each, **known.get(each["key"], new)} for each in declarations)


def _service_user(name: str | None, *, run_as: bool) -> ServiceUser:
    """The user that runs psched's workers; must be root for --run-as."""
    found = ServiceUser.find(name)
    if run_as and found.number != 0:
        raise ConfigError(
            f"--run-as: only root can run commands as other users, and the workers run as"
            f" {found.name}; if they are to run as root, add --service-user root"
        )
    return found


def source_of(given: str | None) -> str:
    """The name of a host or cluster, as keys contain it. Default: this host's."""
    if given is None:
        return slug(socket.gethostname())
    if not given or slug(given) != given:
        raise click.UsageError("--source: a name has letters, digits and . _ + - only")
    return given


def _ignored(
    file: Path, content: str, crontab: parser.Crontab, dialect: str, *, is_here: bool
) -> Iterator[str]:
    """Yield a text if it is known why the host's cron runs nothing of the file."""
    whose, why = "cronie" if dialect == "cronie" else "Debian's cron", None
    fatal = [] if crontab.fatal is None else [crontab.fatal]
    if is_here:  # the users of another host are not known
        users = ((each.line, each.user) for each in crontab.entries)
        fatal += [line for line, user in users if user is not None and home_of(user) is None]
    in_folder = file.absolute().parent.name == "cron.d"
    if in_folder and not re.fullmatch(_NAMES.get(dialect, ".*"), file.name):
        why = "the characters in its name"
    elif dialect == "debian" and content[-1:] not in {"", "\n"}:
        why = "its last line, which does not end"
    elif dialect == "debian" and fatal:
        why = f"line {min(fatal)}"
    if why is not None:
        yield f"{file}: {whose} ignores the whole file because of {why}: it ran none of this"


def _in_file(path: Path, settings: Config, track: Track) -> Sequence[Known]:
    """The schedules in a file that an earlier import has written."""
    documents = Reader(settings, now=CLOCK.wall, track=track).read([path])
    return [
        Known(each["key"], document.label, line_of(each), _where(each))
        for document in documents
        for each in document.schedules
    ]


def _commands(schedules: ScheduleCollection) -> Iterator[Row]:
    """Read the schedules of type exec, twice because a listing can miss those that run."""
    for _ in range(2):
        for each in schedules.list(type="exec"):
            if each.row.status not in BEING_DELETED:
                yield each.row


def _is_in_place(file: Path) -> bool:
    """Whether a file is where this host's cron reads it, so that it is no copy from another."""
    folder = file.absolute().parent
    return str(file) != "-" and (folder in _FOLDERS or folder.is_relative_to(_SPOOL))


def _show(made: Imported, source: Path, remarks: Iterable[str], settings: Config) -> None:
    """Show on standard error what was not imported or runs differently, and what has changed."""
    texts = [*remarks]
    if settings.allowed_programs is not True:
        texts.append("Warning: exec_type refuses these schedules here: they need a shell")
    for key, (old, new) in made.edited.items():
        texts.append(f"{key}: edited: {old.shown} -> {new.shown}")
    for key, old in made.gone.items():
        texts.append(f"{key}: not imported from {source} any more: {old.shown}")
    for text in texts:
        click.echo(one_line(text), err=True)


def _ask(made: Imported, source: Path) -> bool:
    """Ask whether the schedules of what has left the source are deleted.

    Nothing is asked if nothing is new, because then nothing former can be replaced. If standard
    input is not a terminal, the import is refused, because nobody can be asked.
    """
    if not made.gone or not made.added:
        return False
    question = (
        f"{some([*made.gone])}: no longer in {source}, while {some([*made.added])} is new."
        " If one replaces the other, both would run"
    )
    if not sys.stdin.isatty():
        raise AlreadyExistsError(f"{question}; delete the former (--prune), or keep them (--keep)")
    return click.confirm(one_line(f"{question}. Delete the former?"), err=True)


def host_zone(link: Path = _LOCALTIME) -> str:
    """The name of this host's time zone, in which the host's cron runs commands."""
    if not link.exists():
        return "UTC"  # as the C library does if the link is missing
    name = str(link.resolve()).partition("/zoneinfo/")[2]
    if name not in zone_names():
        raise ConfigError(f"{link} does not tell this host's time zone; give it with -t")
    return name


def _form(file: Path, *, system: bool, user: str | None) -> tuple[bool, str | None]:
    """Return whether the file is a system crontab; and its owner, None for a system crontab."""
    if system or user:
        return system, user
    path = file.absolute()
    if path == _SYSTEM or path.parent.name == "cron.d":
        return True, None
    if path.is_relative_to(_SPOOL):
        return False, path.name
    raise click.UsageError(
        f"does a user precede each command of {file}? Use --system if so, else --user NAME"
    )


def content_of(file: Path) -> str:
    """The text of a file; of standard input if its name is ``-``."""
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


def home_of(user: str) -> str | None:
    """The home of a user; None if this host has no such user."""
    try:
        return pwd.getpwnam(user).pw_dir
    except KeyError:
        return None


def _user(name: str) -> ServiceUser | None:
    return None if home_of(name) is None else ServiceUser.find(name)
