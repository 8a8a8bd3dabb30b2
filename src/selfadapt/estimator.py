"""Self-adaptive training as an estimator of scikit-learn: pipelines, cross-validation and grid search work with it.

    from selfadapt import SelfAdaptiveClassifier
    model = SelfAdaptiveClassifier().fit(features, labels)
    model.predict(others)
    print(model.label_errors_.summary)

It predicts by softmax regression, fitted by folds (cross_fit.py): `selfadapt train --method sat-folds`.

Shapes: N samples, F features, K classes.
"""

from numbers import Integral
from typing import Any, Self

import numpy as np
import torch
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils import check_random_state
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, validate_data
from torch import Tensor

from selfadapt.evaluation.label_errors.checked_input import Array
from selfadapt.label_errors import fit_and_judge
from selfadapt.objectives.cross_fitting.nested_heads import CrossFitting

_LARGEST_SEED = 2**31 - 1


class SelfAdaptiveClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """A linear classifier that does not learn the mistakes in its labels, and lists them.

    Parameters
    ----------
    rounds : int or None, default=None
        Rounds in which targets move; 7, or 4 where the data are large.
    random_state : int, RandomState or None, default=0
        Decides how samples are dealt into folds.

    Attributes
    ----------
    classes_ : the labels that there are.
    label_errors_ : LabelErrorReport
        A judgement of each training label, as `find_label_errors` gives it.
    transition_ : V[k, j] = P(given j | true k), estimated.
    """

    def __init__(self, *, rounds: int | None = None, random_state: Any = 0) -> None:
        self.rounds = rounds
        self.random_state = random_state

    def fit(self, X: Any, y: Any, groups: Any = None) -> Self:
        """Fit to features and labels. `groups` names what must not be split among folds (patient, video)."""
        X, y = validate_data(self, X, y, dtype=np.float32, ensure_min_samples=2)
        check_classification_targets(y)
        if self.rounds is not None and (not isinstance(self.rounds, Integral) or self.rounds < 1):
            raise ValueError(f"rounds must be a whole number from 1 on, not {self.rounds!r}")
        classes, codes = np.unique(y, return_inverse=True)
        if len(classes) < 2:
            raise ValueError(f"y holds one class only, {classes[0]!r}; there must be at least two")
        seed = int(check_random_state(self.random_state).randint(_LARGEST_SEED))
        self._fitted, self.label_errors_ = fit_and_judge(
            _tensor(X),
            torch.from_numpy(codes),
            classes,
            groups,
            seed,
            None if self.rounds is None else CrossFitting(rounds=int(self.rounds)),
        )
        self.classes_, self.transition_ = classes, self._fitted.noise.matrix_KK.numpy()
        return self

    def predict_proba(self, X: Any) -> Array:
        check_is_fitted(self)
        X = validate_data(self, X, dtype=np.float32, reset=False)
        return self._fitted.predict(_tensor(X)).numpy()

    def predict(self, X: Any) -> Array:
        likeliest_N = self.predict_proba(X).argmax(1)
        return np.asarray(self.classes_[likeliest_N])


def _tensor(features: Array) -> Tensor:
    return torch.tensor(features)  # a copy, for the array may be read-only
