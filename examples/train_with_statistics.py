"""Train a small language model on text files, and watch its attention.

    python examples/train_with_statistics.py docs build/train
    python examples/train_with_statistics.py docs build/clipped --tau 30

The model has 4 layers and reads bytes. A run takes one to three minutes on two cores. The learning
rate is too high, so that logits grow; `--tau` bounds them by QK-clip. The second folder then holds
every sample (statistics.jsonl), the result (statistics.json) and a report (statistics.html).
"""

import argparse
from pathlib import Path

import torch
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

import sharpmax.hf as shf
from sharpmax import report
from sharpmax.results import Result

LENGTH = 128


class Passages(torch.utils.data.Dataset):
    """Random passages of a text, as bytes."""

    def __init__(self, text: bytes, count: int) -> None:
        self.text, self.count = torch.frombuffer(bytearray(text), dtype=torch.uint8).long(), count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, number: int) -> dict[str, torch.Tensor]:
        begin = number * 7919 % (len(self.text) - LENGTH)
        passage = self.text[begin : begin + LENGTH]
        return {"input_ids": passage, "labels": passage}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("texts", type=Path, help="folder of .md files to train on")
    parser.add_argument("folder", type=Path, help="where the statistics are written")
    parser.add_argument("--steps", type=int, default=400, help="training steps")
    parser.add_argument("--lr", type=float, default=1e-2, help="learning rate")
    parser.add_argument("--tau", type=float, help="largest logit that QK-clip leaves alone")
    arguments = parser.parse_args()
    text = b"\n".join(path.read_bytes() for path in sorted(arguments.texts.glob("*.md")))
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=256,
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=4,
        num_attention_heads=4,
        max_position_embeddings=LENGTH,
    )
    training = TrainingArguments(
        arguments.folder / "trainer",
        max_steps=arguments.steps,
        per_device_train_batch_size=16,
        learning_rate=arguments.lr,
        warmup_steps=20,
        lr_scheduler_type="constant_with_warmup",
        logging_steps=20,
        save_strategy="no",
        report_to="none",
        use_cpu=True,
    )
    passages = Passages(text, 16 * arguments.steps)
    trainer = Trainer(LlamaForCausalLM(config), training, train_dataset=passages)
    arguments.folder.mkdir(parents=True, exist_ok=True)
    file = arguments.folder / "statistics.jsonl"
    trainer.add_callback(shf.StatisticsCallback(file, log=trainer.log))
    if arguments.tau is not None:
        trainer.add_callback(shf.QKClipCallback(arguments.tau))
    trainer.train()
    result = Result.load(file.with_suffix(".json"))
    report.show(result)
    report.write([result], file.with_suffix(".html"))


if __name__ == "__main__":
    main()
