"""The interactive page: move n, the temperature, a policy, and see what attention does.

Everything is computed and drawn on this machine; the page asks no other for anything.
"""

from __future__ import annotations

import os
from importlib.util import find_spec

from sharpmax._errors import MissingExtraError

# Read by gradio when it is imported: else it would report each start and ask for newer versions.
os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"

for _package in ("gradio", "jinja2", "torch", "transformers", "jax"):
    if find_spec(_package) is None:
        raise MissingExtraError(_package, "app", "the interactive page")

from sharpmax.app.page import HOST, build, launch  # noqa: E402 - gradio must not come before

__all__ = ["HOST", "build", "launch"]
