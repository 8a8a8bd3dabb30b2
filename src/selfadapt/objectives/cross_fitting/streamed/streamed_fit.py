"""Cross-fitting in a few passes over features that are too many to hold.

Predictions are weighted means of a linear and a nonlinear predictor, as in cross_fit.py. The nonlinear one is a linear
discriminant on the axes of a Gaussian kernel. Discriminants predict each fold from the sums of the others
(fold_moments.py).

With few classes a pilot is the linear predictor: cross_fit.py on a sample as large as data that are fitted at once.
Its heads predict the sample by folds, and a final head predicts the others. The kernel's discriminants are then fitted
to targets of the pilot,

    r_ik ∝ q_ik V[k, y_i],   q and V from the pilot

which are computed for each block of the pass that takes the sums X'R, and forgotten. Without a pilot, the linear
predictor is a discriminant on the standardised features, and both are fitted to the labels. Shrinkage, weights and
temperatures are selected on at most 10,000 samples of the pilot, as they are for smaller data.

Sample, shrinkage, kernel, weights and temperatures depend on ids and features, not on files or processes.

Shapes: N samples, n of a block, s of the sample, F features, D axes, f folds, K classes.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from selfadapt.data.shards.passes import Passes
from selfadapt.data.shards.scan import Scan
from selfadapt.models.linear.fold_moments import FoldMoments, Standardised
from selfadapt.models.linear.kernel_axes import KernelAxes
from selfadapt.objectives.cross_fitting.cross_fit import CrossFitted, best_kernel, cross_fit
from selfadapt.objectives.cross_fitting.nested_heads import is_large, one_hot
from selfadapt.objectives.cross_fitting.noise_model import (
    fit_symmetric,
    likeliest_share,
    sharpened,
)
from selfadapt.objectives.cross_fitting.streamed.fold_heads import FoldHeads
from selfadapt.objectives.cross_fitting.streamed.sparse_predictions import SparsePredictions
from selfadapt.objectives.cross_fitting.streamed.sparse_transition import (
    SparseNoise,
    SparseTransition,
    estimate_sparse_transition,
    gain_of_classes,
)
from selfadapt.objectives.cross_fitting.transition import posterior

STREAMED_FOLDS = 5
SAMPLE = 8192  # samples on which everything is selected, unless the pilot has more
_SAMPLE_NUMBERS = 2**24  # class probabilities of the sample
_LEAST_PER_CLASS = 50  # samples of the pilot
_MANY_SAMPLES, _MANY_NUMBERS, _MANY_PRODUCTS = 50_000, 2**26, 2e9
_SELECTING = 10_000  # samples of the pilot on which shrinkages and weights are selected
_COMPARED = 100_000  # samples on which V is estimated
_LEAST_GAIN, _MARGIN = 0.003, 2.0  # of V over symmetric noise, in nats per label and in standard errors


@dataclass(frozen=True)
class StreamedFit:
    """Out-of-sample predictions of the samples of this process, before their temperature."""

    predictions: SparsePredictions
    noise: SparseNoise
    distance_n: Tensor  # squared Mahalanobis distance to the nearest class mean


class StreamedFitting:
    """Labels 0, 1, …, folds 0 to 4, and the positions of a random sample."""

    def __init__(
        self, passes: Passes, scan: Scan, labels_N: Tensor, fold_N: Tensor, sample_s: Tensor, num_classes: int
    ) -> None:
        self.passes, self.labels_N, self.fold_N, self.num_classes = passes, labels_N, fold_N, num_classes
        sample_sF, fold_s = passes.shards.take(sample_s), fold_N[sample_s].long()
        kernel = best_kernel(sample_sF, labels_N[sample_s], fold_s, num_classes)
        self.linear, self.kernel = (
            FoldHeads(axes, FoldMoments.zero(STREAMED_FOLDS, num_classes, axes(sample_sF[:1]).shape[1]))
            for axes in (Standardised(scan.mean_F, scan.scale_F), kernel)
        )
        self.share = 0.0  # of the linear predictor
        every = -(-len(sample_s) * num_classes // _SAMPLE_NUMBERS)  # fewer for many classes
        self.pilot_s = sample_s[::every].contiguous()
        self.pilot = self._pilot(sample_sF[::every], fold_s[::every], kernel)
        self.temperature = 1.0  # of the pilot's heads
        if self.pilot is not None:
            self.temperature = fit_symmetric(self.pilot.heads_NK, self.pilot.labels_N).temperature
        every *= max(1, len(self.pilot_s) // _SELECTING)
        self.sample_s, self.sample_sF = sample_s[::every].contiguous(), sample_sF[::every]
        self.sample_labels_s, self.sample_fold_s = labels_N[self.sample_s], fold_N[self.sample_s]

    def _pilot(self, features_sF: Tensor, fold_s: Tensor, kernel: KernelAxes) -> CrossFitted | None:
        enough = len(fold_s) >= _LEAST_PER_CLASS * self.num_classes
        if not enough or is_large(features_sF, fold_s, self.num_classes):
            return None
        steps = self.passes.on_progress

        def on_progress(done: int, total: int) -> None:
            steps("cross-fitting a sample", done, total)

        on_progress(0, 1)
        labels_s = self.labels_N[self.pilot_s]
        return cross_fit(features_sF, labels_s, fold_s, self.num_classes, on_progress=on_progress, kernel=kernel)

    def fit(self) -> StreamedFit:
        for block, features_nF in self.passes.blocks("summing folds"):
            position_n = torch.arange(block.start, block.stop)
            self.linear.add(features_nF, self.labels_N[block], self.fold_N[block])
            self.kernel.add(features_nF, self._targets(features_nF, position_n), self.fold_N[block])
        labels_sK = one_hot(self.sample_labels_s, self.num_classes).float()
        self.linear.fit(self.sample_sF, self.sample_fold_s, labels_sK)
        targets_sK = labels_sK if self.pilot is None else self._targets(self.sample_sF, self.sample_s)
        self.kernel.fit(self.sample_sF, self.sample_fold_s, targets_sK)
        sample_sK = self._select()
        predictions, distance_n = SparsePredictions(self.passes, self.num_classes), self.passes.own(torch.float32)
        for block, features_nF in self.passes.blocks("predicting"):
            position_n = torch.arange(block.start, block.stop)
            predictions.put(block, self._predict(features_nF, position_n), self.labels_N[block])
            distance_n[self.passes.place(block)] = self.linear.distance(features_nF, self.fold_N[block])
        return StreamedFit(predictions, self._noise(predictions, sample_sK), distance_n)

    def _select(self) -> Tensor:
        """Select the weights of the two predictors on the sample, and return its predictions."""
        linear_sK = self._by_linear(self.sample_sF, self.sample_s)
        kernel_sK = self._by_kernel(self.sample_sF, self.sample_s)
        self.share = likeliest_share(linear_sK, kernel_sK, self.sample_labels_s)
        return self.share * linear_sK + (1 - self.share) * kernel_sK

    def _predict(self, features_nF: Tensor, position_n: Tensor) -> Tensor:
        """The weighted mean of the predictors."""
        if self.share == 1:
            return self._by_linear(features_nF, position_n)
        predicted_nK = self._by_kernel(features_nF, position_n).mul_(1 - self.share)
        if self.share:
            predicted_nK.add_(self._by_linear(features_nF, position_n), alpha=self.share)
        return predicted_nK

    def _by_linear(self, features_nF: Tensor, position_n: Tensor) -> Tensor:
        """Predictions of the pilot, or of the discriminant on the features if there is none."""
        if self.pilot is not None:
            return self._by_pilot(features_nF, position_n, self.pilot)
        return self.linear.predict(features_nF, self.fold_N[position_n])

    def _by_kernel(self, features_nF: Tensor, position_n: Tensor) -> Tensor:
        return self.kernel.predict(features_nF, self.fold_N[position_n])

    def _targets(self, features_nF: Tensor, position_n: Tensor) -> Tensor:
        """r of these samples (n×K), or their labels if there is no pilot."""
        labels_n = self.labels_N[position_n]
        if self.pilot is None:
            return labels_n
        predicted_nK = sharpened(self._by_pilot(features_nF, position_n, self.pilot), self.temperature)
        return posterior(predicted_nK, labels_n, self.pilot.noise.matrix_KK)

    def _by_pilot(self, features_nF: Tensor, position_n: Tensor, pilot: CrossFitted) -> Tensor:
        """Predictions by the head of the pilot, by the heads of its folds for its own samples."""
        predicted_nK = pilot.predict(features_nF)
        row_n, place_n = _common(position_n, self.pilot_s)
        predicted_nK[row_n] = pilot.heads_NK[place_n]
        return predicted_nK

    def _noise(self, predictions: SparsePredictions, sample_sK: Tensor) -> SparseNoise:
        """Symmetric noise, or class-dependent noise if it explains held-out labels better."""
        fitted = fit_symmetric(sample_sK, self.sample_labels_s)
        every = -(-len(self.labels_N) // _COMPARED)
        self.passes.on_progress("estimating label noise", 0, 1)
        rows = predictions.take(torch.arange(0, len(self.labels_N), every))
        fold_n = self.fold_N[rows.position_n]
        gain, standard_error = gain_of_classes(rows, fold_n)
        if gain <= max(_LEAST_GAIN, _MARGIN * standard_error):
            return SparseNoise(SparseTransition.symmetric(fitted.rate, self.num_classes), fitted.temperature)
        temperature = max(1.0, fitted.temperature)
        return SparseNoise(estimate_sparse_transition(rows.sharpened(temperature), fold_n), temperature)


def _common(position_n: Tensor, sorted_s: Tensor) -> tuple[Tensor, Tensor]:
    """Where the positions that occur in both are in each of them."""
    place_n = torch.searchsorted(sorted_s, position_n).clamp_max(len(sorted_s) - 1)
    row_n = (sorted_s[place_n] == position_n).nonzero().flatten()
    return row_n, place_n[row_n]


def sample_size(dimensions: int, num_classes: int) -> int:
    """The number of samples of the pilot: as many as are fitted at once."""
    at_once = min(_MANY_SAMPLES, _MANY_NUMBERS // dimensions, int(_MANY_PRODUCTS / (dimensions * num_classes)))
    return max(SAMPLE, at_once)


def is_streamed(samples: int, dimensions: int, num_classes: int) -> bool:
    """Whether data is so large that it is fitted from sums, in blocks.

    From 50,000 samples, or 2^26 numbers (256 MB). Smaller data of many classes is, too, if the heads of cross_fit.py
    would have to be cut to a few axes: from 2e9 products of samples, features and classes.
    """
    products = samples * min(samples, dimensions) * num_classes
    return samples >= _MANY_SAMPLES or samples * dimensions >= _MANY_NUMBERS or products > _MANY_PRODUCTS
