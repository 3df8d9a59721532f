"""The variables that cron's PAM session sets for each command on this host."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

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
