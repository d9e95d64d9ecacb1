"""`load` gives a complete model, or one line that names the value and says what to do."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from huggingface_hub import constants
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace

from sharpmax import UserError
from sharpmax.hf.loading import loader
from sharpmax.hf.loading.loader import load

SMALL = {
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "vocab_size": 64,
    "max_position_embeddings": 64,
}
ENCODER = {key: value for key, value in SMALL.items() if key != "num_key_value_heads"}
WORDS = [f"w{number}" for number in range(1, 64)]
TOKENS = torch.tensor([[1, 5, 9, 2]])


def save_tokenizer(folder: Path) -> None:
    words = {"<unk>": 0} | {word: number for number, word in enumerate(WORDS, 1)}
    tokenizer = Tokenizer(WordLevel(words, unk_token="<unk>"))
    tokenizer.pre_tokenizer = Whitespace()
    transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, unk_token="<unk>"
    ).save_pretrained(folder)


def save(folder: Path, model: Any, **options: Any) -> Path:
    model.save_pretrained(folder, **options)
    save_tokenizer(folder)
    return folder


def small_llama(**options: Any) -> Any:
    torch.manual_seed(3)
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**SMALL | options))


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A whole small Llama."""
    return save(tmp_path_factory.mktemp("models") / "llama", small_llama())


@pytest.fixture
def folder(made: Path, tmp_path: Path) -> Path:
    """A copy to damage."""
    return Path(shutil.copytree(made, tmp_path / "llama"))


def refusal(name: str | Path, **options: Any) -> str:
    with pytest.raises(UserError) as caught:
        load(str(name), **options)
    message = str(caught.value)
    assert "\n" not in message
    assert "Traceback" not in message
    assert len(message) < 500
    return message


def edit_config(folder: Path, **changes: Any) -> None:
    file = folder / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))


def as_pickle(folder: Path, name: str = "pytorch_model.bin") -> Path:
    weights = transformers.LlamaForCausalLM.from_pretrained(folder).state_dict()
    (folder / "model.safetensors").unlink()
    torch.save(weights, folder / name)
    return folder / name


def in_shards(folder: Path) -> list[Path]:
    (folder / "model.safetensors").unlink()
    small_llama().save_pretrained(folder, max_shard_size="4KB")
    return sorted(folder.glob("model-*.safetensors"))


class TestFolder:
    def test_a_whole_one_is_loaded(self, folder: Path):
        loaded = load(str(folder))
        assert (loaded.name, loaded.notes) == (str(folder), ())
        assert isinstance(loaded.model, transformers.LlamaForCausalLM)
        assert not loaded.model.training
        assert loaded.model.device == torch.device("cpu")
        assert loaded.tokenizer("w5 w9")["input_ids"] == [5, 9]
        assert torch.equal(loaded.model(TOKENS).logits, small_llama().eval()(TOKENS).logits)

    def test_a_relative_and_a_home_path_work(self, folder: Path, monkeypatch: pytest.MonkeyPatch):
        monkeypatch.chdir(folder.parent)
        monkeypatch.setenv("HOME", str(folder.parent))
        assert load("llama").name == "llama"
        assert load("~/llama").name == "~/llama"

    def test_shards_are_loaded(self, folder: Path):
        assert len(in_shards(folder)) > 2
        assert torch.equal(
            load(str(folder)).model(TOKENS).logits, small_llama().eval()(TOKENS).logits
        )

    @pytest.mark.parametrize("name", ["/nowhere/model", "./model", "~/nowhere", "a\\b", "a/b/c"])
    def test_a_path_that_is_not_there(self, name: str):
        assert repr(name) in (message := refusal(name))
        assert "no such folder" in message

    @pytest.mark.parametrize("name", ["", "  ", "gpt\n2"])
    def test_a_name_that_is_none(self, name: str):
        assert repr(name) in refusal(name)

    def test_a_path_that_cannot_be_opened(self):
        assert "File name too long" in refusal("x" * 300)

    def test_no_config(self, folder: Path):
        (folder / "config.json").unlink()
        assert f"{folder} has no config.json with a model_type" in refusal(folder)

    def test_no_weights(self, folder: Path):
        (folder / "model.safetensors").unlink()
        assert f"{folder} has no model.safetensors in {folder}: add it" in refusal(folder)

    def test_weights_of_another_name(self, folder: Path):
        (folder / "model.safetensors").rename(folder / "weights.safetensors")
        assert f"{folder} has no model.safetensors in {folder}: add it" in refusal(folder)

    def test_no_tokenizer(self, folder: Path):
        for file in folder.glob("tokenizer*"):
            file.unlink()
        assert f"{folder} has no usable tokenizer: add its tokenizer.json" in refusal(folder)

    def test_a_tokenizer_without_words(self, tmp_path: Path):
        """transformers makes one up for most families."""
        config = transformers.GPT2Config(n_embd=16, n_layer=1, n_head=2, vocab_size=64)
        transformers.GPT2LMHeadModel(config).save_pretrained(tmp_path)
        (tmp_path / "tokenizer_config.json").write_text("{}")
        assert len(transformers.AutoTokenizer.from_pretrained(tmp_path)) == 1
        assert refusal(tmp_path).startswith(f"{tmp_path} has a tokenizer without words")

    @pytest.mark.parametrize("content", ["{", "[]", ""])
    def test_a_damaged_tokenizer(self, folder: Path, content: str):
        (folder / "tokenizer.json").write_text(content)
        assert str(folder) in refusal(folder)

    def test_a_damaged_config(self, folder: Path):
        (folder / "config.json").write_text("{")
        assert f"{folder}" in (message := refusal(folder))
        assert "not a valid JSON file" in message

    def test_a_config_without_a_kind(self, folder: Path):
        (folder / "config.json").write_text("{}")
        assert f"{folder} has no config.json with a model_type" in refusal(folder)

    def test_an_unknown_kind(self, folder: Path):
        edit_config(folder, model_type="frobnicator")
        assert f"{folder} is of a kind unknown to transformers" in refusal(folder)

    def test_code_of_its_own(self, folder: Path):
        edit_config(folder, model_type="frobnicator", auto_map={"AutoConfig": "mine.Config"})
        (folder / "mine.py").write_text("raise SystemExit('it ran')")
        assert f"{folder} would run code of its own" in refusal(folder)

    def test_code_of_its_own_that_is_allowed(self, folder: Path, monkeypatch: pytest.MonkeyPatch):
        monkeypatch.setattr(loader, "_hub_answers", lambda: False)
        modules = str(folder.parent / "modules")
        monkeypatch.setattr(transformers.dynamic_module_utils, "HF_MODULES_CACHE", modules)
        monkeypatch.syspath_prepend(modules)
        edit_config(folder, model_type="mine", auto_map={"AutoConfig": "mine.Config"})
        (folder / "mine.py").write_text(
            "from transformers import LlamaConfig\nclass Config(LlamaConfig):\n    model_type='mine'"
        )
        # The code ran, and the model is still one that transformers has no class for.
        assert "is of a kind unknown" in refusal(folder, trust_remote_code=True)

    def test_a_file(self, folder: Path):
        file = folder / "model.safetensors"
        assert f"{file} is a file, but not a .gguf" in refusal(file)


class TestWeights:
    @pytest.mark.parametrize("keep", [0, 4, 500, -1])
    def test_a_truncated_file(self, folder: Path, keep: int):
        file = folder / "model.safetensors"
        file.write_bytes(file.read_bytes()[:keep])
        assert f"{folder} has damaged weights" in (message := refusal(folder))
        assert "download or copy it again" in message

    def test_a_truncated_shard(self, folder: Path):
        shard = in_shards(folder)[1]
        shard.write_bytes(shard.read_bytes()[:-1])
        assert f"{folder} has damaged weights" in refusal(folder)

    def test_missing_shards(self, folder: Path):
        shards = in_shards(folder)
        for shard in shards[1:6]:
            shard.unlink()
        assert f"{folder} lacks {shards[1]}: download or copy it again" in refusal(folder)

    @pytest.mark.parametrize("content", ["{", "{}", '{"weight_map": 3}', "[]"])
    def test_a_damaged_index(self, folder: Path, content: str):
        in_shards(folder)
        index = folder / "model.safetensors.index.json"
        index.write_text(content)
        assert f"{folder} cannot be loaded" in refusal(folder)

    def test_missing_tensors_are_not_made_up(self, folder: Path):
        edit_config(folder, num_hidden_layers=3)
        message = refusal(folder)
        assert f"the weights of {folder} do not fit" in message
        assert "model.layers.2.input_layernorm.weight" in message
        assert "and 6 more" in message

    def test_nor_are_those_of_another_shape(self, folder: Path):
        edit_config(folder, intermediate_size=48)
        message = refusal(folder)
        assert "model.layers.0.mlp.down_proj.weight as (16, 48), not (16, 32)" in message

    @pytest.mark.parametrize("key", ["num_hidden_layers", "hidden_size", "vocab_size"])
    def test_a_model_that_is_too_large_for_its_weights_is_not_built(
        self, folder: Path, monkeypatch: pytest.MonkeyPatch, key: str
    ):
        edit_config(folder, **{key: 200_000})
        monkeypatch.setattr(loader, "_choose_class", lambda config: pytest.fail("was built"))
        message = refusal(folder)
        assert (
            f"the config of {folder} has {key} 200,000, and its weights are 21 tensors" in message
        )

    def test_nor_from_shards(self, folder: Path, monkeypatch: pytest.MonkeyPatch):
        assert len(in_shards(folder)) > 1
        edit_config(folder, num_hidden_layers=200_000)
        monkeypatch.setattr(loader, "_choose_class", lambda config: pytest.fail("was built"))
        assert "num_hidden_layers 200,000" in refusal(folder)

    @pytest.mark.parametrize("header", [b"", b"\xff" * 8, b"\2\0\0\0\0\0\0\0[]", b"[" * 10_000])
    def test_a_header_that_cannot_be_read(self, folder: Path, header: bytes):
        (folder / "model.safetensors").write_bytes(header)
        assert f"{folder} has damaged weights" in refusal(folder)

    def test_a_missing_head_is_not_made_up(self, tmp_path: Path):
        folder = save(tmp_path, small_llama().model)
        edit_config(folder, architectures=["LlamaForCausalLM"])
        assert "lm_head.weight" in refusal(folder)

    def test_a_shared_head_is_not_missing(self, tmp_path: Path):
        folder = save(tmp_path, small_llama(tie_word_embeddings=True))
        model = load(str(folder)).model
        assert model.lm_head.weight is model.model.embed_tokens.weight

    def test_too_few_layers_are_noted(self, folder: Path):
        edit_config(folder, num_hidden_layers=1)
        (note,) = load(str(folder)).notes
        assert "model.layers.1.input_layernorm.weight" in note
        assert "left out" in note

    def test_pickle_is_refused(self, folder: Path):
        as_pickle(folder)
        message = refusal(folder)
        assert f"{folder} has no model.safetensors" in message
        assert "pickled (pytorch_model.bin), which can run code" in message
        assert "allow_pickle=True" in message

    def test_pickle_is_loaded_if_allowed(self, folder: Path):
        as_pickle(folder)
        logits = load(str(folder), allow_pickle=True).model(TOKENS).logits
        assert torch.equal(logits, small_llama().eval()(TOKENS).logits)

    def test_safetensors_come_before_pickle(self, folder: Path):
        (folder / "pytorch_model.bin").write_bytes(b"not a pickle")
        assert load(str(folder), allow_pickle=True).notes == ()

    @pytest.mark.parametrize("name", ["model.pt", "model.pth", "last.ckpt"])
    def test_pickles_of_other_names(self, folder: Path, name: str):
        as_pickle(folder, name)
        assert f"{folder} has no model.safetensors" in refusal(folder)
        message = refusal(folder, allow_pickle=True)
        assert f"{folder} has neither model.safetensors nor pytorch_model.bin" in message

    def test_a_pickle_with_code_does_not_run_even_if_allowed(self, folder: Path):
        trap = folder / "ran"
        torch.save(Trap(str(trap)), as_pickle(folder))
        assert f"{folder} has more than tensors in its pickle" in refusal(folder, allow_pickle=True)
        assert not trap.exists()

    def test_a_truncated_pickle(self, folder: Path):
        file = as_pickle(folder)
        file.write_bytes(file.read_bytes()[:1000])
        assert f"{folder}" in refusal(folder, allow_pickle=True)


class Trap:
    def __init__(self, path: str) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Callable[[str], None], tuple[str]]:
        return os.mkdir, (self.path,)


class TestKind:
    def test_an_encoder_has_no_head_and_may_lack_its_pooler(self, tmp_path: Path):
        config = transformers.BertConfig(**ENCODER)
        loaded = load(str(save(tmp_path, transformers.BertForMaskedLM(config))))
        assert type(loaded.model) is transformers.BertModel
        pooler, unused = loaded.notes
        assert "pooler" in pooler
        assert "cls.predictions.bias" in unused

    def test_but_nothing_else_of_it(self, tmp_path: Path):
        config = transformers.BertConfig(**ENCODER)
        folder = save(tmp_path, transformers.BertForMaskedLM(config))
        edit_config(folder, num_hidden_layers=3)
        assert "encoder.layer.2" in (message := refusal(folder))
        assert "pooler" not in message

    def test_an_encoder_decoder_is_loaded_whole(self, tmp_path: Path):
        config = transformers.T5Config(
            d_model=16, d_kv=8, d_ff=32, num_layers=1, num_heads=2, vocab_size=64
        )
        folder = save(tmp_path, transformers.T5ForConditionalGeneration(config))
        assert type(load(str(folder)).model) is transformers.T5Model

    @pytest.mark.parametrize(
        ("config", "architectures", "expected"),
        [
            (transformers.LlamaConfig, ["LlamaForCausalLM"], "causal"),
            (transformers.LlamaConfig, None, "causal"),
            (transformers.LlamaConfig, [], "causal"),
            (transformers.LlamaConfig, ["LlamaModel"], "plain"),
            (transformers.LlamaConfig, ["LlamaForSequenceClassification"], "plain"),
            (transformers.GPT2Config, ["GPT2LMHeadModel"], "causal"),
            (transformers.GPTNeoXConfig, None, "causal"),
            (transformers.BertConfig, ["BertForMaskedLM"], "plain"),
            (transformers.BertConfig, ["BertLMHeadModel"], "causal"),
            (transformers.BertConfig, None, "plain"),
            (transformers.ViTConfig, None, "plain"),
            (transformers.T5Config, ["T5ForConditionalGeneration"], "plain"),
            (transformers.BartConfig, ["BartForCausalLM"], "plain"),
        ],
    )
    def test_which_class(self, config: Any, architectures: Any, expected: str):
        chosen = loader._choose_class(config(architectures=architectures))
        causal = chosen is transformers.AutoModelForCausalLM
        assert (causal, chosen is transformers.AutoModel) == (
            expected == "causal",
            expected == "plain",
        )


class TestPlace:
    @pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16", "float64"])
    def test_dtype(self, folder: Path, dtype: str):
        assert load(str(folder), dtype=dtype, device="cpu").model.dtype == getattr(torch, dtype)

    def test_auto_dtype_is_as_stored(self, tmp_path: Path):
        folder = save(tmp_path, small_llama().to(torch.bfloat16))
        assert load(str(folder)).model.dtype == torch.bfloat16

    @pytest.mark.parametrize("dtype", ["int8", "float", "", "torch.float32"])
    def test_no_such_dtype(self, folder: Path, dtype: str):
        assert f"dtype {dtype!r} is not one of auto, float32" in refusal(folder, dtype=dtype)

    @pytest.mark.parametrize("device", ["gpu", "", "cuda:", "cuda:x", "cuda:-1", "cpu:0", "CPU"])
    def test_no_such_device(self, folder: Path, device: str):
        assert f"device {device!r} is not one of auto, cpu" in refusal(folder, device=device)

    @pytest.mark.parametrize(
        ("cards", "metal", "asked", "dtype", "expected"),
        [
            (0, False, "auto", "auto", "cpu"),
            (1, False, "auto", "auto", "cuda"),
            (1, True, "auto", "auto", "cuda"),
            (0, True, "auto", "auto", "mps"),
            (0, True, "auto", "float64", "cpu"),
            (2, False, "cuda:1", "auto", "cuda:1"),
            (2, False, "cpu", "auto", "cpu"),
        ],
    )
    def test_devices(
        self, cards: int, metal: bool, asked: str, dtype: str, expected: str, machine: Any
    ):
        machine(cards, metal)
        assert loader._choose_device(asked, dtype) == torch.device(expected)

    @pytest.mark.parametrize(
        ("cards", "metal", "asked", "dtype"),
        [
            (0, False, "cuda", "auto"),
            (1, False, "cuda:1", "auto"),
            (1, False, "mps", "auto"),
            (0, True, "mps", "float64"),
        ],
    )
    def test_devices_that_are_not_there(
        self, folder: Path, cards: int, metal: bool, asked: str, dtype: str, machine: Any
    ):
        machine(cards, metal)
        named = repr(dtype) if metal else repr(asked)
        assert named in refusal(folder, device=asked, dtype=dtype)

    def test_a_device_that_is_too_small(self, folder: Path, monkeypatch: pytest.MonkeyPatch):
        def full(*_: Any) -> None:
            raise torch.OutOfMemoryError("CUDA out of memory.\nTried to allocate 2 GiB")

        monkeypatch.setattr(transformers.LlamaForCausalLM, "to", full)
        assert f"{folder} cannot be put on cpu" in refusal(folder)

    @pytest.fixture
    def machine(self, monkeypatch: pytest.MonkeyPatch) -> Callable[[int, bool], None]:
        def pretend(cards: int, metal: bool) -> None:
            monkeypatch.setattr(torch.cuda, "device_count", lambda: cards)
            monkeypatch.setattr(torch.backends.mps, "is_available", lambda: metal)

        return pretend


def save_gguf(file: Path, layers: int = 2) -> None:
    """The small Llama as llama.cpp stores it: the two rows of a rotary pair side by side."""
    from gguf import GGUFWriter

    writer = GGUFWriter(file, "llama")
    writer.add_block_count(layers)
    writer.add_context_length(64)
    writer.add_embedding_length(16)
    writer.add_feed_forward_length(32)
    writer.add_head_count(2)
    writer.add_head_count_kv(1)
    writer.add_rope_dimension_count(8)
    writer.add_rope_freq_base(10000.0)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_vocab_size(64)
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(["<unk>", "w", "1", "w1", *WORDS[4:]])
    writer.add_token_types([1] * 64)
    writer.add_token_merges(["w 1"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    names = {"self_attn.": "attn_", "_proj": "", "mlp.": "ffn_", "attn_o.": "attn_output."} | {
        "model.layers": "blk",
        "input_layernorm": "attn_norm",
        "post_attention_layernorm": "ffn_norm",
        "model.embed_tokens": "token_embd",
        "model.norm": "output_norm",
        "lm_head": "output",
    }
    for name, tensor in small_llama().state_dict().items():
        heads = {"q_proj": 2, "k_proj": 1}.get(name.split(".")[-2], 0)
        if heads:
            tensor = tensor.view(heads, 2, 4, 16).transpose(1, 2).reshape(tensor.shape)
        for ours, theirs in names.items():
            name = name.replace(ours, theirs)
        writer.add_tensor(name, np.ascontiguousarray(tensor.numpy()))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


class TestGguf:
    @pytest.mark.parametrize("by", ["file", "folder"])
    def test_it_is_loaded(self, tmp_path: Path, by: str, capfd: pytest.CaptureFixture[str]):
        file = tmp_path / "small.gguf"
        save_gguf(file)
        capfd.readouterr()
        name = str(file if by == "file" else tmp_path)
        loaded = load(name)
        assert (loaded.name, loaded.model.training) == (name, False)
        assert "dequantised" in loaded.notes[0]
        torch.testing.assert_close(loaded.model(TOKENS).logits, small_llama().eval()(TOKENS).logits)
        assert capfd.readouterr() == ("", "")

    def test_it_is_offloaded(self, tmp_path: Path):
        save_gguf(tmp_path / "small.gguf")
        loaded = load(str(tmp_path), device_map="auto", max_memory={"cpu": "8KB"})
        assert loaded.gguf == tmp_path / "small.gguf"
        assert any(parameter.is_meta for parameter in loaded.model.parameters())
        with torch.no_grad():
            torch.testing.assert_close(
                loaded.model(TOKENS).logits, small_llama().eval()(TOKENS).logits
            )

    @pytest.mark.parametrize("keep", [4, 40, 1000, -40])
    def test_a_truncated_one(self, tmp_path: Path, keep: int):
        file = tmp_path / "small.gguf"
        save_gguf(file)
        file.write_bytes(file.read_bytes()[:keep])
        assert f"{file} cannot be loaded" in refusal(file)

    def test_more_layers_than_it_has(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
        file = tmp_path / "small.gguf"
        save_gguf(file, layers=200_000)
        monkeypatch.setattr(loader, "_choose_class", lambda config: pytest.fail("was built"))
        assert f"the config of {file} has num_hidden_layers 200,000" in refusal(file)

    @pytest.mark.parametrize("package", ["gguf", "accelerate"])
    def test_without_a_package(self, tmp_path: Path, package: str, monkeypatch: pytest.MonkeyPatch):
        (tmp_path / "small.gguf").write_bytes(b"GGUF")
        monkeypatch.setattr(
            importlib.util, "find_spec", lambda name: None if name == package else "there"
        )
        message = refusal(tmp_path / "small.gguf")
        assert f"reading {tmp_path / 'small.gguf'} needs {package}" in message
        assert "pip install" in message

    def test_not_one(self, tmp_path: Path):
        (tmp_path / "small.gguf").write_bytes(b"hello")
        assert f"{tmp_path / 'small.gguf'} is not a GGUF file" in refusal(tmp_path / "small.gguf")
        assert f"{tmp_path / 'small.gguf'} is not a GGUF file" in refusal(tmp_path)

    def test_several(self, tmp_path: Path):
        for name in ("b.gguf", "a.gguf"):
            (tmp_path / name).write_bytes(b"GGUF")
        assert f"{tmp_path} holds several GGUF files (a.gguf, b.gguf)" in refusal(tmp_path)

    def test_safetensors_come_first(self, folder: Path):
        (folder / "a.gguf").write_bytes(b"hello")
        assert load(str(folder)).notes == ()


@dataclass
class Hub:
    """A hub of one's own: the folders of `root` as owner/folder."""

    root: Path
    address: str = ""
    asked: list[str] = field(default_factory=list)

    def answer(self, path: str) -> tuple[int, dict[str, str], bytes]:
        self.asked.append(path)
        if path == "/":
            return 200, {}, b""
        if "gated" in path:
            return 403, {"X-Error-Code": "GatedRepo"}, b""
        owner, *rest = path.removeprefix("/api/models").strip("/").split("/")
        if owner != "owner" or not (self.root / rest[0]).is_dir():
            return 404, {"X-Error-Code": "RepoNotFound"}, b""
        commit = {"X-Repo-Commit": "a" * 40}
        file = self.root / rest[0] / "/".join(rest[3:])
        if not file.is_file():
            return 404, commit | {"X-Error-Code": "EntryNotFound"}, b""
        content = file.read_bytes()
        return 200, commit | {"ETag": f'"{hash(content)}"'}, content


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    hub = Hub(tmp_path)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            code, headers, content = hub.answer(self.path)
            self.send_response(code)
            for key, value in (headers | {"Content-Length": str(len(content))}).items():
                self.send_header(key, value)
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(content)

        do_HEAD = do_GET  # noqa: N815

        def log_message(self, *_: Any) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, args=[0.01], daemon=True).start()
        use_hub(monkeypatch, f"http://127.0.0.1:{server.server_port}")
        monkeypatch.setattr(transformers.utils.hub, "_hf_api", None)  # it keeps the address
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
        hub.address = constants.ENDPOINT
        yield hub
        server.shutdown()


def use_hub(monkeypatch: pytest.MonkeyPatch, address: str) -> None:
    monkeypatch.setattr(constants, "ENDPOINT", address)
    template = address + "/{repo_id}/resolve/{revision}/{filename}"
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)


NOWHERE = "http://127.0.0.1:9"


class TestHub:
    def test_a_model_is_fetched_and_then_found_without_the_hub(
        self, hub: Hub, folder: Path, monkeypatch: pytest.MonkeyPatch
    ):
        first = load("owner/llama")
        assert (first.name, first.notes) == ("owner/llama", ())
        use_hub(monkeypatch, NOWHERE)
        second = load("owner/llama")
        assert torch.equal(first.model(TOKENS).logits, second.model(TOKENS).logits)

    @pytest.mark.parametrize("name", ["gpt2", "owner/llama"])
    def test_a_hub_that_does_not_answer_is_not_waited_for(
        self, name: str, monkeypatch: pytest.MonkeyPatch
    ):
        use_hub(monkeypatch, NOWHERE)
        start = time.monotonic()
        assert f"{name} is not on this machine, and {NOWHERE} cannot be reached" in refusal(name)
        assert time.monotonic() - start < 10  # huggingface_hub itself takes 23 s

    def test_a_gated_one(self, hub: Hub):
        assert "owner/gated is gated: accept its terms at" in refusal("owner/gated")

    def test_one_that_is_not_there(self, hub: Hub):
        message = refusal("owner/missing")
        assert f"owner/missing is neither a folder here nor a model at {hub.address}" in message

    @pytest.mark.parametrize("name", ["bad name", "a--b", "-a", "x" * 100])
    def test_a_name_that_cannot_be(self, hub: Hub, name: str):
        assert f"{name} is no folder, nor a hub name" in refusal(name)

    def test_pickles(self, hub: Hub, folder: Path):
        as_pickle(folder)
        message = refusal("owner/llama")
        assert f"owner/llama has no model.safetensors in {hub.address}" in message
        assert "allow_pickle=True" in message
        assert load("owner/llama", allow_pickle=True).notes == ()
        assert not any("discussions" in path for path in hub.asked)  # for a conversion of them

    def test_no_config(self, hub: Hub, folder: Path):
        (folder / "config.json").unlink()
        assert "owner/llama has no config.json with" in refusal("owner/llama")

    def test_no_tokenizer(self, hub: Hub, folder: Path):
        for file in folder.glob("tokenizer*"):
            file.unlink()
        assert "owner/llama has no usable tokenizer" in refusal("owner/llama")

    def test_a_truncated_file(self, hub: Hub, folder: Path):
        file = folder / "model.safetensors"
        file.write_bytes(file.read_bytes()[:-1])
        message = refusal("owner/llama")
        assert "owner/llama has damaged weights" in message
        assert str(Path(constants.HF_HUB_CACHE) / "models--owner--llama") in message

    def test_missing_tensors(self, hub: Hub, folder: Path):
        edit_config(folder, num_hidden_layers=3)
        assert "the weights of owner/llama do not fit" in refusal("owner/llama")

    def test_code_of_its_own(self, hub: Hub, folder: Path):
        edit_config(folder, model_type="frobnicator", auto_map={"AutoConfig": "mine.Config"})
        assert "owner/llama would run code of its own" in refusal("owner/llama")

    def test_an_unknown_kind(self, hub: Hub, folder: Path):
        edit_config(folder, model_type="frobnicator")
        assert "owner/llama is of a kind unknown to transformers" in refusal("owner/llama")
