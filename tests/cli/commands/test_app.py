"""`sharpmax app`: serve the explorer until Ctrl-C, and explain what is missing or in use."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import urllib.request
from importlib import import_module
from pathlib import Path

import pytest

from test_imports import BLOCK
from test_imports import run as run_python

command = import_module("sharpmax.cli.commands.app")


class Page:
    """Stands for the page of gradio."""

    closed = False

    def close(self):
        self.closed = True


@pytest.fixture
def page(monkeypatch):
    """Serve nothing, and press Ctrl-C at once; records how the page was built and launched."""
    page = Page()

    def build(model, *, any_model, calibrations):
        page.built = model, any_model
        page.calibrations = calibrations
        return page

    def launch(page, *, host, names, behind_proxy, port, open_browser, wait):
        page.launched = host, port, open_browser, wait
        page.names, page.behind_proxy = names, behind_proxy
        return f"http://{host}:{port}/"

    class Interrupted:
        def wait(self):
            raise KeyboardInterrupt

    monkeypatch.setattr("sharpmax.app.build", build)
    monkeypatch.setattr("sharpmax.app.launch", launch)
    monkeypatch.setattr(command, "Event", Interrupted)
    return page


@pytest.fixture
def free_port():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


def test_the_address_is_printed_and_ctrl_c_closes_the_page(page, free_port, run):
    finished = run("app", "--port", free_port, "--model", "tiny", "--open")
    assert (finished.code, finished.err) == (130, "sharpmax: stopped\n")
    assert f"http://127.0.0.1:{free_port}/" in finished.out
    assert page.closed
    assert page.built == ("tiny", True)
    assert page.launched == ("127.0.0.1", free_port, True, False)


def test_calibrations_are_offered_by_the_name_of_their_file(page, run, fail):
    file = Path(__file__).parents[3] / "results" / "calibration-answers.json"
    run("app", "--calibration", file)
    assert list(page.calibrations) == ["calibration-answers.json"]
    assert len(page.calibrations["calibration-answers.json"].heads) == 16
    assert "none.json does not exist" in fail("app", "--calibration", "none.json")


def test_other_machines_cannot_load_models(page, run):
    run("app", "--host", "0.0.0.0")
    assert page.built == ("smollm2", False)
    assert page.launched == ("0.0.0.0", None, False, False)
    assert page.names == ()
    assert not page.behind_proxy


def test_names_of_the_page(page, run):
    run("app", "--host", "0.0.0.0", "--name", "lab.example", "--name", "box", "--behind-proxy")
    assert page.behind_proxy
    assert list(page.names) == ["lab.example", "box"]


def test_a_port_in_use(fail):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert f"cannot listen at 127.0.0.1, port {port}: give another" in fail(
            "app", "--port", port
        )


def test_a_missing_extra_is_one_line():
    statement = "import sys; from sharpmax.cli import main; sys.exit(main(['app']))"
    done = run_python(BLOCK.format(blocked=("gradio",), statement=statement))
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert "the explorer needs gradio" in done.stderr
    assert "pip install 'sharpmax[app]'" in done.stderr


@pytest.mark.slow
def test_a_real_server_runs_until_ctrl_c(free_port):
    port = str(free_port)
    words = [sys.executable, "-m", "sharpmax", "app", "--port", port]
    # A proxy of the machine must not be asked for its own addresses.
    environment = os.environ | {"NO_PROXY": "127.0.0.1", "no_proxy": "127.0.0.1"}
    with subprocess.Popen(
        words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    ) as server:
        try:
            line = server.stdout.readline()
            assert f"http://127.0.0.1:{port}/" in line, server.stderr.read()
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/") as answer:
                assert b"sharpmaxShow" in answer.read()
            second = subprocess.run(
                words, capture_output=True, text=True, env=environment, check=False
            )
            assert second.returncode == 2
            assert f"cannot listen at 127.0.0.1, port {port}" in second.stderr
            assert second.stderr.count("\n") == 1
        finally:
            server.send_signal(signal.SIGINT)
            _, errors = server.communicate(timeout=300)
    assert server.returncode == 130
    assert errors == "sharpmax: stopped\n"
