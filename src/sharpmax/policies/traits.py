"""What a policy is, and what attention must know about one before asking it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from sharpmax import _array
from sharpmax._array import Array
from sharpmax.policies import _answers

if TYPE_CHECKING:
    from jaxtyping import Float, Int

    Entropy = Float[Array, "*rows"] | float
    Count = Int[Array, "*rows"] | int


Solve = Callable[[float], Array]
"""From an entropy in nats to the inverse temperature at which each row has it."""


class Policy(Protocol):
    """Map the entropy and the number of items of each row to an inverse temperature."""

    def __call__(self, entropy: Entropy, count: Count, /) -> Any:
        """Return the inverse temperature of each row.

        Args:
            entropy: the entropy of the row's softmax in nats, an array or a number.
            count: the number of items that the row can see, of the same shape.

        Returns:
            The factor on the row's logits: an array of the same shape, or one number for all rows.
        """


class Traits(NamedTuple):
    """Say what a policy needs and promises; attention chooses an implementation by it.

    A policy states a trait as an attribute of the same name, on the class or as a property. The
    defaults are right for every function, at the price of speed. Read them with `traits(policy)`.

    Examples:
        >>> @dataclass(frozen=True)
        ... class SquareRoot:
        ...     needs_entropy: ClassVar[bool] = False  # attention need not compute it
        ...     learned: ClassVar[bool] = False  # JAX compiles it once
        ...
        ...     def __call__(self, entropy, count, /):
        ...         return (count / 512) ** 0.5
    """

    needs_entropy: bool = True
    """The answer depends on the entropy. If not, attention saves the pass over the keys that
    computes it, and ignores what the policy does with the first argument."""
    by_head: bool = False
    """The answer differs by head. The policy is then asked for all heads of a layer at once, with
    arrays [batch, kv_heads, group, query]."""
    learned: bool = True
    """The answer may carry a gradient of its own, or change between two calls with the same
    arguments. If not, JAX compiles attention once per policy, which must be hashable, and PyTorch
    need not ask whether a parameter wants a gradient."""
    any_library: bool = False
    """The policy takes arrays of any library. If not, it gets those of the caller's framework."""
    plain_up_to: int = 0
    """The answer is exactly 1, without a gradient, in every row of at most this many items. Patched
    models run their own attention there, at no cost and with the same output bit for bit."""
    needs_varentropy: bool = False
    """The policy takes a third argument, the varentropy of each row: how fast its entropy falls as
    the row is sharpened."""
    needs_rows: bool = False
    """The policy takes a fourth argument, `solve(nats)`, which returns the inverse temperature of
    each row at which its entropy is so many nats. It goes over the logits several times, so that
    implementations that never hold a whole row refuse the policy."""

    @property
    def length_only(self) -> bool:
        """The answer depends on the number of items (and the head) alone, so that it can be
        computed before attention runs."""
        return not self.needs_entropy


_DEFAULTS = Traits()


def traits(policy: Policy) -> Traits:
    """Read the traits of a policy, with the cautious defaults for a plain function.

    Args:
        policy: any function of (entropy, count).

    Returns:
        What the attributes of the policy say, and the defaults of `Traits` for the others.

    Examples:
        >>> traits(sharpmax.LogLength(256)).length_only
        True
    """
    return Traits(
        needs_entropy=bool(getattr(policy, "needs_entropy", _DEFAULTS.needs_entropy)),
        by_head=bool(getattr(policy, "by_head", _DEFAULTS.by_head)),
        learned=bool(getattr(policy, "learned", _DEFAULTS.learned)),
        any_library=bool(getattr(policy, "any_library", _DEFAULTS.any_library)),
        plain_up_to=int(getattr(policy, "plain_up_to", _DEFAULTS.plain_up_to)),
        needs_varentropy=bool(getattr(policy, "needs_varentropy", _DEFAULTS.needs_varentropy)),
        needs_rows=needs_rows(policy),
    )


def needs_entropy(policy: Policy) -> bool:
    """Say whether a policy looks at the entropy: `traits(policy).needs_entropy`.

    Args:
        policy: any function of (entropy, count).

    Returns:
        False only if the policy says so.
    """
    return traits(policy).needs_entropy


def differs_by_head(policy: Policy) -> bool:
    """Say whether a policy has a different answer for each head: `traits(policy).by_head`.

    Args:
        policy: any function of (entropy, count).

    Returns:
        True only if the policy says so.
    """
    return traits(policy).by_head


def needs_rows(policy: Policy) -> bool:
    """Say whether a policy looks at whole rows of logits: `traits(policy).needs_rows`.

    Args:
        policy: any function of (entropy, count).

    Returns:
        True only if the policy says so.
    """
    return bool(getattr(policy, "needs_rows", _DEFAULTS.needs_rows))


def ask(
    policy: Policy, entropy: Any, count: Any, varentropy: Any = None, solve: Solve | None = None
) -> Any:
    """Call a policy with the arguments that it takes, without checking its answer.

    Args:
        policy: a function of (entropy, count), and of varentropy and solver if its traits say so.
        entropy: one entropy per row.
        count: the number of items per row.
        varentropy: one varentropy per row.
        solve: the function that solves for an entropy.

    Returns:
        What the policy answered.

    Raises:
        NotImplementedError: if the caller does not have what the policy needs.
    """
    policy_of: Any = policy
    if needs_rows(policy):
        if solve is None:
            raise NotImplementedError(
                f"{policy!r} looks at whole rows of logits, which are not held here"
            )
        return policy_of(entropy, count, varentropy, solve)
    if getattr(policy, "needs_varentropy", False):
        if varentropy is None:
            raise NotImplementedError(
                f"{policy!r} looks at the varentropy, which is not computed here"
            )
        return policy_of(entropy, count, varentropy)
    return policy(entropy, count)


def inverse_temperatures(
    policy: Policy,
    entropy: Float[Array, "*rows"],
    count: Int[Array, "*rows"],
    varentropy: Float[Array, "*rows"] | None = None,
    solve: Solve | None = None,
) -> Float[Array, "*rows"]:
    """Ask a policy for the inverse temperature of every row, and check its answer.

    The answer must be positive and finite, at most 1e18. A policy object is checked at its first
    use, on example rows. One whose answers may change (trait `learned`) is also checked at each
    call whose rows can be read: on a CPU, outside of `torch.compile` and `jax.jit`.

    Args:
        policy: function of (entropy, count).
        entropy: one entropy per row, in nats.
        count: the number of items per row.
        varentropy: one varentropy per row, for policies that need it.
        solve: from an entropy to the inverse temperature of each row, for policies that need it.

    Returns:
        One inverse temperature per row, also if the policy returned one number for all.

    Raises:
        NotImplementedError: if the policy needs what is not given.
        ValueError: if the policy returns another shape.
        UserError: if it returns NaN, an infinity, zero, a negative or an extremely large number.
    """
    learned, first = _answers.may_change(policy), False
    if needs_rows(policy):  # there are no example rows to ask about
        learned = True
    elif learned is None and not _array.is_compiling():
        about = traits(policy)
        learned = about.learned
        first = _answers.check_examples(
            policy,
            entropy,
            count,
            learned=learned,
            by_head=about.by_head,
            any_library=about.any_library,
        )
    answer = ask(policy, entropy, count, varentropy, solve)
    shape = tuple(getattr(answer, "shape", ()))
    if shape not in ((), tuple(entropy.shape)):
        raise ValueError(
            f"the policy returned shape {shape} for entropies of shape {tuple(entropy.shape)}: "
            "expected one inverse temperature per row"
        )
    if learned and _array.is_readable(answer, entropy, wait=first):
        _answers.check_rows(policy, answer, entropy, count)
    if first:
        _answers.remember(policy, bool(learned))
    return answer if shape else _array.namespace(entropy=entropy).zeros_like(entropy) + answer
