"""Check the request by which the page runs one of its functions.

gradio runs any function by its number, with values of any type, and copies a file where a value
looks like one. The page itself sends the number of an event it has, one plain value per control,
and the name of its session. Nothing else passes.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from typing import Any, NoReturn

MAX_LIST = 64
"""Largest number of values in a list: that of the largest group of checkboxes is below it."""


class InvalidEventError(ValueError):
    """The request is not one that the page sends."""


def check_event(body: bytes, events: Mapping[int, int]) -> bytes:
    """Return the body with the fields that the page needs, and no other.

    Args:
        body: The request's body.
        events: The number of values that each event of the page takes, by the event's number.

    Raises:
        InvalidEventError: The body is not JSON, or not an event of the page.
    """
    try:
        event = json.loads(body, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise InvalidEventError("the request is not JSON: reload the page") from error
    if not isinstance(event, dict):
        raise InvalidEventError("the request is not an event: reload the page")
    number: Any = event.get("fn_index")
    data, trigger = event.get("data"), event.get("trigger_id")
    if not _is_integer(number) or number not in events:
        raise InvalidEventError("this page has no such function: reload the page")
    if not isinstance(data, list) or len(data) != events[number] or not all(map(_is_plain, data)):
        raise InvalidEventError(
            f"expected {events[number]} plain values, one per control: reload the page"
        )
    if trigger is not None and (not _is_integer(trigger) or abs(trigger) >= 2**31):
        raise InvalidEventError("the trigger is not a control: reload the page")
    if not is_session(event.get("session_hash")):
        raise InvalidEventError("the session has no valid name: reload the page")
    kept = ("data", "fn_index", "trigger_id", "session_hash")
    return json.dumps({name: event.get(name) for name in kept}).encode()


def is_session(value: object) -> bool:
    """Return whether a value can be the name of a session, which the page chooses at random."""
    return isinstance(value, str) and re.fullmatch(r"[a-z0-9]{1,32}", value) is not None


def _is_integer(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_plain(value: object) -> bool:
    """Return whether a value is that of a control: never an object, which could name a file."""
    if isinstance(value, list):
        return len(value) <= MAX_LIST and all(isinstance(item, str) for item in value)
    if isinstance(value, float):
        return math.isfinite(value)  # 1e999 is JSON, and infinite
    return not isinstance(value, dict)


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")
