"""Bound how sharp each head of a model can ever be, from its weights alone."""
