"""Check the models of the catalogue against eager attention and against llama.cpp.

For each model it prints by how much a scan's entropies differ from those of eager attention's
weights at 512 tokens, and the nats per token of a short text: with the beginning-of-sequence token
where the model needs one, without it, and as llama.cpp computes them from the quantised file. The
numbers are recorded in docs/models.md.

llama.cpp runs in an environment of its own: `python -m venv llama`, then
`llama/bin/pip install --no-deps -r tools/serving/llamacpp.txt`.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch

import sharpmax.hf as shf
from sharpmax.hf import bos
from sharpmax.hf.loading.catalogue import CATALOGUE, find_gguf
from sharpmax.hf.patch.layers import attention_implementation
from sharpmax.hf.scan.prompts import encode

TOKENS = 512
FIRST = 2
"""The first token whose nats count. The one before is predicted from a single token, whose
activations are so large in some models that llama.cpp, which rounds activations to 8 bits, is off
by several nats there."""

WORKER = """
import json, math, sys
import xllamacpp
options = json.load(sys.stdin)
parameters = xllamacpp.CommonParams()
parameters.model.path = options["model"]
parameters.n_ctx, parameters.n_parallel, parameters.verbosity = 512, 1, 0
parameters.cpuparams.n_threads = parameters.cpuparams_batch.n_threads = 1
parameters.cache_type_k = parameters.cache_type_v = xllamacpp.ggml_type.GGML_TYPE_F32
server = xllamacpp.Server(parameters)
nats = []
for at in range(1, len(options["tokens"])):
    request = {"prompt": options["tokens"][:at], "n_predict": 1, "temperature": 0,
               "n_probs": 20000, "ignore_eos": False, "cache_prompt": True}
    place = server.handle_completions(request)["choices"][0]["logprobs"]["content"][0]
    found = {top["id"]: top["logprob"] for top in place["top_logprobs"]}
    nats.append(-found[options["tokens"][at]])
open(options["out"], "w").write(json.dumps(nats))
"""


def entropy_difference(model: Any, tokenizer: Any) -> float:
    """Return the largest difference between a scan's entropies and eager attention's, in nats."""
    text = bos.TEXT * 20
    tokens = encode(tokenizer, text)[:TOKENS]
    given = tokenizer.decode(tokens[1:] if tokens[0] == tokenizer.bos_token_id else tokens)
    scan = shf.scan(model, tokenizer, lengths=[1], prompt=lambda length: given)
    tokens = encode(tokenizer, given)
    with torch.no_grad(), attention_implementation(model, "eager"):
        weights = model(torch.tensor([tokens]), output_attentions=True).attentions
    rows = [layer[0, :, -1].double() for layer in weights]
    eager = torch.stack([torch.special.entr(row).sum(-1) for row in rows])
    return float(np.abs(scan.entropy[0] - eager.numpy()).max())


def llama_nats(python: str, gguf: str, tokens: list[int], out: str) -> float:
    """Return the mean nats per token from `FIRST` on, as llama.cpp computes them."""
    job = json.dumps({"model": gguf, "tokens": tokens, "out": out})
    subprocess.run([python, "-c", WORKER], input=job, text=True, check=True,
                   stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)  # fmt: skip
    return float(np.mean(json.loads(Path(out).read_bytes())[FIRST - 1 :]))


def main() -> None:
    """Print one row per model."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("models", nargs="*", default=[*CATALOGUE])
    parser.add_argument("--llama", help="Python of the environment with xllamacpp")
    options = parser.parse_args()
    for name in options.models:
        loaded = shf.load(name, dtype="float32")
        model, tokenizer = loaded.model, loaded.tokenizer
        whole = encode(tokenizer, bos.TEXT)
        bare = encode(tokenizer, bos.TEXT, special_tokens=False)
        row = {
            "model": name,
            "entropy difference": entropy_difference(model, tokenizer),
            "begins with": tokenizer.convert_ids_to_tokens(whole[0]),
            "nats": bos._nats_per_token(model, whole, FIRST),
            "nats without it": bos._nats_per_token(model, bare, FIRST),
        }
        if options.llama:
            gguf = str(find_gguf(name))
            row["nats of llama.cpp"] = llama_nats(options.llama, gguf, whole, "/tmp/nats.json")
        print(json.dumps(row), flush=True)
        del model, loaded


if __name__ == "__main__":
    sys.exit(main())
