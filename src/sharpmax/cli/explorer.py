"""`sharpmax app`: the interactive page, served on this machine."""

from __future__ import annotations

import socket
from threading import Event
from typing import Annotated

import typer

from sharpmax._errors import UserError

LOCAL = ("127.0.0.1", "localhost", "::1")


def app(
    model: Annotated[
        str,
        typer.Option(
            help="The model that the third tab begins with: smollm2, a folder, or a name on the "
            "Hugging Face hub."
        ),
    ] = "smollm2",
    host: Annotated[
        str,
        typer.Option(
            help="The address to listen at. At any but this machine's own, no other model than "
            "--model can be loaded."
        ),
    ] = LOCAL[0],
    port: Annotated[
        int | None,
        typer.Option(
            help="Default: the first that is free from 7860 on.",
            min=1,
            max=65535,
            show_default=False,
        ),
    ] = None,
    browser: Annotated[
        bool, typer.Option("--open/--no-browser", help="Open the page in the browser.")
    ] = False,
) -> None:
    """Explore in the browser: what softmax does as inputs grow, the paper's trained heads, and a
    model of yours, plain and sharpened. Nothing leaves this machine. Ctrl-C ends it.
    """
    _check(host, port)
    # Imported late: `sharpmax --help` should not wait for a framework.
    from sharpmax.app import build, launch

    page = build(model, any_model=host in LOCAL)
    try:
        address = launch(page, host=host, port=port, open_browser=browser, wait=False)
    except OSError as error:  # gradio's own words are about its own environment variables
        raise _unavailable(host, port) from error
    typer.echo(f"sharpmax is at {address} (Ctrl-C ends it)")
    try:
        Event().wait()
    finally:
        page.close()


def _check(host: str, port: int | None) -> None:
    """Refuse an address that is not to be had before the frameworks are waited for."""
    try:
        with socket.create_server((host, port or 0), family=_family(host)):
            pass
    except OSError as error:
        raise _unavailable(host, port) from error


def _family(host: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in host else socket.AF_INET


def _unavailable(host: str, port: int | None) -> UserError:
    where = host if port is None else f"{host}, port {port}"
    return UserError(f"cannot listen at {where}: give another --host or --port")
