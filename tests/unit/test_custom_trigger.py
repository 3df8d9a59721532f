"""Tests of how users' triggers are named, loaded, tried and checked."""

import builtins
import sys
from itertools import islice

import pytest

from psched.base.errors import InvalidError, NotLoadedError
from psched.base.loader import loading_by
from psched.triggers import trigger
from psched.triggers.custom import AskElsewhereError, refuse_to_ask
from psched.triggers.zone import LATEST

NOON = 1_800_014_400
"""2027-01-15T12:00:00Z."""

MODULE = '''
import itertools
from datetime import datetime, timedelta
from zoneinfo import ZoneInfo

raise_at_import = None

class Tides:
    """Every so often."""
    def __init__(self, gap=3600):
        self.gap = gap
    def next_at(self, after):
        return (after // self.gap + 1) * self.gap

class Harbour:
    class Tides(Tides):
        pass

class Answers:
    """Always the same answer; none if there is no argument."""
    def __init__(self, answer=None):
        self.answer = answer
    def next_at(self, after):
        return self.answer

class Standing:
    def next_at(self, after):
        return after

class Broken:
    def next_at(self, after):
        raise LookupError(f"no tide\\nafter {after}")

class WordlessError(Exception):
    def __str__(self):
        raise RuntimeError("not even this")

class Wordless:
    def next_at(self, after):
        raise WordlessError

class Leaving:
    def next_at(self, after):
        raise SystemExit("bye")

class Moody:
    counter = itertools.count(1)
    def next_at(self, after):
        return after + next(self.counter)

class Stuck:
    """It works until it is asked about a certain instant."""
    def next_at(self, after):
        return after + 60 if after < 1_800_014_520 else after

class Needy(Tides):
    def __init__(self, port):
        raise KeyError(port)

class Dated:
    """It takes and returns datetimes."""
    def next_at(self, after: datetime):
        return after + timedelta(minutes=5, microseconds=1)

class Quoted:
    def next_at(self, after: "datetime.datetime"):
        return after + timedelta(minutes=5)

class Mixed:
    def next_at(self, after: int):
        return datetime.fromtimestamp(after + 9, ZoneInfo("Asia/Tokyo"))

class Unsigned:
    """Python does not know the parameters, as of some built-in methods."""
    def next_at(self, after):
        return after + 60
    next_at.__signature__ = 5

class Zoneless:
    def next_at(self, after: datetime):
        return datetime(2099, 1, 1)

class Huge:
    def next_at(self, after):
        return -10**5000

class NoTrigger:
    made = []
    def __init__(self, *args, **kwargs):
        self.made.append(self)

def function(after):
    return after + 1
'''


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder with modules, which are removed from ``sys.modules`` after the test."""
    monkeypatch.setattr(sys, "path", [*sys.path])
    known = {*sys.modules}
    (tmp_path / "psched_tides.py").write_text(MODULE)
    (tmp_path / "psched_sunk.py").write_text("raise OSError('no water')")
    wordless = "import psched_tides; raise psched_tides.WordlessError"
    (tmp_path / "psched_wordless.py").write_text(wordless)
    (tmp_path / "psched_blank.py").write_text("raise ModuleNotFoundError(' ', name=3)")
    (tmp_path / "psched_lazy.py").write_text("def __getattr__(name): raise OSError('ebb')")
    yield str(tmp_path)
    for name in {*sys.modules} - known:
        if name.startswith("psched_"):
            del sys.modules[name]


def parse(text, folder):
    return trigger.parse(f"@call {text}", "UTC", load_path=(folder,))


def times(found, after, count):
    def follow():
        time = after
        while (time := found.next_after(time)) is not None:
            yield time

    return [*islice(follow(), count)]


def declare(text, folder):
    trigger.check(parse(text, folder), NOON)


def refused(text, folder):
    with pytest.raises(InvalidError) as error:
        declare(text, folder)
    assert error.value.field == "cron"
    assert str(error.value).isprintable()
    return error.value.problem


class TestFinding:
    def test_a_class_is_found_on_the_load_path_and_made_with_its_arguments(self, folder):
        assert times(parse("psched_tides:Tides", folder), NOON, 2) == [NOON + 3600, NOON + 7200]
        assert times(parse('psched_tides:Tides {"gap": 50}', folder), NOON, 1) == [NOON + 50]
        nested = parse('psched_tides:Harbour.Tides\t{"gap":7200}', folder)
        assert times(nested, NOON, 1) == [NOON + 7200]

    def test_equal_texts_are_one_trigger_which_is_equal_by_its_text(self, folder):
        one = parse("psched_tides:Tides", folder)
        assert one is parse("psched_tides:Tides", folder)
        assert one != parse('psched_tides:Tides {"gap":5}', folder)
        assert repr(one) == "CustomTrigger(text='@call psched_tides:Tides')"

    @pytest.mark.parametrize(
        ("text", "problem"),
        [
            ("psched_missing:Tides", "there is no module 'psched_missing' on the load path"),
            ("psched_tides:Ebb", "has no 'Ebb'"),
            ("psched_sunk:Tides", "importing 'psched_sunk' failed: OSError: no water"),
            ("psched_wordless:Tides", "importing 'psched_wordless' failed: WordlessError$"),
            ("psched_blank:Tides", "importing 'psched_blank' failed: ModuleNotFoundError$"),
            ("psched_lazy:Tides", "'Tides' of the module 'psched_lazy' raised OSError: ebb"),
        ],
    )
    def test_what_is_not_there_may_be_there_later(self, text, problem, folder):
        with pytest.raises(NotLoadedError, match=problem):
            parse(text, folder)

    def test_what_is_there_by_now_is_found(self, folder, tmp_path):
        with pytest.raises(NotLoadedError):
            parse("psched_later:Tides", folder)
        (tmp_path / "psched_later.py").write_text(MODULE)
        assert times(parse("psched_later:Tides", folder), NOON, 1) == [NOON + 3600]

    @pytest.mark.parametrize(
        "text",
        [
            "", "psched_tides", "psched_tides.Tides", "psched_tides:", ":Tides", "a b:c",
            "psched_tides:Tides()", "psched_tides:Tides [1]", 'psched_tides:Tides{"gap":1}',
            "psched_tides.py:Tides", "../psched_tides:Tides", "psched_tides:Tides {} {}",
            'psched_tides:Tides {"gap": NaN}', "psched_tides:Tides {gap: 1}",
        ],
    )  # fmt: skip
    def test_another_text_is_refused(self, text, folder):
        assert not isinstance(refused(text, folder), NotLoadedError)

    def test_nothing_is_called_but_a_class_with_the_method(self, folder):
        for name in ("NoTrigger", "function", "itertools", "raise_at_import"):
            problem = refused(f'psched_tides:{name} {{"args": 1}}', folder)
            assert problem == f"'psched_tides:{name}' is not a class with a method next_at(after)"
        assert sys.modules["psched_tides"].NoTrigger.made == []

    def test_arguments_that_it_does_not_take_are_refused(self, folder):
        assert "unexpected keyword argument 'port'" in refused(
            'psched_tides:Tides {"port": "Brest"}', folder
        )
        problem = refused('psched_tides:Needy {"port": "Brest"}', folder)
        assert problem == "psched_tides:Needy cannot be made: KeyError: 'Brest'"

    def test_a_text_longer_than_the_column_is_refused(self, folder):
        assert refused('psched_tides:Tides {"gap": ' + "1" * 300 + "}", folder) == (
            "is too long; use at most 256 characters"
        )

    def test_perfectsched_knows_none(self, folder):
        with pytest.raises(InvalidError, match="not five fields"):
            trigger.parse(
                "@call psched_tides:Tides", "UTC", reading="perfectsched", load_path=(folder,)
            )


class TestAnswers:
    @pytest.mark.parametrize(
        ("text", "problem"),
        [
            ("Standing", f"answered {NOON}, which is not later; it has to be whole Unix seconds"),
            ('Answers {"answer": 5}', "answered 5, which is not later"),
            ('Answers {"answer": 4e9}', "answered a value of type float"),
            ('Answers {"answer": true}', "answered a value of type bool"),
            ('Answers {"answer": "tomorrow"}', "answered a value of type str"),
            ("Broken", f"raised LookupError: no tide after {NOON}"),
            ("Wordless", "raised WordlessError"),
            ("Leaving", "raised SystemExit: bye"),
            ("Huge", "answered a huge number, which is not later"),
            ("Zoneless", "answered a datetime without a zone; it has to be whole Unix seconds, or"),
            ("Moody", f"answered {NOON + 1}, and then {NOON + 2}"),
            ("Stuck", f"next_at({NOON + 120}) of psched_tides:Stuck answered {NOON + 120}"),
        ],
    )
    def test_what_is_no_later_time_is_refused_when_it_is_declared(self, text, problem, folder):
        assert problem in refused(f"psched_tides:{text}", folder)

    def test_none_is_never_again_and_so_is_what_lies_beyond_every_calendar(self, folder):
        assert parse("psched_tides:Answers", folder).next_after(NOON) is None
        far = parse(f'psched_tides:Answers {{"answer": {10**15}}}', folder)
        assert far.next_after(NOON) is None
        trigger.check(far, NOON)

    @pytest.mark.parametrize(
        ("name", "gap"),
        # psched rounds the time up, so that no task runs early.
        [("Dated", 301), ("Quoted", 300), ("Mixed", 9), ("Unsigned", 60)],
    )
    def test_a_trigger_may_speak_of_datetimes(self, name, gap, folder):
        found = parse(f"psched_tides:{name}", folder)
        assert times(found, NOON, 2) == [NOON + gap, NOON + 2 * gap]
        assert found.next_after(-1) == gap - 1

    def test_the_last_day_of_the_calendar_is_beyond_it(self, folder):
        last = parse(f'psched_tides:Answers {{"answer": {LATEST - 1}}}', folder)
        assert last.next_after(NOON) == LATEST - 1
        beyond = parse(f'psched_tides:Answers {{"answer": {LATEST}}}', folder)
        assert beyond.next_after(NOON) is None

    @pytest.mark.parametrize(
        ("number", "shown"), [(1 - 2**64, "-18446744073709551615"), (-(2**64), "a huge number")]
    )
    def test_only_a_number_of_a_sensible_length_is_shown(self, number, shown, folder):
        problem = refused(f'psched_tides:Answers {{"answer": {number}}}', folder)
        assert f"answered {shown}, which is not later" in problem

    def test_what_psched_knows_need_not_be_tried(self):
        for known in (None, trigger.parse("@every 5", "UTC"), trigger.parse("@daily", "UTC")):
            trigger.check(known, NOON)


class TestWhatIsAllowed:
    """Any client that can write a row can name any module, so only allowed modules are imported."""

    @pytest.fixture
    def places(self, folder, tmp_path):
        """Create modules below the folder and elsewhere on the path, which report their import."""
        tell = "import builtins; builtins.psched_told = __name__"
        elsewhere = tmp_path / "elsewhere"
        for place in (
            "psched_inside/__init__.py", "psched_inside/deep/__init__.py", "psched_plain/mod.py",
            "elsewhere/psched_outside/__init__.py", "elsewhere/psched_outside/mod.py",
            "elsewhere/psched_other.py", "elsewhere/psched_plain/other.py", "json/tool.py",
            "psched_plain/inner/side/mod.py", "elsewhere/psched_plain/inner/other.py",
        ):  # fmt: skip
            file = tmp_path / place
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(f"{tell}\n{MODULE}")
        sys.path.append(str(elsewhere))
        yield folder
        for name in [name for name in sys.modules if name.startswith("psched_")]:
            del sys.modules[name]
        vars(builtins).pop("psched_told", None)

    @pytest.mark.parametrize(
        "module",
        [
            "psched_inside", "psched_inside.deep", "psched_plain.mod", "psched_tides",
            "psched_plain.inner.side.mod",
        ],
    )  # fmt: skip
    def test_by_default_it_is_what_is_below_the_load_path(self, module, places):
        assert times(parse(f"{module}:Tides", places), NOON, 1) == [NOON + 3600]

    @pytest.mark.parametrize(
        "module",
        [
            "psched_other", "psched_outside", "psched_outside.mod", "psched_plain.other",
            "psched_plain.inner.other", "psched_plain.missing.mod", "psched_inside.missing",
            "psched_missing.mod", "json.tool", "os", "os.path", "sys", "test.__main__",
            "psched.model",
        ],
    )  # fmt: skip
    def test_nothing_else_is_imported_nor_are_the_packages_above_it(self, module, places):
        known = {*sys.modules}
        problem = refused(f"{module}:Tides", places)
        assert problem.startswith(f"there is no module {module!r} on the load path ({places})")
        assert problem.endswith("or name the module in the setting triggers")
        assert not hasattr(builtins, "psched_told")
        assert {*sys.modules} <= known

    def test_the_setting_names_modules_and_all_below_them(self, places):
        def found(module, *allowed):
            text = f"@call {module}:Tides"
            return trigger.parse(text, "UTC", load_path=(places,), allowed=allowed)

        for module in ("psched_outside", "psched_outside.mod", "psched_other"):
            assert times(found(module, "psched_outside", "psched_other"), NOON, 1) == [NOON + 3600]
        with pytest.raises(
            NotLoadedError, match=r"triggers allows \(psched_outside.mod, psched_o\)"
        ):
            found("psched_outside", "psched_outside.mod", "psched_o")
        with pytest.raises(NotLoadedError, match=r"the setting triggers allows \(none\)"):
            found("psched_tides")

    def test_the_program_itself_is_never_imported_and_may_be_named(self, places):
        with pytest.raises(
            NotLoadedError, match="'__main__:Tides' is in the program that declared"
        ):
            parse("__main__:Tides", places)


def test_a_process_that_does_not_ask_finds_nothing(folder):
    with loading_by(refuse_to_ask):
        one = parse("psched_tides:Tides", folder)
        with pytest.raises(AskElsewhereError):
            one.next_after(NOON)
    loaded = parse("psched_tides:Tides", folder)
    assert loaded.next_after(NOON) == NOON + 3600
    assert loaded == one
