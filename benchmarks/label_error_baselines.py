"""Baselines: the lists of likely label errors of other methods for the same labels and features.

cleanlab: its four scores (self-confidence and normalised margin, each plain and adjusted) and its filter, on
out-of-sample predictions. Those of scikit-learn come from LogisticRegression on standardised features with five
shuffled folds. C is selected among five values by the likelihood of held-out given labels.

SimiFeat (Zhu, Dong and Liu, "Detecting Corrupted Labels Without Training a Model to Predict", 2022), reimplemented
from the paper and the authors' code, with their defaults: ten neighbours by cosine similarity, including the sample
itself. Votes are weighted by similarity, and that of the sample itself is extrapolated from the next two.

    V (voting)    a label is an error if another class has the most votes
    R (ranking)   score -log(share of the label in the votes); in each class the labels with the largest scores, as
                  many as HOC (Zhu, Song and Liu, 2021) estimates to be wrong. HOC fits the noise to the joint
                  frequencies of the labels of a sample and its two nearest neighbours (Adam, 400 steps, 0.1)

Both list their errors first and sort by the score; the score alone is a third list. The authors average over 21 random
augmentations of the images and, within them, over random shifts of the estimated rates. With fixed features there is
one pass without a shift. HOC uses all samples, as the authors' code does below 15,000.

Shapes: N samples, F features, K classes, J neighbours.
"""

import math
import time
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import normalize, one_hot

from selfadapt.data.splits import assign_folds

FOLDS = 5
INVERSE_DECAYS = (1e-4, 1e-3, 1e-2, 1e-1, 1.0)  # C
SCORES = {
    "self-confidence": ("self_confidence", False),
    "self-confidence, adjusted": ("self_confidence", True),
    "margin": ("normalized_margin", False),
    "margin, adjusted": ("normalized_margin", True),
}
_NEIGHBOURS = 10
_STEPS, _RATE = 400, 0.1


@dataclass(frozen=True)
class Logistic:
    """Out-of-sample predictions of scikit-learn."""

    predicted_NK: Tensor
    inverse_decay: float
    seconds: float  # CPU time


def logistic_regression(features_NF: Tensor, labels_N: Tensor, seed: int) -> Logistic:
    """Predictions with C selected by the held-out likelihood of the given labels."""
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import PredefinedSplit, cross_val_predict
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    start = time.process_time()
    split = PredefinedSplit(assign_folds(labels_N, FOLDS, seed).numpy())
    best: tuple[float, float, Tensor] = (-math.inf, 0.0, torch.empty(0))
    for inverse in INVERSE_DECAYS:
        model = make_pipeline(StandardScaler(), LogisticRegression(C=inverse, max_iter=200))
        predicted = cross_val_predict(
            model, features_NF.numpy(), labels_N.numpy(), cv=split, method="predict_proba"
        )  # fmt: skip
        predicted_NK = torch.from_numpy(predicted)
        likelihood = float(predicted_NK.gather(1, labels_N.unsqueeze(1)).clamp_min(1e-12).log().mean())
        if likelihood > best[0]:
            best = (likelihood, inverse, predicted_NK)
    return Logistic(best[2], best[1], time.process_time() - start)


def cleanlab_scores(predicted_NK: Tensor, labels_N: Tensor) -> dict[str, Tensor]:
    """Each of cleanlab's scores of every label; larger means more likely wrong."""
    from cleanlab.rank import get_label_quality_scores

    labels, predicted = labels_N.numpy(), _distributions(predicted_NK)
    return {
        name: -torch.from_numpy(get_label_quality_scores(labels, predicted, method=method, adjust_pred_probs=adjust))
        for name, (method, adjust) in SCORES.items()
    }


def cleanlab_issues(predicted_NK: Tensor, labels_N: Tensor) -> Tensor:
    """A mask of the labels that cleanlab's filter finds."""
    from cleanlab.filter import find_label_issues

    found = find_label_issues(labels_N.numpy(), _distributions(predicted_NK), n_jobs=1)
    return torch.from_numpy(np.asarray(found))


def _distributions(predicted_NK: Tensor) -> "np.ndarray[tuple[int, ...], np.dtype[np.float64]]":
    predicted = predicted_NK.double().numpy()
    return np.asarray(predicted / predicted.sum(1, keepdims=True))


def simifeat(features_NF: Tensor, labels_N: Tensor, *, standardised: bool) -> dict[str, Tensor]:
    """Each of SimiFeat's scores of every label; larger means more likely wrong. Tabular features are `standardised`."""
    classes = int(labels_N.max()) + 1
    if standardised:
        features_NF = (features_NF - features_NF.mean(0)) / features_NF.std(0).clamp_min(1e-6)
    similar_NJ, near_NJ = nearest(features_NF, _NEIGHBOURS)
    similar_NJ[:, 0] = 2 * similar_NJ[:, 1] - similar_NJ[:, 2]
    votes_NK = torch.zeros(len(labels_N), classes).scatter_add_(1, labels_N[near_NJ], similar_NJ)
    shares_NK = normalize(votes_NK, dim=1)
    score_N = -(shares_NK.gather(1, labels_N.unsqueeze(1)).squeeze(1).clamp_min(0) + 1e-8).log()
    outvoted_N = shares_NK.argmax(1) != labels_N
    ranked_N = torch.zeros_like(outvoted_N)
    right_K = right_share(labels_N[near_NJ[:, :3]], classes)
    for k in labels_N.unique().tolist():
        class_n = (labels_N == k).nonzero().flatten()
        wrong = 1 - min(float(right_K[k]), 1.0)
        wrong = 0.95 if wrong >= 1 else 0.05 if wrong <= 0 else wrong
        ranked_N[class_n] = score_N[class_n] >= score_N[class_n].quantile(1 - wrong)
    offset = float(score_N.max() - score_N.min()) + 1
    return {"V": score_N + offset * outvoted_N, "R": score_N + offset * ranked_N, "score": score_N}


def nearest(features_NF: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Cosine similarities and indices of the nearest samples; the first is the sample itself."""
    unit_NF = normalize(features_NF)
    similarities, neighbours = [], []
    for rows_n in torch.arange(len(features_NF)).split(2048):
        cosine_nN = unit_NF[rows_n] @ unit_NF.T
        cosine_nN[torch.arange(len(rows_n)), rows_n] = 2.0  # ahead of its duplicates
        best = cosine_nN.topk(count, 1)
        similarities.append(best.values)
        neighbours.append(best.indices)
    return torch.cat(similarities), torch.cat(neighbours)


def right_share(labels_N3: Tensor, classes: int) -> Tensor:
    """HOC: the share of right labels in each class, from the labels of samples and their two nearest neighbours."""
    counted = [one_hot(labels_N3[:, i], classes).float() for i in range(3)]
    first_K = counted[0].mean(0)
    second_KK = torch.einsum("ni,nj->ij", *counted[:2]) / len(labels_N3)
    third_KKK = torch.zeros(classes**3).index_add_(
        0, labels_N3 @ torch.tensor([classes**2, classes, 1]), torch.full((len(labels_N3),), 1 / len(labels_N3))
    )
    noise_KK = (5 * torch.eye(classes) - 1).requires_grad_()
    prior_K = torch.full((classes,), 1 / classes).requires_grad_()
    optimizer = torch.optim.Adam([noise_KK, prior_K], lr=_RATE)
    for _ in range(_STEPS):
        given_KK, p_K = noise_KK.softmax(1), prior_K.softmax(0)
        pairs_KKK = torch.einsum("ki,kj->kij", given_KK, given_KK)
        loss = (first_K - p_K @ given_KK).norm() + (second_KK - torch.einsum("k,kij->ij", p_K, pairs_KKK)).norm()
        triples_KKK = torch.einsum("kij,kl->ijl", p_K.view(-1, 1, 1) * pairs_KKK, given_KK)
        loss = loss + (third_KKK - triples_KKK.flatten()).norm()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    joint_KK = prior_K.softmax(0).unsqueeze(1) * noise_KK.softmax(1)
    return (joint_KK.diagonal() / first_K).detach()
