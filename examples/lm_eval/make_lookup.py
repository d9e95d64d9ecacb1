"""Write the items of the task sharpmax_lookup: who has what, among 4, 8 or 16 people.

    python examples/lm_eval/make_lookup.py

A head that finds the first mention of the person answers all items; a head that spreads its weight
over the other people does not. The 30 items are always the same.
"""

import json
import random
from pathlib import Path

PEOPLE = "Adam Alice Ben Clara Daniel Emma Frank Grace Henry Jack Laura Maria Nina Oscar Peter Sam"
THINGS = "ball bell book box card clock coin cup fish flag hat key lamp map ring rope"


def items() -> list[dict[str, object]]:
    """Return the items: a text, four things to choose from, and the index of the right one."""
    numbers = random.Random(0)
    return [item(numbers, count) for count in (4, 8, 16) for _ in range(10)]


def item(numbers: random.Random, count: int) -> dict[str, object]:
    people = numbers.sample(PEOPLE.split(), count)
    things = numbers.sample(THINGS.split(), count)
    asked = numbers.randrange(count)
    choices = [things[asked], *numbers.sample(things[:asked] + things[asked + 1 :], 3)]
    numbers.shuffle(choices)
    said = "\n".join(f"{a}: {b}" for a, b in zip(people, things, strict=True))
    return {
        "text": f"{said}\n{people[asked]}:",
        "choices": choices,
        "answer": choices.index(things[asked]),
    }


def lines() -> str:
    return "".join(json.dumps(one) + "\n" for one in items())


if __name__ == "__main__":
    Path(__file__).with_name("lookup.jsonl").write_text(lines(), "utf-8")
