"""Threads that share out work: every item once, whoever's threads they are."""

import threading
import time
from pathlib import Path

import pytest
import torch

from sharpmax.cpu import threads as pool


@pytest.fixture(params=["torch's threads", "Python's threads"])
def whose(request, monkeypatch):
    torch.ones(1 << 20).sum()  # torch begins its threads
    if request.param == "Python's threads":
        monkeypatch.setattr(pool, "openmp_team", lambda: None)
    elif pool.openmp_team() is None:
        pytest.skip("torch was built with another OpenMP than GNU's, LLVM's or Intel's")
    return request.param


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("count", [0, 1, 2, 57])
def test_every_item_is_taken_once(whose, threads, count):
    taken = []
    pool.run_in_threads(range(count), taken.append, threads)
    assert sorted(taken) == list(range(count))


def test_they_work_at_once(whose):
    """Two items that wait for each other: one thread alone would wait for ever."""
    both = threading.Barrier(2, timeout=60)
    pool.run_in_threads([1, 2], lambda _: both.wait(), 2)
    assert not both.broken


def test_as_many_as_asked_for(whose):
    seen = set()

    def work(_):
        seen.add(threading.get_ident())
        time.sleep(0.02)

    pool.run_in_threads(range(12), work, 2)
    assert len(seen) == 2


def test_what_torch_has_started_already_does_it():
    """No thread is added: others would share the cores with torch's, which wait awake."""
    if pool.openmp_team() is None:
        pytest.skip("torch was built with another OpenMP than GNU's, LLVM's or Intel's")
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        torch.ones(1 << 22).sum()
        its = _native_threads()
        pool.run_in_threads(range(8), lambda _: time.sleep(0.01), 2)
        assert _native_threads() == its
    finally:
        torch.set_num_threads(before)


def _native_threads():
    lines = Path("/proc/self/status").read_text("ascii").splitlines()
    return next(line.split()[1] for line in lines if line.startswith("Threads"))


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_an_error_comes_out_and_ends_the_others_work(whose, error):
    taken = []

    def work(item):
        taken.append(item)
        if item == 3:
            raise error("stop")
        time.sleep(0.001)

    with pytest.raises(error, match="stop"):
        pool.run_in_threads(range(1000), work, 2)
    assert len(taken) < 100
    pool.run_in_threads(range(5), taken.append, 2)
    assert taken[-5:].count(4) == 1


def test_the_products_have_their_threads_again(whose):
    limits = [library.num_threads for library in pool.ThreadpoolController().lib_controllers]
    inside = []
    controller = pool.ThreadpoolController().select(user_api="blas")
    pool.run_in_threads(
        [1], lambda _: inside.extend(x.num_threads for x in controller.lib_controllers), 1
    )
    assert set(inside) == {1}
    assert limits == [x.num_threads for x in pool.ThreadpoolController().lib_controllers]
