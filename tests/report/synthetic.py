"""Results that nobody measured, with the layout of real ones."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import numpy as np

from sharpmax.results import Provenance, Result

RULES = {
    "stays sharp": "its entropy grows by less than 0.5 nats for each nat of log n",
    "disperses": "its entropy grows by 0.5 nats or more for each nat of log n",
    "uniform": "its entropy is 0.9 or more of the most possible at every length",
    "sink": "at the longest input 0.5 or more of its weight is on the first token",
    "local": "it sees a window and not the whole input, so that adding tokens adds none to it",
}
WINDOW = 128
STRONGEST = 8
STARTED = datetime(2026, 11, 16, 1, 2, 3, tzinfo=UTC)


def scan(
    layers: int = 30,
    heads: int = 9,
    lengths: int = 8,
    /,
    *,
    learned_sink: bool = False,
    **config: Any,
) -> Result:
    """A scan of that size; `config` replaces entries of its config."""
    rng = np.random.default_rng(layers * 100 + heads)
    tokens = 2 ** np.arange(4, 4 + lengths)
    labels = _labels(rng, layers, heads)
    slopes = _slopes(rng, labels)
    count = np.minimum(
        tokens[:, None, None], np.where(labels == "local", WINDOW, tokens[-1])
    ).astype(np.int32)
    arrays = {"last_count": count, "slopes": np.where(labels == "local", np.nan, slopes)}
    for where, less in (("last", 0.0), ("mean", 0.3)):
        arrays |= _statistics(rng, where, labels, slopes, count, less)
    if learned_sink:
        share = (0.3 * rng.random(count.shape)).astype(np.float32)
        arrays |= {"last_learned_sink": share, "mean_learned_sink": share}
    arrays |= _strongest(rng, labels, slopes, tokens)
    measurements = {
        "texts": [_text(int(count)) for count in tokens],
        "tokens": tokens.tolist(),
        "layers": [
            {
                "index": layer,
                "name": f"model.layers.{layer}.self_attn",
                "window": WINDOW if "local" in labels[layer] else None,
            }
            for layer in range(layers)
        ],
        "heads": list(range(heads)),
        "labels": labels.tolist(),
        "slopes": np.where(labels == "local", None, slopes.astype(object)).tolist(),
        "seconds": [round(0.01 * float(one) ** 0.8, 3) for one in tokens],
        "rules": RULES,
    }
    return Result(
        kind="scan",
        config=_config(tokens) | config,
        seeds=(0,),
        measurements=measurements,
        provenance=_provenance(),
    ).with_arrays(**arrays)


def _text(count: int) -> dict[str, list]:
    """A question about a list of numbers, of which each digit is a token."""
    words = ["What", " is", " the", " maximum", ":"]
    digits = [str(number * 7 % 10) if number % 4 else " " for number in range(count)]
    return {"positions": list(range(count)), "pieces": (words + digits)[:count]}


def _strongest(
    rng: np.random.Generator, labels: np.ndarray, slopes: np.ndarray, tokens: np.ndarray
) -> dict[str, np.ndarray]:
    """The tokens that each head looks at most; a head that disperses spreads over more."""
    shape = (len(tokens), *labels.shape, STRONGEST)
    places = (rng.random(shape) * tokens[:, None, None, None]).astype(np.int32)
    places[..., 0] = 0
    share = np.minimum(1, 12 * tokens[:, None, None] ** -slopes.clip(0.05))
    decay = 0.5 ** np.arange(1, STRONGEST + 1)
    return {
        "strongest": places,
        "strongest_weight": (share[..., None] * decay).astype(np.float32),
    }


def changed(result: Result, **measurements: Any) -> Result:
    """The same scan with other measurements."""
    copy = result.model_copy(update={"measurements": result.measurements | measurements})
    return copy.with_arrays(**result.arrays)


def without_head(result: Result, layer: int, head: int) -> Result:
    """The same scan of a model whose layer lacks a head."""
    arrays = {name: array.copy() for name, array in result.arrays.items()}
    for name, array in arrays.items():
        if name.startswith("strongest"):
            array[:, layer, head] = 0 if name.endswith("weight") else -1
        else:
            array[..., layer, head] = 0 if name == "last_count" else np.nan
    slopes, labels = (
        [list(row) for row in result.measurements[name]] for name in ("slopes", "labels")
    )
    slopes[layer][head], labels[layer][head] = None, ""
    return changed(result, slopes=slopes, labels=labels).with_arrays(**arrays)


def _labels(rng: np.random.Generator, layers: int, heads: int) -> np.ndarray:
    """Later layers disperse more; every seventh layer has a sliding window."""
    depth = (np.arange(layers)[:, None] + 0.5) / layers
    drawn = rng.random((layers, heads))
    labels = np.where(drawn < 0.2 + 0.5 * depth, "disperses", "stays sharp").astype(object)
    labels[drawn > 0.88] = "sink"
    labels[drawn > 0.95] = "uniform"
    labels[6::7] = "local"
    return labels


def _slopes(rng: np.random.Generator, labels: np.ndarray) -> np.ndarray:
    steep = {"stays sharp": 0.05, "disperses": 0.7, "uniform": 0.995, "sink": 0.08}
    slopes = np.vectorize(lambda label: steep.get(label, 0.0))(labels)
    return slopes * (1 + 0.2 * (rng.random(labels.shape) - 0.5) * (labels != "uniform"))


def _statistics(
    rng: np.random.Generator,
    where: str,
    labels: np.ndarray,
    slopes: np.ndarray,
    count: np.ndarray,
    less: float,
) -> dict[str, np.ndarray]:
    log_count = np.log(count)
    start = np.where(labels == "uniform", 0.0, 0.2 + 0.5 * rng.random(labels.shape))
    noise = 0.03 * rng.standard_normal(count.shape)
    entropy = np.where(labels == "local", 0.6 * log_count, start + slopes * log_count)
    entropy = np.clip(entropy + noise - less * slopes.clip(0), 0.01, 0.999 * log_count)
    largest = np.clip(np.exp(-0.8 * entropy), 1 / count, 1)
    made = {
        "entropy": entropy,
        "normalised_entropy": entropy / log_count,
        "effective_tokens": np.exp(entropy),
        "max_weight": largest,
        "sink": np.where(labels == "sink", 0.9 - 0.02 * log_count, 0.5 / count),
        "spread": 6 + 3 * rng.random(labels.shape) + 0.4 * log_count,
    }
    return {f"{where}_{key}": values.astype(np.float32) for key, values in made.items()}


def _config(tokens: np.ndarray) -> dict[str, Any]:
    return {
        "model": "HuggingFaceTB/SmolLM2-135M",
        "architecture": "LlamaForCausalLM",
        "model_type": "llama",
        "parameters": 134_515_008,
        "dtype": "float32",
        "device": "cpu",
        "notes": ["Synthetic numbers: no model was run.", "Grouped queries: 3 heads share a key."],
        "prompt": "text",
        "unit": "tokens",
        "lengths": tokens.tolist(),
        "seed": 0,
        "policy": None,
    }


def _provenance() -> Provenance:
    return Provenance(
        command="sharpmax scan HuggingFaceTB/SmolLM2-135M --prompt text",
        started=STARTED,
        seconds=12.345,
        sharpmax="0.1.0",
        commit="0123456789abcdef0123456789abcdef01234567+changes",
        python="3.11.2",
        platform="Linux-6.1-x86_64",
        processor="Synthetic CPU",
        cores=8,
        packages={"numpy": "2.4.6", "torch": "2.9.0", "transformers": "5.1.0"},
    )


def figure8(algorithms: int = 8) -> Result:
    """A Figure 8 that no training made: trained at the smaller half of the sizes."""
    slopes = {"softmax": 1.0, "adaptive": 0.7, "inference": 1.5}
    labels = {
        "softmax": "softmax",
        "adaptive": "adaptive, trained",
        "inference": "adaptive, tested",
    }
    panels = {}
    for name in [f"algorithm_{number}" for number in range(algorithms)]:
        sizes = list(range(4, 41, 4))
        arms = {}
        for arm, slope in slopes.items():
            mean = [max(0.0, 1 - slope * size / 64) for size in sizes]
            arms[arm] = dict.fromkeys(("mean", "mean_familiar", "mean_entropy"), mean)
            arms[arm] |= dict.fromkeys(("std_tests", "std_trainings"), [0.02] * len(sizes))
        familiar = [min(1.0, 20 / size) for size in sizes]
        panels[name] = {
            "sizes": sizes,
            "train_sizes": sizes[:5],
            "familiar": familiar,
            "arms": arms,
        }
    measurements = {
        "model": "Gemma of 1,000,000 parameters",
        "test_seeds": [3, 14],
        "labels": labels,
        "algorithms": panels,
    }
    return Result(
        kind="figure8",
        config={},
        seeds=(0, 1),
        measurements=measurements,
        provenance=_provenance(),
    )
