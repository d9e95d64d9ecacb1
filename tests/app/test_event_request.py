"""Only events of the page pass, with plain values; whatever else is sent is refused by name."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sharpmax.app.event_request import InvalidEventError, check_event

EVENTS = {0: 2, 3: 0}
GOOD = {"fn_index": 0, "data": ["a", 1.5], "session_hash": "abc123", "trigger_id": 7}

PLAIN = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(max_size=20),
    st.lists(st.text(max_size=5), max_size=5),
)
JSON = st.recursive(PLAIN, lambda inner: st.dictionaries(st.text(max_size=9), inner, max_size=5))


@given(st.lists(PLAIN, min_size=2, max_size=2))
def test_plain_values_pass_unchanged(values):
    event = GOOD | {"data": values}
    assert json.loads(check_event(json.dumps(event).encode(), EVENTS)) == event


def test_other_fields_are_dropped():
    extra = {"event_data": {"path": "/etc/passwd"}, "simple_format": True, "batched": True}
    checked = check_event(json.dumps(GOOD | extra).encode(), EVENTS)
    assert json.loads(checked) == GOOD


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"fn_index": 1}, "no such function"),
        ({"fn_index": None}, "no such function"),
        ({"fn_index": True}, "no such function"),
        ({"fn_index": "0"}, "no such function"),
        ({"fn_index": 0.0}, "no such function"),
        ({"fn_index": -1}, "no such function"),
        ({"data": []}, "expected 2 plain values"),
        ({"data": ["a"] * 3}, "expected 2 plain values"),
        ({"data": {"0": 1, "1": 2}}, "expected 2 plain values"),
        ({"data": [{"path": "/etc/passwd", "meta": {"_type": "gradio.FileData"}}, 1]}, "plain"),
        ({"data": [[{"path": "/etc/passwd"}], 1]}, "plain"),
        ({"data": [["a"] * 65, 1]}, "plain"),
        ({"data": [[[]], 1]}, "plain"),
        ({"fn_index": 3}, "expected 0 plain values"),
        ({"session_hash": None}, "session"),
        ({"session_hash": "a" * 33}, "session"),
        ({"session_hash": "../x"}, "session"),
        ({"session_hash": "abc\n"}, "session"),
        ({"trigger_id": "7"}, "trigger"),
        ({"trigger_id": 2**31}, "trigger"),
    ],
)
def test_what_the_page_would_not_send_is_refused(changed, message):
    with pytest.raises(InvalidEventError, match=message):
        check_event(json.dumps(GOOD | changed).encode(), EVENTS)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"\xff\xfe",
        b"[" * 100_000,
        b'{"a":' * 100_000,
        b'{"fn_index": 0, "data": [NaN, 1], "session_hash": "a"}',
        b'{"fn_index": 0, "data": [1e999, 1], "session_hash": "a"}',
        b'{"fn_index": 0, "data": [1, ' + b"9" * 5_000 + b'], "session_hash": "a"}',
        b"[1]",
        b"null",
    ],
)
def test_what_is_not_json_is_refused(body):
    with pytest.raises(InvalidEventError):
        check_event(body, EVENTS)


@given(st.one_of(JSON.map(lambda value: json.dumps(value).encode()), st.binary(max_size=60)))
def test_nothing_else_is_raised(body):
    with pytest.raises(InvalidEventError):
        check_event(body, EVENTS)
