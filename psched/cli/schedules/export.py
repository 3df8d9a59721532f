"""The command export."""

import sys
from pathlib import Path

import click

from psched.app import open_schedules
from psched.cli import options
from psched.cli.opening import settings_to_read
from psched.cli.options import ConfigLocation
from psched.cli.output import one_line, write_file
from psched.cli.progress import Progress, quiet_option
from psched.files.apply import read_all
from psched.files.export import export as documents_of
from psched.files.export import to_yaml


@click.command()
@click.argument("path", default="-", type=click.Path(dir_okay=False, path_type=Path))
@click.option("--label", metavar="LABEL", help="Only the schedules with this label.")
@click.option("--force", is_flag=True, help="Replace an existing file.")
@quiet_option
@options.database
@click.pass_obj
def export(
    location: ConfigLocation, path: Path, label: str | None, *, force: bool, quiet: bool
) -> None:
    """Write the schedules to a file that apply can read.

    Without PATH, or if PATH is -, the file is written to standard output. The order of the
    schedules is stable, and fields with their default value are left out. Tasks that run once are
    not written. A schedule that is not valid is left out with a message, and the exit status is 1.
    """
    settings = settings_to_read(location)
    with open_schedules(settings) as schedules:
        rows = read_all(schedules, label, track=Progress(quiet=quiet))
    documents, remarks, omitted = documents_of(rows, settings)
    if label is not None and label not in documents:
        documents = {label: {}}
    content = to_yaml(documents)
    if str(path) == "-":
        click.echo(content, nl=False)
    else:
        write_file(path, content, force=force)
    for remark in (*remarks, *omitted):
        click.echo(one_line(remark), err=True)
    if omitted:
        sys.exit(1)
