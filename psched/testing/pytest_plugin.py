"""The fixtures of psched for users' own tests; pytest loads this plugin by its entry point.

It is loaded in every test run where psched is installed, so it imports nothing of psched before a
test asks for a fixture.
"""

from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from psched.testing.virtual_schedules import Schedules


@pytest.fixture
def psched_handlers() -> Any:  # noqa: ANN401  # see psched.testing.Schedules
    """The handlers of ``psched_schedules``: override it to return your app or Dispatch."""
    return None


@pytest.fixture
def psched_settings() -> dict[str, Any]:
    """The settings of ``psched_schedules``, and ``now``: override it to change them."""
    return {}


@pytest.fixture
def psched_schedules(
    psched_handlers: Any,  # noqa: ANN401
    psched_settings: dict[str, Any],
) -> "Iterator[Schedules]":
    """An empty store of schedules whose time stands still, see psched.testing.Schedules."""
    from psched.testing.virtual_schedules import Schedules  # noqa: PLC0415

    with Schedules(psched_handlers, **psched_settings) as schedules:
        yield schedules
