"""Who may write a file: whoever may write what psched runs can run code as the user of psched."""

import grp
import os
import pwd
import stat
from pathlib import Path

_ROOT = 0


def refusal(path: Path, *, sticky: bool = False) -> str | None:
    """Why another user may write a regular file or a folder; None if nobody else but root may.

    It says nothing against a file of somebody who has no account here, nor against a file system
    that is mounted read-only: both are usual in containers. The group is not considered, because a
    umask of 002 lets it write everything. What cannot be examined is not refused.

    Args:
        path: the file or folder; links are followed.
        sticky: whether a folder is accepted in which everybody may create files, but nobody may
            replace those of others (``/tmp``).
    """
    if open_to_all(path, sticky=sticky):
        return f"{path} may be written by everybody on this host; run `chmod o-w` on it"
    try:
        owner = path.stat().st_uid
        if owner in (_ROOT, os.geteuid()) or _is_fixed(path) or not _is_file(path):
            return None
        name = pwd.getpwuid(owner).pw_name
    except (OSError, KeyError):
        return None
    user = user_name()
    return (
        f"{path} belongs to user {name}, who could choose what user {user} runs; give it to root or"
        f" {user}, or do this as user {name}"
    )


def refusal_of_file(path: Path) -> str | None:
    """The same for a file together with its folder, and with those of the file that it links to."""
    places = (path.absolute(), path.absolute().parent, Path(os.path.realpath(path)).parent)
    return next(filter(None, (refusal(place, sticky=True) for place in places)), None)


def open_to_all(path: Path, *, sticky: bool = False) -> bool:
    """Whether everybody on this host may write a regular file, or a folder."""
    try:
        mode = path.stat().st_mode
        open_ = bool(mode & stat.S_IWOTH) and _is_file(path) and not _is_fixed(path)
    except OSError:
        return False
    return open_ and not (sticky and mode & stat.S_ISVTX)


def writable_by_group(path: Path) -> bool:
    """Whether the group of a file or folder may write it; false if it cannot be examined."""
    try:
        return bool(path.stat().st_mode & stat.S_IWGRP) and _is_file(path) and not _is_fixed(path)
    except OSError:
        return False


def only_mine(path: Path) -> bool:
    """Whether nobody but this user and root may write or replace a file, which need not exist.

    A group is accepted if it is this user's own and has no other member. A folder in which
    everybody may create files is not: whoever creates a journal there changes a database.
    """
    try:
        return all(_is_private_chain(each) for each in (path.absolute(), Path(os.path.realpath(path))))
    except OSError:
        return False


def user_name(number: int | None = None) -> str:
    """The name of a user, or of this process's effective one; the number, if there is no name."""
    number = os.geteuid() if number is None else number
    try:
        return pwd.getpwuid(number).pw_name
    except KeyError:
        return str(number)


def _is_private_chain(path: Path) -> bool:
    found = [place for place in (path, *path.parents) if place.exists()]
    # The file and its folder, or the folder in which it will be made. Those above matter, because
    # whoever may rename one of them can put another file at this path.
    strict = 2 if found[0] == path else 1
    return all(_is_private(place, sticky=at >= strict) for at, place in enumerate(found))


def _is_private(path: Path, *, sticky: bool = False) -> bool:
    found = path.stat()
    if found.st_uid not in (_ROOT, os.geteuid()):
        return False
    if sticky and found.st_mode & stat.S_ISVTX:
        return True
    by_group = found.st_mode & stat.S_IWGRP and _has_others(found.st_gid)
    return not found.st_mode & stat.S_IWOTH and not by_group


def _has_others(group: int) -> bool:
    """Whether a group may have another member than this user and root."""
    try:
        found = grp.getgrgid(group)
    except KeyError:
        return True
    name = user_name()
    # Who has a group as the main one is not listed in it. It is this user alone in the group that
    # has this user's name.
    return not {*found.gr_mem} <= {name, "root"} or (found.gr_name != name and group != _ROOT)


def _is_file(path: Path) -> bool:
    # Devices such as /dev/null and pipes are no files that somebody could have changed.
    return path.is_file() or path.is_dir()


def _is_fixed(path: Path) -> bool:
    return bool(os.statvfs(path).f_flag & os.ST_RDONLY)

