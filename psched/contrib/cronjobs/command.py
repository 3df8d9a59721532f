"""``psched import-cronjobs``: converts Kubernetes CronJobs to schedules."""

from pathlib import Path
from typing import Any

import click

from psched.base.errors import ConfigError
from psched.cli.exit_status import report_errors
from psched.cli.options import ConfigLocation
from psched.contrib.cronjobs.cronjobs_to_schedules import convert, cronjobs_in
from psched.contrib.crontab.command import Delivery, content_of, delivery_options, source_of
from psched.contrib.crontab.service_user import ServiceUser
from psched.files.document import Document
from psched.triggers.zone import find_zone


@click.command("import-cronjobs")
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False, allow_dash=True))
@click.option("--source", metavar="NAME", required=True, help="Cluster that they are from.")
@click.option(
    "-t",
    "--timezone",
    metavar="ZONE",
    default="UTC",
    help="Time zone of the cluster. Default: UTC.",
)
@click.option(
    "--label",
    metavar="LABEL",
    help="Label of the schedules. Default: cronjobs:, the source, and the file's name.",
)
@delivery_options
@click.pass_obj
@report_errors
def import_cronjobs(
    location: ConfigLocation,
    file: Path,
    source: str,
    timezone: str,
    label: str | None,
    service_user: str | None,
    *,
    delivery: Delivery,
) -> None:
    """Convert Kubernetes CronJobs to a file for apply.

    The schedules have the type exec: they run the commands of the containers on psched's hosts.
    FILE has CronJobs in YAML or JSON, such as kubectl get cronjobs -o yaml prints; it can be - for
    standard input. The names of the cluster and of the namespace are parts of the keys.

    If a CronJob cannot be imported exactly, a message on standard error names the line, and the
    exit status is 1.
    """
    settings = delivery.settings(location)
    find_zone(timezone)
    source_of(source)
    user = ServiceUser.find(service_user)
    declarations, remarks = dict[str, dict[str, Any]](), list[str]()
    jobs = [*cronjobs_in(content_of(file), file)]
    if not jobs:
        raise ConfigError(f"{file}: has no CronJob")
    for job in jobs:
        made, told = convert(job, source, timezone, user, settings)
        if made is not None and declarations.setdefault(made["key"], made) is not made:
            told = [(job.lines["kind"], f"{made['key']}: not imported: it is there twice")]
        remarks += [f"{file}:{line}: {text}" for line, text in told]
    label = label or f"cronjobs:{source}:{'cronjobs' if str(file) == '-' else file.name}"
    document = Document(label, [*declarations.values()])
    delivery.finish_by_key(document, source, file, settings, remarks)
