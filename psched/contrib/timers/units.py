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

    def last(self, *names: str) -> Setting:
        """The last setting with one of these names; without any, an empty one of the first line."""
        return [Setting(names[0], "", f"{self.path}:1"), *self.all(*names)][-1]


def place_of(folder: Path) -> str:
    """The path of a folder below its root, or a home, if it is one of systemd's; else its name."""
    paths = (f"{base}/systemd/{folder.name}" for base in (*_BASES, ".config", ".local/share"))
    return next((each for each in paths if f"{folder}".endswith(f"/{each}")), folder.name)


def search_path(folder: Path) -> Sequence[Path]:
    """The folders that systemd searches if this is one of them, in order; else only this one."""
    root = f"{folder}".removesuffix(place_of(folder))
    folders = [Path(root, each, "systemd", folder.name) for each in _BASES]
    return folders if folder in folders else [folder]


def timers_in(folder: Path, folders: Sequence[Path]) -> Iterator[tuple[str, str]]:
    """Yield the name of each timer in a folder, and why systemd does not start it from there.

    A template stands for its enabled instances, if there are any. If no folder has links that say
    what is enabled, every timer is.
    """
    links = {link.name for each in folders for link in each.glob("*.wants/*.timer")}
    for name in sorted(path.name for path in folder.glob("*.timer")):
        stem, is_template, _ = name.partition("@.")
        instances = sorted(each for each in links if is_template and each.startswith(f"{stem}@"))
        first = next((each for each in folders if (each / name).exists()), folder)
        why = "" if first.samefile(folder) else f"{first / name} takes its place"
        for each in instances or [name]:
            yield each, why or ("it is not enabled" if links and each not in links else "")


def read_unit(name: str, folders: Sequence[Path]) -> Unit | None:
    """Read a unit; None if there is none."""
    stem, _, kind = name.rpartition(".")
    template = re.sub(r"@.*", "@", stem)
    files = (folder / f"{each}.{kind}" for each in (stem, template) for folder in folders)
    path = next((file for file in files if file.exists()), None)
    if path is None:
        return None
    prefixes = [stem[: dash.end()] for dash in re.finditer("-", stem)]
    owners = [f"{each}.{kind}.d" for each in (stem, template, *reversed(prefixes))]
    added = dict[str, Path]()
    for drop_in in (each for folder in folders for owner in [*owners, f"{kind}.d"]
                    for each in (folder / owner).glob("*.conf")):  # fmt: skip
        added.setdefault(drop_in.name, drop_in)
    in_order = [path, *(added[each] for each in sorted(added))]
    return Unit(name, path, [each for file in in_order for each in _settings(file)])


def _settings(file: Path) -> Iterator[Setting]:
    section = ""
    lines = ((n, each.strip()) for n, each in enumerate(content_of(file).split("\n"), 1))
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
