"""Small language models trained with different normalisers, and tested far beyond training."""
