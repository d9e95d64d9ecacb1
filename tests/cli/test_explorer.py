"""`sharpmax app`: serves the page until it is ended, and says what is missing or taken."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import urllib.request

from test_imports import BLOCK, run


def test_a_missing_extra_is_one_line():
    statement = "import sys; from sharpmax.cli import main; sys.exit(main(['app']))"
    done = run(BLOCK.format(blocked=("gradio",), statement=statement))
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert "the interactive page needs gradio" in done.stderr
    assert "pip install 'sharpmax[app]'" in done.stderr


def test_it_serves_until_it_is_ended():
    """And a second one at the same port is told so."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    command = [sys.executable, "-m", "sharpmax", "app", "--port", port]
    # A proxy of the machine, if any, is not for what stays on it.
    environment = os.environ | {"NO_PROXY": "127.0.0.1", "no_proxy": "127.0.0.1"}
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    ) as served:
        try:
            line = served.stdout.readline()
            assert f"http://127.0.0.1:{port}/" in line, served.stderr.read()
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/") as answer:
                assert b"sharpmaxShow" in answer.read()
            second = subprocess.run(
                command, capture_output=True, text=True, env=environment, check=False
            )
            assert second.returncode == 2
            assert f"cannot listen at 127.0.0.1, port {port}" in second.stderr
            assert second.stderr.count("\n") == 1
        finally:
            served.send_signal(signal.SIGINT)
            _, complaints = served.communicate(timeout=300)
    assert served.returncode == 130
    assert complaints == "sharpmax: stopped\n"
