"""The command ``psched-master``: the daemon."""

from psched.process import early_signals

if __name__ == "__main__":
    early_signals.receive()

from pathlib import Path  # all that takes time comes after

import click

from psched.base.loader import gc_paused
from psched.cli import options
from psched.cli.refusals import serving


@click.command(
    # What stands after PROGRAM is the program's.
    context_settings={**options.HELP, "allow_interspersed_args": False}
)
@click.version_option(package_name="psched")
@options.configuration
@options.daemon
@click.option("--module", help="Be the master of this module, as of a PROGRAM.")
@click.option("--safe-path", is_flag=True, help="Run the program as python -P does.")
@click.argument("program", metavar="[PROGRAM] [ARGUMENT]...", nargs=-1, type=click.UNPROCESSED)
def master(
    config: str | None,
    environment: str | None,
    daemon: str | None,
    module: str | None,
    program: tuple[str, ...],
    *,
    safe_path: bool,
) -> None:
    r"""Run the daemon: a master, and the workers that its configuration asks for.

    With PROGRAM, a Python file that calls psched.Worker.run, the configuration and the handlers
    are that program's.

    \b
    Signals:
      TERM INT QUIT  stop: running tasks may finish (a second INT, a later QUIT: at once)
      HUP USR1       restart: read configuration and handlers anew, running tasks go on
      USR2           reopen the log
      TTIN TTOU      one worker more, one fewer
      WINCH          start no more tasks until the next restart

    \b
    Exit status:
      0 stopped as asked   2 usage   65 handlers cannot be loaded   70 workers die again and again
      75 already running   78 configuration
    """
    with gc_paused():
        from psched.service.run import run_configured, run_program  # noqa: PLC0415

    if module is not None or program:
        if config is not None or environment is not None or daemon is not None:
            raise click.UsageError("a program brings its own configuration")
        name, *arguments = program if module is None else (module, *program)
        if module is None and not Path(name).exists():
            raise click.UsageError(f"there is no program {name!r}")
        is_module = module is not None
        serving(
            lambda: run_program(name, is_module=is_module, safe_path=safe_path, arguments=arguments)
        )
    overrides = {} if daemon is None else {"pid_file": daemon}
    serving(lambda: run_configured(config, environment, overrides, daemon=daemon is not None))


if __name__ == "__main__":
    master(prog_name="psched-master")
