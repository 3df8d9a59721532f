"""The web pages: what runs, what ran and why not, and what can be done about it, in a browser.

`app` mounts them into a web application; the command ``psched web`` serves them by themselves.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from psched.base.errors import ConfigError
from psched.web.request import Request
from psched.web.users import Right, User, Users

if TYPE_CHECKING:
    import os
    from collections.abc import Collection

    from psched.app import ConfigLike
    from psched.web.gate import Access
    from psched.web.site import Site

__all__ = ["Request", "Right", "User", "app"]


def app(
    config: ConfigLike = None,
    *,
    access: Access | None = None,
    users: str | os.PathLike[str] | None = None,
    user_header: str | None = None,
    proxies: Collection[str] = (),
    allowed_hosts: Collection[str] | None = None,
    token_file: str | os.PathLike[str] | None = None,
) -> Site:
    """The pages as a WSGI application, to be mounted into another one.

    Its attribute ``asgi`` is the same for ASGI. There, open pages are told of changes, as by
    ``psched web``; under WSGI, they are read again every few seconds.

    Nobody gets in without a login: by a token, by a link of ``psched web --login``, or by
    ``access``, which decides in place of all other rules. Several threads may call the application,
    and it calls ``access`` in them; one request after the other reads the store.

    Args:
        config: the settings, as for `psched.open`.
        access: a function that is called with each `Request`, and returns what its sender may do:
            ``"read"``, ``"operate"`` (also pause, trigger, stop and the like) or ``"admin"`` (also
            edit); a `User`, whose name then stands in the audit trail; or None, for nothing.
            Without a `User`, the name is ``REMOTE_USER`` of the request, or ``web``.
        users: the path of a file of users, see docs/web.md.
        user_header: the name of a header in which a proxy names the user, who must be in the file.
        proxies: from whom this header counts: addresses, networks, and ``unix``, for requests that
            come by a Unix socket, and so from no address.
        allowed_hosts: the host names that a request may be addressed to; None means every name,
            which is right if the application around this one checks them.
        token_file: the path of the file of the token, which is made if it is missing; default:
            ``web-token`` in ``$STATE_DIRECTORY``, else in ``$XDG_STATE_HOME/psched``, else in
            ``~/.local/state/psched``.

    Raises:
        ConfigError: a setting is invalid, a package is missing, or a file cannot be used.
    """
    # A program that only names `User` needs none of this.
    from psched.app import read_config  # noqa: PLC0415
    from psched.web.gate import Rules  # noqa: PLC0415
    from psched.web.mounting import site_of  # noqa: PLC0415

    if user_header and not (users and proxies):
        raise ConfigError("user_header: needs users and proxies: who counts, and from whom")
    rules = Rules(
        access=access,
        users=None if users is None else Users(Path(users)),
        user_header=user_header or "",
        proxies=proxies,
        hosts=allowed_hosts,
        origins=allowed_hosts or (),
    )
    return site_of(read_config(config), rules, token_file)
