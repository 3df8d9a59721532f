"""A store of the user's own, named by its import path: the documentation's example at work."""

import shutil
import sys
from pathlib import Path

import pytest

from support.processes import kill

pytestmark = pytest.mark.extended

DOCS = Path(__file__).parents[2] / "docs"


@pytest.fixture
def service(make_service):
    made = make_service("")
    shutil.copy(DOCS / "examples/filestore.py", made.folder)
    path = str(made.folder / "schedules.json")
    made.configure(url=None, type="filestore:FileStore", store={"path": path})
    return made


def test_a_service_runs_on_it_and_survives_its_workers(service):
    assert service.psched("init").returncode == 0
    assert service.psched("add", "s", "recorder", "@every 1").returncode == 0
    assert service.psched("push", "t", "recorder", '{"until": "gate"}').returncode == 0
    master = service.start()
    [run] = service.runs.wait("t")
    kill(run.worker, 9)
    service.runs.wait("t", lambda runs: len(runs) == 2)
    service.open_gate("gate")
    waited = service.psched("push", "t", "{}", "--wait")
    assert (waited.returncode, waited.stdout) == (0, "t: finished\n")
    service.runs.wait("s", lambda runs: len(runs) >= 2)
    assert "schedules.json" in service.psched("check").stdout
    assert "2 entries." in service.psched("list", "--legacy").stdout
    assert master.stop() == 0


def test_the_documented_test_of_it_passes(service):
    text = (DOCS / "contributing.md").read_text()
    [_, block] = text.split("```python\n", 1)
    service.write("test_filestore.py", block.split("```", 1)[0])
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    done = service.run(*command, "-k", "Fencing or token or settled", "test_filestore.py")
    assert done.returncode == 0, done.stdout
    assert " passed" in done.stdout


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"store": {}}, "Error: store: filestore:FileStore cannot be made: KeyError: 'path'"),
        ({"type": "nowhere:Store"}, "Error: type: there is no module 'nowhere' on the load path"),
        ({"type": "filestore:Nothing"}, "Error: type: "),
    ],
)
def test_what_cannot_be_made_is_named(service, settings, told):
    service.configure(**settings)
    refused = service.psched("list", "--legacy")
    assert refused.returncode == 1
    assert refused.stderr.splitlines()[-1].startswith(told), refused.stderr
