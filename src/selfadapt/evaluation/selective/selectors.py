"""Selectors of selective classification: how confident a network is of its answer, larger being more confident.

    softmax-response   max_j p_j                     (Geifman and El-Yaniv, 2017)
    entropy            sum_j p_j log p_j             the negative entropy
    margin             p_(1) - p_(2)                 between the two likeliest classes

p is the softmax over the c class outputs. What a method says of its own confidence, such as its abstain output, is the
method's to define (`Objective.selectors`); dropout at test time is in mc_dropout.py.

Shapes: N samples, K classes, O outputs of which the first K are the classes.
"""

from collections.abc import Mapping

import torch
from torch import Tensor


def class_selectors(outputs_NO: Tensor, num_classes: int) -> Mapping[str, Tensor]:
    """Every selector that the class outputs alone give."""
    p_NK = outputs_NO[:, :num_classes].double().softmax(1)  # double: answers near certainty stay apart
    first_N, second_N = p_NK.topk(2, dim=1).values.unbind(1)
    return {
        "softmax-response": first_N,
        "entropy": torch.special.xlogy(p_NK, p_NK).sum(1),
        "margin": first_N - second_N,
    }
