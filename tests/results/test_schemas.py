"""Every committed result has the fields that its schema names, and a wrong field is reported."""

from __future__ import annotations

import pytest

from report.published import UNPUBLISHED, everything, first_of
from sharpmax import UserError
from sharpmax.report.kinds import KINDS
from sharpmax.results import Calibration
from sharpmax.results.schemas import SCHEMAS, Leaderboard, Schema, Table1


def test_every_kind_has_a_schema():
    assert set(SCHEMAS) == set(KINDS)


def test_every_committed_result_fits_its_schema():
    kinds = set()
    for name, result in everything().items():
        if not isinstance(result, Calibration):
            schema = SCHEMAS[result.kind].of(result)
            assert schema.model_dump(), name
            kinds.add(result.kind)
    assert kinds == set(SCHEMAS) - UNPUBLISHED


def test_numbers_are_those_of_the_file():
    result = first_of("table1")
    table = Table1.of(result)
    assert table.mean == result.measurements["mean"]
    assert table.seeds == result.seeds
    assert table.paper[1024].baseline == result.measurements["paper"]["1024"]["baseline"]
    assert table.training.steps == result.config["training"]["steps"]


def test_a_measurement_counts_more_than_the_config_of_the_same_name():
    class Both(Schema):
        sizes: list[int]

    result = first_of("table1")
    changed = result.model_copy(update={"config": {"sizes": [1]}, "measurements": {"sizes": [2]}})
    assert Both.of(changed).sizes == [2]


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("mean", None, r"not what a result of kind 'table1' holds \(mean: Input should be a valid"),
        ("p", "none", r"\(p: Input should be a valid list"),
        ("sizes", [16, "many"], r"\(sizes\.1: Input should be a valid integer"),
    ],
)
def test_a_wrong_field_is_named(key, value, message):
    result = first_of("table1")
    changed = result.model_copy(update={"measurements": result.measurements | {key: value}})
    with pytest.raises(UserError, match=message):
        Table1.of(changed)


def test_a_missing_field_is_named():
    result = first_of("table1")
    left = {key: value for key, value in result.measurements.items() if key != "attribution"}
    with pytest.raises(UserError, match=r"\(attribution: Field required\); run its command again"):
        Table1.of(result.model_copy(update={"measurements": left}))


def test_a_ranking_has_those_who_took_part_the_best_first():
    board = Leaderboard.of(first_of("leaderboard"))
    for track in board.tracks:
        rows = board.ranking(track, "max")
        last = [row.mean[-1] for row in rows]
        assert last == sorted(last, reverse=True)
        assert not [row for row in rows if row.reason is not None]
        assert board.row(track, "max", rows[0].method) == rows[0]
    absent = next(row for row in board.rows if row.reason is not None)
    assert board.row(absent.track, absent.task, absent.method) is None
