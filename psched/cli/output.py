"""Files that commands write."""

import os
import stat
import tempfile
from pathlib import Path

from psched.errors import ConfigError


def write_whole(path: Path, content: str, *, force: bool, secret: bool = False) -> None:
    """Write a file whole, or leave what is there.

    Args:
        path: the file.
        content: of it.
        force: replace one that is there.
        secret: nobody but its owner may read it.

    Raises:
        ConfigError: there is one, and it is not to be replaced; or it cannot be written.
    """
    if path.exists() and not force:
        raise ConfigError(f"{path} is there already; --force replaces it")
    umask = os.umask(0o077)
    os.umask(umask)
    mode = stat.S_IRUSR | stat.S_IWUSR if secret else 0o666 & ~umask
    place = path.resolve()
    try:
        # Nobody is ever to see half of it, nor a secret before its mode is set.
        descriptor, made = tempfile.mkstemp(dir=place.parent, prefix=f".{place.name}.")
        try:
            with os.fdopen(descriptor, "w", encoding="utf-8") as file:
                file.write(content)
                os.fchmod(descriptor, mode)
            Path(made).replace(place)
        finally:
            Path(made).unlink(missing_ok=True)
    except OSError as error:
        raise ConfigError(f"{path}: cannot be written: {error.strerror}") from None
    except UnicodeEncodeError:
        raise ConfigError(f"{path}: cannot be written: an option is not UTF-8 text") from None
