"""Run one llama.cpp server in this process: read jobs as JSON lines, write each answer to a file.

It runs in llama.cpp's own environment. `engines.py` starts it and says what the lines mean.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

TOP = 5
"""How many of the most probable tokens are reported for each place."""


def main() -> None:
    options = json.loads(sys.argv[1])
    lines = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    import xllamacpp

    parameters = xllamacpp.CommonParams()
    parameters.model.path = options["model"]
    parameters.n_ctx, parameters.n_parallel, parameters.verbosity = 2048, 1, 0
    threads = int(os.environ.get("OMP_NUM_THREADS", "1"))
    parameters.cpuparams.n_threads = parameters.cpuparams_batch.n_threads = threads
    # Keys and values in float32; by default they would be rounded to float16.
    parameters.cache_type_k = parameters.cache_type_v = xllamacpp.ggml_type.GGML_TYPE_F32
    flash = xllamacpp.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_DISABLED
    parameters.flash_attn_type = flash
    server = xllamacpp.Server(parameters)
    print(json.dumps({"xllamacpp": xllamacpp.__version__}), file=lines)
    for line in sys.stdin:
        job = json.loads(line)
        answers = [answer(server, prompt, job["tokens"]) for prompt in job["prompts"]]
        Path(job["out"]).write_text(json.dumps({"answers": answers}))
        print("{}", file=lines)


def answer(server: Any, prompt: list[int], tokens: int) -> dict[str, Any]:
    """Continue one prompt greedily."""
    request = {
        "prompt": prompt,
        "n_predict": tokens,
        "temperature": 0,
        "n_probs": TOP,
        "ignore_eos": True,
        "cache_prompt": True,
    }
    places = server.handle_completions(request)["choices"][0]["logprobs"]["content"]
    return {
        "tokens": [place["id"] for place in places],
        "top": [[(top["id"], top["logprob"]) for top in place["top_logprobs"]] for place in places],
    }


if __name__ == "__main__":
    main()
