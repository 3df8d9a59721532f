"""Tests of how text of unknown origin is escaped and shortened for display."""

import subprocess
import sys
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from psched.base.texts import (
    LONGEST,
    LONGEST_BRIEF,
    LONGEST_TRACEBACK,
    brief,
    cut,
    traceback_of,
    visible,
)

OBEYED = [
    *map(chr, range(0x20)), "\x7f", *map(chr, range(0x80, 0xA0)), "\u061c", "\u200b", "\u200c",
    "\u200d", "\u200e", "\u200f", *map(chr, range(0x202A, 0x202F)), "\u2028", "\u2029",
    *map(chr, range(0x2066, 0x206A)), "\ufeff", "\ud800", "\udfff", "\U000e0041",
]  # fmt: skip


@pytest.mark.parametrize("character", OBEYED, ids=ascii)
def test_what_a_terminal_obeys_or_nobody_sees_becomes_an_escape(character):
    shown = visible(f"a{character}b")
    assert shown == f"a{ascii(character)[1:-1]}b"
    assert shown.isascii()


@pytest.mark.parametrize("text", ["plain", "é鍵🗝", "a\xa0b", "100\u202f000", "全角\u3000空白", ""])
def test_what_people_write_stays_as_it_is(text):
    assert visible(text) == text


def test_lines_are_kept_where_they_are_meant():
    assert visible("a\tb\nc\r\x1b", lines=True) == "a\tb\nc\\r\\x1b"
    assert visible("a\tb\nc") == "a\\tb\\nc"


@given(st.text(st.characters()))
def test_nothing_that_is_shown_is_hidden(text):
    assert all(c.isprintable() or unicodedata.category(c) == "Zs" for c in visible(text))
    assert visible(visible(text)) == visible(text)


def test_what_is_cut_says_how_much_was_dropped():
    assert cut("x" * 10, 10) == "x" * 10
    assert cut("x" * 11, 10) == "x" * 10 + " … (1 characters more)"


@given(st.text(st.characters(), max_size=50), st.integers(1, 2 * LONGEST))
def test_what_is_brief_is_one_short_line(text, times):
    shown = brief(text * times)
    assert len(shown) <= LONGEST_BRIEF
    assert not set(shown) & {"\n", "\r", "\x1b", "\u2028"}
    assert ("characters more" in shown) >= (len(text * times) > LONGEST)


def test_a_traceback_names_causes_and_notes_and_is_cut():
    cause = KeyError("first")
    error = ValueError("second\nline " + "x" * 100_000)
    error.add_note("third")
    error.__cause__ = cause
    text = traceback_of(error)
    assert "KeyError: 'first'" in text
    assert "ValueError: second\nline xxx" in text
    assert "characters more)" in text
    assert len(text) < LONGEST_TRACEBACK + 2 * LONGEST
    error = ValueError("x")
    for _ in range(1000):
        error.add_note("y" * 1000)
    assert traceback_of(error).endswith("… (the rest of the traceback is left out)")


PRINTS = """
import sys
from psched.cli.output import filter_output, unfilter_output
import click
filter_output()
print("a\\x1b\\nb")
click.echo("c\\u202e\\xe9")
click.echo("d\\x07", err=True)
unfilter_output()
print("e\\x1b")
click.echo("f\\x07", err=True)
raise ValueError("g\\x1b")
"""


@pytest.mark.parametrize("encoding", ["utf-8", "ascii", "latin-1"])
def test_all_that_a_command_prints_passes_a_filter_until_it_is_undone(encoding):
    done = subprocess.run(
        [sys.executable, "-c", PRINTS],
        env={"PYTHONIOENCODING": encoding},
        capture_output=True,
        check=False,
    )
    accent = "é".encode("utf-8" if encoding == "ascii" else encoding)
    assert done.stdout == b"a\\x1b\nb\nc\\u202e" + accent + b"\ne\x1b\n"
    assert done.stderr.startswith(b"d\\x07\nf\x07\n")
    assert b"ValueError: g\x1b" in done.stderr
