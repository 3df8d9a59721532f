"""Regular files in folders that tasks can write, too.

A task has its service's rights. In the place of a file it may leave a FIFO, which blocks whoever
opens it; a symbolic link to a file of somebody's; a folder; a file of any length, or one that
may not be read. None of these may stop or mislead a master or a worker.
"""

import errno
import os
import secrets
import stat
from contextlib import suppress
from pathlib import Path

LARGEST = 64 * 1024
"""Bytes of a file that `read` takes."""

_KINDS = {
    stat.S_IFIFO: "a FIFO",
    stat.S_IFSOCK: "a socket",
    stat.S_IFLNK: "a symbolic link",
    stat.S_IFDIR: "a folder",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


class NotRegularError(OSError):
    """Something that is no regular file has the name of one."""


def open_file(path: str | Path, flags: int, mode: int = 0o600, *, devices: bool = False) -> int:
    """Open a regular file; nothing is followed or waited for.

    A file of our own that we may not open, because somebody has changed its mode or that of its
    folder, is made ours to read and write again.

    Args:
        path: its name.
        flags: for ``open(2)``.
        mode: of a file that is created; less the umask.
        devices: whether a character device, such as ``/dev/null``, is accepted, too.

    Returns:
        A descriptor, which programs do not inherit.

    Raises:
        NotRegularError: something else has that name.
        OSError: it cannot be opened.
    """
    flags |= os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
    try:
        descriptor = _open(path, flags, mode)
    except OSError as error:
        with suppress(FileNotFoundError):
            _check(os.lstat(path), path, devices=devices)
        raise error from None
    try:
        _check(os.fstat(descriptor), path, devices=devices)
    except NotRegularError:
        os.close(descriptor)
        raise
    return descriptor


def read(path: Path) -> bytes:
    """What is in a small regular file.

    Raises:
        NotRegularError: something else has that name.
        OSError: it cannot be read, or is too large (EFBIG).
    """
    descriptor = open_file(path, os.O_RDONLY)
    with os.fdopen(descriptor, "rb") as file:
        content = file.read(LARGEST + 1)
    if len(content) > LARGEST:
        raise OSError(errno.EFBIG, os.strerror(errno.EFBIG), str(path))
    return content


def replace(path: Path, content: bytes, mode: int = 0o600) -> None:
    """Put a file in the place of whatever has this name, in one step.

    Raises:
        OSError: it cannot be written.
    """
    # Nobody can have put something in the place of a name that is drawn now.
    draft = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    descriptor = open_file(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
        try:
            draft.replace(path)
        except IsADirectoryError:
            clear(path)
            draft.replace(path)
    except BaseException:
        draft.unlink(missing_ok=True)
        raise


def discard(path: str | Path) -> None:
    """Remove what is no regular file and holds nothing: a FIFO, a socket, a link, an empty folder.

    Another process may be doing the same, and may have made a regular file already: that stays.

    Raises:
        NotRegularError: it is a device, or a folder that is not empty.
        OSError: it cannot be removed.
    """
    path = Path(path)
    with suppress(FileNotFoundError):
        found = path.lstat()
        if stat.S_ISDIR(found.st_mode):
            try:
                path.rmdir()
            except OSError:
                raise _not_regular(found, path) from None
        elif stat.S_ISCHR(found.st_mode) or stat.S_ISBLK(found.st_mode):
            raise _not_regular(found, path)
        elif not stat.S_ISREG(found.st_mode):
            path.unlink()


def clear(path: Path) -> None:
    """Have nothing stand at a name of psched's own, whatever that is now.

    A folder that is not empty is given another name: to remove what somebody has put into it
    could take any time.

    Raises:
        OSError: that is not possible.
    """
    try:
        path.unlink(missing_ok=True)
    except OSError:
        if not stat.S_ISDIR(path.lstat().st_mode):
            raise
        try:
            path.rmdir()
        except OSError:
            path.rename(path.with_name(f".removed.{secrets.token_hex(8)}"))


def is_same(path: Path, descriptor: int) -> bool:
    """Whether a name leads to an open file; not through a link."""
    try:
        return os.path.samestat(path.lstat(), os.fstat(descriptor))
    except OSError:
        return False


def _open(path: str | Path, flags: int, mode: int) -> int:
    try:
        return os.open(path, flags, mode)
    except PermissionError:
        folder = _take_back(Path(path).parent, stat.S_IFDIR, stat.S_IRWXU)
        file = _take_back(Path(path), stat.S_IFREG, stat.S_IRUSR | stat.S_IWUSR)
        if not folder and not file:
            raise
        return os.open(path, flags, mode)


def _take_back(path: Path, kind: int, rights: int) -> bool:
    """Give us these rights to what is ours and of this kind; whether we had not had them."""
    try:
        # This needs no right to the file itself.
        descriptor = os.open(path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        found = os.fstat(descriptor)
        mode = stat.S_IMODE(found.st_mode)
        if stat.S_IFMT(found.st_mode) != kind or found.st_uid != os.geteuid():
            return False
        if mode & rights == rights:
            return False
        # fchmod(2) does not take such a descriptor.
        Path(f"/proc/self/fd/{descriptor}").chmod(mode | rights)
    except OSError:
        return False
    else:
        return True
    finally:
        os.close(descriptor)


def _check(found: os.stat_result, path: str | Path, *, devices: bool) -> None:
    accepted = stat.S_ISREG(found.st_mode) or (devices and stat.S_ISCHR(found.st_mode))
    if not accepted:
        raise _not_regular(found, path)


def _not_regular(found: os.stat_result, path: str | Path) -> NotRegularError:
    kind = _KINDS.get(stat.S_IFMT(found.st_mode), "something else")
    return NotRegularError(errno.EINVAL, f"is {kind}, and no regular file", str(path))
