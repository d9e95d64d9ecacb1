"""Every property is stated once and checked on each array library."""

from __future__ import annotations

import hypothesis
import jax
import numpy as np
import pytest
import torch

from libraries import LIBRARIES, Library

pytest_plugins = ["browser"]

torch.set_num_threads(1)  # the tests themselves run in parallel
jax.config.update("jax_enable_x64", True)
jax.config.update("jax_numpy_dtype_promotion", "strict")

hypothesis.settings.register_profile("fixed", derandomize=True, deadline=None, max_examples=100)
hypothesis.settings.load_profile("fixed")


@pytest.fixture(params=LIBRARIES, ids=lambda library: library.name)
def lib(request: pytest.FixtureRequest) -> Library:
    return request.param


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(7)
