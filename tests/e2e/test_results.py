"""What tasks report: progress while they run, and results at their end."""

import json
import re

import pytest

from support.waiting import wait_until

JOBS = """
    import pathlib, time

    from psched.application import Dispatch as BaseDispatch

    def reports(task):
        task.progress(40, "rows\\x1b[2J of token=abc")
        while not pathlib.Path("gate").exists():
            time.sleep(0.01)
        task.result = {"rows": 3, "token": "abc", "text": "\\x1b[2J"}
        if "fail" in task.data:
            raise ValueError("no")

    class Dispatch(BaseDispatch):
        routes = {"reports": reports, "returns": lambda task: [task.attempt]}
"""


@pytest.fixture
def jobs(service):
    service.configure(dispatch="jobs:Dispatch", redact=["token"])
    service.write("jobs.py", JOBS)
    return service


def shown(service, *arguments, status=0):
    done = service.psched(*arguments)
    assert done.returncode == status, done.stderr
    return done.stdout


def end_of(service, key):
    with service.schedules() as schedules:
        return schedules[key].wait_for_end()


def test_the_progress_of_a_running_task_is_shown(jobs):
    jobs.add("k", "reports")
    jobs.start()
    wait_until(lambda: "40 %" in shown(jobs, "status"), what="the progress")
    line = r"k\.1000000000 reports attempt 1 .*, lease ends in .*, 40 % rows\\x1b\[2J of token="
    assert re.search(line + r"\[redacted\]\n", shown(jobs, "status"))
    told = {"percent": 40, "text": "rows\\x1b[2J of token=[redacted]"}
    [worker] = [w for w in json.loads(shown(jobs, "status", "--json"))["workers"] if w["tasks"]]
    assert [task["progress"] for task in worker["tasks"]] == [told]
    assert json.loads(shown(jobs, "show", "k", "--json"))["progress"] == told
    line = r"^progress: +40 % rows\\x1b\[2J of token=\[redacted\]$"
    assert re.search(line, shown(jobs, "show", "k"), re.MULTILINE)

    jobs.open_gate("gate")
    jobs.wait_for_finish("k")
    assert json.loads(shown(jobs, "show", "k", "--json"))["progress"] is None
    assert "progress" not in shown(jobs, "show", "k")


@pytest.mark.extended
def test_a_result_is_shown_without_secrets(jobs):
    jobs.open_gate("gate")
    jobs.start()
    hidden = {"rows": 3, "token": "[redacted]", "text": "\x1b[2J"}
    text = r'{"rows": 3, "token": "[redacted]", "text": "\u001b[2J"}'

    assert shown(jobs, "push", "plain", "reports", "{}", "--wait") == f"plain: finished\n{text}\n"
    end = json.loads(shown(jobs, "push", "k", "reports", "{}", "--wait", "--json"))
    assert (end["key"], end["status"], end["reason"]) == ("k", "finished", None)
    assert (end["result"], end["run"]["result"], end["run"]["fate"]) == (hidden, hidden, "finished")

    failing = ("push", "bad", "reports", '{"fail": 1}', "--max-attempts", "1", "--wait", "--json")
    end = json.loads(shown(jobs, *failing, status=1))
    assert (end["status"], end["result"], end["run"]["outcome"]) == ("failed", hidden, "failed")
    assert "ValueError: no" in end["reason"]

    failing = ("push", "bad2", "reports", '{"fail": 1}', "--max-attempts", "1", "--wait")
    assert shown(jobs, *failing, status=1) == f"{text}\n"

    [record] = map(json.loads, shown(jobs, "history", "k", "--json").splitlines())
    assert record["result"] == hidden
    assert json.loads(shown(jobs, "show", "k", "--json"))["last"]["result"] == hidden
    assert re.search(rf"^result: +{re.escape(text)}$", shown(jobs, "show", "k"), re.MULTILINE)


def test_a_return_value_is_a_result_if_the_setting_says_so(jobs):
    jobs.configure(types={"returns": {"result": "return"}})
    jobs.start()
    assert shown(jobs, "push", "k", "returns", "{}", "--wait") == "k: finished\n[1]\n"
    jobs.add("own", "returns", result="explicit")
    jobs.wait_for_finish("own")
    assert end_of(jobs, "own").result is None


def test_the_form_of_an_end_needs_an_end(service):
    refused = service.psched("push", "k", "t", "{}", "--json")
    assert (refused.returncode, refused.stdout) == (2, "")
    assert "--json needs --wait" in refused.stderr
