"""A connection that sends nothing is closed, and others are served meanwhile."""

from __future__ import annotations

import socket
import threading
import time

import pytest
import uvicorn

from sharpmax.app import connections
from sharpmax.app.connections import limit_connections


@pytest.fixture
def port(monkeypatch):
    """Serve one word, with short limits."""
    monkeypatch.setattr(connections, "HEADER_SECONDS", 0.3)
    monkeypatch.setattr(connections, "MAX_CONNECTIONS", 20)

    async def application(scope, receive, send):
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"served"})

    server = uvicorn.Server(
        uvicorn.Config(application, port=0, log_level="critical", lifespan="off")
    )
    server.config.load()
    limit_connections(server.config)
    thread = threading.Thread(target=server.run)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    yield server.servers[0].sockets[0].getsockname()[1]
    server.should_exit = True
    thread.join()


def ask(port: int) -> bytes:
    with socket.create_connection(("127.0.0.1", port), timeout=10) as connection:
        connection.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        answer = b""
        while part := connection.recv(4096):
            answer += part
        return answer


@pytest.mark.parametrize("sent", [b"", b"GET / HTTP/1.1\r\nHost: local"])
def test_a_silent_connection_is_closed(port, sent):
    with socket.create_connection(("127.0.0.1", port), timeout=10) as silent:
        silent.sendall(sent)
        assert b"served" in ask(port)
        start = time.monotonic()
        assert silent.recv(100) == b""
        assert time.monotonic() - start < 5


def test_too_many_connections_are_told_so(port):
    held = [socket.create_connection(("127.0.0.1", port)) for _ in range(20)]
    assert b"503" in ask(port)
    for connection in held:
        connection.close()
    time.sleep(0.5)
    assert b"served" in ask(port)
