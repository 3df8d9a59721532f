"""``psched import-cronjobs``: converts CronJobs to schedules of type ``exec``.

The schedules run the commands of the containers.
Kubernetes repeats a failed job ``backoffLimit`` times, after 10, 20, 40 … seconds; it makes up for
the last missed run, if ``startingDeadlineSeconds`` have not passed. What has no effect in psched,
such as the image, is told.
"""

import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import click
import yaml

from psched.base.errors import ConfigError, InvalidError
from psched.cli.options import ConfigLocation
from psched.config import Config
from psched.config.document import Loader, line_of, syntax_problem, unreadable
from psched.config.problems import Problem
from psched.contrib.crontab.command import Delivery, content_of, delivery_options, source_of
from psched.contrib.crontab.crontab_to_schedules import KILL_TIMEOUT
from psched.contrib.crontab.service_user import ServiceUser
from psched.core.declare import declare
from psched.files.document import Document
from psched.triggers.foreign import as_interval
from psched.triggers.zone import find_zone


class Fields(dict[str, Any]):
    """A mapping of a manifest; ``lines`` has the number of the line of each of its keys."""

    lines: Mapping[str, int] = MappingProxyType({})

    def part(self, name: str) -> "Fields":
        """The mapping with this name; an empty one if there is none."""
        found = self.get(name)
        return found if isinstance(found, Fields) else Fields()


def cronjobs_in(content: str, origin: Path) -> Iterator[Fields]:
    """Yield the CronJobs of a manifest; other resources are left out."""
    try:
        loader = Loader(content)
        while loader.check_node():
            yield from _cronjobs(_plain(loader, loader.get_node()))
    except yaml.reader.ReaderError as error:
        problem = unreadable(error, content)
    except yaml.MarkedYAMLError as error:
        problem = syntax_problem(error)
    except RecursionError:
        problem = Problem("nested too deeply")
    else:
        return
    raise ConfigError(f"{origin}:{problem.line or 1}: {problem.text}")


def _cronjobs(found: object) -> Iterator[Fields]:
    if isinstance(found, Fields) and found.get("kind") == "CronJob":
        yield found
    elif isinstance(found, Fields) and isinstance(found.get("items"), list):
        for each in found["items"]:
            yield from _cronjobs(each)


def _plain(loader: Loader, node: yaml.Node | None) -> Any:  # noqa: ANN401  # JSON
    if isinstance(node, yaml.SequenceNode):
        return [_plain(loader, each) for each in node.value]
    if isinstance(node, yaml.MappingNode):
        loader.flatten_mapping(node)
        found = Fields({f"{key.value}": _plain(loader, value) for key, value in node.value})
        found.lines = {f"{key.value}": line_of(key) for key, _ in node.value}
        return found
    try:
        return loader.construct_object(node) if node else None
    except (ValueError, yaml.constructor.ConstructorError):  # such as a number in base 8
        return node.value if node else None


_KNOWN = {
    *("schedule", "timeZone", "startingDeadlineSeconds", "jobTemplate", "suspend=False"),
    *("successfulJobsHistoryLimit", "failedJobsHistoryLimit", "concurrencyPolicy=Forbid"),
    *("backoffLimit", "activeDeadlineSeconds", "ttlSecondsAfterFinished", "template"),
    *("completions=1", "parallelism=1", "completionMode=NonIndexed", "containers", "metadata"),
    *("restartPolicy", "schedulerName", "dnsPolicy", "terminationGracePeriodSeconds=30", "spec"),
    *("name", "command", "args", "env", "workingDir", "imagePullPolicy", "terminationMessagePath"),
    *("terminationMessagePolicy", "value"),
}
"""The fields that are imported, or that make no difference; with a value: only that one."""

_WHY = {
    "image": "the command runs on psched's hosts, which need its programs",
    "concurrencyPolicy": "runs of a schedule never overlap, and none is stopped for the next",
    "valueFrom": "set the variable in the environment of the workers",
    "envFrom": "set the variables in the environment of the workers",
}
"""What remarks on fields add."""

_BACKOFF = {"retry_wait": 10, "retry_backoff": "exponential", "retry_wait_limit": 360}

_FIELDS = 5


def convert(
    job: Fields, source: str, timezone: str, user: ServiceUser, settings: Config
) -> tuple[dict[str, Any] | None, list[tuple[int, str]]]:
    """Its schedule, None if it is not imported; and remarks with the numbers of their lines."""
    metadata, spec = job.part("metadata"), job.part("spec")
    key = f"{source}:{metadata.get('namespace') or 'default'}.{metadata.get('name')}"
    try:
        if not metadata.get("name"):
            raise _refusal(job, "metadata", "it has no name")
        fields = _fields(spec, timezone)
        try:
            declare(key, fields, settings, lambda: 0)
        except InvalidError as error:
            name = "timeZone" if error.field == "timezone" else "schedule"
            raise _refusal(spec, name, str(error)) from None
    except InvalidError as error:
        line = int(error.field) or job.lines["kind"]
        return None, [(line, f"{key}: not imported: {error.problem}")]
    remarks, line, data = [*_without_effect(spec)], spec.lines["schedule"], fields["data"]
    path = os.environ.get("PATH", os.defpath)
    if why := user.why_not_run(data["command"][0], path=path, cwd=data["cwd"]):
        remarks.append((line, why))
    if not spec.get("concurrencyPolicy"):
        remarks.append((line, f"concurrencyPolicy is Allow: {_WHY['concurrencyPolicy']}"))
    if fields["cron"].startswith("@every"):
        remarks.append((line, "@every counts from 1970, and not from the last run"))
    limit = spec.part("jobTemplate").part("spec").lines.get("activeDeadlineSeconds")
    if limit and fields["max_attempts"] > 1:
        remarks.append((limit, "activeDeadlineSeconds limits each attempt, and not all together"))
    return {"key": key, **fields}, [(number, f"{key}: {text}") for number, text in remarks]


def _refusal(fields: Fields, name: str, text: str) -> InvalidError:
    """An error whose field is the number of a line; 0 if there is none."""
    line = fields.lines.get(name) or min(fields.lines.values(), default=0)
    return InvalidError(f"{line}", f"{name}: {text}")


def _without_effect(found: Fields) -> Iterator[tuple[int, str]]:
    for name, value in found.items():
        if {name, f"{name}={value}"}.isdisjoint(_KNOWN):
            if value not in (None, "", {}, []):
                whose = f"{found['name']}: " if name == "valueFrom" else ""
                why = f": {_WHY[name]}" if name in _WHY else ""
                yield found.lines[name], f"{whose}{name} has no effect in psched{why}"
        elif name != "metadata":
            for each in value if isinstance(value, list) else [value]:
                yield from _without_effect(each) if isinstance(each, Fields) else ()


def _fields(spec: Fields, timezone: str) -> dict[str, Any]:
    """The fields of a CronJob's schedule."""
    if spec.get("suspend") is True:
        raise _refusal(spec, "suspend", "it is suspended")
    run = spec.part("jobTemplate").part("spec")
    pod = run.part("template").part("spec")
    containers = _given(pod, "containers", list)
    if len(containers or ()) != 1 or not isinstance(containers[0], Fields):
        raise _refusal(pod, "containers", "there must be one, because psched runs one command")
    [container] = containers
    zone, cron = _schedule(_given(spec, "schedule", str) or "")
    words, env = _words_and_env(container)
    deadline = _given(spec, "startingDeadlineSeconds", int)
    limit, retries = _given(run, "activeDeadlineSeconds", int), _given(run, "backoffLimit", int)
    retries = 6 if retries is None else max(0, retries)  # 6 is Kubernetes' default
    return {
        "type": "exec",
        "cron": cron,
        "timezone": _given(spec, "timeZone", str) or zone or timezone,
        "dst_policy": "wallclock",
        "catchup": "latest",
        **({} if deadline is None else {"catchup_window": max(1, deadline)}),
        "data": {
            "command": words,
            "env": env,
            "cwd": _given(container, "workingDir", str) or "/",
            "stdin": "",
        },
        "max_attempts": retries + 1,
        **({**_BACKOFF} if retries else {}),
        "kill_timeout": limit or KILL_TIMEOUT,
    }


def _given(fields: Fields, name: str, kind: type) -> Any:  # noqa: ANN401  # of this kind, or None
    value = fields.get(name)
    if value is None or isinstance(value, kind):
        return value
    raise _refusal(fields, name, f"must be of the kind {kind.__name__}, not {value!r}")


def _words_and_env(container: Fields) -> tuple[list[str], dict[str, str]]:
    """The command and the variables of a container; references in them are replaced."""
    env = dict[str, str | None]()

    def replaced(name: str, text: object) -> str:
        def value(found: re.Match[str]) -> str:
            is_other = container.get("envFrom") and re.fullmatch(r"[\w.-]+", found[1] or "")
            known = env.get(found[1], None if is_other else found[0])
            if known is None:
                text = f"the value of {found[0]} is not known here; let a shell read ${found[1]}"
                raise _refusal(container, name, f"{text} from the environment of the workers")
            return "$" if found[1] is None else known

        if not isinstance(text, str):
            raise _refusal(container, name, f"must be a text, not {text!r}")
        return re.sub(r"\$(?:\$|\(([^)]*)\))", value, text)

    for each in _given(container, "env", list) or ():
        if isinstance(each, Fields):
            text = None if "valueFrom" in each else replaced("env", each.get("value", ""))
            env[str(each.get("name"))] = text
    if not _given(container, "command", list):
        raise _refusal(container, "image", "the command is that of the image; write it as command")
    names = ("command", "args")
    words = [replaced(name, word) for name in names for word in _given(container, name, list) or ()]
    return words, {name: text for name, text in env.items() if text is not None}


def _schedule(text: str) -> tuple[str | None, str]:
    """The zone and the trigger of a schedule, as the library robfig/cron reads it."""
    zone = None
    if found := re.match(r"\s*(?:CRON_)?TZ=(\S*)\s+", text):
        zone, text = found[1], text[found.end() :]
    if interval := as_interval(text.strip().removeprefix("@every ")):
        return zone, f"@every {interval}"
    fields = text.replace("?", "*").split()
    if len(fields) == _FIELDS and not {"*", "*/1"} & {fields[2], fields[4]}:
        # If both are given, one of them is enough, also if it begins with * as in */2.
        fields[2] = re.sub(r"^\*/", "1-31/", fields[2])
        fields[4] = re.sub(r"^\*/", "0-6/", fields[4])
    return zone, " ".join(fields)


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
