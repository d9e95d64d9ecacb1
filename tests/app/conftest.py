"""The explorer's page, served to the tests of its server."""

from __future__ import annotations

import socket

import pytest
from explorer_client import Client, event_number

from model_folder import make_folder
from sharpmax.app import build, launch


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
