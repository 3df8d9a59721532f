"""The manual pages, made from the help."""

import shutil
import subprocess
import sys

import pytest

from psched.cli.commands import psched
from psched.cli.man import _escaped

pytestmark = pytest.mark.extended


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = tmp_path_factory.mktemp("man") / "man1"
    subprocess.run([sys.executable, "-m", "psched.cli.man", made], check=True, capture_output=True)
    return made


def test_each_command_has_its_section(folder):
    lines = (folder / "psched.1").read_text().splitlines()
    assert [line for line in lines if line.startswith(".SS")] == [
        f".SS psched {name}".replace("-", r"\-") for name in sorted(psched.commands)
    ]
    assert r"\fB\-\-dry\-run\fR" in lines
    assert r"\fB\-h, \-\-help\fR" in lines
    assert r".BR psched\-master (1)" in lines


def test_the_signals_of_the_daemon_have_lines_of_their_own(folder):
    text = (folder / "psched-master.1").read_text()
    block = text.partition(".nf\nSignals:\n")[2].partition("\n.fi")[0]
    assert len(block.splitlines()) > 5
    assert "\b" not in text


@pytest.mark.parametrize("name", ["psched.1", "psched-master.1"])
def test_a_formatter_has_nothing_to_complain_of(folder, name):
    if shutil.which("groff") is None:
        pytest.skip("needs groff")
    done = subprocess.run(
        ["groff", "-man", "-Tutf8", "-Kutf8", "-ww", folder / name],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stderr == ""
    assert "psched" in done.stdout


def test_what_can_be_copied_into_a_shell_is_printed_literally():
    if shutil.which("groff") is None:
        pytest.skip("needs groff")
    for line in ("psched list 'mail-*' `x` ~/a ^b \\c \"d\"", "'quoted' at the beginning", ".dot"):
        # Without -man, because some distributions correct the quotes of manual pages, and some not.
        done = subprocess.run(
            ["groff", "-Tutf8"], input=_escaped(line), capture_output=True, text=True, check=True
        )
        assert (done.stdout.rstrip().replace("\N{MINUS SIGN}", "-"), done.stderr) == (line, "")
