"""Small models of every supported family, with random weights that make attention matter."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import torch
import transformers
from torch import Tensor
from transformers import PreTrainedModel

VOCABULARY, HIDDEN, HEADS, KV_HEADS, WIDTH = 61, 32, 4, 2, 48
BATCH, TOKENS, ANSWER, MELS, PADDING = 2, 11, 7, 8, 4
WINDOW = 5

FACTOR = 64
"""Two to three layers, each of which adds up 8 to 48 products in another order, differ by up to 11
rounding errors of the largest logit."""

DECODER = {
    "vocab_size": VOCABULARY,
    "hidden_size": HIDDEN,
    "intermediate_size": WIDTH,
    "num_hidden_layers": 2,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KV_HEADS,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": None,
    "tie_word_embeddings": False,
}
SLIDING, FULL = "sliding_attention", "full_attention"


@dataclass(frozen=True)
class Family:
    """A family of models: how to make a small one, and an input for it."""

    model_type: str
    model: str
    """The name of its class in transformers."""
    config: str
    options: dict[str, Any]
    kind: str = "decoder"
    """"decoder", "encoder", "image", or "encoder-decoder"."""
    inputs: str = "tokens"
    """"tokens", "pixels" or "sound"."""
    dtype: torch.dtype = torch.float32
    """float64 where nothing in the model is computed in float32 regardless."""
    deviation: float = 0.25
    """The standard deviation of its weights. With transformers' 0.02 all rows are nearly flat."""
    prepare: Callable[[PreTrainedModel], None] | None = field(default=None, repr=False)

    def make(self, implementation: str = "eager") -> PreTrainedModel:
        """Return a new model in evaluation mode, with the same weights every time."""
        torch.manual_seed(0)
        config = getattr(transformers, self.config)(**self.options)
        model = getattr(transformers, self.model)._from_config(
            config, attn_implementation=implementation
        )
        assert config.model_type == self.model_type
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.ndim > 1:
                    parameter.normal_(std=self.deviation)
                else:  # norms and biases begin at one and zero, where a lost one is not missed
                    parameter.add_(0.1 * torch.randn_like(parameter))
            if self.prepare is not None:
                self.prepare(model)
        return model.to(self.dtype).eval()

    @property
    def generates(self) -> bool:
        return self.kind in ("decoder", "encoder-decoder")

    @property
    def pads(self) -> bool:
        return self.kind != "image"

    def example(self, padded: str | None = None) -> dict[str, Tensor]:
        """Return an input of two sequences; the second may be padded on the "left" or "right"."""
        generator = torch.Generator().manual_seed(1)
        if self.inputs == "pixels":
            pixels = torch.randn(BATCH, 3, 16, 16, generator=generator)
            return {"pixel_values": pixels.to(self.dtype)}
        ids = torch.randint(3, VOCABULARY, (BATCH, TOKENS), generator=generator)
        inputs = {"input_ids": ids, "attention_mask": _mask(ids, padded)}
        if self.inputs == "sound":
            sound = torch.randn(BATCH, MELS, 2 * TOKENS, generator=generator)
            inputs = {"input_features": sound.to(self.dtype)}
        if self.options.get("add_cross_attention"):
            inputs["encoder_hidden_states"] = torch.randn(
                BATCH, ANSWER, HIDDEN, generator=generator, dtype=self.dtype
            )
            inputs["encoder_attention_mask"] = _mask(ids[:, :ANSWER].clone(), padded)
        if self.kind == "encoder-decoder":
            answer = ids.flip(0, 1)[:, :ANSWER].contiguous()
            inputs["decoder_input_ids"] = answer
            inputs["decoder_attention_mask"] = _mask(answer, padded)
        return inputs

    def prompt(self, padded: str | None = None) -> dict[str, Tensor]:
        """Return an input for `generate`."""
        inputs = self.example(padded)
        return {name: value for name, value in inputs.items() if not name.startswith("decoder")}


def _mask(ids: Tensor, padded: str | None) -> Tensor:
    """Return the mask of padding, and replace the hidden tokens too."""
    mask = torch.ones_like(ids)
    if padded is not None:
        hidden = slice(None, PADDING) if padded == "left" else slice(-PADDING, None)
        ids[1, hidden], mask[1, hidden] = 0, 0
    return mask


def is_real(inputs: dict[str, Tensor]) -> Tensor | slice:
    """Return the positions of the answer that are not padding."""
    mask = inputs.get("decoder_attention_mask", inputs.get("attention_mask"))
    return slice(None) if mask is None else mask.bool()


def run(model: PreTrainedModel, inputs: dict[str, Tensor], **options: Any) -> Tensor:
    """Return the model's answer, without padding if there is one answer per token."""
    with torch.no_grad():
        answer = model(**inputs, **options)[0]
    real = is_real(inputs)
    is_by_token = isinstance(real, slice) or answer.shape[:2] == real.shape
    return answer[real] if is_by_token else answer


def tolerance(expected: Tensor, factor: float = FACTOR) -> float:
    return factor * torch.finfo(expected.dtype).eps * float(expected.abs().max())


def difference(found: Tensor, expected: Tensor) -> float:
    assert found.shape == expected.shape
    return float((found - expected).abs().max())


def assert_close(found: Tensor, expected: Tensor, factor: float = FACTOR) -> None:
    assert found.dtype == expected.dtype
    assert difference(found, expected) <= tolerance(expected, factor)


def assert_far(found: Tensor, expected: Tensor) -> None:
    """Assert that they differ by more than rounding explains."""
    assert difference(found, expected) > 100 * tolerance(expected)


def _set_sinks(model: PreTrainedModel) -> None:
    for name, parameter in model.named_parameters():
        if name.endswith("sinks"):
            parameter.copy_(torch.linspace(-0.5, 2.5, parameter.numel()))


def decoder(
    model_type: str, name: str, config: str = "", layers: int = 2, **options: Any
) -> Family:
    """Return a causal language model whose config has the same options as that of Llama."""
    prepare = options.pop("prepare", None)
    options = {**DECODER, "num_hidden_layers": layers, **options}
    config = config or f"{name}Config"
    return Family(model_type, f"{name}ForCausalLM", config, options, prepare=prepare)


def pick(options: dict[str, Any], *names: str) -> dict[str, Any]:
    return {name: options[name] for name in names}


_IDS = pick(DECODER, "vocab_size", "pad_token_id", "bos_token_id", "eos_token_id")
_ENCODER = pick(
    DECODER, "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads"
)
_NO_DROPOUT = {"attention_probs_dropout_prob": 0.0, "hidden_dropout_prob": 0.0}

FAMILIES: dict[str, Family] = {
    "Llama": decoder("llama", "Llama"),
    "Gemma": decoder("gemma", "Gemma", head_dim=8),
    "Gemma 2": decoder("gemma2", "Gemma2", head_dim=8, query_pre_attn_scalar=8, attn_logit_softcapping=1.0, sliding_window=WINDOW, layer_types=[SLIDING, FULL]),
    "Gemma 3": decoder("gemma3_text", "Gemma3", config="Gemma3TextConfig", head_dim=8, query_pre_attn_scalar=8, sliding_window=WINDOW, layer_types=[SLIDING, FULL, SLIDING], layers=3),
    "Qwen 2": decoder("qwen2", "Qwen2"),
    "Qwen 3": decoder("qwen3", "Qwen3", head_dim=8),
    "Mistral": decoder("mistral", "Mistral", head_dim=8, sliding_window=WINDOW),
    "Phi-3": decoder("phi3", "Phi3"),
    "OLMo 2": decoder("olmo2", "Olmo2"),
    "GPT-2": Family("gpt2", "GPT2LMHeadModel", "GPT2Config", {**_IDS, "n_embd": HIDDEN, "n_head": HEADS, "n_layer": 2, "n_positions": 64, "attn_pdrop": 0.0, "embd_pdrop": 0.0, "resid_pdrop": 0.0}, dtype=torch.float64),
    "GPT-NeoX": Family("gpt_neox", "GPTNeoXForCausalLM", "GPTNeoXConfig", {**_IDS, **_ENCODER, "max_position_embeddings": 64}),
    "gpt-oss": decoder("gpt_oss", "GptOss", head_dim=8, num_local_experts=2, num_experts_per_tok=1, sliding_window=WINDOW, layer_types=[SLIDING, FULL], rope_parameters={"rope_type": "default", "rope_theta": 10000.0}, prepare=_set_sinks),
    "BERT": Family("bert", "BertForMaskedLM", "BertConfig", {**_IDS, **_ENCODER, **_NO_DROPOUT, "max_position_embeddings": 64}, kind="encoder", dtype=torch.float64),
    "ModernBERT": Family("modernbert", "ModernBertForMaskedLM", "ModernBertConfig", {**_IDS, **_ENCODER, "num_hidden_layers": 3, "local_attention": 6, "layer_types": [FULL, SLIDING, SLIDING], "cls_token_id": 1, "sep_token_id": 2}, kind="encoder"),
    "ViT": Family("vit", "ViTModel", "ViTConfig", {**_ENCODER, **_NO_DROPOUT, "image_size": 16, "patch_size": 4}, kind="image", inputs="pixels"),
    "T5": Family("t5", "T5ForConditionalGeneration", "T5Config", {**_IDS, "d_model": HIDDEN, "d_kv": 8, "d_ff": WIDTH, "num_layers": 2, "num_decoder_layers": 2, "num_heads": HEADS, "dropout_rate": 0.0, "relative_attention_num_buckets": 8, "relative_attention_max_distance": 12, "decoder_start_token_id": 1}, kind="encoder-decoder", deviation=0.15),
    "Whisper": Family("whisper", "WhisperForConditionalGeneration", "WhisperConfig", {**_IDS, "d_model": HIDDEN, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": HEADS, "decoder_attention_heads": HEADS, "encoder_ffn_dim": WIDTH, "decoder_ffn_dim": WIDTH, "num_mel_bins": MELS, "max_source_positions": TOKENS, "max_target_positions": 64, "decoder_start_token_id": 1, "begin_suppress_tokens": None}, kind="encoder-decoder", inputs="sound", dtype=torch.float64),
}  # fmt: skip


def variant(name: str, model: str = "", **options: Any) -> Family:
    """Return a family with other options."""
    family = FAMILIES[name]
    return replace(family, model=model or family.model, options={**family.options, **options})


VARIANTS: dict[str, Family] = {
    "Gemma 3, bidirectional": variant("Gemma 3", "Gemma3TextModel", use_bidirectional_attention=True),
    "Qwen 2, sliding": variant("Qwen 2", use_sliding_window=True, sliding_window=WINDOW, layer_types=[FULL, SLIDING]),
    "Qwen 3, sliding": variant("Qwen 3", use_sliding_window=True, sliding_window=WINDOW, layer_types=[SLIDING, FULL]),
    "Phi-3, sliding": variant("Phi-3", sliding_window=WINDOW),
    "Mistral, without a window": variant("Mistral", sliding_window=None),
    "GPT-2, scaled by layer, with an encoder": variant("GPT-2", scale_attn_by_inverse_layer_idx=True, add_cross_attention=True),
    "GPT-2, unscaled": variant("GPT-2", scale_attn_weights=False),
    "BERT, decoder": variant("BERT", "BertLMHeadModel", is_decoder=True),
    "BERT, decoder with an encoder": variant("BERT", "BertLMHeadModel", is_decoder=True, add_cross_attention=True),
    "BERT, classifier": variant("BERT", "BertForSequenceClassification"),
    "T5, gated": variant("T5", feed_forward_proj="gated-gelu"),
}  # fmt: skip
"""Options that change the arguments of attention."""


@functools.cache
def family_model(name: str) -> PreTrainedModel:
    """Return the model of a family or variant, made once. Tests that change it must restore it."""
    return {**FAMILIES, **VARIANTS}[name].make()
