"""The generated part of docs/study.md follows the results, also while they are not finished."""

from __future__ import annotations

from collections import defaultdict

import study_tables

from report.published import first_of
from report.synthetic_study import study


def test_without_results_it_says_so():
    assert study_tables.study(defaultdict(lambda: None)) == study_tables.NOT_RUN


def test_tables_and_what_is_missing():
    results = defaultdict(lambda: None, {"study.json": study(finished=False)})
    text = study_tables.study(results)
    assert "- For smollm2, tune helps." in text
    assert "- Not measured yet for gemma-3-270m: 6 of 6 cells of RULER." in text
    assert "| smollm2 | tune | +30.0 (+25.0 to +35.0) | 0.004 | 7.0 / 10.0 |" in text
    assert "| lookup | 32 | 50.0 (45.0 to 55.0) | 50.0 (45.0 to 55.0) |" in text
    assert "### What limits the plain models" not in text


def test_diagnoses_say_whether_dispersion_limits_the_answers():
    diagnosis = first_of("diagnose")
    results = defaultdict(lambda: None, {"diagnose.json": diagnosis})
    text = study_tables.study(results)
    assert text.startswith(study_tables.NOT_RUN)
    assert "| SmolLM2 135M | lookup | 8 → 128 names | 43.8 → 13.3 | 5 | 7" in text
    assert set(study_tables.VERDICTS) == {
        "dispersion", "ranking", "window", "nothing lost", "no heads"
    }  # fmt: skip


def test_where_no_answer_is_lost_dispersion_is_not_blamed():
    diagnosis = first_of("diagnose")
    rows = [dict(row) for row in diagnosis.measurements["rows"]]
    rows[-1]["accuracy"] = rows[0]["accuracy"]
    same = diagnosis.model_copy(update={"measurements": diagnosis.measurements | {"rows": rows}})
    text = study_tables.study(defaultdict(lambda: None, {"diagnose.json": same}))
    assert text.count(study_tables.NOTHING_LOST) == 1
