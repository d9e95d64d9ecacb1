"""Testing one model: greedy answers, familiar answers, and models that cannot be tested."""

from __future__ import annotations

import pytest
import torch
from clrs_text.small import SAMPLE, TINY, gemma_folder

from sharpmax import PAPER, UserError
from sharpmax.experiments.clrs_text import evaluate_model
from sharpmax.experiments.clrs_text.data import Sample, load_samples
from sharpmax.experiments.clrs_text.model import initial_decoder, open_decoder
from sharpmax.hf import sharpen

TEST = load_samples(SAMPLE / "test", "test")


@pytest.fixture(scope="module")
def decoder():
    made = initial_decoder(TINY, seed=0)
    made.model.eval()
    return made


def test_answers_are_those_of_generate(decoder):
    examples = decoder.tokenizer.encode(TEST.samples[::4])
    end = decoder.tokenizer.end_id
    longest = max(len(example.answer) for example in examples) + evaluate_model.EXTRA_TOKENS
    counts = []
    answers = evaluate_model.generate_answers(decoder.model, examples, end, on_batch=counts.append)
    for answer, example in zip(answers, examples, strict=True):
        expected = decoder.model.generate(
            torch.tensor([example.question]),
            attention_mask=torch.ones(1, len(example.question), dtype=torch.long),
            max_new_tokens=longest,
            do_sample=False,
        )[0, len(example.question) :].tolist()
        assert answer == expected[: len(answer)]
        assert answer[-1] == end or len(answer) > len(example.answer)
    assert sum(counts) == len(examples)


def test_batches_hold_questions_of_one_length_and_change_no_answer(decoder):
    examples = decoder.tokenizer.encode(TEST.samples)
    groups = evaluate_model.batch_by_length(examples, 2)
    assert sorted(index for indices in groups for index in indices) == list(range(len(examples)))
    assert max(len(indices) for indices in groups) == 2
    lengths = [{len(examples[index].question) for index in indices} for indices in groups]
    assert all(len(each) == 1 for each in lengths)
    firsts = [len(examples[indices[0]].question) for indices in groups]
    assert firsts == sorted(firsts)
    alike = [example for example in examples if len(example.question) == firsts[0]]
    end = decoder.tokenizer.end_id
    with sharpen(decoder.model, PAPER):
        few, many = (
            evaluate_model.generate_answers(decoder.model, alike, end, batch=batch)
            for batch in (1, 64)
        )
    assert len(alike) > 1
    assert [answer[:3] for answer in few] == [answer[:3] for answer in many]


@pytest.mark.parametrize(
    ("answer", "familiar"),
    [
        ("15", True),
        ("16", False),
        ("3, 16", False),
        ("[0 15 160]", False),
        ("[0.16 0.0 -0.99]", True),
    ],
)
def test_an_answer_is_familiar_if_problems_in_training_had_all_its_items(answer, familiar):
    sample = Sample("minimum", 32, 3, "?", f"{answer}\n\n")
    assert evaluate_model.is_familiar(sample, 16) is familiar


def test_a_tokenizer_without_an_end_of_text_is_refused(tmp_path):
    folder = gemma_folder(tmp_path / "gemma")
    path = folder / "tokenizer_config.json"
    path.write_text(path.read_text().replace('"eos_token": "\\u0001",', ""))
    with pytest.raises(UserError, match="a tokenizer without an end-of-text token"):
        open_decoder(str(folder))
