"""The interactive page: move n, the temperature, a policy, and see what attention does.

Everything is computed and drawn on this machine; the page asks no other for anything.
"""

from __future__ import annotations

import os

from sharpmax._errors import MissingExtraError

# Read by gradio when it is imported: else it would report each start and ask for newer versions.
os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"

try:
    import gradio as _gradio  # noqa: F401
    import jax as _jax  # noqa: F401
    import jinja2 as _jinja2  # noqa: F401
    import transformers as _transformers  # noqa: F401
except ModuleNotFoundError as error:
    missing = (error.name or "gradio").partition(".")[0]
    raise MissingExtraError(missing, "app", "the interactive page") from error

from sharpmax.app.page import build, launch  # after gradio was told

__all__ = ["build", "launch"]
