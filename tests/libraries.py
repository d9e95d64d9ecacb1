"""How a test makes and reads the arrays of each library."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import array_api_strict
import jax
import ml_dtypes
import numpy as np
import torch


@dataclass(frozen=True)
class Library:
    """How a test makes and reads the arrays of one library."""

    name: str

    def array(self, values: Any, dtype: str = "float64") -> Any:
        wide = np.asarray(values)
        if dtype == "bool":
            narrow = wide.astype(bool)
        elif dtype == "bfloat16":
            narrow = wide.astype(ml_dtypes.bfloat16)
        else:
            narrow = wide.astype(dtype)
        if self.name == "torch":
            if dtype == "bfloat16":
                return torch.tensor(narrow.astype(np.float32)).to(torch.bfloat16)
            return torch.tensor(narrow)
        if self.name == "jax":
            return jax.numpy.asarray(narrow)
        if self.name == "strict":
            return array_api_strict.asarray(narrow)
        narrow.flags.writeable = False  # catches writing into what the caller gave
        return narrow

    def numpy(self, array: Any) -> np.ndarray:
        if self.name == "torch":
            array = array.detach()
            return array.float().numpy() if array.dtype == torch.bfloat16 else array.numpy()
        return np.asarray(array)

    def owns(self, array: Any) -> bool:
        kinds = {
            "numpy": (np.ndarray, np.generic),
            "torch": torch.Tensor,
            "jax": jax.Array,
            "strict": array_api_strict._array_object.Array,
        }
        return isinstance(array, kinds[self.name])


LIBRARIES = [Library("numpy"), Library("torch"), Library("jax"), Library("strict")]
