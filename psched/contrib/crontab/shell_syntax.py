"""What of a shell command's text runs in the background."""

import re

_QUOTED = re.compile(
    r"""\\. | '[^']*('|$) | "(\\.|[^"\\])*("|$) | `[^`]*(`|$) | (?<!\S)\#.*""",
    re.DOTALL | re.VERBOSE,
)
"""Matches what is quoted, and a comment."""

_BACKGROUND = re.compile(r"(?<![&<>|])&(?![&>])(?!.*\bwait\b)", re.DOTALL)
_IN_SHELL = re.compile(r"""\s-\w*c\s+(["'])(?:(?!\1).)*[^&<>|]&\s*\1""")


def in_foreground(command: str) -> tuple[str, bool]:
    """Remove a final ``&``; say whether a part still runs in the background at the end."""
    bare = _QUOTED.sub(lambda found: " " * len(found[0]), command)
    if last := re.search(r"(?<![&<>|])&\s*$", bare):
        command, bare = command[: last.start()].rstrip(), bare[: last.start()]
    return command, bool(_BACKGROUND.search(bare) or _IN_SHELL.search(command))
