"""The hook that replaces a crontab's ``MAILTO``."""

import re
from collections.abc import Sequence
from hashlib import sha256
from typing import NamedTuple

from psched.base.errors import ConfigError
from psched.config import Config, from_mapping
from psched.config.monitoring.hooks import MailHook

_LONGEST_NAME = 40
"""The number of characters of a hook's name above which it is cut, and ends in a hash."""

_HASH = 6


class Mailing(NamedTuple):
    """Who gets mail about a command.

    Attributes:
        hook: the name of the hook; None if nobody gets mail.
        remark: what the user must do so that the hook works; None if nothing is left to do.
    """

    hook: str | None = None
    remark: str | None = None


def mailing_of(mailto: str | None, settings: Config) -> Mailing:
    """The hook that mails to the addresses of a ``MAILTO``.

    If the settings define a hook that mails to the same addresses, this is the hook.

    Args:
        mailto: the value in the crontab; None if the crontab does not set it.
        settings: psched's settings.
    """
    addresses = [each for each in re.split(r"[,\s]+", mailto or "") if each]
    if not addresses:
        return Mailing()
    for name, hook in settings.hooks.items():
        if isinstance(hook, MailHook) and {*hook.to} == {*addresses}:
            return Mailing(name)
    name = _name_of(addresses)
    try:
        from_mapping({"hooks": {name: {"mail": addresses}}})
    except ConfigError:
        return Mailing(None, f"MAILTO={mailto}: not imported: it is no list of addresses")
    if name in settings.hooks:
        return Mailing(name)
    wanted = f"hooks: {{{name}: {{mail: [{', '.join(addresses)}]}}}}"
    how = f"so that psched mails failures, add to the configuration: {wanted}"
    return Mailing(name, f"MAILTO={mailto}: {how}")


def _name_of(addresses: Sequence[str]) -> str:
    name = "-".join(["mail", *(re.sub(r"[^A-Za-z0-9_]+", "-", each) for each in addresses)])
    if len(name) <= _LONGEST_NAME:
        return name
    digest = sha256(" ".join(addresses).encode()).hexdigest()
    return f"{name[:_LONGEST_NAME]}-{digest[:_HASH]}"
