"""Names that are ours are served, with any port; no other is, however it is written."""

from __future__ import annotations

import socket

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sharpmax.app.hosts import LOCAL_HOSTS, AllowedHosts, host_name

LOCAL = AllowedHosts.of_server("127.0.0.1")
SHARED = AllowedHosts.of_server("0.0.0.0", ["Demo.hf.space"])


@given(port=st.integers(0, 65535))
def test_this_machine_by_any_port(port):
    for host in ("127.0.0.1", "localhost", "LOCALHOST", "[::1]"):
        for header in (host, f"{host}:{port}"):
            assert LOCAL.allows_host(header)
            assert LOCAL.allows_origin(f"http://{header.lower()}", header)


@pytest.mark.parametrize(
    "header",
    [
        "",
        "evil.example",
        "evil.example:7860",
        "127.0.0.1.evil.example",
        "localhost.evil.example",
        "evil.example#localhost",
        "localhost@evil.example",
        "localhost:7860@evil.example",
        "localhost, evil.example",
        "localhost\tevil",
        "localhost/",
        "127.0.0.1:port",
        "[::1",
        "::1",
        "10.0.0.1",
        "127.1",
        "0.0.0.0",
        "2130706433",
    ],
)
def test_other_names_are_refused(header):
    assert not LOCAL.allows_host(header)


@given(st.text(max_size=40))
def test_only_listed_names_are_served(header):
    assert LOCAL.allows_host(header) == (host_name(header) in LOCAL_HOSTS)


def test_a_shared_page_by_its_names_and_by_any_address():
    for host in ("demo.hf.space", "DEMO.hf.space:443", "192.168.0.7", "[fe80::1]:7860"):
        assert SHARED.allows_host(host)
    assert SHARED.allows_host(socket.gethostname())
    assert not SHARED.allows_host("other.hf.space")
    # One that listens at one address has no reason to answer to others.
    assert not AllowedHosts.of_server("192.168.0.7").allows_host("192.168.0.8")


@pytest.mark.parametrize(
    "origin",
    [
        "null",
        "",
        "http://evil.example",
        "http://localhost:7861",
        "http://127.0.0.1:7860",
        "https://localhost:7860.evil.example",
        "file://localhost:7860",
        "http://[",
    ],
)
def test_pages_of_other_origins_are_refused(origin):
    assert not LOCAL.allows_origin(origin, "localhost:7860")
