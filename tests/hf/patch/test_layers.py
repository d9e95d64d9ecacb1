"""Architectures that are not among the tested families: compared with eager attention at first use,
and refused by name if they differ from it or cannot be patched.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor, nn
from transformers import PreTrainedConfig, PreTrainedModel
from transformers.masking_utils import create_causal_mask
from transformers.modeling_outputs import BaseModelOutput
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

import sharpmax as sx
import sharpmax.hf as shf
from hf.families import (
    DECODER,
    FAMILIES,
    HEADS,
    HIDDEN,
    VOCABULARY,
    assert_close,
    assert_far,
    family_model,
)
from hf.families import variant as family_variant
from hf.small import assert_nothing_is_patched
from sharpmax import UserError
from sharpmax.hf.patch import parity
from sharpmax.hf.patch.layers import attention_layers, bind_policy
from sharpmax.hf.patch.parity import TESTED_MODEL_TYPES, find_difference
from sharpmax.policies import InfoScale

PLAIN = sx.Constant(1.0)
DTYPES = [torch.float64, torch.float32, torch.bfloat16, torch.float16]


@pytest.mark.parametrize("name", FAMILIES)
def test_every_family_says_how_large_its_heads_are(name):
    for layer in attention_layers(family_model(name)):
        assert bind_policy(InfoScale(4), layer.module) == InfoScale(4, HIDDEN // HEADS)
        assert bind_policy(PLAIN, layer.module) is PLAIN


def test_a_module_of_unknown_head_size():
    with pytest.raises(UserError, match="Linear does not say how large its heads are: give the"):
        bind_policy(InfoScale(4), nn.Linear(2, 2))


# Models of an unknown type, each with one flaw.


class ToyConfig(PreTrainedConfig):
    model_type = "toy"

    def __init__(self, flaw: str = "none", **options: Any) -> None:
        self.flaw = flaw
        self.vocab_size, self.hidden_size, self.num_hidden_layers = VOCABULARY, HIDDEN, 2
        self.num_attention_heads = HEADS
        super().__init__(**options)


def eager_attention_forward(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    **_: Any,
) -> tuple[Tensor, Tensor]:
    scaling = query.shape[-1] ** -0.5 if scaling is None else scaling
    if module.config.flaw == "scale":  # which no one is told of
        scaling *= 2
    logits = query @ key.mT * scaling
    if attention_mask is not None:
        logits = logits + attention_mask
    weights = logits.softmax(-1)
    return (weights @ value).transpose(1, 2).contiguous(), weights


class ToyProjections(nn.Module):
    def __init__(self, config: ToyConfig) -> None:
        super().__init__()
        self.config = config
        self.is_causal = config.flaw != "causality"
        self.qkv = nn.Linear(HIDDEN, 3 * HIDDEN)

    def heads(self, hidden: Tensor) -> tuple[Tensor, ...]:
        return self.qkv(hidden).unflatten(-1, (3, HEADS, -1)).permute(2, 0, 3, 1, 4).unbind()


class ToyAttention(ToyProjections):
    def forward(self, hidden: Tensor, mask: Tensor | None, **options: Any) -> Tensor:
        attend: Callable[..., Any] = ALL_ATTENTION_FUNCTIONS.get_interface(
            self.config._attn_implementation, eager_attention_forward
        )
        if self.config.flaw == "mask" and self.config._attn_implementation != "eager":
            mask = None
        if self.config.flaw == "keyword":
            options["slope"] = 0.5
        return attend(self, *self.heads(hidden), mask, **options)[0].flatten(-2)


class ToyDirectAttention(ToyProjections):
    """As some models do, which keep the interface for nothing but its name."""

    def forward(self, hidden: Tensor, mask: Tensor | None, **_: Any) -> Tensor:
        output = nn.functional.scaled_dot_product_attention(
            *self.heads(hidden), attn_mask=mask, is_causal=mask is None
        )
        return output.transpose(1, 2).flatten(-2)


class Toy(PreTrainedModel):
    config_class = ToyConfig
    base_model_prefix = "model"
    _supports_sdpa = True

    def __init__(self, config: ToyConfig) -> None:
        super().__init__(config)
        self.embed = nn.Embedding(VOCABULARY, HIDDEN)
        kinds = {
            "direct": [ToyAttention, ToyDirectAttention],
            "all direct": [ToyDirectAttention] * 2,
        }
        self.layers = nn.ModuleList(
            kind(config) for kind in kinds.get(config.flaw, [ToyAttention] * 2)
        )
        self.classes = nn.Linear(HIDDEN, 3)
        self.frozen = nn.Dropout(0.5)
        self.post_init()

    def _init_weights(self, module: nn.Module) -> None:
        for parameter in module.parameters(recurse=False):
            nn.init.normal_(parameter, std=0.3)

    def get_input_embeddings(self) -> nn.Embedding:
        return self.embed

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor | None = None, **options: Any
    ) -> Any:
        if self.config.flaw == "crash" and input_ids.shape[1] > 4:
            raise IndexError("no more than four tokens")
        hidden = self.embed(input_ids)
        mask = create_causal_mask(self.config, hidden, attention_mask, None)
        for layer in self.layers:
            hidden = hidden + self.frozen(layer(hidden, mask, **options))
        if self.config.flaw == "classifier":
            return (self.classes(hidden[:, -1]),)
        return BaseModelOutput(last_hidden_state=hidden)


def toy(flaw: str = "none", dtype: torch.dtype = torch.float64) -> Toy:
    torch.manual_seed(0)
    return Toy(ToyConfig(flaw)).to(dtype).eval()


def answer(model: PreTrainedModel, padded: int = 0) -> Tensor:
    ids = torch.randint(3, VOCABULARY, (2, 9), generator=torch.Generator().manual_seed(1))
    mask = torch.ones_like(ids)
    mask[1, :padded] = 0
    inputs = {"input_ids": ids, "attention_mask": mask}
    if model.config.is_encoder_decoder:
        inputs["decoder_input_ids"] = ids
        mask = torch.ones_like(ids)
    with torch.no_grad():
        found = model(**inputs)[0]
    return found[mask.bool()] if found.shape[:2] == mask.shape else found


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("flaw", ["none", "classifier"])
def test_a_model_of_an_unknown_type_that_follows_the_interface_passes(flaw, dtype):
    model = toy(flaw, dtype)
    model.set_attn_implementation("eager")
    assert find_difference(model) is None
    expected = answer(model, padded=3)
    with shf.sharpen(model, PLAIN):
        assert_close(answer(model, padded=3), expected)
    with shf.sharpen(model, sx.Constant(3.0)):
        assert float((answer(model) - answer(toy(flaw, dtype))).abs().max()) > 0


REFUSED: list[tuple[str, str]] = [
    ("mask", r"answers differ from those of eager attention by \d"),
    ("scale", r"answers differ from those of eager attention by \d"),
    ("causality", r"answers differ from those of eager attention by \d"),
    ("keyword", r"something that is not supported \(ToyAttention passes slope to its attention"),
    ("crash", r"fails on a few random tokens \(IndexError: no more than four tokens\)"),
]


@pytest.mark.parametrize(("flaw", "reason"), REFUSED)
def test_a_model_that_does_not_agree_with_eager_attention_is_refused_by_name(flaw, reason):
    """In half precision too: most models are loaded in it."""
    match = rf"^Toy \(toy\) is not among the tested architectures, and .*{reason}.*: not supported$"
    for dtype in DTYPES:
        model = toy(flaw, dtype)
        with pytest.raises(sx.UserError, match=match), shf.sharpen(model, sx.PAPER):
            pass
        assert model.config._attn_implementation == "sdpa"
        assert_nothing_is_patched()


@pytest.mark.parametrize("flaw", ["direct", "all direct"])
def test_a_model_that_calls_another_kernel_is_refused_by_name(flaw):
    model = toy(flaw)
    match = r"Toy: ToyDirectAttention at layers.\d does not call transformers' AttentionInterface"
    with pytest.raises(sx.UserError, match=match), shf.sharpen(model, sx.PAPER):
        pass
    answer(model)  # it works, so nothing else would have told


def test_a_model_without_attention_is_refused_by_name():
    model = toy()
    model.layers = nn.ModuleList()
    with (
        pytest.raises(sx.UserError, match="Toy: none of its layers calls"),
        shf.sharpen(model, sx.PAPER),
    ):
        pass


def test_something_else_than_a_model_is_refused():
    with pytest.raises(sx.UserError, match=r"expected a transformers model .* got Linear"):
        attention_layers(nn.Linear(2, 2))


def test_a_model_that_reads_no_tokens_is_refused():
    """Of a type that is not in the table."""
    model = transformers.DeiTModel(
        transformers.DeiTConfig(hidden_size=16, num_hidden_layers=1, num_attention_heads=2)
    )
    with (
        pytest.raises(sx.UserError, match="it reads pixel_values, which"),
        shf.sharpen(model, sx.PAPER),
    ):
        pass


# The check leaves no trace.


def test_a_model_is_checked_once(monkeypatch):
    model, calls = toy(), []

    def counted(model: PreTrainedModel) -> None:
        calls.append(model)

    monkeypatch.setattr(parity, "find_difference", counted)
    for _ in range(2):
        with shf.sharpen(model, sx.PAPER):
            pass
    assert calls == [model]
    with shf.sharpen(toy(), sx.PAPER):  # another one of the same type
        pass
    assert len(calls) == 2


def test_a_checked_model_follows_its_implementation_outside_of_blocks():
    """The state of its layers stays, but must not count as a patch."""
    model = toy()
    with shf.sharpen(model, sx.PAPER):
        pass
    plain = answer(model)
    shf.register(sx.Constant(3.0))
    model.set_attn_implementation("sharpmax")
    assert_far(answer(model), plain)


def test_a_tested_family_is_not_checked(monkeypatch):
    monkeypatch.setattr(parity, "find_difference", None)
    with shf.sharpen(FAMILIES["Llama"].make(), sx.PAPER):
        pass


@pytest.mark.parametrize("flaw", ["none", "scale", "crash", "keyword"])
def test_modes_and_implementations_are_put_back(flaw):
    model = toy(flaw).train()
    model.layers[1].eval()  # as someone does who trains a part
    modes = {name: module.training for name, module in model.named_modules()}
    random = torch.get_rng_state()
    find_difference(model)
    assert {name: module.training for name, module in model.named_modules()} == modes
    assert model.config._attn_implementation == "sdpa"
    assert torch.equal(torch.get_rng_state(), random)
    assert all(parameter.grad is None for parameter in model.parameters())
    assert_nothing_is_patched()


def test_a_model_that_is_sharpened_by_its_implementation_is_checked_unsharpened():
    shf.register(sx.Constant(3.0))
    model = toy()
    plain = answer(model)
    model.set_attn_implementation("sharpmax")
    sharp = answer(model)
    assert_far(sharp, plain)
    assert find_difference(model) is None
    assert torch.equal(answer(model), sharp)
    with shf.sharpen(model, PLAIN, layers=[0, 1]):
        assert_close(answer(model), plain)
    with shf.sharpen(model, sx.Constant(3.0), layers=[0]):
        assert_close(answer(model), sharp)


# Real architectures, made small.


MIXTURE = {"num_local_experts": 4, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}  # fmt: skip
LATENT = {"num_key_value_heads": HEADS, "kv_lora_rank": 8, "q_lora_rank": 8, "qk_nope_head_dim": 4, "qk_rope_head_dim": 4, "v_head_dim": 12, "n_routed_experts": 4, "n_group": 1, "topk_group": 1, "first_k_dense_replace": 1, **MIXTURE}  # fmt: skip
BART = {"vocab_size": VOCABULARY, "d_model": HIDDEN, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": HEADS, "decoder_attention_heads": HEADS, "encoder_ffn_dim": 48, "decoder_ffn_dim": 48, "max_position_embeddings": 64, "pad_token_id": 0}  # fmt: skip
T5 = FAMILIES["T5"].options
WINDOWED = {"head_dim": 8, "sliding_window": 5}

PASSING: dict[str, tuple[str, dict[str, Any]]] = {
    "AlbertForMaskedLM": ("AlbertConfig", {"embedding_size": 16}),
    "ApertusForCausalLM": ("ApertusConfig", {}),
    "BartForConditionalGeneration": ("BartConfig", BART),
    "CohereForCausalLM": ("CohereConfig", {}),
    "Cohere2ForCausalLM": ("Cohere2Config", WINDOWED),
    "DeepseekV3ForCausalLM": ("DeepseekV3Config", LATENT),
    "DiffLlamaForCausalLM": ("DiffLlamaConfig", {"head_dim": 8}),
    "DistilBertForMaskedLM": ("DistilBertConfig", {"vocab_size": VOCABULARY, "dim": HIDDEN, "n_heads": HEADS, "n_layers": 2, "hidden_dim": 48}),
    "ElectraForMaskedLM": ("ElectraConfig", {"embedding_size": 16}),
    "Exaone4ForCausalLM": ("Exaone4Config", WINDOWED),
    "GlmForCausalLM": ("GlmConfig", {"head_dim": 8}),
    "Glm4ForCausalLM": ("Glm4Config", {"head_dim": 8}),
    "GraniteForCausalLM": ("GraniteConfig", {"attention_multiplier": 0.7}),
    "HeliumForCausalLM": ("HeliumConfig", {"head_dim": 8}),
    "MT5ForConditionalGeneration": ("MT5Config", T5),
    "MarianMTModel": ("MarianConfig", {**BART, "decoder_start_token_id": 0, "decoder_vocab_size": VOCABULARY}),
    "MixtralForCausalLM": ("MixtralConfig", {"sliding_window": 5, **MIXTURE}),
    "ModernBertDecoderForCausalLM": ("ModernBertDecoderConfig", {"local_attention": 6}),
    "NemotronForCausalLM": ("NemotronConfig", {"head_dim": 8}),
    "OPTForCausalLM": ("OPTConfig", {"ffn_dim": 48, "word_embed_proj_dim": HIDDEN}),
    "OlmoForCausalLM": ("OlmoConfig", {}),
    "Olmo3ForCausalLM": ("Olmo3Config", {"sliding_window": 5}),
    "PhiForCausalLM": ("PhiConfig", {}),
    "Qwen2MoeForCausalLM": ("Qwen2MoeConfig", {"shared_expert_intermediate_size": 16, **MIXTURE}),
    "Qwen3MoeForCausalLM": ("Qwen3MoeConfig", {"head_dim": 8, **MIXTURE}),
    "RobertaForMaskedLM": ("RobertaConfig", {}),
    "RobertaForSequenceClassification": ("RobertaConfig", {}),
    "SeedOssForCausalLM": ("SeedOssConfig", {"head_dim": 8}),
    "SmolLM3ForCausalLM": ("SmolLM3Config", {}),
    "StableLmForCausalLM": ("StableLmConfig", {}),
    "Starcoder2ForCausalLM": ("Starcoder2Config", {"sliding_window": 5}),
    "VaultGemmaForCausalLM": ("VaultGemmaConfig", {"query_pre_attn_scalar": 8, "attn_logit_softcapping": 1.0, **WINDOWED}),
    "XLMRobertaForMaskedLM": ("XLMRobertaConfig", {}),
}  # fmt: skip

NOT_PASSING: dict[str, tuple[str, dict[str, Any], str]] = {
    "BigBirdPegasusForCausalLM": ("BigBirdPegasusConfig", BART, "answers differ"),
    "BloomForCausalLM": ("BloomConfig", {"vocab_size": VOCABULARY, "hidden_size": HIDDEN, "n_layer": 1, "n_head": HEADS}, "BloomAttention at .* does not call"),
    "CodeGenForCausalLM": ("CodeGenConfig", {"vocab_size": VOCABULARY, "n_embd": HIDDEN, "n_layer": 1, "n_head": HEADS, "rotary_dim": 4}, "CodeGenAttention at"),
    "RemBertForMaskedLM": ("RemBertConfig", {}, "RemBertAttention at"),
    "FalconForCausalLM": ("FalconConfig", {}, "FalconAttention at"),
    "GPTJForCausalLM": ("GPTJConfig", {"vocab_size": VOCABULARY, "n_embd": HIDDEN, "n_layer": 1, "n_head": HEADS, "rotary_dim": 4}, "GPTJAttention at"),
    "Gemma2ForCausalLM": ("Gemma2Config", {**FAMILIES["Gemma 2"].options, "use_bidirectional_attention": True}, "answers differ"),
    "LongT5ForConditionalGeneration": ("LongT5Config", T5, "LongT5LayerLocalSelfAttention at"),
    "MambaForCausalLM": ("MambaConfig", {}, "none of its layers calls"),
    "MptForCausalLM": ("MptConfig", {"vocab_size": VOCABULARY, "d_model": HIDDEN, "n_heads": HEADS, "n_layers": 1}, "MptAttention at"),
    "NllbMoeForConditionalGeneration": ("NllbMoeConfig", {**BART, "num_experts": 2}, "answers differ"),
    "OlmoeForCausalLM": ("OlmoeConfig", {**MIXTURE, "sliding_window": 5}, "sliding window of 5 tokens, but its model made no mask"),
    "RoFormerForMaskedLM": ("RoFormerConfig", {}, "RoFormerAttention at"),
    "XLNetLMHeadModel": ("XLNetConfig", {"vocab_size": VOCABULARY, "d_model": HIDDEN, "n_head": HEADS, "n_layer": 1, "d_inner": 48}, "XLNetRelativeAttention at"),
}  # fmt: skip


def small(model: str, config: str, options: dict[str, Any]) -> PreTrainedModel:
    """With weights that make attention matter."""
    torch.manual_seed(0)
    if "vocab_size" not in options:
        options = {**DECODER, "eos_token_id": 2, **options}
    made = getattr(transformers, model)(getattr(transformers, config)(**options))
    with torch.no_grad():
        for parameter in made.parameters():
            if parameter.ndim > 1:
                parameter.normal_(std=0.2)
            else:
                parameter.add_(0.1 * torch.randn_like(parameter))
    return made.eval()


@pytest.mark.parametrize("name", PASSING)
def test_an_architecture_that_passes(name):
    model = small(name, *PASSING[name])
    assert model.config.model_type not in TESTED_MODEL_TYPES
    model.set_attn_implementation("eager")
    expected = [answer(model), answer(model, padded=3)]
    with shf.sharpen(model, PLAIN):
        for padded, plain in zip((0, 3), expected, strict=True):
            assert_close(answer(model, padded), plain)
    with shf.sharpen(model, sx.Constant(3.0)):
        assert_far(answer(model), expected[0])
    assert torch.equal(answer(model), expected[0])


@pytest.mark.parametrize("name", NOT_PASSING)
def test_an_architecture_that_is_refused(name):
    *made, reason = NOT_PASSING[name]
    model = small(name, *made)
    with pytest.raises(sx.UserError, match=rf"^{name}\b.*{reason}"), shf.sharpen(model, sx.PAPER):
        pass


def test_an_unusual_option_of_a_tested_family_is_checked():
    """Gemma 3 serves it, and eager attention in Gemma 2 does not, above."""
    model = family_variant("Gemma 3", use_bidirectional_attention=True).make()
    with shf.sharpen(model, PLAIN):
        pass
    assert all(layer.module in parity._equal_eager for layer in attention_layers(model))
