"""Check what a policy answers, so that a mistake in it has a name instead of a wrong output.

An answer must be a positive number, at most `LARGEST`. When it is checked:

- At the first use of a policy object it is asked about example rows: 1 to `MOST_ITEMS` items, each
  with entropies from 0 to log(items). A policy that may change, or that a user wrote without
  traits, is asked only about as many items as the call has.
- A policy that may change (trait `learned`) is checked on the rows of each call too, if they are in
  the memory of the CPU. Reading them from another device would wait for it.
- What `torch.compile`, `torch.func` or `jax.jit` traces cannot be read. JAX still asks about the
  example rows while it traces; torch does not.
"""

from __future__ import annotations

import math
import weakref
from contextlib import suppress
from types import MethodType
from typing import TYPE_CHECKING, Any

import numpy as np

from sharpmax import _array
from sharpmax._array import Array
from sharpmax._errors import UserError

if TYPE_CHECKING:
    from jaxtyping import Float, Int, Shaped

LARGEST = 1e18
"""The largest inverse temperature: its product with a logit of 1e20 is still a float32."""

MOST_ITEMS = 1 << 20
"""Longer than the contexts of today. A policy that cannot change is checked up to here."""

TRACED_ITEMS = 1 << 12
"""Up to how many items a policy that may change is checked where the call cannot be read."""

SHARES = (0.0, 0.1, 0.25, 0.5, 0.75, 0.9, 1.0)
"""Entropies of the example rows, as parts of the largest possible one."""

_values: set[Any] = set()
"""Checked policies whose class says that they cannot change. By value: `Constant(1.0)` may be
written anew in each call."""

_objects: dict[tuple[int, Any], tuple[weakref.ref[Any], bool]] = {}
"""Other checked policies by identity, since they need not be hashable, and whether each may
change."""

MOST_VALUES = 1000
"""How many values are remembered."""


def may_change(policy: Any) -> bool | None:
    """Return the trait `learned` of a policy that was checked before, or None.

    This is all that most calls of attention cost.
    """
    policy, key = _identify(policy)
    if key is None:
        try:
            return False if policy in _values else None
        except TypeError:  # its fields cannot be hashed
            return None
    known = _objects.get(key)
    return known[1] if known is not None and known[0]() is policy else None


def remember(policy: Any, learned: bool) -> None:
    """Note that a policy was checked, until it is freed."""
    policy, key = _identify(policy)
    if key is None:
        if len(_values) >= MOST_VALUES:
            _values.clear()
        with suppress(TypeError):
            _values.add(policy)
        return
    try:
        reference = weakref.ref(policy, lambda _: _objects.pop(key, None))
    except TypeError:  # some objects cannot be referred to weakly; they are checked again
        return
    _objects[key] = reference, learned


def _identify(policy: Any) -> tuple[Any, tuple[int, Any] | None]:
    """Return the object that lives as long as the policy and its key, None for one of `_values`."""
    kind = type(policy)
    if hasattr(kind, "stands_for"):
        policy = policy.stands_for
        kind = type(policy)
    if getattr(kind, "learned", True) is False and kind.__hash__ is not None:
        return policy, None
    if kind is MethodType:  # a new object each time it is read
        return policy.__self__, (id(policy.__self__), policy.__func__)
    return policy, (id(policy), None)


def check_examples(
    policy: Any,
    entropy: Float[Array, "*rows"],
    count: Int[Array, "*rows"],
    *,
    learned: bool,
    by_head: bool,
    any_library: bool,
) -> bool:
    """Ask a policy about example rows; return False where its answers cannot be read.

    Args:
        policy: function of (entropy, count).
        entropy: entropies of the call, for their library, type, device and number of axes.
        count: the numbers of items of the call.
        learned: whether the policy may change.
        by_head: whether it must be asked for all heads at once.
        any_library: whether it takes NumPy arrays, whatever the library of the call.

    Returns:
        Whether the answers were checked.

    Raises:
        UserError: if an answer is not positive and finite.
    """
    most = MOST_ITEMS
    if learned:
        known = _array.is_concrete(count)
        most = int(_array.to_numpy(count).max(initial=1)) if known else TRACED_ITEMS
    elif any_library:  # nothing to compute on a device, and to wait for
        entropy, count = (np.zeros((1,) * len(entropy.shape), kind) for kind in (float, int))
    nats, items = _example_rows(most)
    with _array.evaluate_now(entropy), np.errstate(all="ignore"):
        axes = max(1, len(entropy.shape))
        middle = tuple(entropy.shape[1:-1]) if by_head and axes == 4 else (1,) * (axes - 2)
        shape = (*(1, *middle)[: axes - 1], len(nats))
        asked = [
            _array.array_like(like, np.broadcast_to(numbers, shape))
            for like, numbers in ((entropy, nats), (count, items))
        ]
        if getattr(policy, "needs_varentropy", False):
            asked_of: Any = policy
            # A row of no entropy has no varentropy; elsewhere 1 stands for all.
            answer = asked_of(*asked, asked[0] * 0 + 1)
        else:
            answer = policy(*asked)
        if not _array.is_number(answer) and not _array.is_concrete(answer):
            return False
        if tuple(getattr(answer, "shape", ())) in ((), shape):  # else the caller names the shape
            check_rows(policy, answer, *asked)
    return True


def _example_rows(most: int) -> tuple[Float[np.ndarray, " rows"], Int[np.ndarray, " rows"]]:
    """Return entropies and numbers of items, up to `most`."""
    powers = 2 ** np.arange(int(math.log2(max(1, most))) + 1)
    items = np.unique(np.append(powers, [3, max(1, most)]))
    items = items[items <= max(1, most)]
    nats = np.outer(np.log(items), SHARES)
    return nats.ravel(), np.repeat(items, len(SHARES))


def check_rows(
    policy: Any,
    answer: Shaped[Array, "..."] | float,
    entropy: Float[Array, "*rows"],
    count: Int[Array, "*rows"],
) -> None:
    """Check the answers for these rows, all of which can be read.

    A row without items may have any answer, and a row of one item any finite number: nothing
    depends on it. A row whose entropy is NaN is spoilt anyway.

    Raises:
        UserError: if an answer is not positive and finite.
    """
    if _array.is_number(answer):
        if 0 < answer <= LARGEST:
            return
    else:
        low, high = _array.extremes(answer)
        if low > 0 and high <= LARGEST:  # false for NaN
            return
    nats, items = _array.to_numpy(entropy), _array.to_numpy(count)
    values = np.broadcast_to(_array.to_numpy(answer), nats.shape)
    usable = (np.abs(values) <= LARGEST) & ((values > 0) | (items <= 1))
    wrong = ~usable & (items > 0) & ~np.isnan(nats)
    if not wrong.any():
        return
    first = np.unravel_index(np.argmax(wrong), wrong.shape)
    name = repr(getattr(policy, "stands_for", policy))
    raise UserError(
        f"the policy {name if len(name) <= 200 else name[:200] + '…'} returned "
        f"{values[first]:.6g} for a row of {int(items[first])} items with an entropy of "
        f"{nats[first]:.4g} nats: expected a positive number, at most {LARGEST:g}; limit what it "
        "returns"
    )
