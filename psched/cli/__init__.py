"""The command line: ``psched`` and ``psched-master``.

`commands` lists the subcommands. Those about schedules and tasks are in `psched.cli.schedules`;
those that set up, run and watch the service are in `psched.cli.daemon`.
"""

import gc


def main() -> None:
    """The command ``psched``."""
    from psched.base.loader import gc_paused  # noqa: PLC0415  # see master_main

    with gc_paused():
        from psched.cli.commands import psched  # noqa: PLC0415  # only what a command needs
        from psched.cli.output import filter_output  # noqa: PLC0415

    filter_output()
    try:
        psched(prog_name="psched")
    finally:
        # The process is about to exit, so a last garbage collection would only take time.
        gc.freeze()


def master_main() -> None:
    """The command ``psched-master``."""
    from psched.process import early_signals  # noqa: PLC0415  # before anything that takes time

    early_signals.receive()

    from psched.cli.daemon.master import master  # noqa: PLC0415

    master(prog_name="psched-master")
