"""Hides secrets in a stream of output."""

import re
from collections.abc import Iterable

SHORTEST = 4
"""A secret of fewer bytes is not hidden: it would be found in many words that have nothing to do
with it, and could then be guessed from what is missing."""

_MASK = b"***"


class Secrets:
    """The texts that are replaced by three asterisks, unless they are shorter than `SHORTEST`.

    Texts in ``whole`` are not replaced, but never divided between two pieces of output.
    """

    def __init__(self, texts: Iterable[str] = (), whole: Iterable[bytes] = ()) -> None:
        found = {text.encode(errors="surrogateescape") for text in texts}
        self._whole = frozenset(whole)
        wanted = {each for each in found if len(each) >= SHORTEST} | self._whole
        # The longest is searched first, because a secret can begin with another one.
        self.all = sorted(wanted, key=len, reverse=True)
        self.longest = len(self.all[0]) if self.all else 0
        self.pattern = re.compile(b"|".join(map(re.escape, self.all)))

    def shown(self, found: re.Match[bytes]) -> bytes:
        """What is shown instead of a text that was found."""
        return found[0] if found[0] in self._whole else _MASK

    def occur_in(self, text: bytes) -> bool:
        """Whether a text contains a secret."""
        return any(secret in text for secret in self.all)

    def held_back(self, text: bytes, start: int) -> int:
        """Where the end of a text begins that can be the start of a secret; else its length."""
        found = len(text)
        for secret in self.all:
            at = text.find(secret[:1], max(start, len(text) - len(secret) + 1), found)
            while at >= 0:
                if secret.startswith(text[at:]):
                    found = at
                    break
                at = text.find(secret[:1], at + 1, found)
        return found


class Masking:
    """Hides secrets in one stream, also a secret that arrives in several pieces."""

    def __init__(self, secrets: Secrets) -> None:
        self._secrets = secrets
        self._held = b""

    def feed(self, chunk: bytes) -> bytes:
        """Add bytes; return those that can be shown already."""
        if not self._secrets.all:
            return chunk
        text = self._held + chunk
        shown: list[bytes] = []
        start = 0
        until = self._secrets.held_back(text, start)
        if self._secrets.occur_in(text):
            for match in self._secrets.pattern.finditer(text):
                if match.start() >= until:
                    break
                shown += text[start : match.start()], self._secrets.shown(match)
                start = match.end()
                if start > until:
                    until = self._secrets.held_back(text, start)
        shown.append(text[start:until])
        self._held = text[until:]
        return b"".join(shown)

    def rest(self) -> bytes:
        """Return what was held back, because nothing follows."""
        rest, self._held = self._held, b""
        return self._secrets.pattern.sub(self._secrets.shown, rest) if self._secrets.all else rest
