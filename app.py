"""The interactive page as a Hugging Face Space: see docs/app.md."""

from sharpmax.app import build, launch

if __name__ == "__main__":
    # Strangers look at a Space: no model but this one can be loaded there.
    launch(build("smollm2", any_model=False), host="0.0.0.0", port=7860)
