"""The command configure."""

from collections.abc import Mapping
from pathlib import Path

import click
import yaml

from psched import config
from psched.base.texts import visible
from psched.cli import options
from psched.cli.daemon.run import add_options, check_heartbeat, overrides_of, with_timeout
from psched.cli.output import write_file
from psched.config import Config, urls

_HEADER = """\
# Written by psched configure; psched -c THIS_FILE reads it. psched.yml.example has all settings.
"""


@click.command()
@click.argument("path", type=click.Path(dir_okay=False, path_type=Path))
@click.option("--force", is_flag=True, help="Replace an existing file.")
@add_options
@click.pass_obj
def configure(
    location: options.ConfigLocation,
    /,
    path: Path,
    words: tuple[str, ...],
    *,
    force: bool,
    **given: object,
) -> None:
    """Write options of run to a configuration file.

    The new file is PATH; psched -c PATH reads it. With -c FILE (and -e), the settings in FILE are
    copied to PATH first. If the new file contains a password, or options for a store of your own,
    only the file's owner is allowed to read it. --daemon is written as pid_file; run still needs
    --daemon to run in the background. A DURATION is seconds, or a number with the unit s, m, h or
    d: 30s, 5m, 1h, 30d; the file contains seconds.
    """
    source, environment, replaced = location
    if source is None and environment is not None:
        raise click.UsageError("-e selects a section of a file; name the file with -c")
    before = {} if source is None else config.read_raw(source, environment)
    overrides = {**overrides_of(given, words), **replaced}
    overrides = with_timeout(overrides, lambda: before)
    settings = {name: value for name, value in before.items() if name not in overrides}
    settings |= _literal(overrides)
    whole = config.from_mapping(settings)
    check_heartbeat(given["heartbeat_interval"], whole)
    settings |= _absolute({name: settings[name] for name in overrides if name in settings}, whole)
    write_file(path, _HEADER + _yaml(settings), secret=_is_secret(settings), force=force)
    shown = visible(str(path))  # its name need not be UTF-8
    click.echo(f"{shown}: written; test it with psched -c {shown} check")


def _literal(overrides: Mapping[str, object]) -> dict[str, object]:
    """Convert settings to the form of a file: ``${`` is escaped, None is left out."""

    def escaped(value: object) -> object:
        if isinstance(value, str):
            return value.replace("${", "$${")
        return [escaped(item) for item in value] if isinstance(value, tuple) else value

    return {name: escaped(value) for name, value in overrides.items() if value is not None}


def _absolute(written: Mapping[str, object], whole: Config) -> dict[str, object]:
    """Return those written settings whose values are texts or paths, with all paths absolute."""
    found: dict[str, object] = {}
    for name in written:
        value = getattr(whole, name)
        if name == "url" and not whole.url.startswith("sqlite"):
            continue  # left as it is, because only a url of SQLite contains a relative path
        if isinstance(value, Path):
            found[name] = str(value)
        elif isinstance(value, (str, tuple)):
            found[name] = value
    return _literal(found)


def _is_secret(settings: Mapping[str, object]) -> bool:
    url = str(settings.get("url", ""))
    return urls.without_secrets(url) != url or not {"password", "pings", "store"}.isdisjoint(
        settings
    )


def _yaml(settings: Mapping[str, object]) -> str:
    return yaml.safe_dump(dict(settings), sort_keys=False, allow_unicode=True)
