"""What the server refuses, and how; tried from outside, as an attacker would."""

from __future__ import annotations

import http.client
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from importlib import import_module

import pytest
from explorer_client import JOIN, Client, event_number

from model_folder import make_folder
from sharpmax.app import build, launch, request_guard
from sharpmax.app import page as page_module
from sharpmax.app.request_guard import MAX_BODY, MAX_DRAINED
from sharpmax.normalisers import NORMALISERS

SHARED_HOST = "127.0.0.2"
"""An address of this machine that is not one of the usual: its page counts as shared."""
SOFTMAX = ["uniform", 6, 8.0, 1.0, ["softmax"], "linear", "", "2, 1"]
RETRIEVAL = [6, 0, "constant", 2.0]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return make_folder(tmp_path_factory.mktemp("models"))


def free_port(host: str = "127.0.0.1") -> int:
    with socket.socket() as free:
        free.bind((host, 0))
        return free.getsockname()[1]


@pytest.fixture(scope="module")
def page(folder):
    """Serve the page to this machine."""
    page = build(folder)
    page.address = launch(page, port=free_port(), wait=False)
    yield page
    page.close(verbose=False)


@pytest.fixture
def client(page):
    return Client(page.address)


@pytest.fixture(scope="module")
def softmax(page):
    return event_number(page, "Spread: largest minus smallest logit")


@pytest.fixture(scope="module")
def retrieval(page):
    return event_number(page, "Trained head")


@pytest.fixture(scope="module")
def scan(page):
    return event_number(page, "Scan", "click")


@pytest.fixture(scope="module")
def sharpen(page):
    return event_number(page, "Write both", "click")


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


WRONG = [
    None,
    True,
    -1,
    0.5,
    1e308,
    10**400,
    "",
    "x",
    "nan",
    "<script>",
    [],
    ["x"],
    99,
    "1" * 3_000,
]


def wrong_events(good, unused=()):
    for position in range(len(good)):
        if position not in unused:
            for value in WRONG:
                yield [*good[:position], value, *good[position + 1 :]]


def assert_explained(client, number, values) -> None:
    """Check that the page shows either a result, or one sentence that is not about our code."""
    (view,) = client.run(number, values)
    assert "Unexpected error" not in view["html"], values
    assert "<script>" not in view["html"], values


def test_any_value_is_drawn_or_explained(client, softmax, retrieval, capfd, caplog):
    for values in wrong_events(SOFTMAX):
        assert_explained(client, softmax, values)
    for values in wrong_events(RETRIEVAL):
        assert_explained(client, retrieval, values)
    assert "Traceback" not in capfd.readouterr().err + caplog.text


def test_any_typed_logits_are_drawn_or_explained(client, softmax):
    for text in ("1e6,-1e6 " * 8_192, "1e308,-1e308", "5e-324 " * 9, "0", "-0.0 0", "9" * 9_000):
        for scale in ("linear", "log"):
            values = ["typed", 6, 8.0, 0.05, list(NORMALISERS), scale, "", text]
            assert_explained(client, softmax, values)


def test_any_request_of_the_model_is_answered_or_explained(
    client, folder, scan, sharpen, capfd, caplog, monkeypatch
):
    monkeypatch.setattr("sharpmax.app.model.model_cache.REFUSAL_SECONDS", 0.0)
    for values in wrong_events([folder, "max", "", "4"]):
        assert_explained(client, scan, values)
    for values in wrong_events([folder, "Hi", "constant", 2.0, "", "", 1, False]):
        assert_explained(client, sharpen, values)
    assert "Traceback" not in capfd.readouterr().err + caplog.text


@pytest.mark.parametrize(
    ("lengths", "message"),
    [
        ("1-16383", "are more than 32 numbers"),
        ("1-9999999999", "1-9999999999"),
        ("1-90000 " * 200, "more than 32 numbers"),
        ("8, 16385", "16,385 is too large: give numbers up to 16,384"),
        ("1 " * 2_000, "has 4,000 characters"),
    ],
)
def test_a_scan_of_too_many_lengths_is_refused_at_once(client, folder, scan, lengths, message):
    start = time.monotonic()
    (view,) = client.run(scan, [folder, "max", "", lengths])
    assert message in view["html"]
    assert time.monotonic() - start < 5


@pytest.mark.slow
def test_thousands_of_parallel_requests_do_not_stop_the_page(page, softmax):
    """Each is answered or told that the page is busy, and afterwards all is as before."""

    def ask(number: int) -> int:
        client = Client(page.address, session=f"parallel{number}")
        try:
            return client.join(softmax, SOFTMAX).status
        except (OSError, http.client.HTTPException):
            return 503  # beyond the number of connections

    with ThreadPoolExecutor(50) as pool:
        seen = set(pool.map(ask, range(2_000)))
    assert seen <= {200, 503}
    assert len(page._queue) <= page_module.MAX_EVENTS
    client = Client(page.address)
    deadline = time.monotonic() + 60
    while client.join(softmax, SOFTMAX).status != 200:
        assert time.monotonic() < deadline
        time.sleep(0.5)
    assert "items whose logits" in client.read()[-1]["output"]["data"][0]["html"]


def test_others_are_served_while_many_connections_are_silent(page, softmax):
    silent = [socket.create_connection(("127.0.0.1", page.server_port)) for _ in range(200)]
    try:
        assert "items" in Client(page.address).run(softmax, SOFTMAX)[0]["html"]
    finally:
        for connection in silent:
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


def test_a_second_user_is_served_while_inputs_are_made(page, folder, scan, softmax, monkeypatch):
    """One scan at its limits, and another user's chart beside it; Stop ends the scan at once."""
    entered, stopped = threading.Event(), event_number(page, "Stop", "click")

    def make_slowly(numbers):
        entered.set()
        time.sleep(0.3)
        return "1"

    prompts = import_module("sharpmax.hf.scan.prompts")  # `sharpmax.hf.scan` is the function too
    monkeypatch.setattr(prompts, "maximum_question", make_slowly)
    first, second = Client(page.address), Client(page.address)
    first.join(scan, [folder, "max", "", "1-32"])
    assert entered.wait(30)
    start = time.monotonic()
    assert "items" in second.run(softmax, SOFTMAX)[0]["html"]
    assert time.monotonic() - start < 5
    first.join(stopped, [])
    endings = [
        message["output"]["data"][0]["html"]
        for message in first.read()
        if message["output"].get("data")
    ]
    assert any("Stopped." in ending for ending in endings)
    assert time.monotonic() - start < 6  # all 32 inputs would take ten seconds
