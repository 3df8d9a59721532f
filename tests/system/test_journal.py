"""What tasks print is in the journal, and a journal that stands still delays no task."""

import os
import re
import signal

import pytest

from support.processes import kill
from support.run_log import completed
from support.servers import MissingServerError
from support.waiting import wait_until

pytestmark = pytest.mark.extended

TO_JOURNAL = "[Service]\nStandardOutput=journal\nStandardError=inherit\n"

JOBS = """
    import os
    import time
    from pathlib import Path
    from recorder import Dispatch as Before, Recorder

    def says(task):
        print("said by", task.key)
        os.system("echo a program says >&2")

    class Flood(Recorder):
        def run(self):
            self.note("start", worker=self.worker)
            folder = Path(__file__).parent
            printed = 0
            while not (folder / "gate").exists():
                printed += os.write(1, (b"." * 500 + b"\\n") * 100)
                (folder / "printed").write_text(str(printed))
                time.sleep(0.01)
            self.note("end", how="returned")

    class Dispatch(Before):
        routes = {**Before.routes, "says": says, "flood": Flood}
"""


@pytest.fixture
def journal(unit):
    """The unit, whose output goes to a journal; the pid of journald."""
    unit.service.write("jobs.py", JOBS)
    unit.configure(dispatch="jobs:Dispatch", concurrency=3, output="both", log=None)
    unit.drop_in("to-journal", TO_JOURNAL)
    try:
        started = unit.machine.journal()
    except MissingServerError as missing:
        if os.environ.get("PSCHED_TEST_NO_SKIP") == "1":
            raise
        pytest.skip(str(missing))
    with started as pid:
        yield pid


def lines(unit, *options):
    return unit.machine.run("journalctl", "--no-pager", "-u", "psched", "-o", "cat", *options)


@pytest.mark.usefixtures("journal")
def test_what_tasks_print_is_in_the_journal_with_their_keys(unit):
    unit.service.add("talks", "says")
    unit.start()
    unit.service.wait_for_finish("talks")

    for line in (
        "^talks: said by talks$",
        "^talks: a program says$",
        r"worker 0 \[talks.* finished",
    ):
        wait_until(lambda line=line: re.search(line, lines(unit), re.MULTILINE), what=line)
    unit.machine.systemctl("stop", "psched")


def test_a_journal_that_stands_still_delays_no_task(unit, journal):
    unit.service.add("flood", "flood")
    unit.start()
    unit.service.runs.wait("flood")
    kill(journal, signal.SIGSTOP)
    # systemd makes the buffer of the journal's socket 8 MiB large.
    printed = unit.service.folder / "printed"
    # The file is empty for a moment while the task writes it.
    before = int(wait_until(printed.read_text, what="a count"))
    wait_until(lambda: int(printed.read_text() or 0) > before + 2**24, what="a full buffer")

    unit.service.add("every", cron="@every 1")
    for number in range(3):
        unit.service.add(f"single{number}")
        unit.service.wait_for_finish(f"single{number}")
    unit.service.runs.wait("every", completed(3))
    assert unit.service.runs.runs("flood")[0].end is None, "the flood goes on"
    kill(journal, signal.SIGCONT)
    unit.service.open_gate("gate")
    unit.service.wait_for_finish("flood")

    # Now the journal gets the lines that have waited, and a note about the others.
    unit.service.add("talks", "says")
    unit.service.wait_for_finish("talks")
    wait_until(lambda: "talks: a program says" in lines(unit), what="the last lines")
    said = lines(unit)
    assert re.search("psched: [0-9]+ lines of output are left out here", said)
    for number in range(3):
        assert re.search(rf"worker 0 \[single{number}\.[0-9]+\] finished", said)
    unit.machine.systemctl("stop", "psched")
