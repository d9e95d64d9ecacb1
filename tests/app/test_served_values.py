"""Any value that reaches the server is drawn or explained in a sentence, and others are served."""

from __future__ import annotations

import http.client
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module

import pytest
from explorer_client import Client, event_number

from sharpmax.app import page as page_module
from sharpmax.normalisers import NORMALISERS

SOFTMAX = ["uniform", "64", 8.0, 1.0, ["softmax"], "linear", "", "2, 1"]
RETRIEVAL = ["64", 0, "constant", 2.0]
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
            values = ["typed", "64", 8.0, 0.05, list(NORMALISERS), scale, "", text]
            assert_explained(client, softmax, values)


def test_any_request_of_the_model_is_answered_or_explained(
    client, folder, scan, sharpen, capfd, caplog, monkeypatch
):
    monkeypatch.setattr("sharpmax.app.model.model_cache.REFUSAL_SECONDS", 0.0)
    for values in wrong_events([folder, "max", "", "4", "nothing"]):
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
    (view,) = client.run(scan, [folder, "max", "", lengths, "nothing"])
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


def test_a_second_user_is_served_while_inputs_are_made(page, folder, scan, softmax, monkeypatch):
    """One scan at its limits, and another user's chart beside it; Stop ends the scan at once."""
    entered, stopped = threading.Event(), event_number(page, "Stop", "click", -1)

    def make_slowly(numbers):
        entered.set()
        time.sleep(0.3)
        return "1"

    prompts = import_module("sharpmax.hf.scan.prompts")  # `sharpmax.hf.scan` is the function too
    monkeypatch.setattr(prompts, "maximum_question", make_slowly)
    first, second = Client(page.address), Client(page.address)
    first.join(scan, [folder, "max", "", "1-32", "nothing"])
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
