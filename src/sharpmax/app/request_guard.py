"""Let only requests of the explorer's own page through to gradio.

gradio serves far more than this page needs: uploads, files, its API by name and by number, and it
answers to any host name. So whatever the page does not request is refused here, before gradio.
Each refusal is JSON with one sentence as `detail`, which the page shows.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from dataclasses import dataclass
from typing import Any

from sharpmax.app.event_request import InvalidEventError, check_event, is_session
from sharpmax.app.hosts import AllowedHosts
from sharpmax.app.rate_limit import RateLimit

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Application = Callable[[Scope, Receive, Send], Awaitable[None]]

JOIN = "/gradio_api/queue/join"
DATA = "/gradio_api/queue/data"

READ_PATHS = re.compile(
    r"/|/theme\.css|/favicon\.ico|/robots\.txt|/(?:assets|static)/[\w./@+-]+"
    r"|/gradio_api/(?:startup-events|app_id|queue/data|heartbeat/[a-z0-9]{1,32})",
    re.ASCII,
)
"""What the page reads; its only other request is `JOIN`."""

MAX_BODY = 1_000_000
"""Bytes of the largest request: the longest text that the page accepts, and room to encode it."""
MAX_DRAINED = 20 * MAX_BODY
"""Bytes to read of a request that is too large: browsers show no answer before all is sent."""
MAX_CLIENT = 50
"""Characters to remember of the address of a user."""
BODY_SECONDS = 20.0
"""Time in which a request must arrive."""


class RefusedError(Exception):
    """A request is refused; the message is for the user."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


@dataclass(frozen=True)
class RequestGuard:
    """An ASGI application that passes on the requests of the page and refuses all others."""

    app: Application
    hosts: AllowedHosts
    events: Mapping[int, int]
    """The number of values that each event of the page takes, by the event's number."""
    limits: tuple[RateLimit, RateLimit] | None = None
    """Limits for each user and for all users together; None on a page that is not shared."""
    behind_proxy: bool = False
    """Whether all requests come from a proxy, which says who asked."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
            return
        if scope["type"] != "http":
            await send({"type": "websocket.close"})  # the page uses none
            return
        try:
            headers = _decode_headers(scope)
            self._check_host(headers)
            _check_path(scope)
            if scope["method"] == "POST":
                self._check_rate(scope, headers)
                receive = await self._read_event(headers, receive)
        except RefusedError as error:
            await _refuse(error, send)
            return
        await self.app(self._clean_scope(scope, headers), receive, send)

    def _check_host(self, headers: dict[str, str]) -> None:
        """Refuse names that are not ours, and pages that are not ours."""
        host, origin = headers.get("host", ""), headers.get("origin")
        if not self.hosts.allows_host(host):
            raise RefusedError(
                403, "this host name is not served: open the address that `sharpmax app` prints"
            )
        if origin is not None and not self.hosts.allows_origin(origin, host):
            raise RefusedError(403, "requests from other sites are refused")

    def _check_rate(self, scope: Scope, headers: dict[str, str]) -> None:
        if self.limits is None:
            return
        client = (scope.get("client") or ("",))[0]
        if self.behind_proxy:
            # A proxy appends whom it was asked by; anybody could have written what is before that.
            client = headers.get("x-forwarded-for", client).rpartition(",")[2].strip()[:MAX_CLIENT]
        of_client, of_all = self.limits
        if not of_client.allow(client) or not of_all.allow(""):
            raise RefusedError(429, "too many requests: wait a few seconds and try again")

    async def _read_event(self, headers: dict[str, str], receive: Receive) -> Receive:
        """Read and check the body, and return a function that hands it on."""
        length = headers.get("content-length", "0")
        if not length.isdecimal() or len(length) > 12 or int(length) > MAX_DRAINED:
            raise _too_large()
        try:
            async with asyncio.timeout(BODY_SECONDS):
                body = await _read_body(receive)
        except TimeoutError as error:
            raise RefusedError(408, "the request took too long to arrive: try again") from error
        try:
            body = check_event(body, self.events)
        except InvalidEventError as error:
            raise RefusedError(400, str(error)) from error
        messages = iter([{"type": "http.request", "body": body, "more_body": False}])

        async def replay() -> MutableMapping[str, Any]:
            message = next(messages, None)
            return await receive() if message is None else message

        return replay

    def _clean_scope(self, scope: Scope, headers: dict[str, str]) -> Scope:
        """Return the request without what gradio would believe of a proxy, but for HTTPS."""
        names = ("host", "origin", "user-agent", "accept", "accept-encoding")
        kept = {name: headers[name] for name in names if name in headers}
        if self.limits is not None and headers.get("x-forwarded-proto") == "https":
            kept["x-forwarded-proto"] = "https"
        if scope["method"] == "POST":
            kept["content-type"] = "application/json"
        query = scope["query_string"] if scope["path"] == DATA else b""
        raw = [(name.encode(), value.encode("latin-1")) for name, value in kept.items()]
        return {**scope, "headers": raw, "query_string": query}


def _decode_headers(scope: Scope) -> dict[str, str]:
    """Return the headers by name in lower case; of those that are repeated, a list in one line."""
    headers: dict[str, str] = {}
    for name, value in scope["headers"]:
        key, text = name.decode("latin-1").lower(), value.decode("latin-1")
        headers[key] = f"{headers[key]}, {text}" if key in headers else text
    return headers


def _check_path(scope: Scope) -> None:
    """Refuse paths and methods that the page does not use."""
    path, method = scope["path"], scope["method"]
    if method == "POST" and path == JOIN:
        return
    if method not in ("GET", "HEAD") or not READ_PATHS.fullmatch(path) or ".." in path:
        raise RefusedError(404, "the explorer has no such page")
    if path == DATA:
        name, _, session = scope["query_string"].decode("latin-1").partition("=")
        if name != "session_hash" or not is_session(session):
            raise RefusedError(400, "the session has no valid name: reload the page")


async def _read_body(receive: Receive) -> bytes:
    body, size = bytearray(), 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise RefusedError(400, "the request is incomplete")
        part = message.get("body", b"")
        size += len(part)
        if size <= MAX_BODY:
            body += part
        if size > MAX_DRAINED or (size > MAX_BODY and not message.get("more_body")):
            raise _too_large()
        if not message.get("more_body"):
            return bytes(body)


def _too_large() -> RefusedError:
    return RefusedError(413, f"the request is larger than {MAX_BODY:,} bytes: shorten the text")


async def _refuse(error: RefusedError, send: Send) -> None:
    body = json.dumps({"detail": str(error)}).encode()
    headers = [
        (b"content-type", b"application/json"),
        (b"content-length", str(len(body)).encode()),
        (b"connection", b"close"),  # the rest of a refused request is not read
    ]
    await send({"type": "http.response.start", "status": error.status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
