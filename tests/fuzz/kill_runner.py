"""Run commands in forked processes and kill them: what takes seconds is imported once.

Reads lines of JSON from standard input, {"words": [...], "log": path, "kill_after": seconds or
null}, and answers each with {"status": how the process ended, "seconds": how long it ran}.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from dataclasses import replace
from pathlib import Path


def run(words: list[str], log: str) -> int:
    """Run a command with small settings and with a checkpoint after every step."""
    os.setsid()
    handle = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(handle, 1)
    os.dup2(handle, 2)
    if words[0] == "reproduce":
        from sharpmax.experiments.max_retrieval import table1

        training = replace(table1.QUICK.training, steps=300)
        table1.QUICK = replace(
            table1.QUICK, training=training, seeds=(0, 1), sets=16, sizes=(16, 1_024)
        )
    for module in list(sys.modules.values()):
        if hasattr(module, "SECONDS_BETWEEN_SAVES"):
            module.SECONDS_BETWEEN_SAVES = 0.0
    from sharpmax.cli import main

    return main(words)


def main_loop() -> None:
    import matplotlib.pyplot  # noqa: F401
    import torch

    import sharpmax.cli.program
    import sharpmax.experiments.clrs_text.train
    import sharpmax.hf
    import sharpmax.hf.tune.tune
    import sharpmax.report.renderers.matplotlib  # noqa: F401

    torch.set_num_threads(1)
    print("ready", flush=True)
    for line in sys.stdin:
        order = json.loads(line)
        begin = time.monotonic()
        child = os.fork()
        if child == 0:
            code = 99
            try:
                code = run(order["words"], order["log"])
            except BaseException as error:
                with Path(order["log"]).open("a") as log:
                    log.write(repr(error))
            finally:
                os._exit(code)
        killed_at = order["kill_after"]
        while True:
            ended, status = os.waitpid(child, os.WNOHANG)
            if ended:
                break
            if killed_at is not None and time.monotonic() - begin >= killed_at:
                os.kill(child, signal.SIGKILL)
                _, status = os.waitpid(child, 0)
                break
            time.sleep(0.002)
        answer = {"status": os.waitstatus_to_exitcode(status), "seconds": time.monotonic() - begin}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main_loop()
