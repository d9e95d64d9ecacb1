"""Threads that share out work: every item once, whoever's threads they are."""

import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from threadpoolctl import ThreadpoolController, threadpool_limits

from sharpmax.cpu import threads
from sharpmax.cpu.threads import openmp_team, run_in_threads


@pytest.fixture(params=["torch's threads", "Python's threads"])
def whose(request, monkeypatch):
    torch.ones(1 << 20).sum()  # torch begins its threads
    if request.param == "Python's threads":
        monkeypatch.setattr(threads, "openmp_team", lambda: None)
    elif openmp_team() is None:
        pytest.skip("torch was built with another OpenMP than GNU's, LLVM's or Intel's")
    return request.param


@pytest.mark.parametrize("thread_count", [1, 2, 3])
@pytest.mark.parametrize("count", [0, 1, 2, 57])
def test_every_item_is_taken_once(whose, thread_count, count):
    taken = []
    run_in_threads(range(count), taken.append, thread_count)
    assert sorted(taken) == list(range(count))


def test_they_work_at_once(whose):
    """Two items that wait for each other: one thread alone would wait for ever."""
    both = threading.Barrier(2, timeout=60)
    run_in_threads([1, 2], lambda _: both.wait(), 2)
    assert not both.broken


def test_as_many_as_asked_for(whose):
    seen = set()

    def work(_):
        seen.add(threading.get_ident())
        time.sleep(0.02)

    run_in_threads(range(12), work, 2)
    assert len(seen) == 2


def test_what_torch_has_started_already_does_it():
    """No thread is added: others would share the cores with torch's, which wait awake."""
    if openmp_team() is None:
        pytest.skip("torch was built with another OpenMP than GNU's, LLVM's or Intel's")
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        torch.ones(1 << 22).sum()
        its = _native_threads()
        run_in_threads(range(8), lambda _: time.sleep(0.01), 2)
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
        run_in_threads(range(1000), work, 2)
    assert len(taken) < 100
    run_in_threads(range(5), taken.append, 2)
    assert taken[-5:].count(4) == 1


def test_products_have_one_thread_meanwhile_and_theirs_again(whose):
    libraries = ThreadpoolController().select(user_api="blas").lib_controllers
    assert libraries
    inside = []
    with threadpool_limits(2, user_api="blas"):
        assert {library.num_threads for library in libraries} == {2}
        run_in_threads([1], lambda _: inside.extend(x.num_threads for x in libraries), 1)
        assert {library.num_threads for library in libraries} == {2}
    assert set(inside) == {1}


def test_the_rule_for_torch_s_threads(monkeypatch):
    """Only on Linux, with torch imported, in a process that was not forked."""
    with monkeypatch.context() as patch:
        patch.setattr(sys, "platform", "darwin")
        assert openmp_team() is None
    with monkeypatch.context() as patch:
        patch.delitem(sys.modules, "torch")
        assert openmp_team() is None
    with monkeypatch.context() as patch:
        patch.setattr(threads, "_forked", True)
        assert openmp_team() is None


@pytest.mark.parametrize(
    ("paths", "exports", "used"),
    [
        (["/torch/lib/libgomp.so"], True, "/torch/lib/libgomp.so"),
        (["/usr/libgomp.so"], True, "/usr/libgomp.so"),
        (["/usr/libgomp.so", "/torch/lib/libomp.so"], True, "/torch/lib/libomp.so"),
        (["/usr/libgomp.so", "/other/libomp.so"], True, None),
        (["/torch/libgomp.so", "/torch/libomp.so"], True, None),
        ([], True, None),
        (["/torch/lib/libomp.so"], False, None),
    ],
)
def test_which_openmp_library_is_torch_s(monkeypatch, paths, exports, used):
    class Controller:
        lib_controllers = [  # noqa: RUF012
            SimpleNamespace(user_api="blas", filepath="/torch/libblas.so"),
            *(SimpleNamespace(user_api="openmp", filepath=path) for path in paths),
        ]

    loaded = []

    def load(path):
        loaded.append(path)
        return SimpleNamespace(GOMP_parallel=lambda *_: None) if exports else SimpleNamespace()

    monkeypatch.setattr(threads, "ThreadpoolController", Controller)
    monkeypatch.setattr(threads.ctypes, "CDLL", load)
    team = threads._load_team.__wrapped__("/torch")
    assert (team is not None) == (used is not None)
    if used is not None:
        assert loaded == [used]


def test_cores_are_counted_everywhere(monkeypatch):
    monkeypatch.setattr(threads.os, "sched_getaffinity", lambda _: {0, 3}, raising=False)
    assert threads.usable_cores() == 2
    monkeypatch.delattr(threads.os, "sched_getaffinity")
    monkeypatch.setattr(threads.os, "cpu_count", lambda: None)
    assert threads.usable_cores() == 1
