"""Let many users work with the explorer at the same time, and watch its memory and its errors.

    python tools/explorer_soak.py --users 20 --seconds 300

It starts a server of its own on this machine and needs nothing else. Each user is a thread that
does what a page does: it stays connected, moves controls of all tabs, starts scans and texts, and
stops half of them. What it prints is the table in docs/app.md. It fails if a request fails, if a
job that was stopped goes on, or if the peak of memory grows by more than `MAX_GROWTH` from the
second third to the last.
"""

from __future__ import annotations

import argparse
import random
import re
import statistics
import subprocess
import sys
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from explorer_client import Client, event_number

from sharpmax.app import build

MAX_USERS, MAX_SECONDS = 50, 900.0
MAX_GROWTH = 0.10
STOP_SECONDS = 30.0
"""Time in which a stopped job must end, however many others wait for the model."""


@dataclass
class Measurements:
    """What all users have seen."""

    seconds: dict[str, list[float]] = field(default_factory=dict)
    """Durations of what succeeded, by name."""
    errors: Counter[str] = field(default_factory=Counter)
    memory: list[float] = field(default_factory=list)
    """Resident memory of the server in MB, once per second."""

    @property
    def growth(self) -> float:
        """How much the peak of the last third is above that of the third before it."""
        third = len(self.memory) // 3
        return max(self.memory[-third:]) / max(self.memory[third : 2 * third]) - 1


@dataclass(frozen=True)
class Numbers:
    """The numbers of the page's events."""

    softmax: int
    retrieval: int
    scan: int
    sharpen: int
    stop_scan: int
    stop_sharpen: int

    @staticmethod
    def of_page(page: Any) -> Numbers:
        scan, sharpen = (event_number(page, name, "click") for name in ("Scan", "Write both"))
        return Numbers(
            event_number(page, "Spread: largest minus smallest logit"),
            event_number(page, "Trained head"),
            scan,
            sharpen,
            scan + 1,  # the button beside it
            sharpen + 1,
        )


class User(threading.Thread):
    """One user, who works until the end and starts a new session now and then."""

    def __init__(
        self, address: str, model: str, numbers: Numbers, measurements: Measurements, end: float
    ) -> None:
        super().__init__(daemon=True)
        self.address, self.model, self.numbers = address, model, numbers
        self.measurements, self.end = measurements, end

    def run(self) -> None:
        while time.monotonic() < self.end:
            client = Client(self.address)
            presence = client.connect()
            presence.request("GET", f"/gradio_api/heartbeat/{client.session}")
            try:
                self.do("load the page", self.load, client)
                for _ in range(random.randint(5, 30)):
                    if time.monotonic() >= self.end:
                        break
                    work = random.choice([self.softmax] * 4 + [self.retrieval] * 2 + [self.job] * 2)
                    name, action = work()
                    self.do(name, action, client)
                    time.sleep(random.uniform(0.1, 1.0))
            finally:
                presence.close()

    def do(self, name: str, action: Any, client: Client) -> None:
        start = time.monotonic()
        try:
            action(client)
        except Exception as error:  # counted, and reported at the end
            self.measurements.errors[f"{name}: {type(error).__name__}: {error}"[:300]] += 1
        else:
            self.measurements.seconds.setdefault(name, []).append(time.monotonic() - start)

    def load(self, client: Client) -> None:
        answer = client.request("/")
        assert answer.status == 200
        for path in set(re.findall(r'"\./((?:assets|static)/[\w./-]+)"', answer.body.decode())):
            assert client.request(f"/{path}").status == 200

    def softmax(self) -> tuple[str, Any]:
        shape = random.choice(["uniform", "gaussian", "rising", "one maximum"])
        values = [shape, str(2 ** random.randint(1, 14))]
        values += [random.uniform(0, 20), random.uniform(0.1, 5)]
        values += [["softmax", "sparsemax", "adaptive-temperature"], "linear", "", "1, 2"]
        return "draw softmax", lambda client: expect(
            client.run(self.numbers.softmax, values), "items whose logits|item whose"
        )

    def retrieval(self) -> tuple[str, Any]:
        values = [str(2 ** random.randint(4, 14)), random.choice([0, 1, 2]), "constant", 2.0]
        return "draw max retrieval", lambda client: expect(
            client.run(self.numbers.retrieval, values), "the head is right in"
        )

    def job(self) -> tuple[str, Any]:
        """Return a scan or a text, either of which may be stopped."""
        numbers, stopped = self.numbers, random.random() < 0.5
        if random.random() < 0.5:
            name, number, stop = "scan", numbers.scan, numbers.stop_scan
            values = [self.model, "max", "", "4, 8, 16", "nothing"]
        else:
            name, number, stop = "write", numbers.sharpen, numbers.stop_sharpen
            values = [self.model, "The maximum is:", "paper", None, "", "", 8, True]
        if stopped:
            return f"stop a {name}", lambda client: run_and_stop(client, number, values, stop)
        return name, lambda client: expect(client.run(number, values), 'iframe|class="said"')


def expect(output: list[Any], pattern: str) -> None:
    html = output[0]["html"]
    assert re.search(pattern, html), html[:200]


def run_and_stop(client: Client, number: int, values: list[Any], stop: int) -> None:
    """Start a job, stop it after a moment, and check that it ends soon."""
    event = client.start(number, values)
    time.sleep(random.uniform(0.2, 1.0))
    start = time.monotonic()
    client.start(stop, [])
    (message,) = client.read(event)
    assert time.monotonic() - start < STOP_SECONDS, "a stopped job went on"
    expect(message["output"]["data"], 'Stopped|iframe|class="said"')


def resident_memory(process: int) -> float:
    """Return the resident memory of a process in MB."""
    status = Path(f"/proc/{process}/status").read_text()
    return int(re.search(r"VmRSS:\s+(\d+) kB", status)[1]) / 1000  # type: ignore[index]


def soak(model: str, users: int, seconds: float) -> Measurements:
    """Serve a page, let users work with it, and return what they saw.

    Args:
        model: The model that they scan.
        users: Number of users at the same time, at most `MAX_USERS`.
        seconds: How long, at most `MAX_SECONDS`.
    """
    numbers = Numbers.of_page(build(model))
    words = [sys.executable, "-m", "sharpmax", "app", "--model", model]
    measurements = Measurements()
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            address = re.search(r"http://\S+", server.stdout.readline())[0]  # type: ignore[index]
            end = time.monotonic() + min(seconds, MAX_SECONDS)
            arguments = (address, model, numbers, measurements, end)
            threads = [User(*arguments) for _ in range(min(users, MAX_USERS))]
            for thread in threads:
                thread.start()
            while time.monotonic() < end:
                measurements.memory.append(resident_memory(server.pid))
                time.sleep(1.0)
            for thread in threads:
                thread.join(timeout=60)
            measurements.errors["a user is stuck"] += sum(t.is_alive() for t in threads)
        finally:
            server.terminate()
    return measurements


def report(measurements: Measurements) -> str:
    """Return a table of what was done, and lines on memory and errors."""
    lines = ["| what | times | median, s | slowest, s |", "|---|--:|--:|--:|"]
    for name, seconds in sorted(measurements.seconds.items()):
        median, slowest = statistics.median(seconds), max(seconds)
        lines.append(f"| {name} | {len(seconds)} | {median:.2f} | {slowest:.2f} |")
    memory, third = measurements.memory, len(measurements.memory) // 3
    peaks = [max(memory[start : start + third]) for start in (0, third, 2 * third)]
    lines.append("")
    lines.append("Peak memory in each third, MB: " + ", ".join(f"{peak:,.0f}" for peak in peaks))
    lines += [f"{count} x {error}" for error, count in (+measurements.errors).items()]
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--users", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=300.0)
    options = parser.parse_args()
    measurements = soak(options.model, options.users, options.seconds)
    print(report(measurements))
    return int(bool(+measurements.errors) or measurements.growth > MAX_GROWTH)


if __name__ == "__main__":
    sys.exit(main())
