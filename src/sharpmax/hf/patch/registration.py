"""`attn_implementation="sharpmax"`: attention and its masks registered with transformers together,
since one without the other is silently wrong.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from transformers import AttentionInterface, AttentionMaskInterface
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from sharpmax.hf.patch.attention import PLAIN, attend
from sharpmax.hf.patch.masks import make_mask
from sharpmax.policies import PAPER, Policy

NAME = "sharpmax"
"""Must contain none of "sdpa", "flash", "flex_attention" and "/": transformers looks for them in a
name and then behaves otherwise."""

RULED = "sharpmax_rules"
"""What a model inside `sharpen` or `scan` is set to: layers without a rule are plain."""


def register(policy: Policy = PAPER) -> None:
    """Make `attn_implementation="sharpmax"` known to transformers, in `from_pretrained`,
    `set_attn_implementation` and every tool that passes it on.

    All heads of such a model are sharpened by `policy`, in training too; `sharpmax.Constant(1.0)`
    is plain attention. Registering again changes the policy of all of them.
    """
    if not callable(policy):
        raise TypeError(
            f"policy must be a function of (entropy, count), got {policy!r}; "
            "sharpmax.Constant(1.0) is plain attention"
        )
    AttentionInterface.register(NAME, functools.partial(attend, policy))
    AttentionMaskInterface.register(NAME, make_mask)


def watch() -> Callable[[], bool]:
    """A function that says whether any layer has since asked for the attention that `register`
    made known: the layers of some models call another kernel, whatever the name, and nothing else
    would tell.
    """
    asked = False

    def noting(*arguments: Any, **options: Any) -> Any:
        nonlocal asked
        asked = True
        return attend(*arguments, **options)

    AttentionInterface.register(NAME, functools.partial(noting, registered_policy()))
    return lambda: asked


def register_rules() -> None:
    """The same for the models inside `sharpen` and `scan`."""
    AttentionInterface.register(RULED, functools.partial(attend, PLAIN))
    AttentionMaskInterface.register(RULED, make_mask)


def registered_policy() -> Policy:
    """What models with `attn_implementation="sharpmax"` are sharpened by."""
    policy: Policy = ALL_ATTENTION_FUNCTIONS[NAME].args[0]
    return policy
