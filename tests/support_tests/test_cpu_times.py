import subprocess
import sys

from support.cpu_times import used
from support.waiting import wait_until

BUSY = "import time\nwhile time.process_time() < 0.2: pass\nprint('done', flush=True)\ninput()"


def test_the_work_of_children_counts_while_they_run_and_when_they_have_ended():
    before = used()
    child = subprocess.Popen(
        [sys.executable, "-ISc", BUSY], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    with child:
        child.stdout.readline()
        wait_until(lambda: used() - before >= 0.2, what="the work of a child that runs")
        child.stdin.close()
        child.wait()
    assert 0.2 <= used() - before < 5
