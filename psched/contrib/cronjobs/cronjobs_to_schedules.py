"""Converts CronJobs to schedules of type ``exec``, which run the commands of their containers.

Kubernetes repeats a failed job ``backoffLimit`` times, after 10, 20, 40 … seconds; it makes up for
the last missed run, if ``startingDeadlineSeconds`` have not passed. What has no effect in psched,
such as the image, is told.
"""

import os
import re
from collections.abc import Iterator, Mapping
from typing import Any

from psched.base.errors import InvalidError
from psched.config import Config
from psched.contrib.cronjobs.manifest import Fields
from psched.contrib.crontab.crontab_to_schedules import KILL_TIMEOUT
from psched.contrib.crontab.service_user import ServiceUser
from psched.core.declare import declare
from psched.triggers.foreign import as_interval

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

_RETRIES = 6
"""The number of times that Kubernetes repeats a failed job by default."""

_FIELDS = 5


def convert(
    job: Fields, source: str, timezone: str, user: ServiceUser, settings: Config
) -> tuple[dict[str, Any] | None, list[tuple[int, str]]]:
    """Convert a CronJob to the declaration of a schedule.

    Args:
        job: the CronJob.
        source: the cluster; the schedule's key begins with it.
        timezone: the time zone of a schedule that names none.
        user: the user that runs psched's workers.
        settings: psched's settings; a CronJob is not imported if they forbid its schedule.

    Returns:
        The schedule, None if it is not imported; and remarks with the numbers of their lines.
    """
    metadata, spec = job.part("metadata"), job.part("spec")
    key = f"{source}:{metadata.get('namespace') or 'default'}.{metadata.get('name')}"
    if spec.get("suspend") is True or not metadata.get("name"):
        line = spec.lines.get("suspend", job.lines["kind"])
        return None, [(line, f"{key}: not imported: it is suspended, or has no name")]
    try:
        fields = _fields(spec, timezone)
        declare(key, fields, settings, lambda: 0)
    except InvalidError as error:
        line = next((n for name, n in _lines(job) if name == error.field), job.lines["kind"])
        return None, [(line, f"{key}: not imported: {error}")]
    remarks, line = [*_without_effect(spec)], spec.lines["schedule"]
    data = fields["data"]
    why = user.why_not_run(
        data["command"][0], path=os.environ.get("PATH", os.defpath), cwd=data["cwd"]
    )
    if why is not None:
        remarks.append((line, why))
    if fields["cron"].startswith("@every"):
        remarks.append((line, "@every counts from 1970, and not from the last run"))
    if fields["kill_timeout"] != KILL_TIMEOUT and fields["max_attempts"] > 1:
        remarks.append((line, "activeDeadlineSeconds limits each attempt, and not all together"))
    return {"key": key, **fields}, [(number, f"{key}: {text}") for number, text in remarks]


def _lines(found: object) -> Iterator[tuple[str, int]]:
    """Yield the names and the lines of all fields."""
    if isinstance(found, Fields):
        yield from found.lines.items()
        found = [*found.values()]
    for each in found if isinstance(found, list) else ():
        yield from _lines(each)


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
    """The fields of a CronJob's schedule.

    Raises:
        InvalidError: the CronJob cannot be imported.
    """
    run = spec.part("jobTemplate").part("spec")
    containers = _given(run.part("template").part("spec"), "containers", list)
    if len(containers or ()) != 1 or not isinstance(containers[0], Fields):
        raise InvalidError("containers", "there must be one, because psched runs one command")
    [container] = containers
    zone, cron = _schedule(_given(spec, "schedule", str) or "")
    env = dict[str, str]()
    for each in _given(container, "env", list) or ():
        if isinstance(each, Fields) and "valueFrom" not in each:
            env[str(each.get("name"))] = _replaced(_given(each, "value", str) or "", env)
    words = _given(container, "command", list)
    if not words:
        raise InvalidError("image", "the command is that of the image; write it as command")
    words = [*words, *(_given(container, "args", list) or ())]
    deadline = _given(spec, "startingDeadlineSeconds", int)
    limit, retries = _given(run, "activeDeadlineSeconds", int), _given(run, "backoffLimit", int)
    retries = _RETRIES if retries is None else max(0, retries)
    return {
        "type": "exec",
        "cron": cron,
        "timezone": _given(spec, "timeZone", str) or zone or timezone,
        "catchup": "latest",
        **({} if deadline is None else {"catchup_window": max(1, deadline)}),
        "data": {
            "command": [_replaced(each, env) if isinstance(each, str) else each for each in words],
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
    raise InvalidError(name, f"must be of the kind {kind.__name__}, not {value!r}")


def _replaced(text: str, env: Mapping[str, str]) -> str:
    """Replace references such as ``$(NAME)`` to variables, as Kubernetes does."""

    def value(found: re.Match[str]) -> str:
        return found[0][1:] if found[1] else env.get(found[2], found[0])

    return re.sub(r"\$(\$)?\(([\w.-]+)\)", value, text)


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
