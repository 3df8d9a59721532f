"""What tasks print is in the database when they have ended."""

import gzip

import pytest

PRINTS = """
import os
import subprocess
import sys

from psched.application import Base

class Job(Base):
    def run(self):
        if self.task.key == "silent":
            return
        print("one")
        print("two", file=sys.stderr)
        subprocess.run(["sh", "-c", "echo three; echo four >&2"])
        os.write(1, b"\\xff\\0")
        if self.task.key == "much":
            print("x" * 100_000)
        if self.task.key == "fails":
            raise ValueError("no")
"""

LINES = b"one\ntwo\nthree\nfour\n"


@pytest.fixture
def prints(service):
    """A service whose tasks print."""
    service.configure(dispatch=None, load_path=None, output="history", output_limit=1000)
    service.write("job.py", PRINTS)
    return service


def rows(service):
    with service.sql() as database:
        select = "SELECT key, attempt, output, is_gzip, dropped, is_live FROM psched_output"
        return {
            key: (attempt, gzip.decompress(output) if packed else output, dropped, is_live)
            for key, attempt, output, packed, dropped, is_live in database.execute(select)
        }


def test_output_is_kept_in_its_table(prints):
    master = prints.start(*prints.psched_command, "run", "--script", "job.py")
    for key in "some", "silent", "much":
        prints.invoke("push", key, "{}")
    for key in "some", "silent", "much":
        prints.wait_for_finish(key)
    assert master.stop() == 0
    found = rows(prints)
    assert {*found} == {"some", "much"}
    assert found["some"] == (1, LINES + b"\xff\0", 0, 0)
    attempt, output, dropped, _ = found["much"]
    assert (attempt, output) == (1, b"x" * 999 + b"\n")
    assert dropped == len(LINES) + 2 + 100_001 - 1000


def test_a_worker_without_the_table_warns_once_and_runs_tasks(prints):
    with prints.sql() as database:
        database.execute("DROP TABLE psched_output")
        database.execute("DELETE FROM psched_info WHERE name = 'output_version'")
    prints.configure(processors=2)
    checked = prints.psched("check")
    assert "  output: not kept: the table psched_output is missing" in checked.stdout
    master = prints.start(*prints.psched_command, "run", "--script", "job.py")
    prints.invoke("push", "some", "{}")
    prints.wait_for_finish("some")
    master.wait_for_log("the output of tasks is not kept: the table psched_output is missing")
    assert master.stop() == 0
    assert master.text.count("is not kept") == 1
    prints.invoke("init")
    assert "  output: kept\n" in prints.psched("check").stdout
    prints.configure(output="service")
    assert "  output: not kept (the setting output: service)\n" in prints.psched("check").stdout
