"""The promise about unseen suggestions: the formula against scipy, and the promise itself on simulated reviews."""

import numpy as np
import pytest
from scipy import stats

from selfadapt.review.statistics.precision_bound import (
    Numbers,
    Seen,
    deepest,
    depth_grid,
    least_right,
    log_evidence,
    most_right,
    rest_at_least,
    rest_at_most,
)


@pytest.mark.parametrize(("right", "size", "seen"), [(9, 12, 5), (40, 40, 17), (0, 30, 30), (21, 50, 20)])
def test_the_evidence_against_the_truth_is_one_on_average(right: int, size: int, seen: int) -> None:
    """By scipy's distributions; on average over what may be seen it is one, which makes it a martingale."""
    s = np.arange(seen + 1)
    ours = np.exp(log_evidence(right, size, seen, s))
    likelihood = stats.hypergeom(size, right, seen).pmf(s)
    mixture = stats.betabinom(seen, 0.5, 0.5).pmf(s)
    possible = likelihood > 0
    np.testing.assert_allclose(ours[possible], mixture[possible] / likelihood[possible], rtol=1e-8)
    assert np.isinf(ours[~possible]).all()
    assert (likelihood[possible] * ours[possible]).sum() == pytest.approx(mixture[possible].sum())


def test_the_average_over_the_prior_is_beta_binomial() -> None:
    """What the closed form rests on: hypergeometric draws from a beta-binomial population are beta-binomial."""
    size, seen = 23, 9
    population = stats.betabinom(size, 0.5, 0.5).pmf(np.arange(size + 1))
    for s in range(seen + 1):
        mixed = sum(population[right] * stats.hypergeom(size, right, seen).pmf(s) for right in range(size + 1))
        assert mixed == pytest.approx(stats.betabinom(seen, 0.5, 0.5).pmf(s))


@pytest.mark.parametrize("budget", [0.2, 0.05, 0.001])
def test_bounds_are_what_trying_every_number_finds(budget: float) -> None:
    for size in (1, 2, 7, 40):
        for seen in range(size + 1):
            for s in range(seen + 1):
                every = np.arange(size + 1)
                left = every[np.exp(log_evidence(every, size, seen, s)) < 1 / budget]
                found = (bound(size, seen, s, budget) for bound in (least_right, most_right))
                assert tuple(map(int, found)) == (left.min(), left.max()), (size, seen, s)


def test_the_whole_population_leaves_no_doubt() -> None:
    for seen, right, expected in ((30, 22, (22, 22)), (0, 0, (0, 30))):
        assert int(least_right(30, seen, right, 0.05)) == expected[0]
        assert int(most_right(30, seen, right, 0.05)) == expected[1]


def test_what_was_decided_takes_its_share_along() -> None:
    """With every right one decided, nothing is promised of the rest; what many decided at once may all be right."""
    about = {"size_J": np.array([100]), "seen_J": np.array([60]), "right_J": np.array([60])}

    def rest(decided: int, least: int, most: int) -> tuple[float, float]:
        seen = Seen(
            **about,
            decided_J=np.array([decided]),
            decided_right_least_J=np.array([least]),
            decided_right_most_J=np.array([most]),
        )
        return float(rest_at_least(seen, 0.95)[0]), float(rest_at_most(seen, 0.95)[0])

    low = int(least_right(100, 60, 60, 0.05))
    assert rest(60, 60, 60) == ((low - 60) / 40, 1.0)
    assert rest(70, 60, 70) == (max(0, low - 70) / 30, 1.0), "ten more at once: they may all be right"
    assert rest(70, 60, 60) == (min(30, low - 60) / 30, 1.0), "all wrong: then the rest is better"
    assert rest(100, 60, 90) == (1.0, 1.0), "nothing is left"


def test_depths_are_tenths() -> None:
    assert depth_grid(1000).tolist() == list(range(100, 1001, 100))
    assert depth_grid(4).tolist() == [1, 2, 3, 4]
    assert depth_grid(0).tolist() == []


SIZE, LOOKS, DRAWS = 1000, 200, 1000
PRECISION, CONFIDENCE = 0.9, 0.9


def _reviews(truth: Numbers, seed: int, draws: int, looks: int) -> tuple[Numbers, Seen]:
    """So many reviews of a population in random orders, with a look after every decision: shapes draws × looks × J."""
    generator = np.random.default_rng(seed)
    depth_J = depth_grid(len(truth))
    order = generator.permuted(np.tile(np.arange(len(truth)), (draws, 1)), axis=1)[:, :looks]
    within = order[:, :, None] < depth_J
    seen = within.cumsum(1)
    right = (within & truth[order][:, :, None]).cumsum(1)
    size = np.broadcast_to(depth_J, seen.shape)
    return order, Seen(
        size_J=size, seen_J=seen, right_J=right, decided_J=seen, decided_right_least_J=right, decided_right_most_J=right
    )


def _broken(truth: Numbers, draws: int = DRAWS, looks: int = LOOKS, bound: str = "ours") -> tuple[float, float]:
    """The share of reviews in which the promise was ever broken, and of those in which one was made at all."""
    depth_J = depth_grid(len(truth))
    true_J = truth.cumsum()[depth_J - 1]
    broken, made = 0, 0
    for piece in range(draws // 100):
        _, seen = _reviews(truth, piece, 100, looks)
        if bound == "ours":
            low = rest_at_least(seen, CONFIDENCE)
        else:  # one that holds for a single look at a single depth: Clopper and Pearson's
            low = stats.beta(seen.right_J, seen.seen_J - seen.right_J + 1).ppf(1 - CONFIDENCE)
            low = np.where(seen.right_J > 0, np.nan_to_num(low), 0.0)
        chosen = deepest(low, PRECISION)
        rest = np.take_along_axis(seen.rest_J, np.maximum(chosen, 0)[..., None], -1)[..., 0]
        right = np.take_along_axis(true_J - seen.right_J, np.maximum(chosen, 0)[..., None], -1)[..., 0]
        wrong = (chosen >= 0) & (rest > 0) & (right < PRECISION * rest)
        broken += int(wrong.any(1).sum())
        made += int(((chosen >= 0) & (rest > 0)).any(1).sum())
    return broken / draws, made / draws


def _population(*shares: float, size: int = SIZE) -> Numbers:
    """Suggestions in as many equal pieces, from the most suspicious down; these shares of them are right."""
    piece = size // len(shares)
    own = [np.floor((np.arange(piece) + 1) * share) > np.floor(np.arange(piece) * share) for share in shares]
    return np.concatenate(own)


@pytest.mark.parametrize(
    "shares",
    [(0.89,), (1.0, 1.0, 1.0, 1.0, 0.95, 0.9, 0.8, 0.6, 0.5, 0.4), (1.0,) * 6 + (0.4,) * 4],
    ids=["just too few", "falling", "a cliff"],
)
def test_the_promise_is_kept_over_all_looks_and_depths(shares: tuple[float, ...]) -> None:
    """1,000 reviews, a look after every decision, the depth as `labels` chooses it: broken at any look counts."""
    broken, made = _broken(_population(*shares))
    assert broken <= 1 - CONFIDENCE
    assert made > 0.5 or shares == (0.89,), "a promise is made where it can be"


def test_a_bound_for_one_look_would_break_it() -> None:
    """So the simulation can tell: Clopper-Pearson's bound, looked at again and again, breaks the promise."""
    broken, _ = _broken(_population(0.89), draws=300, bound="one look")
    assert broken > 1.5 * (1 - CONFIDENCE)
