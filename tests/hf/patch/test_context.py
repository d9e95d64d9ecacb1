"""What a block does holds in its own thread or task, and survives copies, pickles and backward passes."""

from __future__ import annotations

import asyncio
import contextvars
import copy
import gc
import pickle
import subprocess
import sys
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import sharpmax as sx
import sharpmax.hf as shf
from hf.families import FAMILIES, family_model, run
from hf.small import assert_nothing_is_patched, llama, random_tokens
from sharpmax import UserError
from sharpmax.hf.tune.calibration import ByRate

TOKENS = random_tokens(2, 17)
HARD = sx.Constant(3.0)
POLICIES = [
    None,
    HARD,
    sx.PAPER,
    sx.LogLength(3),
    sx.Saturating(sx.PAPER),
    ByRate((0.5, -0.5, 0.0, 2.0), 4),
    sx.Constant(0.5),
    None,
]


@pytest.fixture(params=["sdpa", "eager"])
def model(request):
    model = llama()
    model.set_attn_implementation(request.param)
    return model


@torch.no_grad()
def answer(model, tokens=TOKENS):
    return model(tokens).logits


def answer_inside(model, policy):
    if policy is None:
        return answer(model)
    with shf.sharpen(model, policy):
        return answer(model)


# Threads and tasks.


def test_eight_threads_get_what_each_gets_alone(model):
    alone = [answer_inside(model, policy) for policy in POLICIES]
    before = answer(model)
    start = threading.Barrier(len(POLICIES))

    def work(policy):
        start.wait()
        return [answer_inside(model, policy) for _ in range(6)]

    with ThreadPoolExecutor(len(POLICIES)) as pool:
        together = list(pool.map(work, POLICIES))
    for expected, found in zip(alone, together, strict=True):
        assert all(torch.equal(expected, each) for each in found)
    assert_nothing_is_patched()
    assert torch.equal(answer(model), before)


@pytest.mark.parametrize("name", FAMILIES)
def test_a_thread_outside_the_block_runs_what_the_model_did_before(name):
    model, inputs = family_model(name), FAMILIES[name].example()
    plain = run(model, inputs)
    with ThreadPoolExecutor(1) as pool:
        pool.submit(int).result()  # the thread is older than the block
        with shf.sharpen(model, HARD):
            assert torch.equal(pool.submit(run, model, inputs).result(), plain)
            assert not torch.equal(run(model, inputs), plain)


def test_tasks_of_one_thread_do_not_see_each_other(model):
    alone = [answer_inside(model, policy) for policy in POLICIES]

    async def work(policy):
        if policy is None:
            await asyncio.sleep(0)
            return answer(model)
        with shf.sharpen(model, policy):
            await asyncio.sleep(0)  # the others enter their blocks
            found = answer(model)
            await asyncio.sleep(0)
        return found

    async def gather():
        return await asyncio.gather(*map(work, POLICIES))

    for expected, found in zip(alone, asyncio.run(gather()), strict=True):
        assert torch.equal(expected, found)
    assert_nothing_is_patched()


def test_a_thread_that_is_started_inside_a_block_is_warned_once(model):
    plain, found = answer(model), []

    def start(target):
        thread = threading.Thread(target=target)
        thread.start()
        thread.join()

    with shf.sharpen(model, HARD):
        sharp = answer(model)
        with pytest.warns(
            shf.PlainThreadWarning, match=r"copy_context\(\)\.run, or use shf\.apply"
        ):
            start(lambda: found.extend([answer(model), answer(model)]))
        context = contextvars.copy_context()
        start(lambda: found.append(context.run(answer, model)))
    assert [torch.equal(each, plain) for each in found] == [True, True, False]
    assert torch.equal(found[2], sharp)


def test_apply_holds_everywhere_until_it_is_removed(model):
    plain = answer(model)
    handle = shf.apply(model, HARD, layers=[0])
    sharp = answer(model)
    assert not torch.equal(sharp, plain)
    with ThreadPoolExecutor(1) as pool:
        assert torch.equal(pool.submit(answer, model).result(), sharp)
        with shf.sharpen(model, sx.Constant(1.0)):
            assert torch.allclose(answer(model), plain, atol=1e-4)
            assert torch.equal(pool.submit(answer, model).result(), sharp)
    handle.remove()
    handle.remove()
    assert torch.equal(answer(model), plain)
    assert_nothing_is_patched()


def test_handles_may_be_removed_in_any_order_also_inside_a_block(model):
    plain = answer(model)
    first, second = shf.apply(model, HARD, layers=[0]), shf.apply(model, HARD, layers=[1])
    with shf.sharpen(model, HARD, layers=[2]):
        three = answer(model)
        first.remove()
        two = answer(model)
        third = shf.apply(model, HARD, layers=[0])
        assert torch.equal(answer(model), three)
    second.remove()
    third.remove()
    assert not torch.equal(two, three)
    assert torch.equal(answer(model), plain)
    assert_nothing_is_patched()


def test_a_model_that_is_forgotten_with_its_handle_is_freed():
    model = llama()
    handle, gone = shf.apply(model, HARD), weakref.ref(model)
    answer(model)
    del model
    gc.collect()
    assert gone() is None
    handle.remove()
    assert_nothing_is_patched()


def test_data_parallel_is_refused_by_name(model):
    replica = model._replicate_for_data_parallel()
    attention = model.model.layers[0].self_attn._replicate_for_data_parallel()
    replica.model = model.model._replicate_for_data_parallel()
    replica.model.layers = nn.ModuleList([model.model.layers[0]])
    with shf.sharpen(model, HARD):
        hidden = torch.randn(1, 4, 32)
        position = model.model.rotary_emb(hidden, torch.arange(4)[None])
        with pytest.raises(UserError, match=r"DataParallel .* use DistributedDataParallel"):
            attention(hidden, position, None)


# Entering, copying, pickling, changing.


def test_a_block_may_be_entered_again_and_inside_itself(model):
    plain, block = answer(model), shf.sharpen(model, HARD)
    for _ in range(2):
        with block:
            once = answer(model)
            with block:
                assert torch.equal(answer(model), once)
            assert torch.equal(answer(model), once)
        assert torch.equal(answer(model), plain)
    decorated = shf.sharpen(model, HARD)(answer)
    assert torch.equal(decorated(model), once)
    assert_nothing_is_patched()


def test_a_copy_made_inside_a_block_is_a_plain_model_of_its_own(model):
    plain = answer(model)
    with shf.sharpen(model, HARD):
        sharp = answer(model)
        twin = copy.deepcopy(model)
        assert torch.equal(answer(twin), plain)
        assert torch.equal(answer(model), sharp)
    assert torch.equal(answer(twin), plain)
    with shf.sharpen(twin, HARD):
        assert torch.equal(answer(twin), sharp)
        assert torch.equal(answer(model), plain)
    assert torch.equal(answer(twin), plain)
    assert_nothing_is_patched()


def test_a_pickle_made_inside_a_block_is_a_plain_model(model, tmp_path):
    plain = answer(model)
    with shf.sharpen(model, HARD):
        content = pickle.dumps(model)
    assert torch.equal(answer(pickle.loads(content)), plain)
    (tmp_path / "model.pickle").write_bytes(content)
    torch.save(plain, tmp_path / "plain.pt")
    program = """
import pickle, sys, torch
model = pickle.load(open(sys.argv[1] + "/model.pickle", "rb"))
plain = torch.load(sys.argv[1] + "/plain.pt")
tokens = torch.load(sys.argv[1] + "/tokens.pt")
with torch.no_grad():
    torch.testing.assert_close(model(tokens).logits, plain)
"""
    torch.save(TOKENS, tmp_path / "tokens.pt")
    subprocess.run([sys.executable, "-c", program, str(tmp_path)], check=True)


def test_another_implementation_inside_a_block_is_refused_at_the_next_pass(model):
    with shf.sharpen(model, HARD):
        answer(model)
        model.set_attn_implementation("sdpa")
        with pytest.raises(UserError, match=r"set to attn_implementation='sdpa' inside a block"):
            answer(model)
    assert model.config._attn_implementation == "sdpa"  # as the user asked
    assert_nothing_is_patched()


# Gradient checkpointing computes a layer again in the backward pass.


def gradients(model, inside, checkpointed, backward_inside=True):
    """Return the gradients of all weights, with the loss computed inside a block."""
    model.train()
    model.zero_grad()
    if checkpointed is not None:
        model.gradient_checkpointing_enable({"use_reentrant": checkpointed})
    try:
        if inside is None:
            loss = model(TOKENS, labels=TOKENS).loss
            loss.backward()
        else:
            with inside:
                loss = model(TOKENS, labels=TOKENS).loss
                if backward_inside:
                    loss.backward()
            if not backward_inside:
                loss.backward()
    finally:
        model.gradient_checkpointing_disable()
    return [parameter.grad.clone() for parameter in model.parameters()]


@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("backward_inside", [False, True])
@pytest.mark.parametrize("policy", [HARD, sx.PAPER], ids=repr)
def test_checkpointed_layers_are_computed_again_by_the_same_rules(
    model, reentrant, backward_inside, policy
):
    plain = gradients(model, None, reentrant)
    expected = gradients(model, shf.sharpen(model, policy), None)
    found = gradients(model, shf.sharpen(model, policy), reentrant, backward_inside)
    for one, other, without in zip(expected, found, plain, strict=True):
        torch.testing.assert_close(one, other)
        assert not torch.allclose(other, without)
    assert not any(
        "_gradient_checkpointing_func" in repr(vars(m)) and "KeptScope" in repr(vars(m))
        for m in model.modules()
    )
    assert_nothing_is_patched()


def test_a_backward_pass_in_another_thread(model):
    expected = gradients(model, shf.sharpen(model, HARD), None)
    model.gradient_checkpointing_enable()
    model.zero_grad()
    with shf.sharpen(model, HARD):
        loss = model(TOKENS, labels=TOKENS).loss
        with ThreadPoolExecutor(1) as pool:
            pool.submit(loss.backward).result()
    for parameter, gradient in zip(model.parameters(), expected, strict=True):
        torch.testing.assert_close(parameter.grad, gradient)


@pytest.mark.parametrize("reentrant", [False, True])
def test_a_plain_pass_stays_plain_if_its_backward_pass_runs_inside_a_block(model, reentrant):
    expected = gradients(model, None, None)
    model.gradient_checkpointing_enable({"use_reentrant": reentrant})
    model.zero_grad()
    loss = model(TOKENS, labels=TOKENS).loss
    with shf.sharpen(model, HARD):
        loss.backward()
    for parameter, gradient in zip(model.parameters(), expected, strict=True):
        torch.testing.assert_close(parameter.grad, gradient)


@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("part", ["model", "layer"])
def test_checkpointing_of_the_users_own_is_refused(model, reentrant, part):
    model.train()
    hidden = model.model.embed_tokens(TOKENS)
    position = model.model.rotary_emb(hidden, torch.arange(TOKENS.shape[1])[None])
    layer = model.model.layers[0]
    compute = {
        "model": lambda hidden: model(inputs_embeds=hidden).logits,
        "layer": lambda hidden: layer(hidden, position_embeddings=position),
    }[part]
    with (
        shf.sharpen(model, HARD),
        pytest.raises(UserError, match=r"gradient_checkpointing_enable\(\), before the block"),
    ):
        checkpoint(compute, hidden, use_reentrant=reentrant)
    assert_nothing_is_patched()


def test_checkpointing_that_is_enabled_inside_the_block_is_refused(model):
    model.train()
    with shf.sharpen(model, HARD):
        model.gradient_checkpointing_enable()
        with pytest.raises(UserError, match="before the block"):
            model(TOKENS)
