"""Process titles, as ``ps`` shows them."""

from setproctitle import setproctitle

from psched.base.texts import cut, visible

_LONGEST = 1000


def set_title(text: str) -> None:
    """Show a text as this process's title; it must contain nothing secret."""
    setproctitle(f"psched {visible(cut(text, _LONGEST))}")
