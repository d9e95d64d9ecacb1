"""Talk to the explorer's server as its page does, and as an attacker would."""

from __future__ import annotations

import http.client
import json
import secrets
import time
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

JOIN = "/gradio_api/queue/join"
SECONDS = 120.0


@dataclass(frozen=True)
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def detail(self) -> str:
        """The sentence with which a request was refused."""
        return json.loads(self.body)["detail"]


@dataclass
class Client:
    """One user of the page at an address."""

    address: str
    session: str = field(default_factory=lambda: secrets.token_hex(5))

    def connect(self) -> http.client.HTTPConnection:
        parts = urlsplit(self.address)
        return http.client.HTTPConnection(parts.hostname, parts.port, timeout=SECONDS)

    def request(self, path: str, method: str = "GET", body: Any = None, **headers: str) -> Answer:
        """Send one request. Headers are named as in `x_forwarded_host="evil"`."""
        connection = self.connect()
        names = {name.replace("_", "-"): value for name, value in headers.items()}
        data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        try:
            connection.request(method, path, data, names)
            answer = connection.getresponse()
            return Answer(
                answer.status,
                {name.lower(): value for name, value in answer.getheaders()},
                answer.read(),
            )
        finally:
            connection.close()

    def event(self, number: int, values: list[Any]) -> dict[str, Any]:
        return {"fn_index": number, "data": values, "session_hash": self.session}

    def join(self, number: int, values: list[Any]) -> Answer:
        return self.request(JOIN, "POST", self.event(number, values))

    def run(self, number: int, values: list[Any]) -> list[Any]:
        """Run one function of the page, and return its last values."""
        (message,) = self.read(self.start(number, values))
        assert message["success"], message
        return message["output"]["data"]

    def start(self, number: int, values: list[Any]) -> str:
        """Start one function of the page, and return the event's name."""
        answer = self.join(number, values)
        assert answer.status == 200, answer
        return json.loads(answer.body)["event_id"]

    def read(self, event: str | None = None) -> list[dict[str, Any]]:
        """Return how the events of this session ended: all of them, or the one of this name."""
        connection = self.connect()
        connection.request("GET", f"/gradio_api/queue/data?session_hash={self.session}")
        stream = connection.getresponse()
        assert stream.status == 200, stream.read()
        messages, end = [], time.monotonic() + SECONDS
        while time.monotonic() < end and (line := stream.readline()):
            if line.startswith(b"data: "):
                message = json.loads(line[6:])
                if message["msg"] == "close_stream":
                    break
                if message["msg"] == "process_completed" and event in (None, message["event_id"]):
                    messages.append(message)
                    if event is not None:
                        break
        connection.close()
        return messages


def event_number(page: Any, control: str, event: str = "input", place: int = 0) -> int:
    """Return the number of the event of a control with this label: the first, or a later one."""
    numbers = [
        number
        for number, function in page.fns.items()
        for component, name in function.targets
        if name == event
        and control
        in (getattr(page.blocks.get(component), one, None) for one in ("label", "value"))
    ]
    return numbers[place]


def _names(control: Any) -> list[Any]:
    return [getattr(control, name, None) for name in ("label", "value")]
