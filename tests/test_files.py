"""Files are whole or absent, and a killed writer leaves nothing that stays."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from sharpmax import _files
from sharpmax._files import open_atomically, remove_leftovers, write_atomically

WRITER = """
import sys, time
from pathlib import Path
from sharpmax._files import open_atomically
with open_atomically(Path(sys.argv[1])) as stream:
    stream.write(b"half")
    stream.flush()
    print("writing", flush=True)
    time.sleep(600)
"""


@contextmanager
def writer(path: Path) -> Iterator[None]:
    """Have a process in the middle of writing a file; it is killed at the end of the block."""
    command = [sys.executable, "-c", WRITER, str(path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == b"writing\n"
            yield
        finally:
            process.kill()


def names(folder: Path) -> list[str]:
    return sorted(file.name for file in folder.iterdir())


def test_what_a_killed_writer_leaves_is_deleted_by_the_next(tmp_path):
    path, others = tmp_path / "scan.json", [".scan.json.part", ".scan.json.ABC.part", ".scan.part"]
    for other in others:
        (tmp_path / other).touch()
    with writer(path):
        pass
    assert len(names(tmp_path)) == len(others) + 1
    write_atomically(tmp_path / "other.json", b"")
    assert len(names(tmp_path)) == len(others) + 2  # of another file
    write_atomically(path, b"whole")
    assert names(tmp_path) == sorted([*others, "other.json", "scan.json"])
    assert path.read_bytes() == b"whole"


def test_the_file_of_a_living_writer_stays(tmp_path):
    path = tmp_path / "scan.json"
    with writer(path):
        write_atomically(path, b"whole")
        assert len(names(tmp_path)) == 2
    remove_leftovers(tmp_path, "scan.json")
    assert names(tmp_path) == ["scan.json"]


def test_where_files_cannot_be_locked_those_of_the_last_day_stay(tmp_path, monkeypatch):
    monkeypatch.setattr(_files, "fcntl", None)
    new, old = tmp_path / ".a.json.abcdefgh.part", tmp_path / ".a.json.abcdefg_.part"
    for file in (new, old):
        file.touch()
    os.utime(old, (time.time() - 100_000,) * 2)
    write_atomically(tmp_path / "a.json", b"whole")
    assert names(tmp_path) == [new.name, "a.json"]


def rewrite(path: Path, times: int) -> None:
    for number in range(times):
        with open_atomically(path) as stream:
            stream.write(bytes([number % 256]) * 1000)


def test_many_writers_of_one_file(tmp_path):
    """None of them takes the temporary file of another for a leftover."""
    path = tmp_path / "a"
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(rewrite, [path] * 4, [300] * 4))
    assert len(set(path.read_bytes())) == 1
    assert names(tmp_path) == ["a"]


def test_a_failure_leaves_nothing(tmp_path):
    def fail():
        with open_atomically(tmp_path / "a") as stream:
            stream.write(b"half")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fail()
    assert names(tmp_path) == []
