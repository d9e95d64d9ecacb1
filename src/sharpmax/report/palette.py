"""One colour and one name per method, the same in reports, pictures, tables and the explorer.

A colour is a name such as `series-2`, with a value for light and one for dark pages. HTML has them
as CSS variables (`css`), pictures use the light ones (`LIGHT`).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Literal

Dash = Literal["solid", "dash", "dot", "none"]

COLOURS = {
    "ink": ("#22262e", "#e6e8ec"),
    "muted": ("#5b6270", "#a2a9b6"),
    "faint": ("#e3e6ea", "#343a45"),
    "paper": ("#ffffff", "#15181d"),
    "panel": ("#f6f7f9", "#1d2127"),
    "link": ("#1d4ed8", "#8fb0ff"),
    "absent": ("#eceef1", "#23282f"),
    "other": ("#b9bfc8", "#59606c"),
    "last": ("#c2410c", "#fb923c"),
    "mean": ("#1d4ed8", "#8fb0ff"),
    # After Okabe and Ito: distinguishable with any colour vision.
    "series-1": ("#0072b2", "#5db7ee"),
    "series-2": ("#d55e00", "#ff8f45"),
    "series-3": ("#00835f", "#35c99b"),
    "series-4": ("#b8568c", "#e79bc4"),
    "series-5": ("#b07a00", "#f0b93a"),
    "series-6": ("#6a51a3", "#b3a1e6"),
    "series-7": ("#1795a8", "#63dbe8"),
}
"""By name: on light pages and in pictures, and on dark pages."""

LABELS = {
    "disperses": "#d55e00",
    "stays sharp": "#0072b2",
    "uniform": "#e69f00",
    "sink": "#cc79a7",
    "local": "#009e73",
}
"""The labels of heads and their colours, in the order in which reports list them."""

OTHER_LABEL = "#8a909c"


def label_colour(label: str) -> str:
    """Return the name of the colour of a label."""
    return f"label-{label.replace(' ', '-')}" if label in LABELS else "label-other"


COLOURS |= {label_colour(label): (colour, colour) for label, colour in LABELS.items()}
COLOURS["label-other"] = (OTHER_LABEL, OTHER_LABEL)

LIGHT = {name: light for name, (light, _) in COLOURS.items()}
SERIES = tuple(name for name in COLOURS if name.startswith("series-"))


@dataclass(frozen=True)
class Look:
    """What a method is called, and how its line is drawn."""

    name: str
    colour: str
    dash: Dash = "solid"


SOFTMAX = Look("softmax", "ink")
ADAPTIVE = Look("adaptive temperature", "series-2")
HARD = Look("hard (argmax)", "series-6")
LOG_LENGTH = Look("log n / log 16", "series-3")

METHODS = {
    # The two that every comparison is about, under the names that result files give them.
    "softmax": SOFTMAX,
    "baseline": SOFTMAX,
    "plain": SOFTMAX,
    "adaptive-temperature": ADAPTIVE,
    "adaptive": ADAPTIVE,
    "paper": ADAPTIVE,
    "inference": replace(ADAPTIVE, dash="dash"),
    "calibrated": Look("calibrated", "series-1"),
    "tuned": Look("tuned", "series-1"),
    # What a comparison of tuning names.
    "tune": Look("tune", "series-1"),
    "tune-1": Look("tune", "series-1"),
    "lora-8": Look("LoRA, rank 8", "series-6"),
    "lora-1": Look("LoRA, rank 1", "series-6", "dash"),
    "calibrate": Look("calibrate", "series-7"),
    "hard": HARD,
    "argmax": HARD,
    # Other policies.
    "saturating": Look("adaptive temperature, held at its peak", "series-5"),
    "refitted-temperature": Look("polynomial refitted to temperatures", "series-1"),
    "refitted-inverse-temperature": Look(
        "polynomial refitted to inverse temperatures", "series-1", "dash"
    ),
    "log-length": LOG_LENGTH,
    "infoscale": Look("InfoScale", "series-6", "dash"),
    "yarn": Look("YaRN's factor", "series-7"),
    "llama4": Look("Llama 4's steps", "series-1", "dot"),
    "grok": Look("Grok's law", "series-4", "dash"),
    "critical": Look("critical scaling", "series-5", "dash"),
    "entropy-target": Look("back to the entropy at 16 items", "series-4"),
    # Other normalisers.
    "scalable-softmax": Look("scalable softmax", "series-3"),
    "query-aware-scalable-softmax": Look("query-aware scalable softmax", "series-2", "dot"),
    "softmax-plus-one": Look("softmax plus one", "muted"),
    "softpick": Look("softpick", "muted", "dash"),
    "sparsemax": Look("sparsemax", "series-1"),
    "entmax": Look("entmax", "series-1", "dash"),
    "adaptive-scalable-entmax": Look("adaptive scalable entmax", "series-4"),
    "top-k": Look("top-k", "series-5"),
    "local": Look("local", "series-6", "dash"),
    "scale-invariant": Look("scale-invariant", "muted", "dot"),
    "sigmoid": Look("sigmoid", "series-3", "dash"),
    "relu": Look("ReLU", "series-2", "dash"),
    "linear": Look("linear", "series-4", "dash"),
    "positive-linear": Look("positive linear", "series-4", "dot"),
    "stick-breaking": Look("stick-breaking", "series-1", "dot"),
    "stieltjes": Look("Stieltjes", "series-7"),
    "threshold-relative": Look("threshold-relative", "series-3", "dot"),
    "selective": Look("selective", "series-5", "dot"),
    "differential": Look("differential", "series-5", "dash"),
    "thresholded-differential": Look("thresholded differential", "series-6", "dot"),
    "layer-norm": Look("layer norm", "series-7", "dot"),
    "step": Look("step", "series-7", "dash"),
}
"""By the name that result files and the command line use."""


def name(method: str) -> str:
    """Return what a method is called; one that is not ours keeps its own name."""
    if method in METHODS:
        return METHODS[method].name
    policy, _, number = method.partition(":")
    number, _, layers = number.partition("@")
    patterns = {
        "log-length": "log n / log {}",
        "constant": "constant factor {}",
        "infoscale": "InfoScale above {}",
        "yarn": "YaRN's factor above {}",
        "llama4": "Llama 4's steps of {}",
        "grok": "Grok's law above {}",
        "critical": "{} log n",
    }
    if policy not in patterns or not number:
        return method
    where = layers.replace("-", "\N{EN DASH}")
    return patterns[policy].format(number) + (f" in layers {where}" if layers else "")


def looks(methods: Iterable[str]) -> dict[str, Look]:
    """Return how each of some methods is drawn.

    Known methods look the same everywhere. The others, such as a user's own calibrations, take the
    colours that are free, with dashes from the second round on.
    """
    methods = list(methods)
    known = {method: METHODS.get(method.partition(":")[0]) for method in methods}
    taken = {look.colour for look in known.values() if look is not None}
    free = [colour for colour in SERIES if colour not in taken] or list(SERIES)
    found, own = {}, 0
    for method, look in known.items():
        if look is None:
            turn, index = divmod(own, len(free))
            look = Look(method, free[index], "dash" if turn % 2 else "solid")
            own += 1
        found[method] = replace(look, name=name(method))
    return found


def css() -> str:
    """Return the style sheet that gives the page its colours, as CSS variables."""
    colours = [
        f"  --{colour}: light-dark({light}, {dark});" for colour, (light, dark) in COLOURS.items()
    ]
    labels = [
        f'[data-label="{label}"] {{ --mark: var(--{label_colour(label)}); }}' for label in LABELS
    ]
    return "\n".join(
        [
            ":root { color-scheme: light dark; }",
            # The second for the explorer, whose page is not all ours.
            ":root, .palette {",
            *colours,
            "}",
            "[data-label] { --mark: var(--label-other); }",
            *labels,
            "",
        ]
    )
