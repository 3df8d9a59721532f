"""What an operator should know of settings that are used nevertheless."""

import re
import stat
from collections.abc import Iterator
from pathlib import Path

from psched.base.file_rights import writable_by_group
from psched.config.settings import Config
from psched.config.urls import AWS_KINDS

_HERE = re.compile(r"(localhost|127\.[0-9.]+|\[::1\]|/.*|%2F.*)?(:[0-9]*)?", re.IGNORECASE)
"""A host that is this one, or the folder of its sockets."""

_VERIFYING = re.compile(r"sslmode=verify|sslrootcert=|ssl_ca=|ssl_verify_\w+=(true|yes|1)|socket=")
"""Options of a url by which the certificate is checked, or there is none to check."""


def remarks(settings: Config) -> Iterator[str]:
    """Yield warnings about who else may write the code, read secrets, or pose as the server."""
    file = settings.origin
    for place in sorted({*map(Path, settings.load_path), *((file, file.parent) if file else ())}):
        if writable_by_group(place):
            yield f"the group of {place} may write it, and so choose what runs: run `chmod g-w`"
    if file is not None and _is_open_secret(file, settings):
        yield f"everybody on this host may read {file}, which contains a secret: run `chmod o-r`"
    if is_unverified(settings):
        yield (
            "the database's server is not verified: whoever answers in its place chooses what runs;"
            " set ssl_ca"
        )


def is_unverified(settings: Config) -> bool:
    """Whether the store is a server on another host whose certificate psched does not check."""
    scheme, _, rest = settings.url.partition("://")
    place, _, options = rest.rpartition("@")[2].partition("?")
    folder = re.search(r"(?:^|&)host=([^&]*)", options)
    hosts = (folder[1] if folder else place.partition("/")[0]).split(",")
    safe = "unix", "rediss", "rediss+sentinel", *AWS_KINDS
    if not place or scheme in safe or scheme.startswith("sqlite"):
        return False
    if settings.tls is not None or all(map(_HERE.fullmatch, hosts)):
        return settings.tls is not None and settings.tls.verify == "none"
    return _VERIFYING.search(options) is None


def _is_open_secret(file: Path, settings: Config) -> bool:
    try:
        is_open = file.is_file() and file.stat().st_mode & stat.S_IROTH
        text = file.read_text(encoding="utf-8", errors="replace") if is_open else ""
    except OSError:
        return False
    return any(secret in text for secret in settings.secrets)
