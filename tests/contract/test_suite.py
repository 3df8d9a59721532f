"""The shipped suite, used as a third party would use it."""

import subprocess
import sys

import pytest


@pytest.mark.slow
def test_it_can_be_imported_without_pytest_and_without_a_store_of_ours():
    script = "import sys; sys.modules['pytest'] = None; import psched.testing as suite;"
    script += "print('sqlalchemy' in sys.modules, suite.BackendContract.__name__)"
    found = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert found.stdout == "False BackendContract\n"
