"""From logits to weights: softmax, its sharper variants, and proposed replacements.

`NORMALISERS` holds one ready instance of each, by name. All are called in the same way, on NumPy,
PyTorch and JAX arrays: `normaliser(logits, *, where=None, axis=-1) -> weights`. To write your own,
subclass `RowNormaliser` and use `finite_values` and `parameter`.
"""

from sharpmax.normalisers._base import Normaliser, RowNormaliser, finite_values, parameter
from sharpmax.normalisers.adaptive_scalable_entmax import AdaptiveScalableEntmax
from sharpmax.normalisers.adaptive_temperature import AdaptiveTemperature
from sharpmax.normalisers.differential import Differential
from sharpmax.normalisers.entmax import Entmax
from sharpmax.normalisers.hard import Hard
from sharpmax.normalisers.linear import Linear
from sharpmax.normalisers.local import Local
from sharpmax.normalisers.positive_linear import PositiveLinear
from sharpmax.normalisers.query_aware_scalable_softmax import QueryAwareScalableSoftmax
from sharpmax.normalisers.relu import Relu
from sharpmax.normalisers.scalable_softmax import ScalableSoftmax
from sharpmax.normalisers.scale_invariant import ScaleInvariant
from sharpmax.normalisers.selective import Selective
from sharpmax.normalisers.sigmoid import Sigmoid
from sharpmax.normalisers.softmax import Softmax
from sharpmax.normalisers.softmax_plus_one import SoftmaxPlusOne
from sharpmax.normalisers.softpick import Softpick
from sharpmax.normalisers.sparsemax import Sparsemax
from sharpmax.normalisers.stick_breaking import StickBreaking
from sharpmax.normalisers.stieltjes import Stieltjes
from sharpmax.normalisers.threshold_relative import ThresholdRelative
from sharpmax.normalisers.thresholded_differential import ThresholdedDifferential
from sharpmax.normalisers.top_k import TopK
from sharpmax.ops._rows import Rows

NORMALISERS: dict[str, Normaliser] = {
    "softmax": Softmax(),
    "adaptive-temperature": AdaptiveTemperature(),
    "scalable-softmax": ScalableSoftmax(),
    "query-aware-scalable-softmax": QueryAwareScalableSoftmax(),
    "softmax-plus-one": SoftmaxPlusOne(),
    "softpick": Softpick(),
    "sparsemax": Sparsemax(),
    "entmax": Entmax(),
    "adaptive-scalable-entmax": AdaptiveScalableEntmax(),
    "top-k": TopK(),
    "hard": Hard(),
    "local": Local(),
    "scale-invariant": ScaleInvariant(),
    "sigmoid": Sigmoid(),
    "relu": Relu(),
    "linear": Linear(),
    "positive-linear": PositiveLinear(),
    "stick-breaking": StickBreaking(),
    "stieltjes": Stieltjes(),
    "threshold-relative": ThresholdRelative(),
    "selective": Selective(),
    "differential": Differential(),
    "thresholded-differential": ThresholdedDifferential(),
}
"""Every normaliser by its name, ready to call."""

__all__ = [
    "NORMALISERS",
    "AdaptiveScalableEntmax",
    "AdaptiveTemperature",
    "Differential",
    "Entmax",
    "Hard",
    "Linear",
    "Local",
    "Normaliser",
    "PositiveLinear",
    "QueryAwareScalableSoftmax",
    "Relu",
    "RowNormaliser",
    "Rows",
    "ScalableSoftmax",
    "ScaleInvariant",
    "Selective",
    "Sigmoid",
    "Softmax",
    "SoftmaxPlusOne",
    "Softpick",
    "Sparsemax",
    "StickBreaking",
    "Stieltjes",
    "ThresholdRelative",
    "ThresholdedDifferential",
    "TopK",
    "finite_values",
    "parameter",
]
