"""A map of the features: two principal components of some samples, the likely errors among them.

Shapes: M samples of the map, F features.
"""

from dataclasses import dataclass

import numpy as np
from torch import Tensor

from selfadapt.evaluation.label_errors.report import Array

_MOST_ERRORS, _MOST = 300, 900  # samples of a map


@dataclass(frozen=True, kw_only=True, eq=False)
class FeatureMap:
    """The features of the samples that a map shows."""

    rows: Array  # M, positions in the report
    features: Array  # M×F

    @classmethod
    def of(cls, features_NF: Tensor, is_error: Array) -> "FeatureMap":
        """Choose the samples: likely errors, then others at even distances."""
        errors, others = np.flatnonzero(is_error)[:_MOST_ERRORS], np.flatnonzero(~is_error)
        spread = np.unique(np.linspace(0, len(others) - 1, min(len(others), _MOST - len(errors))).round().astype(int))
        rows = np.concatenate([others[spread], errors])
        return cls(rows=rows, features=features_NF[rows].numpy())

    def points(self) -> Array:
        """The two principal components, scaled into 0..1: M×2."""
        centred_MF = self.features - self.features.mean(0)
        left, strength, _ = np.linalg.svd(centred_MF, full_matrices=False)
        points_M2 = np.zeros((len(self.rows), 2))
        points_M2[:, : min(2, left.shape[1])] = (left * strength)[:, :2]
        extent = np.ptp(points_M2, axis=0)
        scaled: Array = (points_M2 - points_M2.min(0)) / np.where(extent > 0, extent, 1)
        return scaled
