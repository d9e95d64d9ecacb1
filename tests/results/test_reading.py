"""Files that nobody should trust are refused in one line, before they take time or memory."""

from __future__ import annotations

import hashlib
import io
import json
import os
import pickle
import struct
import tracemalloc
import zipfile
from pathlib import Path

import numpy as np
import pytest

from sharpmax import UserError, report
from sharpmax.cli import main
from sharpmax.results import Result, Stopwatch, _reading


def saved(folder: Path, **arrays: np.ndarray) -> Path:
    result = Result(
        kind="k", config={}, seeds=(0,), measurements={}, provenance=Stopwatch().provenance()
    )
    return result.with_arrays(**arrays).save(folder / "example.json")


def with_content(folder: Path, content: bytes) -> Path:
    """A result whose file of arrays has this content, and the right hash."""
    path = saved(folder)
    fields = {"arrays_file": "a.npz", "arrays_sha256": hashlib.sha256(content).hexdigest()}
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))
    (folder / "a.npz").write_bytes(content)
    return path


def header(shape: tuple[int, ...], kind: str = "<f8") -> bytes:
    """The header of an array, as NumPy writes it."""
    stream = io.BytesIO()
    fields = {"descr": kind, "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(stream, fields)
    return stream.getvalue()


def archive(*members: tuple[str, bytes], compression: int = zipfile.ZIP_DEFLATED) -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", compression) as file:
        for name, content in members:
            file.writestr(name, content)
    return stream.getvalue()


class Bomb:
    """Its pickle creates a file when it is opened."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self):
        return Path.touch, (self.path,)


def damaged_end(content: bytes) -> bytes:
    """The same zip file with a wrong checksum of what its first array holds."""
    at = content.index(b"PK\1\2") + 16
    return content[:at] + bytes(4) + content[at + 4 :]


def many(count: int) -> bytes:
    """A zip file that claims this many arrays."""
    content = bytearray(archive(("a.npy", header((0,)))))
    content[-12:-10] = struct.pack("<H", count)
    return bytes(content)


def objects() -> bytes:
    stream = io.BytesIO()
    np.savez(stream, x=np.array([{"a": 1}], dtype=object), allow_pickle=True)
    return stream.getvalue()


def npy() -> bytes:
    stream = io.BytesIO()
    np.save(stream, np.arange(3))
    return stream.getvalue()


CONTENTS = {
    "nothing": (lambda: b"", "is damaged: it is not a zip file"),
    "no array file": (npy, "is damaged: it is not a zip file as NumPy writes it"),
    "half": (
        lambda: (lambda c: c[: len(c) // 2] + c[-22:])(archive(("x.npy", npy()))),
        "is damaged: ",
    ),
    "a wrong checksum": (lambda: damaged_end(archive(("x.npy", npy()))), "is damaged: Bad CRC"),
    "7 TiB": (
        lambda: archive(("x.npy", header((1 << 40,)))),
        r"is damaged: 'x\.npy' claims 8,796,093,022,208 bytes, and has 0",
    ),
    "more than an integer of C": (
        lambda: archive(("x.npy", header((1 << 62, 1 << 62)))),
        "claims 170,141,",
    ),
    "less than its part": (lambda: archive(("x.npy", header((1,)) + bytes(9))), "claims 8 bytes"),
    "impossible but empty": (lambda: archive(("x.npy", header((0, 1 << 62)))), "is damaged: "),
    "pickled objects": (objects, r"is damaged: 'x\.npy' is not an array of numbers"),
    "text": (lambda: archive(("x.npy", header((1,), "<U1") + bytes(4))), "not an array of numbers"),
    "a header of code": (
        lambda: archive(("x.npy", header((1,)).replace(b"(1,)", b"(+1)") + bytes(8))),
        "not an array of numbers",
    ),
    "another member": (lambda: archive(("x.txt", b"hello")), r"'x\.txt' in it is not an array"),
    "another compression": (
        lambda: archive(("x.npy", npy()), compression=zipfile.ZIP_LZMA),
        "compressed in a way",
    ),
    "many arrays": (lambda: many(60_000), "lists more than 10,000 arrays"),
    "a comment": (lambda: archive(("x.npy", npy())) + b"!", "not a zip file as NumPy writes it"),
    "complex numbers": (
        lambda: archive(("x.npy", header((1,), "<c16") + bytes(16))),
        "not an array of numbers",
    ),
    "a type that no machine has": (lambda: archive(("x.npy", header((1,), "<f7"))), "is damaged: "),
}


@pytest.mark.parametrize(("content", "message"), CONTENTS.values(), ids=CONTENTS)
def test_arrays_that_numpy_would_not_write(tmp_path, capsys, content, message):
    path = with_content(tmp_path, content())
    with pytest.raises(UserError, match=message) as caught:
        Result.load(path)
    assert "\n" not in str(caught.value)
    assert "a.npz" in str(caught.value)
    assert main(["report", str(path), "--out", str(tmp_path / "r.html")]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_a_pickle_is_not_opened(tmp_path):
    mark = tmp_path / "executed"
    pickle.loads(pickle.dumps(Bomb(mark)))  # what would happen
    mark.unlink()
    with pytest.raises(UserError, match="is not a zip file"):
        Result.load(with_content(tmp_path, pickle.dumps(Bomb(mark))))
    (tmp_path / "example.json").unlink()
    stream = io.BytesIO()
    np.savez(stream, x=np.array([Bomb(mark)], dtype=object), allow_pickle=True)
    with pytest.raises(UserError, match="is not an array of numbers"):
        Result.load(with_content(tmp_path, stream.getvalue()))
    assert not mark.exists()


def test_what_unpacks_to_much_is_refused_before_it_is_unpacked(tmp_path, monkeypatch):
    monkeypatch.setattr(_reading, "MAX_ARRAY_BYTES", 4 << 20)
    half = header((3 << 20,), "|u1") + bytes(3 << 20)
    path = with_content(tmp_path, archive(("a.npy", half), ("b.npy", half)))
    tracemalloc.start()
    try:
        with pytest.raises(UserError, match="its arrays have 6 MB, and at most 4 MB are allowed"):
            Result.load(path)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


def test_what_a_zip_file_says_of_its_sizes_is_not_believed(tmp_path):
    """It states 128 bytes and unpacks to more: what is more is not read."""
    content = bytearray(archive(("a.npy", header((1 << 20,), "|u1") + bytes(1 << 20))))
    at = content.index(b"PK\1\2") + 24
    content[at : at + 4] = struct.pack("<L", 128)
    with pytest.raises(UserError, match="is damaged: Bad CRC-32"):
        Result.load(with_content(tmp_path, bytes(content)))


@pytest.mark.parametrize("large", ["json", "npz"])
def test_a_large_file_is_refused_before_it_is_read(tmp_path, large):
    path = with_content(tmp_path, b"")
    file = path if large == "json" else tmp_path / "a.npz"
    with file.open("r+b") as stream:
        stream.truncate(1 << 40)  # takes no room on the disk
    with pytest.raises(UserError, match=r"is not read: it has 1,099,512 MB, and at most"):
        report.load(path)


def test_what_cannot_be_read_again_is_not_written(tmp_path, monkeypatch):
    monkeypatch.setattr("sharpmax.results.result.MAX_JSON_BYTES", 100)
    with pytest.raises(UserError, match="at most 0 MB can be read again"):
        saved(tmp_path)
    monkeypatch.undo()
    monkeypatch.setattr("sharpmax.results.result.MAX_ARRAY_BYTES", 100)
    with pytest.raises(UserError, match="too many for a result"):
        saved(tmp_path, x=np.zeros(100))
    monkeypatch.undo()
    with pytest.raises(UserError, match="array 'x' holds <U1; results hold numbers only"):
        saved(tmp_path, x=np.array(["a"]))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("kind", ["?", "i1", "<u8", ">i4", "<f2", ">f8"])
@pytest.mark.parametrize("order", ["C", "F"])
def test_numbers_of_every_kind_and_order_come_back(tmp_path, kind, order):
    arrays = {
        "scalar": np.ones((), kind),
        "empty": np.ones((0, 3), kind),
        "cube": np.asarray(np.arange(24).reshape(2, 3, 4) % 2, kind, order=order),
    }
    loaded = Result.load(saved(tmp_path, **arrays)).arrays
    assert list(loaded) == list(arrays)
    for name, array in arrays.items():
        np.testing.assert_array_equal(loaded[name], array)
        assert loaded[name].dtype == array.dtype
        assert loaded[name].flags.writeable  # a checkpoint goes on with them


NAMES = ["", "\0", "a\0b", ".", "..", "/etc/passwd", "../a.npz", "b/a.npz"]


@pytest.mark.parametrize("name", NAMES)
def test_the_arrays_are_a_file_beside_the_result(tmp_path, name):
    path = with_content(tmp_path, b"")
    path.write_text(json.dumps(json.loads(path.read_text()) | {"arrays_file": name}))
    with pytest.raises(UserError, match="must be a file name beside it"):
        Result.load(path)


def test_a_name_that_is_too_long(tmp_path):
    path = with_content(tmp_path, b"")
    path.write_text(json.dumps(json.loads(path.read_text()) | {"arrays_file": "a" * 10_000}))
    with pytest.raises(UserError, match="its arrays_file cannot be read"):
        Result.load(path)


@pytest.mark.parametrize("what", ["json", "npz"])
def test_a_pipe_is_not_waited_for(tmp_path, what):
    path = with_content(tmp_path, b"")
    file = path if what == "json" else tmp_path / "a.npz"
    file.unlink()
    os.mkfifo(file)
    with pytest.raises(UserError, match="is a pipe or a device: save its content to a file first"):
        report.load(path)


def test_a_device_that_never_ends(tmp_path):
    path = tmp_path / "zero.json"
    path.symlink_to("/dev/zero")
    with pytest.raises(UserError, match="is a pipe or a device"):
        report.load(path)


@pytest.mark.parametrize(
    "text",
    [
        "[" * 100_000,
        '{"a":' * 100_000,
        '{"format": "sharpmax-result", "config": {"a": ' + "[" * 900 + "]" * 900 + "}}",
    ],
)
def test_deep_nesting(tmp_path, capsys, text):
    path = tmp_path / "deep.json"
    path.write_text(text)
    with pytest.raises(UserError, match="is damaged: "):
        report.load(path)
    assert main(["report", str(path), "--out", str(tmp_path / "r.html")]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1


@pytest.mark.parametrize("version", [True, 1.0, "1", [1]])
def test_a_version_is_a_whole_number(tmp_path, version):
    path = saved(tmp_path)
    path.write_text(json.dumps(json.loads(path.read_text()) | {"schema_version": version}))
    with pytest.raises(UserError, match="is damaged: schema_version: expected a whole number"):
        Result.load(path)


def test_numbers_that_overflow_are_refused(tmp_path):
    path = saved(tmp_path)
    content = json.loads(path.read_text())
    path.write_text(json.dumps(content | {"measurements": {"n": [1, 10**400]}}))
    with pytest.raises(UserError, match=r"n\[1\] has 1,329 bits, at most 128 are allowed"):
        Result.load(path)
    seconds = content["provenance"] | {"seconds": "NaN"}
    path.write_text(json.dumps(content | {"provenance": seconds}))
    with pytest.raises(UserError, match=r"provenance\.seconds: Input should be a finite number"):
        Result.load(path)
