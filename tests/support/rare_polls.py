"""Workers that poll once in years: what they start soon, a poll has not found."""

from support.service import Service

POLL = 60
"""The longest possible poll_interval. A pause that is much shorter ends when a row is due."""

HANDLERS = """
    import psched.worker.claims as claims
    from recorder import Dispatch

    usual = claims.pause_after

    def pause_after(claimed, poll_interval, rng):
        pause = usual(claimed, poll_interval, rng)
        return pause if pause < 0.9 * poll_interval else 1e9

    claims.pause_after = pause_after
"""
"""The recorder's handlers, in a module that changes its worker's pauses when it is loaded."""


def poll_rarely(service: Service) -> None:
    """Have the workers of a service poll when they start, and then practically never again."""
    service.write("rarely.py", HANDLERS)
    service.configure(poll_interval=POLL, dispatch="rarely:Dispatch")
