"""Whether a host is ready: whether its workers could claim something lately."""

from psched.monitor.observed import Observation

LATELY = 30.0
"""Seconds, besides ``poll_interval``, within which a search for due rows must have been answered. A
worker searches once in ``poll_interval``, and tells the master what it has counted every 10 s."""


def why_not_ready(seen: Observation, within: float) -> str | None:
    """Why nothing could be claimed lately, in one line; None if something could be.

    Args:
        seen: what the master has told.
        within: the most seconds since a worker's last answered search for due rows.
    """
    host, ago = seen.host, seen.claimed_ago
    if host is None:
        return "the master has not said anything yet"
    if not host.ready:
        return "no worker is ready"
    if ago is not None and ago <= within:
        return None
    since = "yet" if ago is None else f"for {ago:.0f} s"
    if host.away:
        why = "; the database does not answer"
    else:
        why = "; no slot is free" if host.slots and not host.free else ""
    return f"no worker has searched for due rows {since}{why}"
