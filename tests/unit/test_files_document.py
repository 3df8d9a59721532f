"""Tests of reading and writing files that declare schedules."""

from pathlib import Path
from textwrap import dedent

import pytest
from hypothesis import given
from hypothesis import strategies as st

from psched import config
from psched.base.errors import ConfigError, InvalidError
from psched.core.declare import FIELDS, declare
from psched.files.document import Reader
from psched.files.export import export, to_yaml
from psched.files.plan import fields_of, plan

SETTINGS = config.from_mapping(
    {
        "url": "sqlite:///unused.db",
        "timezone": "Asia/Tokyo",
        "types": {"report": {"alive_time": 60}},
    }
)
FILE = Path("s.yml")
NOON = 1_800_014_400
"""2027-01-15T12:00:00Z."""


def read(content, label=None):
    reader = Reader(SETTINGS, label, now=lambda: NOON)
    reader.read_text(dedent(content), FILE)
    return reader.documents()


def problems(content, label=None):
    with pytest.raises(ConfigError) as refused:
        read(content, label)
    return str(refused.value).splitlines()


def test_a_file_says_whose_its_schedules_are_and_what_they_are():
    [document] = read("""
        label: reports
        x-usual: &usual {type: exec, catchup: latest}
        schedules:
          nightly:
            <<: *usual
            cron: "30 2 * * *"
            data: {command: [report, --all]}
            note: |
              Ann reads it.
          hourly: {<<: *usual, cron: "@hourly", catchup: skip, data: {command: [date]}}
        """)

    assert document.label == "reports"
    assert document.schedules == [
        {
            "key": "nightly",
            "type": "exec",
            "catchup": "latest",
            "cron": "30 2 * * *",
            "data": {"command": ["report", "--all"]},
            "note": "Ann reads it.\n",
        },
        {
            "key": "hourly",
            "type": "exec",
            "catchup": "skip",
            "cron": "@hourly",
            "data": {"command": ["date"]},
        },
    ]


def test_a_file_may_hold_several_documents_and_a_label_may_be_given_for_it():
    documents = read("""
        label: a
        schedules: {one: {cron: "@daily"}}
        ---
        label: null
        schedules: {two: {cron: "@daily"}}
        ---
        label: a
        schedules: {}
        """)
    assert [(each.label, len(each.schedules)) for each in documents] == [("a", 1), (None, 1)]
    [document] = read('schedules: {one: {cron: "@daily"}}', label="b")
    assert document.label == "b"


def test_every_mistake_is_told_with_file_line_key_field_and_mend():
    assert problems("""\
        label: a
        retries: 5
        schedules:
          one:
            cron: "99 * * * *"
            crom: "@daily"
          two:
            cron: "@daily"
            timezone: Europe/Berlyn
            label: b
          three: "@daily"
          four:
            data: {day: 2026-01-31}
            cron: "@daily"
          five: {type: report}
          six: {cron: "@daily", data: {at: 22:30}}
          one: {cron: "@daily"}
        """) == [
        "s.yml:2: retries: is not label or schedules; a key for anchors begins with x-",
        "s.yml:9: two: timezone: 'Europe/Berlyn' is not a zone; did you mean 'Europe/Berlin'?",
        "s.yml:10: two: label: belongs at the top of a document, for all its schedules",
        "s.yml:11: three: must be a mapping of fields, which are "
        + ", ".join(name for name in FIELDS if name != "label"),
        (
            "s.yml:13: four: data: cannot be written as JSON: Object of type date is not JSON"
            " serializable"
        ),
        "s.yml:15: five: cron: is missing; to run something only once, use push",
        ("s.yml:16: data: a number in base 8 or 60; write it in base 10, or put text in quotes"),
        "s.yml:17: one: appears twice; remove this one or the one in line 4",
    ]
    assert problems("""\
        label: a
        schedules:
          one:
            cron: "99 * * * *"
            crom: "@daily"
        """) == [
        (
            "s.yml:4: one: cron: minute '99' is not allowed; use 0-59, ranges such as 1-5,"
            " steps from /1 on, and lists"
        ),
        "s.yml:5: one: crom: is not a field of a schedule; did you mean cron?",
    ]


def test_a_mistake_in_the_data_of_exec_is_told_with_its_line():
    assert problems("""\
        label: a
        schedules:
          one:
            type: exec
            cron: "@daily"
            data: {command: pg_dump -f /backup/db}
          two: {type: exec, cron: "@daily", data: {command: [date], enviroment: {A: b}}}
        """) == [
        (
            's.yml:6: one: data: "command" must be a list of texts, such as ["program",'
            ' "argument"]; one text needs "shell": true'
        ),
        (
            "s.yml:7: two: data: 'enviroment' is not a field of type exec; did you mean \"env\"?"
            " The fields are command, shell, env, cwd, append_key, stdin, ok_exit, data; put values"
            " for the program under data"
        ),
    ]


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ("", "s.yml: is empty; write label: and schedules:"),
        ("- 1", "s.yml:1: has no schedules; write label: and schedules:"),
        ("label: a", "s.yml:1: schedules: must be a mapping from keys to fields, or {} for none"),
        ("label: a\nschedules:", "s.yml:2: schedules: must be a mapping"),
        ("schedules: {}", "s.yml:1: label: is missing"),
        ("label: 7\nschedules: {}", "s.yml:1: label: must be a text; put it in quotes"),
        ("label: a\nschedules:\n  one:\n    cron: * * * * *\n", "s.yml:4: not YAML: "),
        ("label: a\nschedules: {1: {}}", "s.yml:2: a key that is not text; put it in quotes"),
        ("label: a\nschedules: {a: {type: !x b}}", "s.yml:2: not YAML: a tag (!) has no"),
        ("a: [", "s.yml:1: not YAML"),
    ],
)
def test_what_is_no_declaration_is_refused(content, problem):
    assert problems(content)[0].startswith(problem)


def test_each_mistake_in_one_schedule_is_told():
    assert [
        text.partition(": must")[0]
        for text in problems("""\
        label: a
        schedules:
          one:
            cron: "@daily"
            delay: -5
            jitter: 90000
            catchup: sometimes
          two: {max_attempts: -1}
        """)
    ] == [
        "s.yml:5: one: delay",
        "s.yml:6: one: jitter",
        "s.yml:7: one: catchup",
        "s.yml:8: two: max_attempts",
        "s.yml:8: two: cron: is missing; to run something only once, use push",
    ]


def test_a_mistake_that_is_that_of_no_field_is_told_once():
    [problem] = problems("label: a\nschedules:\n  ' one': {cron: '@daily', delay: 5}\n")
    assert problem.startswith("s.yml:3:  one: key: ' one' must be printable")


def test_no_mistake_is_told_that_only_the_omission_of_another_causes():
    [problem] = problems("""
        label: a
        schedules:
          one: {cron: "@daily", type: " exec", data: {command: 5}}
        """)
    assert problem.startswith("s.yml:4: one: type: ")


def test_an_empty_time_zone_is_refused():
    # It is not the default: null is, and an empty name is a value that somebody has lost.
    [problem] = problems('label: a\nschedules:\n  one: {cron: "@daily", timezone: ""}\n')
    assert problem.startswith("s.yml:3: one: timezone: '' is not a zone; ")


def test_an_asterisk_without_quotes_gets_its_mend():
    [problem] = problems("label: a\nschedules:\n  one:\n    cron: * * * * *\n")
    assert problem.endswith("put a value that begins with * in quotes")


def test_a_label_that_was_given_is_not_another():
    [problem] = problems("label: a\nschedules: {}", label="b")
    assert problem == "s.yml:1: label: is 'a', but --label is 'b'"


def test_a_folder_is_read_file_by_file_and_no_key_twice(tmp_path):
    for name, key in (("a.yml", "one"), ("b.yaml", "two"), (".c.yml", "x"), ("d.txt", "y")):
        (tmp_path / name).write_text(f'label: l\nschedules: {{{key}: {{cron: "@daily"}}}}\n')
    (tmp_path / "below").mkdir()

    [document] = Reader(SETTINGS, now=lambda: NOON).read([tmp_path])
    assert [each["key"] for each in document.schedules] == ["one", "two"]

    (tmp_path / "e.yml").write_text('label: other\nschedules:\n  one: {cron: "@daily"}\n')
    with pytest.raises(ConfigError) as refused:
        Reader(SETTINGS, now=lambda: NOON).read([tmp_path])
    assert str(refused.value) == (
        f"{tmp_path}/e.yml:3: one: is declared in {tmp_path}/a.yml:2 as well"
    )
    with pytest.raises(ConfigError, match="has no file that ends with"):
        Reader(SETTINGS, now=lambda: NOON).read([tmp_path / "below"])
    with pytest.raises(ConfigError, match=r"nothing\.yml: cannot be read: No such file"):
        Reader(SETTINGS, now=lambda: NOON).read([tmp_path / "nothing.yml"])


def test_an_export_is_ordered_leaves_out_defaults_and_is_told_what_it_cannot_say():
    rows = [
        declare(key, {"cron": "@daily", **fields}, SETTINGS, lambda: 0)
        for key, fields in {
            "b": {"label": "l", "type": "report", "note": "two\nlines", "timezone": "UTC"},
            "a": {"label": "l", "timezone": "Asia/Tokyo", "data": {}, "delay": 0},
            "c": {},
            "d": {"cron": None},
        }.items()
    ]

    documents, remarks, omitted = export(rows, SETTINGS)

    assert to_yaml(documents) == dedent("""\
        ---
        label: l
        schedules:
          a:
            cron: '@daily'
          b:
            type: report
            cron: '@daily'
            timezone: UTC
            note: |-
              two
              lines
        ---
        label: null
        schedules:
          c:
            cron: '@daily'
        """)
    assert (remarks, omitted) == ([], [])


# --- the two are inverse --------------------------------------------------------------

_WORDS = st.text(st.characters(exclude_categories=["C", "Z"]), min_size=1, max_size=12)
_TEXTS = st.one_of(
    st.text(max_size=20),
    st.sampled_from(["22:30", "yes", "null", "~", "2026-01-31", "1e3", "* *", "<<", "=", "&a", ""]),
)
_JSON = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), _TEXTS,
              st.floats(allow_nan=False, allow_infinity=False)),
    lambda each: st.lists(each, max_size=3) | st.dictionaries(_TEXTS, each, max_size=3),
    max_leaves=6,
)  # fmt: skip
_FIELDS = st.fixed_dictionaries(
    {"cron": st.sampled_from(["* * * * *", "@daily", "@every 90", "0 9 * * MON-FRI", "5 4 L * *"])},
    optional={
        "type": st.sampled_from(["default", "report", "push", "null", "ü"]),
        "data": st.dictionaries(_TEXTS, _JSON, max_size=3),
        "timezone": st.sampled_from(["Asia/Tokyo", "UTC", None]),
        "delay": st.integers(0, 100),
        "alive_time": st.sampled_from([60, 61, None]),
        "catchup": st.sampled_from(["all", "latest", "skip", None]),
        "dst_policy": st.sampled_from(["debian", "wallclock"]),
        "catchup_grace": st.sampled_from([10, 10.0, 2.5]),
        "max_attempts": st.integers(0, 5),
        "kill_timeout": st.sampled_from([0, 60.5]),
        "note": st.one_of(_WORDS, st.sampled_from(["two\nlines", "end\n", " x\n\ty\n", "a\n\n"])),
    },
)
_LABELS = st.one_of(st.none(), _WORDS)


@pytest.mark.slow
@given(st.dictionaries(_WORDS, st.tuples(_LABELS, _FIELDS), max_size=4))
def test_an_export_declares_what_was_declared_and_applying_it_changes_nothing(wanted):
    try:
        rows = [
            declare(key, {**fields, "label": label}, SETTINGS, lambda: 0)
            for key, (label, fields) in wanted.items()
        ]
    except InvalidError:
        return  # such as half a character

    content = to_yaml(export(rows, SETTINGS)[0])
    if not rows:
        assert content == ""
        return
    documents = read(content)

    for document in documents:
        made = plan(document.schedules, rows, document.label, settings=SETTINGS, now=lambda: NOON)
        assert not made.is_pending(prune=True)
        assert not made.refused
    again = {
        each["key"]: declare(
            each["key"],
            {**{n: v for n, v in each.items() if n != "key"}, "label": document.label},
            SETTINGS,
            lambda: 0,
        )
        for document in documents
        for each in document.schedules
    }
    assert {row.key: fields_of(row, SETTINGS) for row in rows} == {
        key: fields_of(row, SETTINGS) for key, row in again.items()
    }
    assert to_yaml(export(again.values(), SETTINGS)[0]) == content


def test_a_control_character_is_told_with_its_line():
    content = "label: null\nschedules:\n  one: {cron: '* * * * *', type: \x07}\n"
    with pytest.raises(ConfigError) as refused:
        read(content)
    assert str(refused.value) == (
        "s.yml:3: not YAML: the character U+0007 is not allowed; remove it"
    )


def test_many_schedules_may_share_what_they_say():
    shared = "x-base: &base {cron: '* * * * *', type: t, data: &data {a: [1, 2, 3]}}\n"
    keys = "".join(f"  s{n}: {{<<: *base, delay: {n}}}\n" for n in range(1000))
    [document] = read(f"label: null\n{shared}schedules:\n{keys}")
    assert len(document.schedules) == 1000
    assert document.schedules[999]["data"] == {"a": [1, 2, 3]}


@pytest.mark.parametrize("documents", [1, 500])
def test_a_bomb_in_one_document_or_in_many_is_refused(documents):
    bomb = "a: &a [" + "x, " * 40 + "]\nb: [" + "*a, " * 40 + "]\n"
    if documents == 1:
        bomb += "".join(f"c{n}: &c{n} [{'*a, ' * 1000}]\n" for n in range(10))
    with pytest.raises(ConfigError, match="add more than 250000 values"):
        read("---\n".join([bomb] * documents))


def test_a_tab_that_pyyaml_refuses_is_refused_on_hosts_with_libyaml_too():
    with pytest.raises(ConfigError) as refused:
        read("label: null\nschedules:\n  one: {cron: '* * * * *',\t type: x}\n")
    assert str(refused.value).startswith("s.yml:3: not YAML: ")
    [document] = read("label: null\nschedules:\n  one: {cron: '0\t* * * *', type: x}\n")
    assert document.schedules[0]["cron"] == "0\t* * * *"
