"""Self-adaptive training as a scikit-learn estimator, for pipelines, cross-validation and grid search.

    from selfadapt import SelfAdaptiveClassifier
    model = SelfAdaptiveClassifier().fit(features, labels)
    model.predict(other_features)
    print(model.label_errors_.summary)

The model is cross-fitted softmax regression (cross_fit.py), as in `selfadapt train --method sat-folds`.

Shapes: N samples, F features, K classes.
"""

from dataclasses import replace
from numbers import Integral
from typing import Any, Self

import numpy as np
import torch
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils import check_random_state, estimator_html_repr
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, validate_data
from torch import Tensor

from selfadapt.evaluation.label_errors.checked_input import Array, index_of
from selfadapt.label_errors import fit_and_judge
from selfadapt.objectives.cross_fitting.nested_heads import CrossFitting

_LARGEST_SEED = 2**31 - 1


class SelfAdaptiveClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """Linear classifier that is robust to wrong labels and reports them.

    Softmax regression is fitted with cross-validation, and the targets of the samples move towards the out-of-sample
    predictions.

    Args:
        rounds: Number of times the targets move. Default: 7, or 4 for large data.
        random_state: Seed, RandomState or None, for the assignment of samples to folds.

    Attributes:
        classes_: The classes, of shape (K,).
        label_errors_: `LabelErrorReport` on the training labels, as `find_label_errors` returns it.
        transition_: Estimated noise matrix of shape (K, K): V[k, j] = P(given label j | true class k).

    Examples:
        >>> model = SelfAdaptiveClassifier().fit(features, labels)
        >>> model.predict(other_features)
        >>> print(model.label_errors_.summary)
    """

    def __init__(self, *, rounds: int | None = None, random_state: Any = 0) -> None:
        self.rounds = rounds
        self.random_state = random_state

    def fit(self, X: Any, y: Any, groups: Any = None) -> Self:
        """Fit the model.

        Args:
            X: Features of shape (N, F).
            y: Labels of length N, of at least two classes.
            groups: Group of each sample (patient, video), of length N. A group is never split among folds.

        Returns:
            The fitted estimator.

        Raises:
            ValueError: If inputs are invalid, or there are too few samples or classes.
        """
        index = next((own for own in (index_of(y), index_of(X)) if own is not None), None)
        if any(np.ma.isMaskedArray(values) and np.ma.is_masked(values) for values in (X, y)):
            raise ValueError("X or y has masked values; leave those samples out")
        X, y = validate_data(self, X, y, dtype=np.float32, ensure_min_samples=2)
        if y.dtype.kind == "M" and np.isnat(y).any():
            raise ValueError("y contains NaT; leave those samples out")
        check_classification_targets(y)
        if self.rounds is not None and (not isinstance(self.rounds, Integral) or self.rounds < 1):
            raise ValueError(f"rounds must be a positive integer, not {self.rounds!r}")
        classes, codes = np.unique(y, return_inverse=True)
        if len(classes) < 2:
            raise ValueError(f"y has only the class {classes[0]!r}; pass labels of at least two classes")
        seed = int(check_random_state(self.random_state).randint(_LARGEST_SEED))
        self._fitted, report = fit_and_judge(
            _tensor(X),
            torch.from_numpy(codes),
            classes,
            groups,
            seed,
            None if self.rounds is None else CrossFitting(rounds=int(self.rounds)),
        )
        self.label_errors_ = (
            report if index is None else replace(report, ids=np.array([str(name) for name in index]), index=index)
        )
        self.classes_, self.transition_ = classes, self._fitted.noise.matrix_KK.numpy()
        return self

    def _repr_html_(self) -> str:
        """The diagram of scikit-learn and, after `fit`, the likely label errors."""
        found = self.label_errors_._repr_html_() if hasattr(self, "label_errors_") else ""
        return str(estimator_html_repr(self)) + found

    def _repr_mimebundle_(self, **_: Any) -> dict[str, str]:
        return {"text/plain": repr(self), "text/html": self._repr_html_()}

    def predict_proba(self, X: Any) -> Array:
        """Predict the probability of each class.

        Args:
            X: Features of shape (N, F).

        Returns:
            Probabilities of shape (N, K), in the order of `classes_`.

        Raises:
            NotFittedError: If the model is not fitted.
            ValueError: If X is invalid or has another number of features.
        """
        check_is_fitted(self)
        X = validate_data(self, X, dtype=np.float32, reset=False)
        return self._fitted.predict(_tensor(X)).numpy()

    def predict(self, X: Any) -> Array:
        """Predict the most likely class of each sample.

        Args:
            X: Features of shape (N, F).

        Returns:
            Classes of length N.

        Raises:
            NotFittedError: If the model is not fitted.
            ValueError: If X is invalid or has another number of features.
        """
        likeliest_N = self.predict_proba(X).argmax(1)
        return np.asarray(self.classes_[likeliest_N])


def _tensor(features: Array) -> Tensor:
    return torch.tensor(features)  # a copy, because the array may be read-only
