"""Models that fit no single device: spread, or partly on disk."""

from __future__ import annotations

import gc
import importlib.util
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest
import torch

from hf.small import llama, random_tokens, tokenizer
from sharpmax import UserError
from sharpmax._errors import MissingExtraError
from sharpmax.hf.loading import loader, placement
from sharpmax.hf.loading.loader import load

TOKENS = random_tokens(2, 9)
ON_DISK = {"device_map": "auto", "max_memory": {"cpu": "40KB"}}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("models") / "llama"
    llama().save_pretrained(path)
    tokenizer().save_pretrained(path)
    return path


@pytest.fixture
def pickled(folder: Path, tmp_path: Path) -> Path:
    """A folder whose weights cannot be read one by one, so that offloading writes files."""
    for file in folder.iterdir():
        if file.suffix == ".json":
            (tmp_path / "pickled").mkdir(exist_ok=True)
            (tmp_path / "pickled" / file.name).write_bytes(file.read_bytes())
    torch.save(llama().state_dict(), tmp_path / "pickled" / "pytorch_model.bin")
    return tmp_path / "pickled"


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir()
    return tmp_path / "temporary"


@torch.no_grad()
def answer(model: Any) -> torch.Tensor:
    return model.eval()(TOKENS).logits


@pytest.mark.parametrize("device_map", placement.DEVICE_MAPS)
@pytest.mark.parametrize("share", [0.0, 0.5, 2.0])
def test_the_answers_are_those_of_one_device(folder: Path, device_map: str, share: float):
    plain = load(str(folder)).model
    size = sum(4 * parameter.numel() for parameter in plain.parameters())
    spread = load(str(folder), device_map=device_map, max_memory={"cpu": int(share * size)}).model
    assert {parameter.is_meta for parameter in spread.parameters()} == {
        0.0: {True},
        0.5: {True, False},
        2.0: {False},
    }[share]
    assert torch.equal(answer(spread), answer(plain))
    assert not spread.training


def test_a_mapping_from_modules_to_devices(folder: Path):
    places = {"model": "disk", "lm_head": "cpu"}
    spread = load(str(folder), device_map=places).model
    assert spread.hf_device_map == places
    assert torch.equal(answer(spread), answer(llama()))


def test_a_dtype_is_heeded(folder: Path):
    spread = load(str(folder), dtype="bfloat16", **ON_DISK).model
    assert any(parameter.is_meta for parameter in spread.parameters())
    assert torch.equal(answer(spread), answer(load(str(folder), dtype="bfloat16").model))


def test_safetensors_are_read_where_they_are(
    folder: Path, temporary: Path, caplog: pytest.LogCaptureFixture
):
    model = load(str(folder), **ON_DISK).model
    assert not any(temporary.iterdir())
    assert not caplog.records
    assert torch.equal(answer(model), answer(llama()))


def test_other_weights_go_to_a_folder_that_is_deleted_with_the_model(
    pickled: Path, temporary: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(placement, "WORTH_TELLING", 1000)
    told: list[str] = []
    model = load(str(pickled), allow_pickle=True, report=told.append, **ON_DISK).model
    (place,) = temporary.iterdir()
    assert any(place.iterdir())
    assert str(place) in told[-1]
    assert torch.equal(answer(model), answer(llama()))
    del model
    gc.collect()
    assert not any(temporary.iterdir())


def test_or_at_exit(pickled: Path, temporary: Path):
    code = f"""
import tempfile
tempfile.tempdir = {str(temporary)!r}
from pathlib import Path
from sharpmax.hf import load
model = load({str(pickled)!r}, allow_pickle=True, device_map="auto", max_memory={{"cpu": 40000}})
print(len(list(Path(tempfile.tempdir).iterdir())))
"""
    finished = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120
    )
    assert finished.stdout == "1\n"
    assert not any(temporary.iterdir())


def test_nothing_is_left_after_a_failure(
    pickled: Path, temporary: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(loader, "_check_weights", fail)
    with pytest.raises(UserError, match="no"):
        load(str(pickled), allow_pickle=True, **ON_DISK)
    assert not any(temporary.iterdir())


def fail(*_: object) -> None:
    raise UserError("no")


def test_a_model_that_stays_on_one_device_has_no_hooks(folder: Path):
    model = load(str(folder), device_map="auto", max_memory={"cpu": "1GiB"}).model
    assert model.device == torch.device("cpu")
    assert not hasattr(model, "_hf_hook")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"device": "cpu", "device_map": "auto"}, "device='cpu' and device_map='auto' exclude each other"),
        ({"max_memory": {"cpu": "1GB"}}, "limits what device_map"),
        ({"device_map": "all"}, "device_map 'all' is not one of auto, balanced"),
        ({"device_map": "cuda"}, "device_map 'cuda' is not one of .* give device"),
        ({"device_map": "auto", "max_memory": {}}, "max_memory is empty"),
        ({"device_map": "auto", "max_memory": {"ram": "1GB"}}, "names 'ram': expected cpu or the number"),
        ({"device_map": "auto", "max_memory": {torch.cuda.device_count(): "1GB"}}, "CUDA devices"),
        ({"device_map": "auto", "max_memory": {-1: "1GB"}}, "names -1"),
        ({"device_map": "auto", "max_memory": {True: "1GB"}}, "names True"),
        ({"device_map": "auto", "max_memory": {"cpu": "much"}}, "of cpu is 'much': expected a size"),
        ({"device_map": "auto", "max_memory": {"cpu": "10G"}}, "of cpu is '10G'"),
        ({"device_map": "auto", "max_memory": {"cpu": -1}}, "of cpu is -1"),
        ({"device_map": "auto", "max_memory": {"cpu": 1.5}}, "of cpu is 1.5"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused(folder: Path, options: dict[str, Any], message: str):
    with pytest.raises(UserError, match=message):
        load(str(folder), **options)


def test_tied_weights_in_two_places_are_refused(tmp_path: Path):
    llama(tie_word_embeddings=True).save_pretrained(tmp_path)
    tokenizer().save_pretrained(tmp_path)
    with pytest.raises(
        UserError, match="has tied weights that device_map puts in different places"
    ):
        load(str(tmp_path), device_map={"model": "disk", "lm_head": "cpu"})


def test_sizes():
    options = {"device_map": "auto", "max_memory": {"cpu": "1.5 GiB"}}
    assert placement.placement_options("auto", **options)["max_memory"] == {"cpu": 3 << 29}
    options["max_memory"] = {"cpu": "20mb"}
    assert placement.placement_options("auto", **options)["max_memory"] == {"cpu": 20_000_000}


def test_without_accelerate(folder: Path, monkeypatch: pytest.MonkeyPatch):
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "accelerate" else find(name)
    )
    with pytest.raises(MissingExtraError, match=r"needs accelerate.*pip install 'sharpmax\[hf\]'"):
        load(str(folder), device_map="auto")
