"""Renderers of the blocks in which results are described.

`html` writes reports, `matplotlib` pictures, `terminal` tables for the console, `markdown` tables
for the docs. None of them knows a kind of result.
"""
