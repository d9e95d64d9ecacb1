"""What each kind of result says: one module per kind, one line per kind in `KINDS`.

To add a kind: its fields in `sharpmax.results.schemas`, a module here with `describe(result)`, and
a line in `KINDS`. Reports, pictures, terminal tables and Markdown follow from that.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from sharpmax._errors import UserError
from sharpmax.report.blocks import Content
from sharpmax.report.kinds import (
    bench,
    calibration,
    certify,
    corollary,
    diagnose,
    evaluate,
    figure1,
    figure3,
    figure5,
    figure6,
    figure8,
    leaderboard,
    maps,
    policies,
    scan,
    scan_comparison,
    serving,
    study,
    table1,
    train_normalisers,
    training_statistics,
    tune_comparison,
    unknowns,
)
from sharpmax.results import Calibration, Result
from sharpmax.results.schemas import DamagedError

KINDS: dict[str, Callable[[Result], Content]] = {
    "evaluate": evaluate.describe,
    "study": study.describe,
    "tune-comparison": tune_comparison.describe,
    "diagnose": diagnose.describe,
    "scan": scan.describe,
    "training-statistics": training_statistics.describe,
    "certify": certify.describe,
    "corollary": corollary.describe,
    "table1": table1.describe,
    "figure1": figure1.describe,
    "figure2": maps.describe,
    "figure3": figure3.describe,
    "figure5": figure5.describe,
    "figure6": figure6.describe,
    "figure7": maps.describe,
    "figure8": figure8.describe,
    "policies": policies.describe,
    "unknowns": unknowns.describe,
    "leaderboard": leaderboard.describe,
    "train-normalisers": train_normalisers.describe,
    "serving": serving.describe,
    "bench-generate": bench.describe_generate,
    "bench-long": bench.describe_long,
    "bench-torch": bench.describe_attention,
    "bench-jax": bench.describe_attention,
    "bench-scan": bench.describe_scan,
    "bench-max-retrieval": bench.describe_max_retrieval,
    "bench-training": bench.describe_training,
}
"""In the order in which a report shows them: what was gained first, what it costs last."""

ORDER = ("calibration", *KINDS)


def importance(result: Result | Calibration) -> int:
    """Return the place of a result in a report; unknown kinds come last."""
    return ORDER.index(result.kind) if result.kind in ORDER else len(ORDER)


def compare(results: Sequence[Result | Calibration]) -> Content | None:
    """Return the comparison of two scans of the same inputs; None if there are no such two."""
    scans = [one for one in results if isinstance(one, Result) and one.kind == "scan"]
    if len(scans) != 2 or scan_comparison.refuse_comparison(scans):
        return None
    return scan_comparison.describe(*scans)


def describe(result: Result | Calibration, name: str = "") -> Content:
    """Return what a result says.

    Args:
        result: A result or a calibration.
        name: What an error calls it, such as the name of its file.

    Raises:
        UserError: The kind is not known, or the result does not hold what its kind needs.
    """
    try:
        if isinstance(result, Calibration):
            return calibration.describe(result)
        if result.kind not in KINDS:
            raise UserError(
                f"no report for results of kind {result.kind!r}: expected {', '.join(KINDS)}"
            )
        return KINDS[result.kind](result)
    except DamagedError as error:
        raise UserError(f"{name or 'the result'} is damaged: {error}") from error
    except UserError as error:
        raise UserError(f"{name}: {error}" if name else str(error)) from error
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise UserError(
            f"{name or 'the result'} is damaged: not what a result of kind {result.kind!r} holds "
            f"({type(error).__name__}: {error}); run its command again"
        ) from error
