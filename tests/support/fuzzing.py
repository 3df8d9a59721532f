"""Random cases that can be repeated: each has a seed of its own, and names it when it fails.

``PSCHED_FUZZ_SEED`` chooses the cases (1 if it is not set), ``PSCHED_FUZZ_FACTOR`` multiplies how
many there are. `bin/fuzz` sets both.
"""

import json
import os
import random
import string
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

SEED = os.environ.get("PSCHED_FUZZ_SEED", "1")
FACTOR = int(os.environ.get("PSCHED_FUZZ_FACTOR", "1"))

CONTROLS = "\x00\x07\x08\x1b\x7f\x85\x9b\u200b\u200e\u2028\u202e\u2066\ufeff\ufffd\u0600\U000e0001"
"""Characters that terminals, logs or databases treat specially."""

TERMINAL = "\x1b]0;owned\x07", "\x1b[2J", "\x9b31m", "\u202egnp.exe", "a\x85b", "\r\nforged line"
"""Texts that somebody could write into a row to change what another person sees."""

NUMBERS = (
    0, 1, -1, 2**31 - 1, 2**31, -(2**31), 2**53, 2**62, 2**63 - 1, -(2**63), 10**10,
    253_402_300_799, 253_402_300_800,
)  # fmt: skip


class Fuzz(random.Random):
    """One case: a source of odd values.

    Args:
        name: the suite's name.
        number: the case's number.
    """

    def __init__(self, name: str, number: int) -> None:
        self.label = f"{SEED}:{name}:{number}"
        super().__init__(self.label)

    def maybe(self, share: float = 0.5) -> bool:
        """True in this share of the cases."""
        return self.random() < share

    def text(self, most: int = 40) -> str:
        """A text of any kind: words, control characters, other scripts, punctuation."""
        kind = self.randrange(6)
        length = self.randrange(most)
        if kind == 0:
            return "".join(self.choices(string.ascii_letters + string.digits + " _-.", k=length))
        if kind == 1:
            return "".join(self.choices(CONTROLS + string.ascii_letters, k=length))
        if kind == 2:
            return "".join(self.choices(string.printable, k=length))
        if kind == 3:
            return "".join(self.choices("*/-,0123456789LW#@ ", k=length))
        if kind == 4:
            return self.choice(TERMINAL) + "".join(self.choices(string.ascii_letters, k=3))
        # Surrogates are left out, because they are no characters: no file or database stores them.
        ranges = ((1, 0x7F), (0x80, 0x2FF), (0x300, 0xD7FF), (0xE000, 0x1FFFF))
        return "".join(chr(self.randint(*self.choice(ranges))) for _ in range(length))

    def number(self) -> int:
        """A whole number: often one at a bound."""
        return self.choice(NUMBERS) if self.maybe(0.7) else self.randint(-(10**6), 10**6)

    def json(self, depth: int = 0) -> Any:
        """A value that JSON can hold."""
        kind = self.randrange(8 if depth < 4 else 5)
        if kind == 0:
            return self.text()
        if kind == 1:
            return self.number()
        if kind == 2:
            return self.uniform(-1e6, 1e6)
        if kind in (3, 4):
            return self.choice((None, True, False, "", "0", "1e999"))
        if kind == 5:
            return [self.json(depth + 1) for _ in range(self.randrange(4))]
        return {self.text(8): self.json(depth + 1) for _ in range(self.randrange(4))}

    def json_text(self) -> str:
        """A text that is JSON, or almost."""
        kind = self.randrange(6)
        if kind == 0:
            depth = self.choice((10, 101, 1000, 50_000))
            opening, closing = self.choice(("[]", ('{"a":', "}")))
            return opening * depth + closing * self.choice((depth, 0))
        if kind == 1:
            return self.choice(
                ('{"a": NaN}', '{"a": 1e999}', '{"a": Infinity}', r'{"a": "\ud800"}')
            )
        if kind == 2:
            return json.dumps(self.json())
        whole = json.dumps({"k": self.json()})
        return whole if kind == 3 else self.spoilt(whole)

    def spoilt(self, whole: str) -> str:
        """A text with some of it removed, doubled, exchanged or replaced."""
        for _ in range(self.randint(1, 4)):
            at = self.randrange(len(whole) + 1)
            to = min(len(whole), at + self.randrange(12))
            middle = self.choice(("", whole[at:to] * 2, self.text(6), whole[at:to][::-1]))
            whole = whole[:at] + middle + whole[to:]
        return whole

    def bytes(self, most: int = 64) -> bytes:
        """Any bytes."""
        return self.randbytes(self.randrange(most))


def cases(name: str, count: int) -> Iterator[Fuzz]:
    """Yield ``count`` cases, times ``PSCHED_FUZZ_FACTOR``.

    Args:
        name: the suite's name.
        count: how many.
    """
    for number in range(count * FACTOR):
        yield Fuzz(name, number)


@contextmanager
def told(case: Fuzz, *seen: object) -> Iterator[None]:
    """Add the case and its input to any exception raised in the block."""
    try:
        yield
    except BaseException as error:
        error.add_note(f"case {case.label} of the fuzz suite (PSCHED_FUZZ_SEED={SEED})")
        for each in seen:
            error.add_note(f"  given: {each!r:.2000}")
        raise
