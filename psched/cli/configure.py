"""``psched configure``: options, kept in a file."""

import os
import stat
import tempfile
from collections.abc import Mapping
from pathlib import Path

import click
import yaml

from psched import config
from psched.cli import options, workers
from psched.cli.refusals import refusing
from psched.config import Config, urls
from psched.errors import ConfigError

_HEADER = """\
# Written by psched configure. psched -c THIS_FILE reads it; etc/psched.yml explains each setting,
# and shows others.
"""


@click.command()
@click.argument("path", type=click.Path(dir_okay=False, path_type=Path))
@click.option("--force", is_flag=True, help="Replace a file that is there.")
@workers.described
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
    overrides = workers.overrides(given, words)
    before = {} if source is None else config.written(source, environment)
    settings = {name: value for name, value in before.items() if name not in overrides}
    settings |= _literal(overrides)
    whole = config.from_mapping(settings)
    workers.check_heartbeat(given["heartbeat_interval"], whole)
    settings |= _absolute({name: settings[name] for name in overrides if name in settings}, whole)
    _write(path, _HEADER + _yaml(settings), secret=_is_secret(settings), force=force)
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
    return urls.safe(url) != url


def _yaml(settings: Mapping[str, object]) -> str:
    return yaml.safe_dump(dict(settings), sort_keys=False, allow_unicode=True)


def _write(path: Path, content: str, *, secret: bool, force: bool) -> None:
    """Write a file whole, or leave what is there.

    Raises:
        ConfigError: there is one, and it is not to be replaced; or it cannot be written.
    """
    if path.exists() and not force:
        raise ConfigError(f"{path} is there already; --force replaces it")
    umask = os.umask(0o077)
    os.umask(umask)
    mode = stat.S_IRUSR | stat.S_IWUSR if secret else 0o666 & ~umask
    place = path.resolve()
    try:
        # Nobody is ever to see half of it, nor a secret before its mode is set.
        descriptor, made = tempfile.mkstemp(dir=place.parent, prefix=f".{place.name}.")
        try:
            with os.fdopen(descriptor, "w", encoding="utf-8") as file:
                file.write(content)
                os.fchmod(descriptor, mode)
            Path(made).replace(place)
        finally:
            Path(made).unlink(missing_ok=True)
    except OSError as error:
        raise ConfigError(f"{path}: cannot be written: {error.strerror}") from None
    except UnicodeEncodeError:
        raise ConfigError(f"{path}: cannot be written: an option is not UTF-8 text") from None
