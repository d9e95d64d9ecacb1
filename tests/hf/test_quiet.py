"""Loading is silent and leaves the settings of transformers and huggingface_hub as they were."""

from __future__ import annotations

import itertools
import logging
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from huggingface_hub.utils import logging as hub_logging
from huggingface_hub.utils.tqdm import (
    are_progress_bars_disabled,
    disable_progress_bars,
    enable_progress_bars,
)
from transformers.utils import logging as hf_logging

from hf.small import llama, tokenizer
from sharpmax.hf import load
from sharpmax.hf.quiet import quiet_transformers

CONVERSION = "DISABLE_SAFETENSORS_CONVERSION"


def settings() -> dict[str, Any]:
    return {
        "verbosity": hf_logging.get_verbosity(),
        "hub verbosity": hub_logging.get_verbosity(),
        "accelerate": logging.getLogger("accelerate").level,
        "bars": hf_logging.is_progress_bar_enabled(),
        "hub bars": not are_progress_bars_disabled(),
        "environment": dict(os.environ),
        "random": torch.random.get_rng_state().tolist(),
    }


def change_settings(level: int, hub_level: int, bars: bool, hub_bars: bool) -> None:
    hf_logging.set_verbosity(level)
    hub_logging.set_verbosity(hub_level)
    (hf_logging.enable_progress_bar if bars else hf_logging.disable_progress_bar)()
    (enable_progress_bars if hub_bars else disable_progress_bars)()


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    before = settings()
    yield
    names = ("verbosity", "hub verbosity", "bars", "hub bars")
    change_settings(*(before[name] for name in names))


class Interruption(BaseException):
    pass


def test_settings_are_restored_after_success_and_failure(monkeypatch: pytest.MonkeyPatch):
    levels, switches = (logging.INFO, logging.CRITICAL), (True, False)
    for level, bars, hub_bars, conversion in itertools.product(
        levels, switches, switches, (None, "0")
    ):
        monkeypatch.delenv(CONVERSION, raising=False)
        if conversion is not None:
            monkeypatch.setenv(CONVERSION, conversion)
        change_settings(level, level, bars, hub_bars)
        before = settings()
        with quiet_transformers():
            torch.rand(3)
            assert hf_logging.get_verbosity() == hub_logging.get_verbosity() == logging.ERROR
            assert not hf_logging.is_progress_bar_enabled()
            assert are_progress_bars_disabled() == (not hub_bars)
            assert os.environ[CONVERSION] == "1"
        assert settings() == before
        with pytest.raises(Interruption), quiet_transformers():
            raise Interruption
        assert settings() == before


def test_settings_are_restored_after_several_loads_at_once(tmp_path: Path):
    llama(layers=1).save_pretrained(tmp_path)
    tokenizer().save_pretrained(tmp_path)
    before = settings()
    threads = [threading.Thread(target=load, args=[str(tmp_path)]) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert settings() == before


def test_nothing_is_printed_or_logged(tmp_path: Path, capfd: pytest.CaptureFixture[str]):
    """transformers prints a table of what is missing in a masked language model."""
    config = transformers.BertConfig(
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        vocab_size=128,
    )
    transformers.BertForMaskedLM(config).save_pretrained(tmp_path)
    tokenizer().save_pretrained(tmp_path)
    records: list[logging.LogRecord] = []
    handler = logging.Handler()
    handler.emit = records.append  # type: ignore[method-assign]
    logger = logging.getLogger("transformers")
    logger.addHandler(handler)
    try:
        capfd.readouterr()
        load(str(tmp_path))
        assert (capfd.readouterr(), records) == (("", ""), [])
        transformers.AutoModel.from_pretrained(tmp_path)
        assert "pooler" in records[-1].getMessage()  # or this test could not fail
    finally:
        logger.removeHandler(handler)
