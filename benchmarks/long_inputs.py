"""Measure what long inputs cost a model with a context of 32,768 tokens.

    python benchmarks/long_inputs.py results/bench_long.json

Time of a scan as a ratio to a plain forward pass, in turns; peak memory of fresh processes that
only run a plain pass, a scan, or an evaluation of one question. The model is a Llama of random
weights: time and memory do not depend on what they are. Prompts longer than a chunk are checked:
read in chunks they must give the answers of one pass.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
from pathlib import Path

import numpy as np
import torch
from measure import peak_gigabytes
from scan_cost import plain
from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM, PreTrainedModel

import sharpmax as sx
import sharpmax.hf as shf
from sharpmax.hf.evaluate import scoring
from sharpmax.hf.evaluate.tasks import make_prompts, resolve_task
from sharpmax.hf.loading.convert import model_folder
from sharpmax.hf.scan.prompts import choose_prompt
from sharpmax.results import Result, Stopwatch

CONTEXT = 32768
TOKENS = (4096, 8192, 16384, 32768)
ROUNDS = {4096: 5, 8192: 5, 16384: 3, 32768: 3}
CHECKED = 12000


def make_model() -> PreTrainedModel:
    """Return a Llama with 8 layers of 8 heads on 2 key heads: 47 million parameters."""
    torch.manual_seed(0)
    config = LlamaConfig(
        hidden_size=512,
        intermediate_size=1536,
        num_hidden_layers=8,
        num_attention_heads=8,
        num_key_value_heads=2,
        vocab_size=49152,
        max_position_embeddings=CONTEXT,
        tie_word_embeddings=True,
    )
    return LlamaForCausalLM(config).eval()


def load_tokenizer() -> object:
    """Return SmolLM2's tokenizer without its weights, which would count as peak memory."""
    return AutoTokenizer.from_pretrained(model_folder("smollm2"))


def cache_gigabytes(model: PreTrainedModel, tokens: int) -> float:
    """Return the size of the keys and values of all layers."""
    config = model.config
    return 2 * tokens * config.num_hidden_layers * config.num_key_value_heads * 64 * 4 / 2**30


def score(model: PreTrainedModel, tokenizer: object, tokens: int) -> float:
    """Return the log-probability of a passkey, sharpened by the paper's policy."""
    task, tokens = resolve_task("passkey"), tokens - 64  # room for the answer
    [prompt] = make_prompts(model, task, tokenizer, [tokens], 1, 1, 0)[tokens]
    with shf.sharpen(model, sx.PAPER):
        return float(scoring.score_answers(model, tokenizer, prompt).log_probability[0])


def check(model: PreTrainedModel, tokenizer: object) -> float:
    """Return by how much reading in chunks changes an answer's log-probability."""
    chunked, chunk = score(model, tokenizer, CHECKED), scoring.CHUNK
    scoring.CHUNK = CHECKED
    whole = score(model, tokenizer, CHECKED)
    scoring.CHUNK = chunk
    if abs(chunked - whole) > 1e-3:
        sys.exit(f"in chunks an answer is off by {abs(chunked - whole)} nats: nothing was written")
    return abs(chunked - whole)


def run(job: str, tokens: int) -> None:
    """Do one job, and print the peak memory of this process."""
    model, tokenizer = make_model(), load_tokenizer()
    if job == "plain":
        plain(model, choose_prompt("passkey", tokenizer).tokens(tokens))
    elif job == "scan":
        shf.scan(model, tokenizer, [tokens], "passkey")
    elif job == "evaluate":
        score(model, tokenizer, tokens)
    print(peak_gigabytes())


def peak_memory(job: str, tokens: int) -> float:
    """Return the peak memory in gigabytes of a process that does one job."""
    command = [sys.executable, __file__, "--only", job, "--tokens", str(tokens)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return float(done.stdout)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", nargs="?", type=Path)
    parser.add_argument("--only", choices=["nothing", "plain", "scan", "evaluate"])
    parser.add_argument("--tokens", type=int)
    arguments = parser.parse_args()
    if arguments.only:
        run(arguments.only, arguments.tokens)
        return
    watch = Stopwatch()
    model, tokenizer = make_model(), load_tokenizer()
    difference = check(model, tokenizer)
    rows = []
    for count in TOKENS:
        tokens = choose_prompt("passkey", tokenizer).tokens(count)
        pairs = []
        for _ in range(ROUNDS[count]):
            alone = plain(model, tokens)
            scanned = shf.scan(model, tokenizer, [count], "passkey").measurements["seconds"][0]
            pairs.append((alone, scanned))
        ratios = sorted(scanned / alone for alone, scanned in pairs)
        rows.append(
            {
                "tokens": count,
                "plain_seconds": statistics.median(alone for alone, _ in pairs),
                "scan_seconds": statistics.median(scanned for _, scanned in pairs),
                "ratio": statistics.median(ratios),
                "ratio_range": [ratios[0], ratios[-1]],
                "rounds": len(pairs),
                "peak_gigabytes": {
                    job: peak_memory(job, count) for job in ("plain", "scan", "evaluate")
                },
                "cache_gigabytes": cache_gigabytes(model, count),
            }
        )
        print(rows[-1], flush=True)
    jobs = ("plain", "scan", "evaluate")
    growth = {
        job: float(np.polyfit(TOKENS, [row["peak_gigabytes"][job] for row in rows], 1)[0] * 1e3)
        for job in jobs
    }
    result = Result(
        kind="bench-long",
        config={
            "model": "Llama of random weights, 8 layers of 8 heads on 2 key heads, width 512",
            "parameters": sum(parameter.numel() for parameter in model.parameters()),
            "threads": torch.get_num_threads(),
            "chunk": scoring.CHUNK,
            "checked_tokens": CHECKED,
        },
        seeds=(0,),
        measurements={
            "rows": rows,
            "idle_gigabytes": peak_memory("nothing", TOKENS[0]),
            "gigabytes_per_thousand_tokens": growth,
            "largest_difference": difference,
        },
        provenance=watch.provenance(),
    )
    result.save(arguments.out, overwrite=True)


if __name__ == "__main__":
    main()
