"""Process titles: what ``ps`` shows of us."""

from setproctitle import setproctitle


def set_title(text: str) -> None:
    """Show a text as this process's title; it must hold nothing secret."""
    if not text.isprintable():
        text = "".join(c if c.isprintable() else "?" for c in text)
    setproctitle(f"psched {text}")
