"""Bounds on the precision of suggestions that nobody reviewed. They hold at all times, for any stopping rule.

Of N suggestions an unknown number R are right. A person reviews them in a random order that was fixed in advance; of
the first t, s are right. Under R that is hypergeometric, P_R(s of t); averaged over a prior for R that is
beta-binomial with both parameters 1/2, it is beta-binomial too, P(s of t). Their ratio

    E(R) = P(s of t) / P_R(s of t)

is a nonnegative martingale in t with mean 1 if R is the truth, so it ever reaches 1/a with probability at most a
(Ville's inequality). The numbers R with E(R) < 1/a are therefore a confidence sequence: an interval, because P_R is
log-concave in R, that holds for all t together. Waudby-Smith and Ramdas, "Confidence sequences for sampling without
replacement", 2020, call it the prior-posterior ratio.

Suggestions are accepted from the most likely wrong label down. Each of J depths, fixed with the order, gets 1/J of the
error budget, so all bounds hold together and the deepest sufficient one may be chosen. Samples that are decided leave
the rest, with what is known of them:

    right among the rest  >=  (lower bound on R)  -  (right among the decided)

Shapes: J depths; leading dimensions are free.
"""

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

Numbers = Any  # an integer or an array of integers
Shares = np.ndarray[Any, np.dtype[np.float64]]

_STEPS = 10  # depths of the grid


def depth_grid(size: int) -> Numbers:
    """The depths at which a population of this size may be cut: multiples of a tenth, up to all of it."""
    return np.unique(np.ceil(size * np.arange(1, _STEPS + 1) / _STEPS).astype(np.int64)) if size else np.zeros(0, int)


def log_evidence(right: Numbers, size: Numbers, seen: Numbers, seen_right: Numbers) -> Shares:
    """log E(R): the evidence against R right ones; infinite where R is impossible."""
    whole, halves = _log_gammas(1 << int(np.max(size, initial=1)).bit_length())

    def log_choose(n: Numbers, k: Numbers) -> Shares:
        found: Shares = whole[n] - whole[k] - whole[n - k]
        return found

    seen_wrong = seen - seen_right
    # log of C(t, s) B(s + 1/2, t - s + 1/2) / B(1/2, 1/2), and B(1/2, 1/2) is pi
    mixture = log_choose(seen, seen_right) + halves[seen_right] + halves[seen_wrong] - whole[seen] - math.log(math.pi)
    possible = (right >= seen_right) & (size - right >= seen_wrong)
    fitting = np.where(possible, right, seen_right)  # else any number within the tables
    left = np.where(possible, size - right, seen_wrong)
    likelihood = log_choose(fitting, seen_right) + log_choose(left, seen_wrong) - log_choose(size, seen)
    return np.where(possible, mixture - likelihood, np.inf)


@lru_cache(maxsize=4)
def _log_gammas(most: int) -> tuple[Shares, Shares]:
    """log n! and log Gamma(n + 1/2) for n up to `most`, as tables: ten times faster than computing them."""
    from scipy.special import gammaln

    return gammaln(np.arange(most + 1) + 1.0), gammaln(np.arange(most + 1) + 0.5)


def least_right(size: Numbers, seen: Numbers, seen_right: Numbers, error_budget: float) -> Numbers:
    """The smallest number of right ones among `size` that is not refuted at this error budget."""
    size, seen, low = np.broadcast_arrays(*(np.asarray(value, dtype=np.int64) for value in (size, seen, seen_right)))
    seen_right, refuted_at = low, -math.log(error_budget)
    # Evidence falls from the smallest possible number to the most likely one, which is never refuted.
    high = np.where(seen > 0, np.clip((size + 1) * seen_right // np.maximum(seen, 1), low, size - seen + low), low)
    while (low < high).any():
        middle = (low + high) // 2
        refuted = log_evidence(middle, size, seen, seen_right) >= refuted_at
        low, high = np.where(refuted, middle + 1, low), np.where(refuted, high, middle)
    return low


def most_right(size: Numbers, seen: Numbers, seen_right: Numbers, error_budget: float) -> Numbers:
    """The largest such number: the evidence is the same if right and wrong are swapped."""
    return np.asarray(size) - least_right(size, seen, np.asarray(seen) - seen_right, error_budget)


@dataclass(frozen=True, kw_only=True)
class Seen:
    """Counts of a review at J nested depths of a population."""

    size_J: Numbers
    seen_J: Numbers  # reviewed in random order, without a gap
    right_J: Numbers  # right suggestions among these
    decided_J: Numbers  # decided in any way
    decided_right_least_J: Numbers  # right among these; unknown for several that were decided at once
    decided_right_most_J: Numbers

    @property
    def rest_J(self) -> Numbers:
        """The number of undecided samples."""
        return self.size_J - self.decided_J


def rest_at_least(seen: Seen, confidence: float) -> Shares:
    """Lower bounds on the precision of the undecided rest at each depth; 1 where nothing is left.

    Each bound holds at all depths and at all times together with this confidence.
    """
    low_J = least_right(seen.size_J, seen.seen_J, seen.right_J, (1 - confidence) / seen.size_J.shape[-1])
    return _share(low_J - seen.decided_right_most_J, seen.rest_J)


def rest_at_most(seen: Seen, confidence: float) -> Shares:
    """Upper bounds on the precision of the undecided rest at each depth; 1 where nothing is left."""
    high_J = most_right(seen.size_J, seen.seen_J, seen.right_J, (1 - confidence) / seen.size_J.shape[-1])
    return _share(high_J - seen.decided_right_least_J, seen.rest_J)


def _share(right_J: Numbers, rest_J: Numbers) -> Shares:
    return np.where(rest_J > 0, np.clip(right_J, 0, rest_J) / np.maximum(rest_J, 1), 1.0)


def deepest(low_J: Shares, precision: float) -> Numbers:
    """The index of the deepest depth whose bound reaches this precision; -1 if there is none."""
    enough = low_J >= precision
    last = low_J.shape[-1] - 1 - np.argmax(enough[..., ::-1], axis=-1)
    return np.where(enough.any(axis=-1), last, -1)
