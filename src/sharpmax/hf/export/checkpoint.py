"""Write a model with folded weights as an ordinary folder: safetensors, tokenizer, model card."""

from __future__ import annotations

import copy
import os
import shutil
import tempfile
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from safetensors import SafetensorError
from torch import Tensor
from transformers import PreTrainedModel

from sharpmax import __version__
from sharpmax._errors import UserError
from sharpmax.hf.export.factors import Sharpening
from sharpmax.hf.export.fold import fold
from sharpmax.hf.loading.errors import shorten_error
from sharpmax.hf.patch.parallel import require_whole_weights
from sharpmax.hf.patch.parity import require_support
from sharpmax.hf.patch.wrappers import unwrap_model
from sharpmax.hf.quiet import quiet_transformers
from sharpmax.hf.tune.calibration import Calibration
from sharpmax.policies import Policy
from sharpmax.results.calibration import EXPORT_MARK

if TYPE_CHECKING:
    from sharpmax.hf.export.factors import Factors


def export(
    model: PreTrainedModel,
    policy: Policy | Calibration | str | Path,
    folder: str | Path,
    at_length: int | None = None,
    *,
    layers: Collection[int] | None = None,
    heads: Collection[int] | None = None,
    tokenizer: Any = None,
    name: str | None = None,
    overwrite: bool = False,
) -> Path:
    """Write a plain checkpoint in which heads are sharpened as for inputs of one length.

    Engines without sharpmax then run the sharpened model. Weights are constants, so the checkpoint
    sharpens every input as if it had `at_length` tokens: compared with the calibration or policy,
    shorter inputs too much and longer ones too little. The model card says by how much.
    The folded weights are compared with `sharpen` before anything is written.

    Args:
        model: A transformers model. It is not changed.
        policy: A calibration, its path or name, or a policy that depends on the length alone.
        folder: The folder to write. It appears when it is complete.
        at_length: The number of tokens. Optional only for a policy that does not depend on the
            length, such as `sharpmax.Constant(1.2)`.
        layers: The numbers of the layers to sharpen by a policy; None means all.
        heads: The numbers of the heads in each of these layers; None means all.
        tokenizer: Its tokenizer, which is written too.
        name: The model's name in the model card.
        overwrite: Whether to replace a folder that exists.

    Returns:
        The folder.

    Raises:
        UserError: The policy depends on the entropy, the architecture cannot hold the factors,
            nothing would change at this length, the folder exists, or it cannot be written.

    Examples:
        >>> shf.export(model, "tuned.json", "model-at-4096", at_length=4096, tokenizer=tokenizer)
    """
    model = unwrap_model(model)
    require_whole_weights(model, "export")
    target = Path(folder)
    if target.exists() and not overwrite:
        raise UserError(f"{target} exists already: choose another folder or ask to overwrite it")
    if hasattr(model.config, EXPORT_MARK):
        raise UserError(
            f"{name or model.config._name_or_path} is an export already, with factors in its "
            "weights: export the original model"
        )
    require_support(model)
    sharpening = Sharpening.create(model, policy, layers, heads)
    factors = factors_at(sharpening, at_length)
    changed = fold(model, factors)
    mark = {"at_length": at_length, "what": sharpening.name, "sha256": sharpening.sha256}
    card = model_card(sharpening, factors, at_length, name or model.config._name_or_path)
    with complete_folder(target, overwrite) as part, quiet_transformers():
        _save_model(model, changed, mark | {"version": __version__}, part)
        if tokenizer is not None:
            tokenizer.save_pretrained(part)
        (part / "README.md").write_text(card, "utf-8")
    return target


def factors_at(sharpening: Sharpening, at_length: int | None) -> Factors:
    """Return the factors to fold.

    Raises:
        UserError: A length is needed or out of range, or all factors are 1 there.
    """
    if at_length is None:
        if sharpening.depends_on_length():
            raise UserError(
                f"{sharpening.name} sharpens more as inputs grow, and weights hold constants: give "
                "the number of tokens to export for (at_length, --at-length)"
            )
        at_length = 1
    if isinstance(at_length, bool) or at_length < 1:
        raise UserError(f"at_length={at_length!r}: expected a number of tokens, 1 or more")
    calibration = sharpening.calibration
    if calibration is not None and at_length <= calibration.from_tokens:
        raise UserError(
            f"at_length={at_length:,}: this calibration changes nothing up to "
            f"{calibration.from_tokens:,} tokens; give a larger number"
        )
    factors = sharpening.at_length(at_length)
    if not factors:
        raise UserError(f"at_length={at_length:,}: {sharpening.name} changes no head there")
    return factors


@contextmanager
def complete_folder(target: Path, overwrite: bool) -> Iterator[Path]:
    """Let a folder be written beside its place, and move it there when it is complete.

    Raises:
        UserError: It cannot be written. Nothing is left then.
    """
    part = None
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        part = Path(tempfile.mkdtemp(dir=target.parent, prefix=f".{target.name}.", suffix=".part"))
        yield part
        for file in sorted(part.rglob("*")):
            if file.is_file():
                file.chmod(0o666 & ~_umask())  # safetensors writes for its owner alone
                with file.open("rb+") as stream:
                    os.fsync(stream.fileno())
        part.chmod(0o777 & ~_umask())
        if target.exists() and overwrite:
            old = part.with_suffix(".old")
            target.rename(old)
            part.rename(target)
            shutil.rmtree(old) if old.is_dir() else old.unlink()
        else:
            part.rename(target)
    except (OSError, SafetensorError) as error:
        # safetensors reports a full disk by its own exception, without errno.
        raise UserError(f"cannot write {target} ({shorten_error(error)})") from error
    finally:
        if part is not None:
            shutil.rmtree(part, ignore_errors=True)


def _umask() -> int:
    current = os.umask(0)
    os.umask(current)
    return current


def _save_model(
    model: PreTrainedModel, changed: dict[str, Tensor], mark: dict[str, Any], folder: Path
) -> None:
    """Write config, generation config and weights, some of which are replaced."""
    weights = {**model.state_dict(), **changed}
    config = copy.deepcopy(model.config)
    setattr(config, EXPORT_MARK, mark)
    # transformers refuses to save a model whose config mentions a GGUF file.
    if hasattr(config, "quantization_config"):
        del config.quantization_config
    # A second model with the same tensors, so that the first one is not touched.
    plain = type(model).from_pretrained(None, config=config, state_dict=weights, dtype=model.dtype)
    if getattr(model, "generation_config", None) is not None:
        plain.generation_config = copy.deepcopy(model.generation_config)
    plain.save_pretrained(folder)


def model_card(sharpening: Sharpening, factors: Factors, at_length: int | None, name: str) -> str:
    """Return the text of README.md: what was done, by what, and what it costs."""
    values = np.concatenate(list(factors.values()))
    changed = values[values != 1]
    what = f" ({sharpening.sha256})" if sharpening.sha256 else ""
    length = "at every length" if at_length is None else f"at {at_length:,} tokens"
    lines = [
        f"# {Path(name).name or 'Model'}, sharpened {length}",
        "",
        f"A copy of {name} whose attention heads are sharper or softer. sharpmax {__version__}",
        "multiplied the query weights of each head by the inverse temperature of that head.",
        "Nothing else was changed.",
        "",
        f"- **What:** {sharpening.name}{what}, {length}.",
        f"- **Heads changed:** {len(changed)} in {len(factors)} layers, factors "
        f"{changed.min():.3f} to {changed.max():.3f}.",
    ]
    calibration = sharpening.calibration
    if calibration is not None and calibration.text_cost is not None:
        cost = calibration.text_cost
        lines.append(
            f"- **Cost on ordinary text:** {100 * cost.relative:+.2f} % nats per token, over "
            f"{cost.tokens:,} tokens, measured with the calibration and not with this export."
        )
    if at_length is not None:
        lines += ["", *_other_lengths(sharpening, factors, at_length)]
    return "\n".join(lines) + "\n"


def _other_lengths(sharpening: Sharpening, factors: Factors, at_length: int) -> list[str]:
    """Return a table of how far the constants are from what other lengths ask for."""
    rows = [
        "The factors are constants. At other lengths they differ from what the policy asks for:",
        "",
        "| tokens | mean difference of the factors | largest |",
        "|---|---|---|",
    ]
    for length in sorted({max(1, at_length // 16), at_length // 4, at_length, 4 * at_length}):
        if length < 1:
            continue
        wanted = sharpening.at_length(length)
        differences = np.concatenate(
            [
                np.abs(by_head - wanted.get(layer, 1.0))[by_head != 1]
                for layer, by_head in factors.items()
            ]
        )
        rows.append(f"| {length:,} | {differences.mean():.3f} | {differences.max():.3f} |")
    rows += ["", "Short inputs are changed although the policy leaves them alone."]
    return rows
