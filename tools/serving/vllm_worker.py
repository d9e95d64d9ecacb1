"""Run one vLLM engine: read jobs as JSON lines, write each answer to the file that the job names.

It runs in vLLM's own environment. `engines.py` starts it and says what the lines mean.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any


def main() -> None:
    options = json.loads(sys.argv[1])
    # vLLM prints to standard output, which is for the answers here.
    lines = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    import torch
    import transformers

    import vllm

    engine = vllm.LLM(dtype="float32", skip_tokenizer_init=True, seed=0, **options)
    versions = {
        "vllm": vllm.__version__,
        "torch": torch.__version__,
        "transformers": transformers.__version__,
    }
    print(json.dumps(versions), file=lines)
    for line in sys.stdin:
        job = json.loads(line)
        Path(job["out"]).write_text(json.dumps(answer(engine, vllm, job)))
        print("{}", file=lines)


def answer(engine: Any, vllm: Any, job: dict[str, Any]) -> dict[str, Any]:
    """Continue each prompt greedily; all prompts are one batch."""
    scored = job["logprobs"]
    sampling = vllm.SamplingParams(
        temperature=0,
        max_tokens=job["tokens"],
        ignore_eos=True,
        detokenize=False,
        logprobs=0 if scored else None,
        prompt_logprobs=0 if scored == "all" else None,
    )
    prompts = [{"prompt_token_ids": tokens} for tokens in job["prompts"]]
    begin = time.perf_counter()
    outputs = engine.generate(prompts, sampling, use_tqdm=False)
    seconds = time.perf_counter() - begin
    answers = []
    for output in outputs:
        (made,) = output.outputs
        tokens = list(made.token_ids)
        row: dict[str, Any] = {"tokens": tokens, "cached": output.num_cached_tokens}
        if scored:
            row["logprobs"] = [
                place[token].logprob for place, token in zip(made.logprobs, tokens, strict=True)
            ]
        if scored == "all":
            places = zip(output.prompt_logprobs[1:], output.prompt_token_ids[1:], strict=True)
            row["prompt_logprobs"] = [place[token].logprob for place, token in places]
        answers.append(row)
    return {"answers": answers, "seconds": seconds}


if __name__ == "__main__":
    main()
