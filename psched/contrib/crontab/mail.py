"""The hook that replaces a crontab's ``MAILTO``."""

import re
from collections.abc import Iterator, Sequence
from hashlib import sha256
from typing import NamedTuple

from psched.base.errors import ConfigError
from psched.config import Config, from_mapping
from psched.config.monitoring.hooks import MailHook

_LONGEST_NAME = 40
"""The number of characters to which the readable part of a hook's name is cut."""

_PLAIN = re.compile(r"\w+(@\w+\.\w+)?", re.ASCII)
"""What an address looks like that can be told from its name: ``-`` stands for ``@``, then ``.``."""

_HASHES = (6, 12, 20)
"""How many digits of a hash a name can end in; more are used if the name is taken."""


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

    If the settings define a hook that mails to the same addresses, this is the hook. Hooks that
    mail to different addresses have different names.
    """
    addresses = [each for each in re.split(r"[,\s]+", mailto or "") if each]
    if not addresses:
        return Mailing()
    for name, hook in settings.hooks.items():
        if isinstance(hook, MailHook) and {*hook.to} == {*addresses}:
            return Mailing(name)
    name = next(each for each in _names_of(addresses) if each not in settings.hooks)
    try:
        from_mapping({"hooks": {name: {"mail": addresses}}})
    except ConfigError:
        return Mailing(None, f"MAILTO={mailto}: not imported: it is no list of addresses")
    wanted = f"hooks: {{{name}: {{mail: [{', '.join(addresses)}]}}}}"
    how = f"so that psched mails failures, add to the configuration: {wanted}"
    return Mailing(name, f"MAILTO={mailto}: {how}")


def _names_of(addresses: Sequence[str]) -> Iterator[str]:
    """Names for a hook that mails to some addresses, the best one first."""
    name = "-".join(["mail", *(re.sub(r"[^A-Za-z0-9_]+", "-", each) for each in addresses)])
    if len(name) <= _LONGEST_NAME and len(addresses) == 1 and _PLAIN.fullmatch(addresses[0]):
        yield name
    digest = sha256(" ".join(addresses).encode()).hexdigest()
    for digits in _HASHES:
        yield f"{name[:_LONGEST_NAME]}-{digest[:digits]}"
