"""Max retrieval, the paper's central experiment: which class has the item of highest priority?

One attention head is trained on sets of up to 16 items and evaluated on sets of up to 16,384.
Section 2, Table 1 and Figures 2, 6 and 7 of arXiv 2410.01104.

data, model, train      the sets, the head, and training one head from one seed
heads                   trained heads as one file
evaluation              accuracy and weights of a trained head with any normaliser
paper                   the numbers of the paper's Table 1
table1, hyperparameter_grid, attention_maps, polynomial_fit, policy_comparison
                        the experiments: run(config) -> Result
"""

from importlib.util import find_spec

from sharpmax._errors import MissingExtraError

for _package in ("jax", "optax", "scipy", "safetensors", "filelock"):
    if find_spec(_package) is None:
        raise MissingExtraError(_package, "experiments", "training and evaluating heads")
