"""What the server refuses, and how; tried from outside, as an attacker would."""

from __future__ import annotations

import socket
from contextlib import contextmanager

import pytest
from explorer_client import JOIN, Client, event_number

from sharpmax.app import build, launch, request_guard
from sharpmax.app import page as page_module
from sharpmax.app.request_guard import MAX_BODY, MAX_DRAINED

SHARED_HOST = "127.0.0.2"
"""An address of this machine that is not one of the usual: its page counts as shared."""
SOFTMAX = ["uniform", 6, 8.0, 1.0, ["softmax"], "linear", "", "2, 1"]
RETRIEVAL = [6, 0, "constant", 2.0]


def free_port(host: str = "127.0.0.1") -> int:
    with socket.socket() as free:
        free.bind((host, 0))
        return free.getsockname()[1]


def test_the_page_is_served_by_its_names(page, client):
    port = page.server_port
    for host in ("127.0.0.1", "localhost", "[::1]"):
        answer = client.request("/", host=f"{host}:{port}", origin=f"http://{host}:{port}")
        assert answer.status == 200
        assert b"sharpmaxShow" in answer.body


@pytest.mark.parametrize("path", ["/", "/theme.css", "/gradio_api/queue/data?session_hash=a"])
@pytest.mark.parametrize("host", ["evil.example", "evil.example:7860", "10.0.0.1", "0.0.0.0"])
def test_other_hosts_are_refused(client, path, host):
    answer = client.request(path, host=host, origin=f"http://{host}")
    assert answer.status == 403
    assert "this host name is not served" in answer.detail
    assert "access-control-allow-origin" not in answer.headers


@pytest.mark.parametrize("origin", ["http://evil.example", "null", "http://localhost:1"])
def test_other_sites_are_refused(client, softmax, origin):
    body = client.event(softmax, SOFTMAX)
    for answer in (
        client.request("/", origin=origin),
        client.request(JOIN, "POST", body, origin=origin),
        client.request(JOIN, "OPTIONS", origin=origin, access_control_request_method="POST"),
    ):
        assert answer.status == 403
        assert answer.detail == "requests from other sites are refused"
        assert "access-control-allow-origin" not in answer.headers


def test_a_proxy_that_is_not_there_is_not_believed(client):
    headers = {"x_forwarded_host": "evil.example", "x_gradio_server": "http://evil.example"}
    answer = client.request("/", x_forwarded_proto="https", **headers)
    assert answer.status == 200
    assert b"evil.example" not in answer.body


@pytest.mark.parametrize(
    "path",
    [
        "/gradio_api/upload",
        "/gradio_api/upload_progress?upload_id=a",
        "/gradio_api/file=/etc/passwd",
        "/gradio_api/file/etc/passwd",
        "/gradio_api/proxy=http://127.0.0.1/",
        "/gradio_api/info",
        "/gradio_api/info?all_endpoints=true",
        "/gradio_api/openapi.json",
        "/gradio_api/run/0",
        "/gradio_api/run/predict",
        "/gradio_api/api/predict",
        "/gradio_api/call/predict",
        "/gradio_api/call/v2/predict",
        "/gradio_api/component_server",
        "/gradio_api/cancel",
        "/gradio_api/reset",
        "/gradio_api/stream/a",
        "/gradio_api/vibe-edit",
        "/gradio_api/vibe-code",
        "/gradio_api/process_recording",
        "/gradio_api/deep_link?session_hash=a",
        "/gradio_api/runs",
        "/gradio_api/queue/status",
        "/gradio_api/heartbeat/" + "a" * 33,
        "/gradio_api/heartbeat/a%2Fb",
        "/gradio_api/mcp/",
        "/config",
        "/monitoring",
        "/monitoring/summary",
        "/login",
        "/svelte/x",
        "/docs",
        "/openapi.json",
        "/assets/../../../../etc/passwd",
        "/assets/%2e%2e/%2e%2e/etc/passwd",
        "/static/..%2f..%2fetc/passwd",
        "//evil.example",
        "/%C3%A9",
    ],
)
def test_nothing_but_the_page_is_served(client, path):
    for method in ("GET", "POST", "PUT", "DELETE", "PATCH"):
        answer = client.request(path, method, b"{}" if method != "GET" else None)
        assert answer.status == 404
        assert answer.detail == "the explorer has no such page"


@pytest.mark.parametrize("query", ["", "?session_hash=..", "?session_hash=a&x=1", "?a=b"])
def test_only_a_session_can_be_listened_to(client, query):
    assert client.request(f"/gradio_api/queue/data{query}").status == 400


def test_a_page_with_a_query_is_the_page(client):
    answer = client.request("/?deep_link=../../etc&page=x&__theme=dark")
    assert answer.status == 200
    assert b"sharpmaxShow" in answer.body


def test_only_functions_of_controls_answer(page, client):
    controls = {
        number
        for number, function in page.fns.items()
        if all(component is not None for component, _ in function.targets)
    }
    assert len(controls) == len(page.fns) - 1  # the last is called when a user leaves
    for number in {*range(-2, 40), 2**40} - controls:
        answer = client.join(number, [])
        assert answer.status == 400
        assert "no such function" in answer.detail


def test_a_request_that_is_too_large_is_refused(client, softmax):
    for body in (b"x" * (MAX_BODY + 1), b"[" + b"0," * MAX_BODY + b"0]", b""):
        length = {} if body else {"content_length": str(10**15)}
        answer = client.request(JOIN, "POST", body, **length)
        assert answer.status == 413
        assert answer.detail.startswith("the request is larger than 1,000,000 bytes")


def test_a_large_request_of_unknown_length_is_refused(client):
    connection = client.connect()
    connection.putrequest("POST", JOIN)
    connection.putheader("Transfer-Encoding", "chunked")
    connection.endheaders()
    chunk = b"10000\r\n" + b"x" * 0x10000 + b"\r\n"
    try:
        for _ in range(2 * MAX_DRAINED // 0x10000):
            connection.send(chunk)
    except OSError:
        pass  # refused before all of it was sent
    answer = connection.getresponse()
    assert answer.status == 413
    connection.close()


def test_a_slow_request_is_refused(client, monkeypatch):
    monkeypatch.setattr(request_guard, "BODY_SECONDS", 0.3)
    connection = client.connect()
    connection.putrequest("POST", JOIN)
    connection.putheader("Content-Length", "100")
    connection.endheaders(b"{")
    assert connection.getresponse().status == 408
    connection.close()


@contextmanager
def serve_others(folder, **options):
    """Serve the page to others, by a name of its own."""
    page = build(folder, any_model=False)
    try:
        port = free_port(SHARED_HOST)
    except OSError:
        pytest.skip(f"this machine has no address {SHARED_HOST}")
    names = ["demo.example"]
    page.address = launch(page, host=SHARED_HOST, names=names, port=port, wait=False, **options)
    yield page
    page.close(verbose=False)


def test_a_shared_page_is_served_by_its_own_name(folder):
    with serve_others(folder) as page:
        client = Client(page.address)
        for host in ("demo.example", "demo.example:443", SHARED_HOST):
            assert client.request("/", host=host, origin=f"https://{host}").status == 200
        assert client.request("/", host="evil.example").status == 403
        assert client.request("/", host="demo.example", x_forwarded_host="evil").status == 200
        assert client.request("/gradio_api/upload", "POST", b"").status == 404
        body = client.request("/", host="demo.example", x_forwarded_proto="https").body
        assert b"https://demo.example" in body
        assert b"http://demo.example" not in body


def join_often(page, times: int, **headers: str) -> list[int]:
    """Return how a user's events are answered, each in a session of its own."""
    body = Client(page.address).event(event_number(page, "Trained head"), RETRIEVAL)
    client = Client(page.address)
    return [client.request(JOIN, "POST", body, **headers).status for _ in range(times)]


def test_each_user_of_a_shared_page_is_limited(folder, monkeypatch):
    monkeypatch.setattr(page_module, "USER_LIMIT", (5, 0.001))
    with serve_others(folder) as page:
        assert join_often(page, 7) == [200] * 5 + [429] * 2
        assert join_often(page, 2, x_forwarded_for="9.9.9.9") == [429] * 2  # no proxy is there
        refused = Client(page.address).join(event_number(page, "Trained head"), RETRIEVAL)
        assert refused.detail == "too many requests: wait a few seconds and try again"
        assert Client(page.address).request("/").status == 200


def test_each_user_of_a_proxy_is_limited(folder, monkeypatch):
    monkeypatch.setattr(page_module, "USER_LIMIT", (5, 0.001))
    monkeypatch.setattr(page_module, "TOTAL_LIMIT", (12, 0.001))
    with serve_others(folder, behind_proxy=True) as page:
        # The last address is what the proxy has seen; those before it may be invented.
        for invented, status in (("6.6.6.6", 200), ("7.7.7.7", 429)):
            forwarded = f"{invented}, 9.9.9.9"
            assert join_often(page, 5, x_forwarded_for=forwarded) == [status] * 5
        assert join_often(page, 6, x_forwarded_for="8.8.8.8") == [200] * 5 + [429]
        assert join_often(page, 3, x_forwarded_for="1.1.1.1") == [200] * 2 + [429]  # all together


def test_a_job_on_a_shared_page_has_a_limit(folder, monkeypatch):
    monkeypatch.setattr(page_module, "SHARED_JOB_SECONDS", 0.0)
    with serve_others(folder) as page:
        scan = event_number(page, "Scan", "click")
        (view,) = Client(page.address).run(scan, [folder, "max", "", "4, 8", "nothing"])
        assert "longer than 0 seconds, the limit of a shared page" in view["html"]
        (view,) = Client(page.address).run(scan, ["smollm2", "max", "", "4, 8", "nothing"])
        assert "is not offered here" in view["html"]
