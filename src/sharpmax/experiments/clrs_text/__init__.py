"""CLRS-Text: fine-tune a language model on thirty algorithms as text, and test it at larger sizes.

Figure 8 of arXiv 2410.01104, in the order of the work:

algorithms, generate, data          the protocol, writing the official data, reading it
tokenization, batches               samples as tokens, the samples of each step
config, model, optimisers           the settings, the decoder and how it is trained
train, checkpoint                   one training, resumable
conditions, evaluate_model          what is compared, and testing one trained model
evaluate                            all models and conditions: run(config) -> Result
"""
