"""Silence transformers while it loads or saves a model."""

from __future__ import annotations

import logging
import os
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from huggingface_hub.utils import logging as hub_logging
from huggingface_hub.utils.tqdm import (
    are_progress_bars_disabled,
    disable_progress_bars,
    enable_progress_bars,
)
from transformers.utils import logging as hf_logging

_SETTINGS_LOCK = threading.RLock()
"""The settings belong to the whole process: two blocks at once would restore each other's."""


@contextmanager
def quiet_transformers() -> Iterator[None]:
    """Suppress transformers' log lines, tables, progress bars and warnings inside the block.

    The progress bars of huggingface_hub stay: a download of gigabytes should be visible. Loading a
    model inside the block does not change the caller's random numbers. All settings are restored.
    """
    with _SETTINGS_LOCK, warnings.catch_warnings(), torch.random.fork_rng(devices=[]):
        warnings.simplefilter("ignore")
        level, hub_level = hf_logging.get_verbosity(), hub_logging.get_verbosity()
        placing = logging.getLogger("accelerate")  # says that offloaded weights are on "meta"
        placing_level = placing.level
        bars, hub_bars = hf_logging.is_progress_bar_enabled(), not are_progress_bars_disabled()
        # Without it transformers asks a service to convert pickles that it finds on the hub.
        conversion = os.environ.get("DISABLE_SAFETENSORS_CONVERSION")
        try:
            os.environ["DISABLE_SAFETENSORS_CONVERSION"] = "1"
            hf_logging.set_verbosity(logging.ERROR)
            hub_logging.set_verbosity(logging.ERROR)
            placing.setLevel(logging.ERROR)
            hf_logging.disable_progress_bar()
            if hub_bars:
                enable_progress_bars()
            yield
        finally:
            hf_logging.set_verbosity(level)
            hub_logging.set_verbosity(hub_level)
            placing.setLevel(placing_level)
            if bars:
                hf_logging.enable_progress_bar()
            if not hub_bars:
                disable_progress_bars()
            os.environ.pop("DISABLE_SAFETENSORS_CONVERSION", None)
            if conversion is not None:
                os.environ["DISABLE_SAFETENSORS_CONVERSION"] = conversion
