"""Finds and reads unit files, with their drop-ins, as systemd.unit(5) and systemd.syntax(7) say."""

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from psched.contrib.crontab.command import content_of

_BASES = ("etc", "run", "usr/local/lib", "usr/lib", "lib")
"""The folders that have ``systemd/system`` and ``systemd/user``, the most important one first."""


class Setting(NamedTuple):
    """A line of a unit file.

    Attributes:
        name: the section and the name, such as ``Service.User``.
        value: the text behind ``=``; empty if the line takes back what was set before.
        place: the file and the number of the line.
    """

    name: str
    value: str
    place: str


class Unit(NamedTuple):
    """A unit: its name (of an instance, such as ``backup@db.timer``), its file, and its lines."""

    name: str
    path: Path
    settings: Sequence[Setting]

    def all(self, *names: str) -> Sequence[Setting]:
        """The settings with these names. An empty value takes back those before it."""
        found = list[Setting]()
        for setting in self.settings:
            if setting.name in names:
                found = [*found, setting] if setting.value else []
        return found

    def text(self, name: str, default: str = "") -> str:
        """The value of the last setting with this name."""
        return next((each.value for each in reversed(self.all(name))), default)


def search_path(folder: Path) -> Sequence[Path]:
    """The folders that systemd searches if this is one of them, in order; else only this one."""
    for base in _BASES:
        suffix = f"/{base}/systemd/{folder.name}"
        if f"{folder}".endswith(suffix):
            root = f"{folder}".removesuffix(suffix)
            return [Path(f"{root}/{each}/systemd/{folder.name}") for each in _BASES]
    return [folder]


def timers_in(folder: Path, folders: Sequence[Path]) -> Iterator[tuple[str, bool]]:
    """Yield the name of each timer in a folder, and whether systemd starts it.

    A template stands for its enabled instances, if there are any. If no folder has links that say
    what is enabled, every timer is.
    """
    links = {link.name for each in folders for link in each.glob("*.wants/*.timer")}
    for name in sorted(path.name for path in folder.glob("*.timer")):
        stem, is_template, _ = name.partition("@.")
        instances = sorted(each for each in links if is_template and each.startswith(f"{stem}@"))
        for each in instances or [name]:
            yield each, not links or each in links


def read_unit(name: str, folders: Sequence[Path]) -> Unit | None:
    """Read a unit; None if there is none. A unit without settings is masked.

    Raises:
        ConfigError: a file cannot be read.
    """
    stem, _, kind = name.rpartition(".")
    template = re.sub(r"@.*", "@", stem)
    files = (folder / f"{each}.{kind}" for each in (stem, template) for folder in folders)
    path = next((file for file in files if file.exists()), None)
    if path is None or path.resolve() == Path("/dev/null"):
        return None if path is None else Unit(name, path, ())
    prefixes = [stem[: dash.end()] for dash in re.finditer("-", stem)]
    owners = [f"{each}.{kind}.d" for each in (stem, template, *reversed(prefixes))]
    added = dict[str, Path]()
    for drop_in in (each for folder in folders for owner in [*owners, f"{kind}.d"]
                    for each in (folder / owner).glob("*.conf")):  # fmt: skip
        added.setdefault(drop_in.name, drop_in)
    in_order = [path, *(added[each] for each in sorted(added))]
    return Unit(name, path, [each for file in in_order for each in _settings(file)])


def _settings(file: Path) -> Iterator[Setting]:
    section, lines = (
        "",
        ((n, each.strip()) for n, each in enumerate(content_of(file).split("\n"), 1)),
    )
    for number, begin in lines:
        line = begin
        if not line or line.startswith(("#", ";")):
            continue
        while (len(line) - len(line.rstrip("\\"))) % 2:
            # Comments can stand between the lines of one setting.
            more = next((each for _, each in lines if not each.startswith(("#", ";"))), "")
            line = f"{line[:-1]} {more}"
        if line.startswith("["):
            section = line.strip("[]")
        else:
            name, _, value = line.partition("=")
            yield Setting(f"{section}.{name.strip()}", value.strip(), f"{file}:{number}")
