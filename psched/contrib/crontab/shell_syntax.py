"""What of a shell command's text is quoted, and what of it runs in the background."""

import re
from itertools import pairwise

_PAIRS = {"'": "'", '"': '"', "`": "`", "(": ")"}
_QUOTES = frozenset("'\"`")

_BACKGROUND = re.compile(r"(?<![&<>|])&(?![&>])(?!.*\bwait\b)", re.DOTALL)
_IN_SHELL = re.compile(r"""\s-\w*c\s+(["'])(?:(?!\1).)*[^&<>|]&\s*\1""")


def _unquoted(command: str) -> str:
    """Replace what is quoted by blanks."""
    bare, opened, is_escaped = "", list[str](), False
    for before, sign in pairwise(f" {command}"):
        end = opened[-1] if opened else ""
        was_escaped, is_escaped = is_escaped, False
        if was_escaped:
            sign = " "  # noqa: PLW2901  # it has no meaning
        elif sign == "\\" and end != "'":
            is_escaped = True
        elif sign == end:
            opened.pop()
        elif sign == "#" and before.isspace() and end not in _QUOTES:
            break  # a comment
        elif sign in _PAIRS and (end not in {"'", '"'} or (end == '"' and before + sign == "$(")):
            opened.append(_PAIRS[sign])
        bare += sign if _QUOTES.isdisjoint(opened) else " "
    return bare


def in_foreground(command: str) -> tuple[str, bool]:
    """Remove a final ``&``; say whether a part still runs in the background at the end."""
    bare = _unquoted(command)
    if last := re.search(r"(?<![&<>|])&\s*$", bare):
        command, bare = command[: last.start()].rstrip(), bare[: last.start()]
    return command, bool(_BACKGROUND.search(bare) or _IN_SHELL.search(command))
