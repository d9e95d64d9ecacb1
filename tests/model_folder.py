"""A model in a folder, small enough for a test."""

from __future__ import annotations

from pathlib import Path

from hf.small import llama, tokenizer

NAME = "<script>window.hacked=1<b>"
"""Of the folder: what a page must show and not run."""


def make_folder(parent: Path) -> str:
    folder = parent / NAME
    llama().save_pretrained(folder)
    tokenizer().save_pretrained(folder)
    return str(folder)
