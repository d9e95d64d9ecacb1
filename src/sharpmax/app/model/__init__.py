"""The third tab: scan a language model, and compare its text with and without sharpening."""
