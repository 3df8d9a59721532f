"""A failure in the shipped suite is to show what was compared."""

import pytest

pytest.register_assert_rewrite("psched.testing")
