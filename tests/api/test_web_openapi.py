"""The description of the API of psched web: complete, and what the API does."""

import warnings
from urllib.parse import urljoin

import hypothesis
import pytest

from psched.config import from_mapping
from psched.reports.redaction import Redaction
from psched.web.actions import ACTIONS, fields_of
from psched.web.asked import Asked
from psched.web.openapi import schema_of
from psched.web.pages import PAGES
from psched.web.timeline import LaneDocument
from support.run_records import not_run, run_record, worker_record
from support.tables import fill_sqlite
from support.web_pages import Unkept, get, site_of

PREFIX = "/api/v1/"


@pytest.fixture
def settings(tmp_path):
    """On SQLite: what is described is the same on each store."""
    fill_sqlite(tmp_path / "psched.db")
    return from_mapping({"url": f"sqlite:///{tmp_path}/psched.db"})


@pytest.fixture
def secret():
    return Unkept()


@pytest.fixture
def site(schedules, settings, secret):
    """The pages of some schedules with a past; whoever has the token may do everything."""
    for key in "0", "k":
        schedules.add(key, "t", cron="0 3 * * *", timezone="UTC", data={"a": 1}, label="l")
    schedules.add("task", next_time=4_000_000_000)
    store = schedules.access.store
    store.history.record([run_record(), run_record("0", fate="gave_up"), not_run()])
    store.history.beat(worker_record())
    return site_of(schedules, settings, secret=secret, hosts=None, is_open=True)


def described(site):
    return get(site, f"{PREFIX[1:]}openapi.json").json


def test_it_describes_each_page_and_each_action_with_its_fields(site):
    paths = described(site)["paths"]
    assert [*paths] == [f"/{name}.json" for name in PAGES] + [f"/{name}" for name in ACTIONS]
    for name, page in PAGES.items():
        reading = paths[f"/{name}.json"]["get"]
        assert [each["name"] for each in reading["parameters"]] == [
            each.name for each in page.fields
        ]
        assert reading["summary"]
    for name, action in ACTIONS.items():
        acting = paths[f"/{name}"]["post"]
        body = acting["requestBody"]["content"]["application/json"]["schema"]
        assert [*body["properties"]] == [each.name for each in fields_of(action)]


def test_its_paths_are_below_those_of_the_pages_also_in_another_application(site):
    [server] = described(site)["servers"]
    where = urljoin(f"http://localhost/psched{PREFIX}openapi.json", server["url"])
    assert f"{where}/now.json" == f"http://localhost/psched{PREFIX}now.json"


def test_only_who_may_see_the_pages_sees_it(schedules, settings, secret):
    closed = site_of(schedules, settings, secret=secret)
    assert get(closed, f"{PREFIX[1:]}openapi.json").status == 401


@pytest.mark.parametrize("name", PAGES)
def test_a_document_has_what_its_description_names(site, name):
    schema = schema_of(PAGES[name].document)
    found = get(site, f"{PREFIX[1:]}{name}.json", key="k", q="k").json
    for each in found if isinstance(found, list) else [found]:
        assert {*schema.get("items", schema)["required"]} <= {*each}
    lane = schema_of(LaneDocument)
    for each in found["lanes"] if name == "timeline" else ():
        assert {*lane["required"]} == {*each}


class Query(dict):
    """A query that knows which of its fields were read."""

    def __init__(self, **given):
        super().__init__(given)
        self.read = set()

    def get(self, name, default=None):
        self.read.add(name)
        return super().get(name, default)


@pytest.mark.parametrize("name", PAGES)
def test_a_page_reads_the_fields_that_it_declares_and_no_others(site, name):
    query = Query(key="k")
    store = site._store
    asked = Asked(store.schedules, site._settings, store.reader, Redaction(()), query, bool)
    PAGES[name].make(asked).document()
    assert query.read == {each.name for each in PAGES[name].fields}


@pytest.mark.once
@pytest.mark.parametrize("path", [f"/{name}.json" for name in PAGES])
def test_what_a_page_answers_is_what_the_description_says(site, path):
    ask_all(site, path, {}, most=25)


@pytest.mark.once
@pytest.mark.parametrize("path", [f"/{name}" for name in ACTIONS])
def test_what_an_action_answers_is_what_the_description_says(site, secret, path):
    ask_all(site, path, {"Authorization": f"Bearer {secret.token}"}, most=25)


def ask_all(site, path, headers, *, most):
    """Ask for much that the description allows, and for what it does not."""
    # It needs seconds to load; a landing does without it.
    import schemathesis  # noqa: PLC0415
    from schemathesis.checks import load_all_checks, not_a_server_error  # noqa: PLC0415
    from schemathesis.generation import GenerationMode  # noqa: PLC0415
    from schemathesis.specs.openapi import checks  # noqa: PLC0415

    load_all_checks()
    # That a key does not exist is no fault of the request, and a text may be given as a number:
    # what the API takes beyond its description is its own affair.
    wanted = [
        not_a_server_error,
        checks.status_code_conformance,
        checks.content_type_conformance,
        checks.response_schema_conformance,
    ]
    # A client resolves the address of the server, which is relative; schemathesis does not.
    api = schemathesis.openapi.from_dict(
        {**described(site), "servers": [{"url": PREFIX.rstrip("/")}]}
    )
    api.app = site
    [operation] = [each.ok() for each in api.include(path=path).get_all_operations()]
    mine = [operation.as_strategy(generation_mode=mode) for mode in GenerationMode]
    answered = []

    @hypothesis.settings(max_examples=most)
    @hypothesis.given(case=mine[0] | mine[1])
    def ask(case):
        answer = case.call(headers=headers)
        answered.append(answer.status_code)
        case.validate_response(answer, checks=wanted)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of its own
        ask()
    assert answered
