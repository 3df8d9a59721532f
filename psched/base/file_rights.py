"""Who may write a file: whoever may write what psched runs can run code as the user of psched."""

import grp
import os
import pwd
import stat
from pathlib import Path


def refusal(path: Path, *, sticky: bool = False, owner: bool = True) -> str | None:
    """Why another user may write a file or a folder; None if nobody else but root may.

    It says nothing against a file of somebody who has no account here, nor against a file system
    that is mounted read-only: both are usual in containers. The group is not considered, because a
    umask of 002 lets it write everything. What cannot be examined is not refused.
    """
    try:
        found = path.stat()
        if not _may_change(path):
            return None
        if found.st_mode & stat.S_IWOTH and not (sticky and found.st_mode & stat.S_ISVTX):
            return f"{path} may be written by everybody on this host; run `chmod o-w` on it"
        if not owner or found.st_uid in (0, os.geteuid()):
            return None
        other, user = pwd.getpwuid(found.st_uid).pw_name, user_name()
    except (OSError, KeyError):
        return None
    owners = "root" if user == "root" else f"root or {user}"
    return (
        f"{path} belongs to user {other}, who could choose what user {user} runs; give it to"
        f" {owners}, or do this as user {other}"
    )


def refusal_of_file(path: Path, *, owner: bool = True) -> str | None:
    """The `refusal` of a file, of its folder, or of the folder of the file that it links to."""
    places = path.absolute(), path.absolute().parent, Path(os.path.realpath(path)).parent
    reasons = (refusal(place, sticky=True, owner=owner) for place in places)
    return next(filter(None, reasons), None)


def writable_by_group(path: Path) -> bool:
    """Whether the group of a file or folder may write it; false if it cannot be examined."""
    try:
        return bool(path.stat().st_mode & stat.S_IWGRP) and _may_change(path)
    except OSError:
        return False


def only_mine(path: Path) -> bool:
    """Whether nobody but this user and root may write or replace a file, which need not exist.

    A group is accepted if it is this user's own and has no other member. A folder in which
    everybody may create files is not: whoever creates a journal there changes a database.
    """
    try:
        for file in (path.absolute(), Path(os.path.realpath(path))):
            found = [place for place in (file, *file.parents) if place.exists()]
            # The file and its folder, or the folder in which it will be made. Those above matter,
            # because whoever may rename one of them can put another file at this path.
            strict = 2 if found[0] == file else 1
            if not all(_is_private(each, sticky=at >= strict) for at, each in enumerate(found)):
                return False
    except OSError:
        return False
    return True


def user_name() -> str:
    """The name of this process's effective user; the user's number, if the user has no name."""
    number = os.geteuid()
    try:
        return pwd.getpwuid(number).pw_name
    except KeyError:
        return str(number)


def _is_private(path: Path, *, sticky: bool) -> bool:
    found = path.stat()
    if found.st_uid not in (0, os.geteuid()):
        return False
    if sticky and found.st_mode & stat.S_ISVTX:
        return True
    by_group = found.st_mode & stat.S_IWGRP and _has_others(found.st_gid)
    return not found.st_mode & stat.S_IWOTH and not by_group


def _has_others(group: int) -> bool:
    """Whether a group may have another member than this user and root."""
    name = user_name()
    try:
        found = grp.getgrgid(group)
    except KeyError:
        return True
    # Who has a group as the main one is not listed in it. It is this user alone in the group that
    # has this user's name.
    return not {*found.gr_mem} <= {name, "root"} or (found.gr_name != name and group != 0)


def _may_change(path: Path) -> bool:
    # Devices such as /dev/null, and pipes, are no files that somebody could have changed.
    is_kept = path.is_file() or path.is_dir()
    return is_kept and not os.statvfs(path).f_flag & os.ST_RDONLY
