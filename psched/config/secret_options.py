"""Finds the secrets among the options of a store class of your own."""

import re
from collections.abc import Mapping

from psched.config import urls

_SECRET_NAME = re.compile("pass|pwd|secret|token|credential|key$", re.IGNORECASE)
"""Matches the name of an option whose value is a secret."""


def secrets_among(options: Mapping[str, object]) -> set[str]:
    """Return the texts of options that are secret by their names, and the passwords in urls.

    Options within options are searched, too.
    """
    found = set[str]()
    for name, value in options.items():
        if isinstance(value, Mapping):
            found |= secrets_among(value)
        elif isinstance(value, str):
            found |= {value} if _SECRET_NAME.search(name) else set()
            found |= urls.secrets(value) if "://" in value else set()
    return found
