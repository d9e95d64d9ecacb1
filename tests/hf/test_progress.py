"""Progress: shares by cost, ascending, 1 at the end."""

from __future__ import annotations

import pytest

from sharpmax.hf.progress import Progress


def test_shares_follow_the_cost_of_steps_and_parts():
    shares = []
    progress = Progress(shares.append, [1, 3, 4])
    progress.finish_step()
    for _ in range(3):
        progress.finish_part(2)  # one more than there are
    progress.finish_step()
    progress.finish_part(4)
    progress.finish_step()
    assert shares == pytest.approx([1 / 8, 2.5 / 8, 4 / 8, 4 / 8, 4 / 8, 5 / 8, 1])
    assert shares == sorted(shares)


def test_without_a_callback_nothing_happens():
    progress = Progress(None, [1.0])
    progress.finish_part(2)
    progress.finish_step()
