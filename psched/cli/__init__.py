"""The command line: ``psched`` and ``psched-master``.

`commands` lists the subcommands. The subcommands for schedules and tasks are in
`psched.cli.schedules`; the subcommands that set up, run and watch the service are in
`psched.cli.daemon`. `psched.cli.install` installs the systemd unit.
"""

import errno
import gc
import os
import sys
from contextlib import suppress


def main() -> None:
    """Run the command ``psched``."""
    from psched.base.loader import gc_paused  # noqa: PLC0415  # psched-master must not wait for it
    from psched.process.early_signals import own_children  # noqa: PLC0415  # as above

    own_children()
    with gc_paused():
        from psched.cli.commands import psched  # noqa: PLC0415  # psched-master does not need it
        from psched.cli.output import filter_output  # noqa: PLC0415

    if "_PSCHED_COMPLETE" in os.environ:
        from psched.cli import completion  # noqa: PLC0415  # no other command needs it

        completion.register()
    filter_output()
    try:
        psched(prog_name="psched")
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        # The help and the version are printed before a command can report it.
        with suppress(OSError, AttributeError):  # standard error can be full or closed, too
            sys.stderr.write(f"Error: {error}\n")
        # Python would try again to write what is left, and complain.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        sys.exit(1)
    finally:
        # All objects are exempted from garbage collection, because the collection at exit would
        # take time and be of no use.
        gc.freeze()


def master_main() -> None:
    """Run the command ``psched-master``."""
    from psched.process import early_signals  # noqa: PLC0415  # before all imports that take time

    early_signals.receive()

    from psched.cli.daemon.master import master  # noqa: PLC0415

    master(prog_name="psched-master")
