"""The command line: ``psched`` and ``psched-master``.

`commands` lists the subcommands. The subcommands for schedules and tasks are in
`psched.cli.schedules`; the subcommands that set up, run and watch the service are in
`psched.cli.daemon`.
"""

import gc


def main() -> None:
    """Run the command ``psched``."""
    from psched.base.loader import gc_paused  # noqa: PLC0415  # master_main must not import it

    with gc_paused():
        from psched.cli.commands import psched  # noqa: PLC0415  # only what a command needs
        from psched.cli.output import filter_output  # noqa: PLC0415

    filter_output()
    try:
        psched(prog_name="psched")
    finally:
        # All objects are frozen, because the garbage collection at exit would only take time.
        gc.freeze()


def master_main() -> None:
    """Run the command ``psched-master``."""
    from psched.process import early_signals  # noqa: PLC0415  # before anything that takes time

    early_signals.receive()

    from psched.cli.daemon.master import master  # noqa: PLC0415

    master(prog_name="psched-master")
