"""Entry point of a Hugging Face Space, which runs `app.py`; everywhere else use `sharpmax app`."""

import os

from sharpmax.app import build, launch

if __name__ == "__main__":
    # Anybody can reach a Space, so no other model can be loaded there.
    page = build("smollm2", any_model=False)
    name = os.environ.get("SPACE_HOST", "")  # set by the Space
    launch(page, host="0.0.0.0", names=[name] if name else [], behind_proxy=True, port=7860)
