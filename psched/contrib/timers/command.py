"""``psched import-timers``: converts systemd's timers to schedules."""

from pathlib import Path
from typing import Any

import click

from psched.base.errors import ConfigError
from psched.cli.exit_status import report_errors
from psched.cli.options import ConfigLocation
from psched.contrib.crontab.command import (
    Delivery,
    any_user_option,
    delivery_options,
    home_of,
    host_zone,
    source_of,
)
from psched.contrib.crontab.crontab_to_schedules import CrontabContext
from psched.contrib.crontab.service_user import ServiceUser
from psched.contrib.timers.timers_to_schedules import convert
from psched.contrib.timers.units import place_of, search_path, timers_in
from psched.files.document import Document
from psched.triggers.zone import find_zone


@click.command("import-timers")
@click.argument("path", metavar="TIMER|FOLDER", type=click.Path(path_type=Path))
@click.option("--user", metavar="NAME", help="The units are those of this user (systemctl --user).")
@click.option(
    "-t", "--timezone", metavar="ZONE", help="Time zone of the timers. Default: this host's."
)
@click.option(
    "--source", metavar="NAME", help="Host that the timers are from. Default: this host's name."
)
@click.option(
    "--label",
    metavar="LABEL",
    help="Label of the schedules. Default: timers:, the source, ~USER, and TIMER or FOLDER.",
)
@any_user_option
@delivery_options
@click.pass_obj
@report_errors
def import_timers(
    location: ConfigLocation,
    path: Path,
    user: str | None,
    timezone: str | None,
    source: str | None,
    label: str | None,
    service_user: str | None,
    *,
    any_user: bool,
    delivery: Delivery,
) -> None:
    """Convert systemd's timers to a file for apply.

    The schedules have the type exec. TIMER is the path of a timer; its service and the drop-ins of
    both are searched beside it, or as systemd does if the folder is one of systemd's. An instance
    of a template, such as backup@db.timer, needs no file of its own. Of a FOLDER, all timers are
    imported that are enabled.

    If a timer cannot be imported exactly, or the service's user cannot run it, a message on
    standard error names the line, and the exit status is 1.
    """
    settings = delivery.settings(location)
    folder = (path if path.is_dir() else path.parent).absolute()
    if user is None and folder.match("systemd/user"):
        raise click.UsageError(f"whose units are those of {folder}? Use --user NAME")
    host = source_of(source)
    context = CrontabContext(
        key_prefix=f"{host}:~{user}/" if user else f"{host}:",
        timezone=timezone or host_zone(),
        user=ServiceUser.find(service_user),
        any_user=any_user,
        owner=user,
        home=home_of,
    )
    folders = search_path(folder)
    find_zone(context.timezone)
    timers = [*timers_in(folder, folders)] if path.is_dir() else [(path.name, "")]
    if not timers or not timers[0][0].endswith(".timer"):
        raise ConfigError(f"{path}: is no timer, and no folder with files *.timer")
    declarations, remarks = list[dict[str, Any]](), list[str]()
    for name, why in timers:
        if why:
            remarks.append(f"{folder / name}:1: not imported: {why}")
            continue
        made, told = convert(name, folders, context, settings)
        remarks += told
        for each in made:
            if twice := next((o["key"] for o in declarations if o["data"] == each["data"]), None):
                text = f"runs the same as {twice}: a time that both have runs twice"
                remarks.append(f"{folder / name}:1: {each['key']} {text}")
            declarations.append(each)
    place = place_of(folder) if path.is_dir() else path.name
    document = Document(label or f"timers:{context.key_prefix}{place}", declarations)
    home = home_of(user) if user is not None else None
    is_here = f"{folder}" == f"/{place_of(folder)}" or (home and folder.is_relative_to(home))
    is_copy = source is None and not is_here
    delivery.finish_by_key(document, host, path, settings, remarks, is_copy=is_copy)
