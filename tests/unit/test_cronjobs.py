"""Tests that Kubernetes CronJobs are converted to schedules."""

import json
from pathlib import Path

import pytest
import yaml

from psched import config
from psched.base.errors import ConfigError
from psched.contrib.cronjobs import convert, cronjobs_in
from psched.contrib.crontab.service_user import ServiceUser

SETTINGS = config.from_mapping({"url": "sqlite:///unused.db"})

WRITTEN_BY_KUBECTL = """\
apiVersion: v1
items:
- apiVersion: batch/v1
  kind: CronJob
  metadata:
    creationTimestamp: "2026-01-01T00:00:00Z"
    name: backup
    namespace: shop
    uid: 7d2f6c1e-1c5a-4a43-8d5e-000000000000
  spec:
    concurrencyPolicy: Forbid
    failedJobsHistoryLimit: 1
    jobTemplate:
      metadata:
        creationTimestamp: null
      spec:
        activeDeadlineSeconds: 600
        backoffLimit: 0
        template:
          metadata:
            creationTimestamp: null
            labels: {app: backup}
          spec:
            containers:
            - args: ["$(DB)", "$(NO)", "$$(DB)"]
              command: [pg_dump, -Fc]
              env:
              - {name: DB, value: shop}
              - {name: URL, value: "db://$(DB)"}
              - {name: EMPTY}
              image: postgres:16
              imagePullPolicy: IfNotPresent
              name: backup
              resources: {}
              terminationMessagePath: /dev/termination-log
              terminationMessagePolicy: File
              workingDir: /srv
            dnsPolicy: ClusterFirst
            restartPolicy: Never
            schedulerName: default-scheduler
            securityContext: {}
            terminationGracePeriodSeconds: 30
    schedule: 30 2 * * *
    startingDeadlineSeconds: 100
    successfulJobsHistoryLimit: 3
    suspend: false
    timeZone: Europe/Berlin
  status: {lastScheduleTime: "2026-01-01T00:00:00Z"}
kind: List
metadata:
  resourceVersion: ""
"""


PASSWORD = {"name": "P", "valueFrom": {"secretKeyRef": {"name": "s"}}}


class Worker(ServiceUser):
    """A user who can run every program but secret."""

    def why_not_run(self, program, *, path, cwd):
        del path, cwd
        return "worker must not execute secret" if program == "secret" else None


WORKER = Worker("worker", 1000, frozenset([1000]))


def manifest(container=None, pod=None, run=None, **spec):
    container = {"name": "c", "command": ["job"], **(container or {})}
    template = {"spec": {"containers": [container], **(pod or {})}}
    usual = {"schedule": "@daily", "concurrencyPolicy": "Forbid"}
    template = {"spec": {"template": template, **(run or {})}}
    spec = {**usual, "jobTemplate": template, **spec}
    return {"kind": "CronJob", "metadata": {"name": "job"}, "spec": spec}


def imported(content, settings=SETTINGS):
    found = [convert(each, "prod", "UTC", WORKER, settings)
             for each in cronjobs_in(content, Path("jobs.yml"))]  # fmt: skip
    return [made for made, _ in found if made], [each for _, remarks in found for each in remarks]


def converted(*parts, **spec):
    return imported(yaml.safe_dump(manifest(*parts, **spec)))


def test_a_cronjob_runs_the_command_of_its_container():
    [declared], [remark] = imported(WRITTEN_BY_KUBECTL)
    assert declared == {
        "key": "prod:shop.backup",
        "type": "exec",
        "cron": "30 2 * * *",
        "timezone": "Europe/Berlin",
        "dst_policy": "wallclock",
        "catchup": "latest",
        "catchup_window": 100,
        "data": {
            "command": ["pg_dump", "-Fc", "shop", "$(NO)", "$(DB)"],
            "env": {"DB": "shop", "URL": "db://shop", "EMPTY": ""},
            "cwd": "/srv",
            "stdin": "",
        },
        "max_attempts": 1,
        "kill_timeout": 600,
    }
    line = WRITTEN_BY_KUBECTL.split("\n").index("              image: postgres:16") + 1
    text = "the command runs on psched's hosts, which need its programs"
    assert remark == (line, f"prod:shop.backup: image has no effect in psched: {text}")


def test_a_failed_job_is_repeated_as_by_kubernetes():
    [declared], _ = converted()
    assert (declared["key"], declared["timezone"]) == ("prod:default.job", "UTC")
    assert (declared["max_attempts"], declared["retry_wait"]) == (7, 10)
    assert (declared["retry_backoff"], declared["retry_wait_limit"]) == ("exponential", 360)
    assert declared["kill_timeout"] == 86_400
    [declared], _ = converted({}, {}, {"backoffLimit": 2})
    assert declared["max_attempts"] == 3


@pytest.mark.parametrize("form", [yaml.safe_dump_all, json.dumps])
def test_several_documents_lists_and_json_are_read(form):
    some = [{"kind": "Job"}, manifest(), {"kind": "CronJobList", "items": [manifest()]}]
    content = form(some if form is yaml.safe_dump_all else {"kind": "List", "items": some})
    assert len(imported(content)[0]) == 2


@pytest.mark.parametrize(
    ("schedule", "cron", "zone"),
    [
        ("@hourly", "@hourly", "UTC"),
        ("*/5 1-5 ? jan MON-FRI", "*/5 1-5 * jan MON-FRI", "UTC"),
        ("CRON_TZ=Asia/Tokyo 0 3 * * *", "0 3 * * *", "Asia/Tokyo"),
        ("TZ=Asia/Tokyo 0 3 * * *", "0 3 * * *", "Asia/Tokyo"),
        ("0 0 */2 * 1", "0 0 1-31/2 * 1", "UTC"),
        ("0 0 1 * */2", "0 0 1 * 0-6/2", "UTC"),
        ("0 0 */2 * *", "0 0 */2 * *", "UTC"),
        ("@every 1h30m", "@every 90m", "UTC"),
    ],
)
def test_a_schedule_is_read_as_kubernetes_reads_it(schedule, cron, zone):
    [declared], remarks = converted(schedule=schedule)
    assert (declared["cron"], declared["timezone"]) == (cron, zone)
    assert len(remarks) == schedule.startswith("@every")


@pytest.mark.parametrize(
    ("parts", "spec", "texts"),
    [
        ([], {"concurrencyPolicy": "Replace"}, ["concurrencyPolicy has no effect in psched: "]),
        ([{}, {"serviceAccountName": "x"}], {}, ["serviceAccountName has no effect in psched"]),
        ([{}, {"initContainers": [{"name": "a"}]}], {}, ["initContainers has no effect in psched"]),
        ([{}, {}, {"parallelism": 2, "completions": 1}], {}, ["parallelism has no effect"]),
        ([{}, {}, {"activeDeadlineSeconds": 9}], {}, ["activeDeadlineSeconds limits each attempt"]),
        ([{"command": ["secret"]}], {}, ["worker must not execute secret"]),
        ([{"envFrom": [{"secretRef": {"name": "s"}}]}], {}, ["envFrom has no effect in psched: "]),
        (
            [{"env": [{"name": "PASSWORD", "valueFrom": {"secretKeyRef": {"name": "s"}}}]}],
            {},
            ["PASSWORD: valueFrom has no effect in psched: set the variable in the environment"],
        ),
        (
            [{"volumeMounts": [{"name": "v"}], "resources": {"limits": {"cpu": 1}}}],
            {},
            ["resources has no effect in psched", "volumeMounts has no effect in psched"],
        ),
    ],
)  # fmt: skip
def test_what_differs_is_told_with_its_line(parts, spec, texts):
    content = yaml.safe_dump(manifest(*parts, **spec))
    [_], remarks = imported(content)
    assert len(remarks) == len(texts)
    for (line, text), expected in zip(remarks, texts, strict=True):
        assert text.startswith(f"prod:default.job: {expected}")
        field = expected.removeprefix("PASSWORD: ").split()[0]
        assert field == "worker" or field in content.split("\n")[line - 1]


@pytest.mark.parametrize(
    ("parts", "spec", "problem"),
    [
        ([], {"suspend": True}, "suspend: it is suspended"),
        (
            [],
            {"schedule": "0 0 31 2 *"},
            "schedule: cron: day of month '31' does not come in month",
        ),
        ([], {"schedule": None}, "schedule: cron: "),
        ([], {"schedule": 5}, "schedule: must be of the kind str"),
        ([], {"timeZone": "Mars"}, "timeZone: timezone: 'Mars' is not a zone"),
        ([], {"startingDeadlineSeconds": "x"}, "startingDeadlineSeconds: must be of the kind int"),
        ([], {"jobTemplate": []}, "containers: there must be one"),
        ([{}, {"containers": [{}, {}]}], {}, "containers: there must be one"),
        ([{"command": None, "args": ["a"]}], {}, "image: the command is that of the image"),
        ([{"command": "sleep 1"}], {}, "command: must be of the kind list"),
        ([{"args": [1]}], {}, "args: must be a text, not 1"),
        ([{"env": [{"name": "A", "value": 1}]}], {}, "env: must be a text, not 1"),
        (
            [{"env": [PASSWORD, {"name": "B", "value": "$(P)"}]}],
            {},
            "env: the value of $(P) is not",
        ),
        ([{"env": [PASSWORD], "args": ["-p$(P)"]}], {}, "args: the value of $(P) is not known"),
        (
            [{"envFrom": [{"secretRef": {}}], "args": ["$(date +%F) $(Q)"]}],
            {},
            "args: the value of",
        ),
        (
            [{}, {}, {"backoffLimit": -1, "activeDeadlineSeconds": -1}],
            {},
            "schedule: kill_timeout: ",
        ),
    ],
)
def test_what_cannot_be_imported_is_told(parts, spec, problem):
    made, [(line, text)] = converted(*parts, **spec)
    assert made == []
    assert line >= 1
    assert text.startswith(f"prod:default.job: not imported: {problem}")


@pytest.mark.parametrize(
    ("old", "new", "line"),
    [
        ("value: shop", "valueFrom: {}", "env:"),
        ('"$(NO)"', "1", "- args: "),
        ("30 2 * * *", "60 2 * * *", "schedule: "),
        ("Europe/Berlin", "Mars", "timeZone: "),
        ("suspend: false", "suspend: true", "suspend: true"),
        ("name: backup", "no_name: backup", "  metadata:"),
    ],
)
def test_what_cannot_be_imported_names_its_line(old, new, line):
    content = WRITTEN_BY_KUBECTL.replace(old, new)
    _, [(number, _)] = imported(content)
    assert content.split("\n")[number - 1].strip().startswith(line.strip())


def test_references_are_replaced_as_by_kubernetes():
    [declared], _ = converted({"args": ["$$ $$$(A) $$(A) $(A $ $(date) $(echo $$)"],
                               "env": [{"name": "A", "value": "1"}]})  # fmt: skip
    assert declared["data"]["command"][1:] == ["$ $1 $(A) $(A $ $(date) $(echo $$)"]


def test_overlapping_runs_are_told_also_where_they_are_the_default():
    content = WRITTEN_BY_KUBECTL.replace("    concurrencyPolicy: Forbid\n", "")
    _, remarks = imported(content)
    [(line, text)] = [each for each in remarks if "concurrencyPolicy" in each[1]]
    assert "concurrencyPolicy is Allow: runs of a schedule never overlap" in text
    assert "schedule: 30 2" in content.split("\n")[line - 1]


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ("a: [", "jobs.yml:"),
        ("\n\n\x00", "jobs.yml:3: not YAML"),
        ("[" * 5000, "nested too deeply"),
    ],
)
@pytest.mark.slow
def test_what_is_no_yaml_is_refused(content, text):
    with pytest.raises(ConfigError, match=text):
        imported(content)


def test_numbers_in_other_bases_and_odd_keys_are_no_obstacle():
    assert imported("kind: x\ndefaultMode: 0644\n? [a]\n: b\n1: 2\n") == ([], [])
