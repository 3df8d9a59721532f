"""The command ``psched-master``: the daemon."""

from psched.process import early_signals

if __name__ == "__main__":
    early_signals.receive()

import signal  # imported after `receive`, which handles signals during the imports
from pathlib import Path

import click

from psched.base.loader import gc_paused
from psched.cli import options
from psched.cli.output import run_and_exit
from psched.process import kernel

_HELP = """\
Run the daemon: a master, and the workers that its configuration asks for.

With PROGRAM, a Python file that calls psched.Worker.run or psched.start, the configuration and the
handlers are those of the program.

\b
Signals:
  TERM INT QUIT  stop; running tasks get graceful_timeout to finish
                 (a second INT or a later QUIT: stop immediately)
  HUP USR1       restart with new configuration and handlers; tasks go on
                 (HUP because the terminal was closed: stop)
  USR2           reopen the log file
  TTIN TTOU      one worker more, one fewer
  WINCH          start no more tasks until the next restart

\b
Exit status:
  0   stopped as requested
  2   wrong usage
  65  handlers cannot be loaded
  70  workers die again and again
  75  another master holds the pid file
  78  the configuration cannot be used
"""


@click.command(
    help=_HELP,
    # Options after PROGRAM are not parsed here, because they are arguments for the program.
    context_settings={**options.HELP, "allow_interspersed_args": False},
)
@click.version_option(package_name="psched")
@options.config_options
@options.daemon
@options.verbose
@click.option(
    "--module", metavar="NAME", help="Run this module in place of PROGRAM, as python -m does."
)
@click.option("--safe-path", is_flag=True, help="Run the program or module as python -P does.")
@click.option("--parent", type=int, hidden=True)
@click.argument("program", metavar="[PROGRAM] [ARGUMENT]...", nargs=-1, type=click.UNPROCESSED)
def master(
    config: str | None,
    environment: str | None,
    daemon: str | None,
    module: str | None,
    parent: int | None,
    program: tuple[str, ...],
    *,
    verbose: bool,
    safe_path: bool,
) -> None:
    """Run the daemon. The command's help is `_HELP`, not this text."""
    if parent is not None:  # a program, beside which this master runs
        kernel.die_with_parent(parent, signal.SIGTERM)
    with gc_paused():
        from psched.service.run import run_configured, run_program  # noqa: PLC0415

    if module is not None or program:
        if config is not None or environment is not None or daemon is not None or verbose:
            raise click.UsageError(
                "a program has its own configuration: leave out -c, -e, -d and -v"
            )
        name, *arguments = program if module is None else (module, *program)
        if module is None and not Path(name).exists():
            raise click.UsageError(f"there is no file {name!r}")
        is_module = module is not None
        run_and_exit(
            lambda: run_program(name, is_module=is_module, safe_path=safe_path, arguments=arguments)
        )
    overrides = {} if daemon is None else {"pid_file": daemon}
    if verbose:
        overrides["log_level"] = "debug"
    run_and_exit(lambda: run_configured(config, environment, overrides, daemon=daemon is not None))


if __name__ == "__main__":
    master(prog_name="psched-master")
