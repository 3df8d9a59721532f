"""Completes keys in a shell: ``psched delete rep`` and the tab key.

Click's completion scripts for bash, zsh and fish call psched with what was typed so far.
"""

import logging
import os
import re
from collections.abc import Sequence
from typing import Any

import click
from click.shell_completion import (
    BashComplete,
    CompletionItem,
    add_completion_class,
    split_arg_string,
)
from typing_extensions import override

from psched.app import CLOCK, make_store, new_nonce
from psched.cli.opening import read_settings
from psched.cli.options import ConfigLocation, location_of
from psched.client.collection import ScheduleCollection
from psched.config import Config
from psched.config.references import current_folder

_MOST_KEYS = 300  # the most keys that are shown

_LONGEST_SEARCH = 1.0
"""Seconds from the database's first answer after which the search ends with the keys that were
found so far."""

_LONGEST_ANSWER = 2.0  # seconds after which a database that does not answer is given up

_HARMLESS = re.compile(r"[\w.,:/@%+][\w.,:/@%+=-]*")
"""A key that a shell takes literally. Other keys are not completed: the shell would interpret what
is inserted, so whoever can write rows could have commands executed."""


class _Bash(BashComplete):
    """Completes words with a colon, which bash splits at each colon.

    Click's script passes the words that bash has split. This one passes the line, and offers only
    the part of a word after the last character at which bash splits words.
    """

    source_template = BashComplete.source_template.replace(
        'COMP_WORDS="${COMP_WORDS[*]}" COMP_CWORD=$COMP_CWORD',
        'COMP_LINE="${COMP_LINE:0:$COMP_POINT}" COMP_WORDBREAKS="$COMP_WORDBREAKS"',
    )
    _kept = 0

    @override
    def get_completion_args(self) -> tuple[list[str], str]:
        line = os.environ.get("COMP_LINE")
        if line is None:  # click's script has changed, so that nothing was replaced in it
            return super().get_completion_args()
        args = split_arg_string(line)[1:]
        incomplete = "" if line[-1:].isspace() or not args else args.pop()
        breaks = os.environ.get("COMP_WORDBREAKS", "")
        if not incomplete.startswith("-"):  # in --name=value, click completes the value alone
            self._kept = max((incomplete.rfind(each) for each in breaks), default=-1) + 1
        return args, incomplete

    @override
    def format_completion(self, item: CompletionItem[Any]) -> str:
        return f"{item.type},{item.value[self._kept :]}"


def register() -> None:
    """Have click use the completion script for bash of this module."""
    add_completion_class(_Bash)


def complete_key(
    context: click.Context, _parameter: click.Parameter, incomplete: str
) -> Sequence[str]:
    """Return the keys that begin with what was typed; none if the database cannot be read."""
    # An error has no place in a command line that is being typed, and neither has a log message.
    logging.disable()
    try:
        return _matching_keys(location_of(context), incomplete)
    except Exception:  # noqa: BLE001
        return []


def _matching_keys(location: ConfigLocation, beginning: str) -> Sequence[str]:
    """Read keys from the database."""
    settings = read_settings(location)
    if not _is_trusted(settings, location):
        return []
    if settings.driver_timeout > _LONGEST_ANSWER:
        settings = settings.with_settings(database_timeout=_LONGEST_ANSWER)
    found: list[str] = []
    until: float | None = None
    store = make_store(settings)
    with ScheduleCollection(
        store, settings, clock=CLOCK, draw_nonce=new_nonce, tries=1
    ) as schedules:
        for metadata in schedules.list(prefix=beginning or None, limit=_MOST_KEYS, order="key"):
            until = until or CLOCK.monotonic() + _LONGEST_SEARCH
            if _HARMLESS.fullmatch(metadata.key):
                found.append(metadata.key)
            if CLOCK.monotonic() > until:
                break
    return sorted(found)


def _is_trusted(settings: Config, location: ConfigLocation) -> bool:
    """Whether settings may be used although the user has only pressed a key.

    A file that was only found in the current folder can be anybody's. It is not used if it belongs
    to another user, because it can send environment variables to a server; or if it names a store
    class, because the module of the class would be executed.
    """
    origin = settings.origin
    named = location.config is not None or bool(os.environ.get("PSCHED_CONFIG"))
    if origin is None or named or not origin.is_relative_to(current_folder()):
        return True
    return ":" not in settings.type and origin.stat().st_uid in {0, os.geteuid()}
