"""The array libraries of the tests of one method."""

from __future__ import annotations

import pytest

from libraries import LIBRARIES, Library


@pytest.fixture(params=[one for one in LIBRARIES if one.name != "jax"], ids=lambda one: one.name)
def quick(request: pytest.FixtureRequest) -> Library:
    """All but JAX, which compiles each operation for each shape: it is tested in test_all.py."""
    return request.param
