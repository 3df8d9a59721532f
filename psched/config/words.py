"""Texts of a certain form that settings can be."""

import re

from psched.config.kinds import Word

TABLE = Word(
    "a name of letters, digits and _ that begins with no digit and has at most 48 of them",
    re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,47}"),
)
NAME = Word("the name of a class", re.compile(r"[^\W\d]\w*"))
ATTRIBUTE = Word(
    "module:attribute, such as myapp.schedules:Dispatch, or a name in what is required",
    re.compile(r"(?:(?:[^\W\d]\w*\.)*[^\W\d]\w*:(?:[^\W\d]\w*\.)*)?[^\W\d]\w*"),
)
