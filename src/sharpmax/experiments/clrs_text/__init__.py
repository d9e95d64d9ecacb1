"""CLRS-Text: a language model learns thirty algorithms as text and is tested at larger sizes.

`algorithms` is the protocol, `generate` writes the official data, `data` reads it, `train`
fine-tunes a decoder, `arms` says what is compared, `evaluate` measures it.
"""
