"""``psched run``: a master with its workers in the foreground."""

import click

from psched import config
from psched.app import read_config
from psched.cli import options, workers
from psched.cli.refusals import serving
from psched.supervisor import early


@click.command()
@workers.described
@click.pass_obj
def run(place: options.Place, /, words: tuple[str, ...], **given: object) -> None:
    """Run workers.

    DISPATCH routes tasks to handlers: module:name, or a name in what -r loads. Instead of one,
    --exec or --script serve tasks of every type, but for psched's own types. What is given here
    replaces what the configuration says. Signals and exit status are those of psched-master.
    """
    early.receive()
    from psched.generation import read_settings  # noqa: PLC0415
    from psched.service import run_configured  # noqa: PLC0415

    given_here = workers.overrides(given, words)
    path, environment = place
    heartbeat, daemon = given["heartbeat_interval"], given["daemon"] is not None

    def serve() -> int:
        overrides = workers.timed(
            given_here, lambda: config.said(read_config(path, environment), environment)
        )
        if heartbeat is not None:
            settings = read_settings(path, environment, overrides)
            workers.check_heartbeat(heartbeat, settings)
        return run_configured(path, environment, overrides, daemon=daemon)

    serving(serve)
