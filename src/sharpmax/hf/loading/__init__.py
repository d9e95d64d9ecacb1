"""Load models: from a folder, a GGUF file, the hub or a PyPI package."""
