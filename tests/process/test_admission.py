"""A worker's first words with its master."""

import select

from psched.app import make_store, read_config
from psched.base import log
from psched.master.generation_spec import Place
from psched.process.spawn import spawn
from psched.service.generation import ConfigSource
from support.apart import apart
from support.waiting import PATIENCE


def admitted_with_more_to_say():
    given = {"url": "sqlite:///psched.db"}
    make_store(read_config(given)).init()
    blueprint = ConfigSource(given, None, {}, log.start(None, "info", "master")).plan(None)
    _, link = spawn(lambda link: blueprint.work(link, Place(0, 1, "nonce")))
    # Both are there before it looks.
    link.send({"go": True})
    link.send({"recover": ["of a dead worker"]})
    said = [link.wait()]
    while not any("recovered" in message for message in said):
        if not select.select([link], [], [], PATIENCE)[0]:
            return said
        said += link.receive()
    link.send({"stop": None, "hurry": False})
    [recovered] = [message["recovered"] for message in said if "recovered" in message]
    return recovered


def test_an_order_that_comes_with_its_admission_is_obeyed():
    assert apart(admitted_with_more_to_say) == ["of a dead worker"]
