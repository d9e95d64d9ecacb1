"""Compare `tune` with everything else one could do, on the same questions."""
