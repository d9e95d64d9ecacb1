"""The explorer: an interactive page on softmax, the paper's trained heads, and your own model.

Everything is computed and drawn on this machine, and the page requests nothing from others.
"""

from __future__ import annotations

import os

from sharpmax._errors import MissingExtraError

# Read when gradio is imported. Otherwise it reports each start and checks for newer versions.
os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"
# Otherwise it makes a table of all earlier events after each one, for a page that is switched off.
os.environ["GRADIO_ANALYTICS_CACHE_FREQUENCY"] = str(2**62)
os.environ["GRADIO_ANALYTICS_MAX_EVENTS"] = "100"

try:
    import gradio as _gradio  # noqa: F401
    import jax as _jax  # noqa: F401
    import jinja2 as _jinja2  # noqa: F401
    import transformers as _transformers  # noqa: F401
except ModuleNotFoundError as error:
    missing = (error.name or "gradio").partition(".")[0]
    raise MissingExtraError(missing, "app", "the explorer") from error

from sharpmax.app.page import build, launch  # after the setting for gradio

__all__ = ["build", "launch"]
