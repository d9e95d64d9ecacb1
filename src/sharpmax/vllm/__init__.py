"""Calibrations inside vLLM: a plugin that vLLM loads by itself.

    SHARPMAX_CALIBRATION=tuned.json vllm serve MODEL

The model is not changed. `sharpmax.vllm.plugin` decides whether the calibration can be applied,
`sharpmax.vllm.backends` takes the place of vLLM's attention backends, and `sharpmax.vllm.queries`
scales the queries. Importing this module imports neither vLLM nor torch.
"""

from __future__ import annotations

import os
import sys

from sharpmax._errors import UserError

VARIABLE = "SHARPMAX_CALIBRATION"
"""The environment variable that holds the path of the calibration."""

USER_ERROR = 2
"""The exit code for a mistake of the user, as at sharpmax's own command line."""


def register() -> None:
    """Apply the calibration that SHARPMAX_CALIBRATION names; do nothing if it is not set.

    vLLM calls this in each of its processes, through the entry point `vllm.general_plugins`.

    Raises:
        SystemExit: The calibration cannot be applied. The reason is one line on standard error.
    """
    path = os.environ.get(VARIABLE)
    if not path:
        return
    from sharpmax.vllm.plugin import install

    try:
        install(path)
    except UserError as error:
        stop(error)


def stop(error: UserError) -> None:
    """End the process with one line.

    Args:
        error: The reason.

    Raises:
        SystemExit: Always. vLLM would log any other exception as a traceback of many lines.
    """
    print(f"sharpmax: {' '.join(str(error).split())}", file=sys.stderr, flush=True)
    raise SystemExit(USER_ERROR) from error


__all__ = ["register"]
