"""Processes that run an engine in its own environment, and take jobs from this one.

A worker prints its versions when it is ready. Then it reads jobs, one JSON line each, writes each
answer to the file that the job names, and prints a line. A job has

    prompts   the tokens of each prompt; vLLM takes all of them as one batch
    tokens    how many tokens to generate after each, greedily
    logprobs  for vLLM: "new" for the log-probabilities of generated tokens, "all" for those of the
              prompt's tokens too, "" for none

and an answer has, for each prompt, the generated tokens and their log-probabilities.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

FOLDER = Path("build/serving")
"""Environments, models and logs, in the folder where the tool runs."""

ENVIRONMENT = {
    "DO_NOT_TRACK": "1",
    "HF_HUB_OFFLINE": "1",
    "KMP_BLOCKTIME": "1",  # an engine that waits must not take time from the one that is measured
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_NO_USAGE_STATS": "1",
}


def make_environment(calibration: Path | str | None, *, apart: bool = False) -> dict[str, str]:
    """Return the environment of an engine."""
    environment = os.environ | ENVIRONMENT
    environment.setdefault("OMP_NUM_THREADS", "1")
    environment.pop("PYTHONPATH", None)
    environment["SHARPMAX_CALIBRATION"] = str(calibration or "")
    environment["VLLM_ENABLE_V1_MULTIPROCESSING"] = str(int(apart))
    return environment


def run_vllm(script: str, argument: str, calibration: str) -> tuple[int, str]:
    """Run a script of this folder with vLLM; return its exit code and the last line it wrote."""
    done = subprocess.run(
        [FOLDER / "vllm" / "bin" / "python", Path(__file__).with_name(script), argument],
        env=make_environment(calibration),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    return done.returncode, (done.stdout.strip().splitlines() or [""])[-1]


class Worker:
    """A process that runs one engine.

    Args:
        engine: `vllm` or `llamacpp`.
        name: The name of its log.
        calibration: The calibration of the plugin; None for stock vLLM.
        apart: Whether vLLM's engine is a process of its own, as it is for tensor parallelism.
        options: What the engine takes.
    """

    def __init__(
        self,
        engine: str,
        name: str,
        *,
        calibration: Path | None = None,
        apart: bool = False,
        **options: Any,
    ) -> None:
        environment = make_environment(calibration, apart=apart)
        python = FOLDER / engine / "bin" / "python"
        if not python.exists():
            sys.exit(f"{python} is missing: run make test-serving, which makes this environment")
        script = Path(__file__).with_name(f"{engine}_worker.py")
        self.log = FOLDER / "logs" / f"{name}.log"
        self.log.parent.mkdir(parents=True, exist_ok=True)
        with self.log.open("w") as log:
            self.process = subprocess.Popen(
                [python, script, json.dumps(options)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env=environment,
            )
        self.versions: dict[str, str] = self._read()

    def ask(
        self, prompts: list[list[int]], tokens: int = 8, logprobs: str = "new"
    ) -> dict[str, Any]:
        """Return the answer to one job."""
        with tempfile.TemporaryDirectory() as folder:
            out = Path(folder) / "answer.json"
            job = {"prompts": prompts, "tokens": tokens, "logprobs": logprobs, "out": str(out)}
            assert self.process.stdin is not None
            self.process.stdin.write(json.dumps(job) + "\n")
            self.process.stdin.flush()
            self._read()
            return json.loads(out.read_text())

    def _read(self) -> dict[str, str]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            last = self.log.read_text().strip().splitlines()[-1:]
            sys.exit(f"the engine stopped, see {self.log}: {' '.join(last)}")
        return json.loads(line)

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *_: Any) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
