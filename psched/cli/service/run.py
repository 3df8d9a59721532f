"""``psched run``: a master with its workers in the foreground."""

import click

from psched import config
from psched.app import read_config
from psched.cli import options
from psched.cli.refusals import serving
from psched.cli.service import worker_options
from psched.process import early_signals


@click.command()
@worker_options.described
@click.pass_obj
def run(place: options.Place, /, words: tuple[str, ...], **given: object) -> None:
    """Run workers.

    DISPATCH routes tasks to handlers: module:name, or a name in what -r loads. Instead of one,
    --exec or --script serve tasks of every type, but for psched's own types. What is given here
    replaces what the configuration says. Signals and exit status are those of psched-master.
    """
    early_signals.receive()
    from psched.service.generation import read_settings  # noqa: PLC0415
    from psched.service.run import run_configured  # noqa: PLC0415

    given_here = worker_options.overrides(given, words)
    path, environment = place
    heartbeat, daemon = given["heartbeat_interval"], given["daemon"] is not None

    def serve() -> int:
        overrides = worker_options.timed(
            given_here, lambda: config.raw_settings(read_config(path, environment), environment)
        )
        if heartbeat is not None:
            settings = read_settings(path, environment, overrides)
            worker_options.check_heartbeat(heartbeat, settings)
        return run_configured(path, environment, overrides, daemon=daemon)

    serving(serve)
