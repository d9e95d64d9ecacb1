"""What `sharpmax doctor` says of the machine: memory, devices, threads and models on the disk."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from sharpmax.results.provenance import cores, processor


def describe_machine() -> dict[str, Any]:
    """Return what commands will run on, by name; bytes and counts as numbers."""
    return {
        "processor": processor(),
        "cores": cores(),
        **_memory(),
        **_torch(),
        **_models(),
    }


def machine_lines(machine: dict[str, Any]) -> list[tuple[str, str]]:
    """Return the same as text, line by line: what it is, and its value."""
    memory = _gigabytes(machine["memory_bytes"])
    if machine["available_bytes"] is not None:
        memory += f", {_gigabytes(machine['available_bytes'])} of it available"
    lines = [
        ("processor", f"{machine['processor']}, {machine['cores']} cores for this process"),
        ("memory", memory),
        ("device", machine["device"]),
    ]
    if machine["threads"] is not None:
        set_by = f" (OMP_NUM_THREADS={machine['omp_num_threads']})"
        named = set_by if machine["omp_num_threads"] else ""
        lines.append(("threads", f"{machine['threads']} of PyTorch{named}"))
    models = ", ".join(f"{name} ({state})" for name, state in machine["models"].items())
    lines.append(("models", models or "none; sharpmax models lists those that need no hub"))
    if machine["cache"]:
        lines.append(("cache", f"{machine['cache']}, {_gigabytes(machine['cache_bytes'])}"))
    return lines


def _memory() -> dict[str, int | None]:
    """Return the memory of the machine and what is available, as far as the system tells."""
    found: dict[str, int | None] = {"memory_bytes": None, "available_bytes": None}
    try:
        lines = Path("/proc/meminfo").read_text("utf-8").splitlines()
    except OSError:
        names = getattr(os, "sysconf_names", {})
        if "SC_PHYS_PAGES" in names:
            found["memory_bytes"] = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        return found
    values = {line.partition(":")[0]: line.split()[1] for line in lines if len(line.split()) > 1}
    for key, name in (("memory_bytes", "MemTotal"), ("available_bytes", "MemAvailable")):
        if name in values:
            found[key] = 1024 * int(values[name])
    return found


def _torch() -> dict[str, Any]:
    """Return the device that models run on by default, and PyTorch's threads."""
    threads = os.environ.get("OMP_NUM_THREADS")
    try:
        import torch
    except ModuleNotFoundError:
        return {"device": "PyTorch is not installed", "threads": None, "omp_num_threads": threads}
    if torch.cuda.is_available():
        names = [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
        device = f"cuda: {', '.join(names)}"
    elif torch.backends.mps.is_available():
        device = "mps: Apple GPU"
    else:
        device = "cpu (no GPU that PyTorch can use)"
    return {"device": device, "threads": torch.get_num_threads(), "omp_num_threads": threads}


def _models() -> dict[str, Any]:
    """Return the models of the catalogue that are on this machine, and the cache's size."""
    try:
        from sharpmax.hf.loading.catalogue import CATALOGUE, cache_folder, find_state
    except ModuleNotFoundError:
        return {"models": {}, "cache": None, "cache_bytes": None}
    states = {name: find_state(name) for name in CATALOGUE}
    folder = cache_folder()
    size = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
    return {
        "models": {name: state for name, state in states.items() if state != "missing"},
        "cache": str(folder),
        "cache_bytes": size,
    }


def _gigabytes(size: int | None) -> str:
    return "unknown" if size is None else f"{size / 1e9:.1f} GB"
