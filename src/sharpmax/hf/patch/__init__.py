"""Replace a model's attention: the attention function, masks, registration and context managers."""
