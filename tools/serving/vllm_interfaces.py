"""Print what the plugin makes of each of vLLM's attention backends: its class, or the refusal.

It runs in vLLM's own environment.
"""

from __future__ import annotations

import dataclasses
import json

from sharpmax.vllm import backends

NEEDED = {"query_start_loc", "seq_lens", "causal"}
"""The fields of a backend's metadata that the plugin reads."""


def main() -> None:
    from vllm.v1.attention.backends.registry import AttentionBackendEnum

    found = {}
    for name in (backend.name for backend in AttentionBackendEnum):
        if name in backends.NO_DECODERS:
            continue
        try:
            backend = getattr(backends, name)
        except ImportError as error:
            found[name] = str(error)
            continue
        (metadata,) = backend.get_builder_cls().__orig_bases__[0].__args__
        fields = {field.name for field in dataclasses.fields(metadata)}
        assert fields >= NEEDED, f"{name} has no {NEEDED - fields}"
        found[name] = backend.get_impl_cls().__name__
    print(json.dumps(found))


if __name__ == "__main__":
    main()
