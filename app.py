"""Entry point of a Hugging Face Space, which runs `app.py`; everywhere else use `sharpmax app`."""

from sharpmax.app import build, launch

if __name__ == "__main__":
    # Anybody can reach a Space, so no other model can be loaded there.
    launch(build("smollm2", any_model=False), host="0.0.0.0", port=7860)
