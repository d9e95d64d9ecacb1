"""The second tab: a trained head of the paper on sets far larger than in training."""
