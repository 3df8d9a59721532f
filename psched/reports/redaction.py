"""Hides the values of fields such as passwords where payloads, results and errors are shown.

In a JSON object, the value of a matching field is replaced, whatever its type. In any other text,
the value is found after the name: ``name=value``, ``name: value``, ``"name": "value"``,
``--name value`` and the like. The password in a URL is hidden, too. A value without quotes has no
certain end there, so too much is hidden rather than too little: to the next blank after ``name=``,
and to the end of the line after ``name: `` and ``name = ``.
"""

import re
from collections.abc import Sequence
from fnmatch import translate
from typing import Any, Self

HIDDEN = "[redacted]"
"""What is shown in place of a value."""

SECRETS = (
    *("*password*", "*passwd*", "*passphrase*", "*pass", "*pwd*"),
    *("*secret*", "*token*", "*credential*", "*api*key*", "*private*key*", "*authorization*"),
)
"""The patterns for changes of schedules, unless the setting ``redact`` is empty."""

_LONGEST_NAME = 1000
"""The most characters of a name that is compared; the value of a longer one is always hidden."""

# A name in quotes or without, the sign after it, and perhaps the beginning of a Python literal such
# as b"…". No part of the pattern can match a text in two ways, so that the search of a long text
# takes a time that grows with its length only.
_FIELD = re.compile(
    r"""(?:(?P<quote>["'])(?P<quoted>[^"'\n]{1,200})(?P=quote)|(?<![\w.$-])(?P<bare>[\w.$-]++))
    (?P<sign>(?P<before>[ \t]*+)(?:=>|:=|==?|:)(?P<after>[ \t]*+))
    (?P<prefix>[A-Za-z]{0,2}(?=["']))?""",
    re.VERBOSE,
)
_STRING = re.compile(
    r"'(?:[^'\\]|\\(?:.|\Z))*(?:'|\Z)|\"(?:[^\"\\]|\\(?:.|\Z))*(?:\"|\Z)", re.DOTALL
)
_BRACKETS = re.compile(r"[][(){}]|" + _STRING.pattern, re.DOTALL)
_OPTION = re.compile(
    r"""(?<![\w-])(?P<before>--(?P<name>[\w-]{1,200}+)(?:["'],[ \t]*+|[ \t]++))(?!\s)"""
    rf"(?:{_STRING.pattern}|\S+)",
    re.DOTALL,
)
_URL = re.compile(r"(://[^\s/@:]*+:)[^\s/@]++(?=@)")
_TO_BLANK = re.compile(r"\S+")
_TO_LINE_END = re.compile(r"[^\n]+")
_SCALAR = re.compile(r"[^,}\]\n]+")


class Redaction:
    """Hides the values of the fields whose names match one of some patterns.

    In a pattern, ``*`` stands for any characters, and case makes no difference.
    """

    def __init__(self, patterns: Sequence[str] | None) -> None:
        # As fnmatch translates it, an asterisk matches as little as it can, and that is final. So
        # the time grows with the product of the lengths, however many asterisks there are.
        alternatives = (translate(re.sub(r"[\[?]", r"[\g<0>]", each)) for each in patterns or ())
        self._pattern = re.compile("|".join(alternatives), re.IGNORECASE) if patterns else None

    @classmethod
    def of_changes(cls, patterns: Sequence[str] | None) -> Self:
        """For changes of schedules, which logs of deployments keep: with `SECRETS`."""
        return cls(() if patterns == () else (*SECRETS, *(patterns or ())))

    def __bool__(self) -> bool:
        """Whether there is a pattern; if not, the methods return what they get."""
        return self._pattern is not None

    def hides(self, name: str) -> bool:
        """Whether the values of fields with this name are hidden."""
        if self._pattern is None:
            return False
        return len(name) > _LONGEST_NAME or self._pattern.fullmatch(name) is not None

    def value(self, value: Any) -> Any:  # noqa: ANN401  # of JSON
        """A copy of a JSON value without the values of matching fields, also in its texts."""
        if not self:
            return value
        if isinstance(value, dict):
            return {
                name: HIDDEN if self.hides(name) else self.value(each)
                for name, each in value.items()
            }
        if isinstance(value, list | tuple):
            words = zip((None, *value), value, strict=False)
            return [HIDDEN if self._is_option(word) else self.value(each) for word, each in words]
        return self.text(value) if isinstance(value, str) else value

    def text(self, text: str) -> str:
        """A text without the values of matching fields; it may have been cut anywhere."""
        if not self:
            return text
        parts, end = [], 0
        field = _FIELD.search(text)
        while field is not None:
            # The next field can begin within this one's value, unless that is hidden.
            following = field.start("sign")
            if self._hides_field(field["quoted"] or field["bare"]):
                following = _end_of_value(text, field)
                if following > field.end("sign"):
                    parts += [text[end : field.end("sign")], HIDDEN]
                    end = following
            field = _FIELD.search(text, following)
        text = _OPTION.sub(
            lambda found: found["before"] + HIDDEN if self.hides(found["name"]) else found[0],
            "".join([*parts, text[end:]]),
        )
        return _URL.sub(rf"\1{HIDDEN}", text)

    def _is_option(self, word: object) -> bool:
        """Whether a word of a command, such as ``--password``, names the next one."""
        return isinstance(word, str) and word.startswith("--") and self._hides_field(word)

    def _hides_field(self, name: str) -> bool:
        """Whether a name in a text matches, such as ``--password`` or ``config.password``."""
        name = name.strip("-.")
        return self.hides(name) or ("." in name and self.hides(name.rpartition(".")[2]))


def _end_of_value(text: str, field: re.Match[str]) -> int:
    """The place after the value of a field."""
    begin = field.end("sign") + len(field["prefix"] or "")
    first = text[begin : begin + 1]
    if first in {'"', "'"}:
        found = _STRING.match(text, begin)
    elif first in {"{", "[", "("}:
        return _end_of_brackets(text, begin)
    elif field["quote"]:
        found = _SCALAR.match(text, begin)
    elif field["after"] or field["before"]:
        found = _TO_LINE_END.match(text, begin)
    else:
        found = _TO_BLANK.match(text, begin)
    return begin if found is None else found.end()


def _end_of_brackets(text: str, begin: int) -> int:
    """The place after the bracket that closes the one at ``begin``, or the end of the text."""
    depth = 0
    for found in _BRACKETS.finditer(text, begin):
        if found[0] in {"{", "[", "("}:
            depth += 1
        elif found[0] in {"}", "]", ")"}:
            depth -= 1
            if depth == 0:
                return found.end()
    return len(text)
