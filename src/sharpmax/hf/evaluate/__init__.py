"""Ask a model questions with known answers, plain and sharpened, and compare the answers."""
