"""Selectors of selective classification: confidence scores, larger for more confident.

    softmax-response   max_j p_j                     (Geifman and El-Yaniv, 2017)
    entropy            sum_j p_j log p_j             the negative entropy
    margin             p_(1) - p_(2)                 between the two most likely classes

p is the softmax over the class outputs. Methods define further selectors, such as an abstain output, in
`Objective.selectors`; dropout at test time is in mc_dropout.py.

Shapes: N samples, K classes, O outputs of which the first K are the classes.
"""

from collections.abc import Mapping

import torch
from torch import Tensor


def class_selectors(outputs_NO: Tensor, num_classes: int) -> Mapping[str, Tensor]:
    """Return all selectors that depend only on the class outputs."""
    p_NK = outputs_NO[:, :num_classes].double().softmax(1)  # double: distinguishes predictions near certainty
    first_N, second_N = p_NK.topk(2, dim=1).values.unbind(1)
    return {
        "softmax-response": first_N,
        "entropy": torch.special.xlogy(p_NK, p_NK).sum(1),
        "margin": first_N - second_N,
    }
