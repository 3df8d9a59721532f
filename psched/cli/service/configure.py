"""``psched configure``: options, kept in a file."""

from collections.abc import Mapping
from pathlib import Path

import click
import yaml

from psched import config
from psched.cli import options
from psched.cli.output import write_whole
from psched.cli.refusals import refusing
from psched.cli.service import worker_options
from psched.config import Config, urls

_HEADER = """\
# Written by psched configure. psched -c THIS_FILE reads it; etc/psched.yml explains each setting,
# and shows others.
"""


@click.command()
@click.argument("path", type=click.Path(dir_okay=False, path_type=Path))
@click.option("--force", is_flag=True, help="Replace a file that is there.")
@worker_options.described
@click.pass_obj
@refusing
def configure(
    place: options.Place,
    /,
    path: Path,
    words: tuple[str, ...],
    *,
    force: bool,
    **given: object,
) -> None:
    """Write the options to the configuration file PATH, which -c then reads.

    The options are those of run. With -c (and -e), what that file says is taken over, as it stands
    there. Only its owner may read the new file if a password is in its url. --daemon is written as
    pid_file; whether to go into the background is still to be said to run.
    """
    source, environment = place
    if source is None and environment is not None:
        raise click.UsageError("-e chooses a section of a file; name that by -c")
    before = {} if source is None else config.read_raw(source, environment)
    overrides = worker_options.timed(worker_options.overrides(given, words), lambda: before)
    settings = {name: value for name, value in before.items() if name not in overrides}
    settings |= _literal(overrides)
    whole = config.from_mapping(settings)
    worker_options.check_heartbeat(given["heartbeat_interval"], whole)
    settings |= _absolute({name: settings[name] for name in overrides if name in settings}, whole)
    write_whole(path, _HEADER + _yaml(settings), secret=_is_secret(settings), force=force)
    click.echo(f"{path}: written; psched -c {path} check tries it")


def _literal(overrides: Mapping[str, object]) -> dict[str, object]:
    """Settings as a file has them: a ``${`` of the command line is no reference."""

    def escaped(value: object) -> object:
        if isinstance(value, str):
            return value.replace("${", "$${")
        return [escaped(item) for item in value] if isinstance(value, tuple) else value

    return {name: escaped(value) for name, value in overrides.items() if value is not None}


def _absolute(written: Mapping[str, object], whole: Config) -> dict[str, object]:
    """The settings among these that name files, to be found from whatever folder."""
    found: dict[str, object] = {}
    for name in written:
        value = getattr(whole, name)
        if name == "url" and not whole.url.startswith("sqlite"):
            continue  # it is as it was written, and what it holds is escaped
        if isinstance(value, Path):
            found[name] = str(value)
        elif isinstance(value, (str, tuple)):
            found[name] = value
    return _literal(found)


def _is_secret(settings: Mapping[str, object]) -> bool:
    url = str(settings.get("url", ""))
    return urls.without_secrets(url) != url


def _yaml(settings: Mapping[str, object]) -> str:
    return yaml.safe_dump(dict(settings), sort_keys=False, allow_unicode=True)
