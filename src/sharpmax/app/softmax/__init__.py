"""The first tab: what normalisers do with one row of logits, and what theory allows."""
