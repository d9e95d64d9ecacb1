"""Bound the spread of each head's logits from the weights alone."""
