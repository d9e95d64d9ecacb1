"""Max retrieval, the paper's central experiment: which class has the item of highest priority?

One attention head is trained on sets of up to 16 items and examined on sets of up to 16,384.
Section 2, Table 1 and Figures 2, 6 and 7 of arXiv 2410.01104.

data        sets and their right answers
model       the head
train       one head from one seed, resumable
exam        what a head answers, under any way of giving weights
heads       trained heads as a file
sweep       many heads on all cores
table1, unknowns, maps, fit, policies      the experiments: run(config) -> Result
"""

from importlib.util import find_spec

from sharpmax._errors import MissingExtraError

for _package in ("jax", "optax", "scipy", "safetensors", "filelock"):
    if find_spec(_package) is None:
        raise MissingExtraError(_package, "experiments", "training and examining heads")
