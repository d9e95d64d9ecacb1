"""A tokenizer of parts of words, trained in a moment, and a model that reads them."""

from __future__ import annotations

from functools import cache

from tokenizers import ByteLevelBPETokenizer
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from hf.small import llama

TEXT = (
    "One of the special magic numbers for is mentioned in the provided text. The grass is green. "
    "The sky is blue. The sun is yellow. Here we go. There and back again. VAR Question: Answer: "
    "Find all variables that are assigned the value, they are the most common words in the list. "
    "Memorize and track the chain(s) of variable assignment hidden in the following text above. "
) * 3
VOCABULARY = 420


@cache
def word_tokenizer() -> PreTrainedTokenizerFast:
    """Return a byte-level tokenizer, so that any text is read and written without loss."""
    backend = ByteLevelBPETokenizer()
    backend.train_from_iterator([TEXT], vocab_size=VOCABULARY, show_progress=False)
    return PreTrainedTokenizerFast(tokenizer_object=backend._tokenizer)


def reader(context: int = 4096, **options: object) -> PreTrainedModel:
    """Return a small model with room for all these tokens."""
    model = llama(context=context, **options)
    model.resize_token_embeddings(VOCABULARY)
    return model
