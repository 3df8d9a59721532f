"""The page about tests of handlers: its examples pass; and the plugin for pytest costs nothing."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.extended

PAGE = Path(__file__).parents[2] / "docs/frameworks.md"
SECTION = PAGE.read_text().partition("\n## Testing your handlers\n")[2]


def examples():
    """The files in the section, by their names."""
    blocks = re.findall(r"^```python\n# (\S+)\n(.*?)^```$", SECTION, re.DOTALL | re.MULTILINE)
    assert len(blocks) == SECTION.count("```python") > 0
    return dict(blocks)


def run_pytest(folder, *arguments):
    """Run pytest as a user would, in a folder."""
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith("PYTEST")
    }
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-W", "error", "-p", "no:cacheprovider", *arguments],
        cwd=folder,
        env=environment,
        check=False,
        capture_output=True,
        text=True,
    )


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "pytest.ini").write_text("[pytest]\naddopts = --strict-markers\npythonpath = .\n")
    return tmp_path


def test_the_examples_pass(folder):
    files = examples()
    for name, text in files.items():
        (folder / name).write_text(text)
    done = run_pytest(folder)
    assert done.returncode == 0, done.stdout + done.stderr
    tests = sum(text.count("\ndef test_") for text in files.values())
    assert f"{tests} passed" in done.stdout


def test_an_example_can_fail(folder):
    files = examples()
    (folder / "billing.py").write_text(files["billing.py"].replace("sent.append(to)", "pass"))
    (folder / "test_schedules.py").write_text(files["test_schedules.py"])
    done = run_pytest(folder)
    assert "1 failed, 2 passed" in done.stdout


def test_the_plugin_loads_nothing_of_psched_before_a_fixture_is_used(folder):
    (folder / "test_other.py").write_text(
        "import sys\n"
        "def test_other(request):\n"
        "    assert request.config.pluginmanager.has_plugin('psched')\n"
        "    loaded = {name for name in sys.modules if name.split('.')[0] == 'psched'}\n"
        "    assert loaded == {'psched', 'psched.testing', 'psched.testing.pytest_plugin'}\n"
        "    assert not {'sqlalchemy', 'yaml', 'asyncio'} & {*sys.modules}\n"
    )
    others = "-p", "no:anyio", "-p", "no:schemathesis"  # which load such modules
    done = run_pytest(folder, *others)
    assert done.returncode == 0, done.stdout + done.stderr
    done = run_pytest(folder, *others, "-p", "no:psched")
    assert "has_plugin" in done.stdout
    assert "1 failed" in done.stdout
