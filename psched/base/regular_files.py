"""Regular files in folders that tasks can write to.

A task has the rights of its service. So a task can replace a file by a FIFO, which blocks a process
that opens it; or by a symbolic link to another file, a folder, a file of any length, or a file that
cannot be read. Such a replacement must neither stop nor mislead a master or a worker.
"""

import errno
import os
import stat
from contextlib import suppress
from pathlib import Path

LARGEST = 256 * 1024
"""The size in bytes of the largest file that `read` accepts."""

_KINDS = {
    stat.S_IFIFO: "a FIFO",
    stat.S_IFSOCK: "a socket",
    stat.S_IFLNK: "a symbolic link",
    stat.S_IFDIR: "a folder",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


class NotRegularError(OSError):
    """A path leads to a file of another kind than the expected regular file."""


def open_file(path: str | Path, flags: int, mode: int = 0o600, *, devices: bool = False) -> int:
    """Open a regular file, without following links and without blocking.

    If this process owns the file or its folder, but a changed mode forbids it to open the file, the
    rights of the owner are restored and the file is opened again. The descriptor is closed when the
    process executes another program.
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
    """The content of a regular file of at most `LARGEST` bytes."""
    descriptor = open_file(path, os.O_RDONLY)
    with os.fdopen(descriptor, "rb") as file:
        content = file.read(LARGEST + 1)
    if len(content) > LARGEST:
        raise OSError(errno.EFBIG, os.strerror(errno.EFBIG), str(path))
    return content


def replace(path: Path, content: bytes, mode: int = 0o600) -> None:
    """Write a file that atomically replaces whatever is at the path.

    The replacement of a folder is not atomic: the folder is removed or renamed first.
    """
    # The name is random, so that no task can create a file with this name beforehand.
    draft = path.with_name(f".{path.name}.{os.urandom(8).hex()}")
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
    """Remove a FIFO, a socket, a symbolic link or an empty folder.

    A regular file is not removed, because another process that called this function at the same
    time can have created it just now.
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
    """Remove whatever is at a path that belongs to psched.

    A folder that is not empty is renamed, because the removal of its content could take very long.
    """
    try:
        path.unlink(missing_ok=True)
    except OSError:
        if not stat.S_ISDIR(path.lstat().st_mode):
            raise
        try:
            path.rmdir()
        except OSError:
            path.rename(path.with_name(f".removed.{os.urandom(8).hex()}"))


def is_regular(path: Path) -> bool:
    """Whether a regular file is at a path; a link is not followed."""
    try:
        return stat.S_ISREG(path.lstat().st_mode)
    except OSError:
        return False


def is_same(path: Path, descriptor: int) -> bool:
    """Whether the file at a path is the open file of a descriptor; a link is not followed."""
    try:
        return os.path.samestat(path.lstat(), os.fstat(descriptor))
    except OSError:
        return False


def _open(path: str | Path, flags: int, mode: int) -> int:
    try:
        return os.open(path, flags, mode)
    except PermissionError:
        folder = _restore_rights(Path(path).parent, stat.S_IFDIR, stat.S_IRWXU)
        file = _restore_rights(Path(path), stat.S_IFREG, stat.S_IRUSR | stat.S_IWUSR)
        if not folder and not file:
            raise
        return os.open(path, flags, mode)


def _restore_rights(path: Path, kind: int, rights: int) -> bool:
    """Add rights to the mode of a file of this kind, if this process owns it; return if it did."""
    try:
        # O_PATH requires no right to the file itself.
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
        # The mode is changed through /proc, because fchmod(2) does not accept an O_PATH descriptor.
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
