"""The linear baseline against closed forms, scipy's integrators and sentences drawn at random."""

from dataclasses import FrozenInstanceError
from math import gamma, pi, sqrt

import numpy as np
import pytest
from scipy.integrate import cubature, dblquad
from scipy.special import expit
from scipy.stats import norm

from attnphase import LinearBaseline, Model, linear_baseline
from attnphase.baseline import SEED

A = np.array([[0.6, 0.4], [0.4, 0.6]])
THREE = {
    "positional_target": ((0.5, 0.3, 0.2), (0.1, 0.8, 0.1), (0.25, 0.25, 0.5)),
    "encodings": ((1,), (0,), (-1,)),
}


def polar_moments(first, second):
    """E p and E p^2 for p = 1 / (1 + exp(-h_1 (h_1 - h_2))), standard deviations given."""

    def integrand(points):
        radius, angle = points.T
        h, other = first * radius * np.cos(angle), second * radius * np.sin(angle)
        p = expit(h * (h - other))
        density = radius * np.exp(-(radius**2) / 2) / (2 * np.pi)
        return np.stack([p, p**2], axis=1) * density[:, None]

    result = cubature(integrand, [0, 0], [11, 2 * np.pi], rtol=1e-11, atol=1e-14)
    assert result.status == "converged"
    return result.estimate


@pytest.mark.parametrize("sigma", [0.2, 0.5, 1.0, 2.0, 3.0])
@pytest.mark.parametrize("omega", [0.0, 0.3, 0.9])
def test_equal_variances_against_adaptive_cubature(sigma, omega):
    mean, square = polar_moments(sigma, sigma)
    baseline = linear_baseline(Model(omega, sigma=sigma))
    semantic = np.array([[mean, 1 - mean], [1 - mean, mean]])
    assert baseline.weights == pytest.approx((1 - omega) * semantic + omega * A, rel=1e-9)
    # four entries of equal variance, each weighted by sigma^2, and the factor 1/2
    exact = 2 * (1 - omega) ** 2 * sigma**2 * (square - mean**2)
    assert baseline.test_error == pytest.approx(exact, rel=1e-7)
    # the reported error bounds the true one, up to the cubature's own 1e-11
    assert abs(baseline.test_error - exact) <= baseline.standard_error + 1e-9 * exact


@pytest.mark.parametrize("sigma", [(0.5, 1.0), (1.2, 0.3)])
def test_unequal_variances_in_cartesian_coordinates(sigma):
    def integrand(points):
        h, other = (sigma * points).T
        p, q = expit(h * (h - other)), expit(other * (other - h))
        return norm.pdf(points).prod(axis=1)[:, None] * np.stack([p, q, p**2, q**2], axis=1)

    result = cubature(integrand, [-8, -8], [8, 8], rtol=1e-9, atol=1e-13)
    assert result.status == "converged"
    means, squares = result.estimate.reshape(2, 2)
    variances = squares - means**2
    baseline = linear_baseline(Model(0.2, sigma=sigma, positional_target=((0.9, 0.1), (0.3, 0.7))))
    semantic = np.array([[means[0], 1 - means[0]], [1 - means[1], means[1]]])
    expected = 0.8 * semantic + 0.2 * np.array([[0.9, 0.1], [0.3, 0.7]])
    assert baseline.weights == pytest.approx(expected, rel=1e-9)
    # both entries of row i have the variance of p_ii; column l carries s_l
    exact = 0.5 * 0.8**2 * sum(np.square(sigma)) * sum(variances)
    assert baseline.test_error == pytest.approx(exact, rel=1e-7)


def test_base_case_value():
    baseline = linear_baseline(Model(0.3))
    assert baseline.test_error == pytest.approx(1.97138433466933e-3, rel=1e-12)
    assert baseline.weights[0, 0] == pytest.approx(0.569902430593, abs=1e-11)
    assert 0 <= baseline.standard_error < 1e-9 * baseline.test_error


@pytest.mark.parametrize("omega", [0.1, 0.3, 0.5, 0.95])
@pytest.mark.parametrize("more", [{}, THREE], ids=["two tokens", "three tokens"])
def test_error_scales_with_the_square_of_the_semantic_share(omega, more):
    pure = linear_baseline(Model(0.0, **more))
    mixed = linear_baseline(Model(omega, **more))
    assert mixed.test_error == pytest.approx((1 - omega) ** 2 * pure.test_error, rel=1e-12)
    target = np.array(Model(omega, **more).positional_target)
    assert mixed.weights == pytest.approx((1 - omega) * pure.weights + omega * target, rel=1e-12)


@pytest.mark.parametrize("more", [{}, THREE, {"target_rank": 2}])
def test_a_purely_positional_target_is_learned_without_error(more):
    model = Model(1.0, **more)
    baseline = linear_baseline(model)
    assert baseline.test_error == 0
    assert baseline.standard_error == 0
    assert (baseline.weights == np.array(model.positional_target)).all()


def test_small_fields_follow_the_expansion():
    """epsilon_lin = (3/8) (1 - omega)^2 sigma^6 (1 - 10 sigma^4 + O(sigma^6))."""
    for sigma in (0.01, 0.03, 0.1):
        ratio = linear_baseline(Model(0.4, sigma=sigma)).test_error / (0.375 * 0.36 * sigma**6)
        assert ratio == pytest.approx(1 - 10 * sigma**4, abs=30 * sigma**6 + 1e-9)
    # W -> 1/2 + sigma^2/4 on the diagonal
    weights = linear_baseline(Model(0.0, sigma=0.03)).weights
    assert weights[0, 0] - 0.5 == pytest.approx(0.03**2 / 4, rel=1e-2)


def test_large_fields_attend_to_one_token():
    """p_11 -> 1 when h_1 (h_1 - h_2) > 0, which has probability 3/4."""
    ratios = []
    for sigma in (4.0, 8.0):
        baseline = linear_baseline(Model(0.0, sigma=sigma))
        ratios.append(baseline.test_error / (0.375 * sigma**2))
        assert baseline.weights[0, 0] == pytest.approx(0.75, abs=0.2 / sigma)
    assert 0.7 < ratios[0] < ratios[1] < 1


def test_equal_variances_give_a_symmetric_matrix():
    semantic = linear_baseline(Model(0.0, sigma=0.8, **THREE)).weights
    diagonal, off = np.diag(semantic), semantic[~np.eye(3, dtype=bool)]
    assert np.ptp(diagonal) < 1e-9
    assert np.ptp(off) < 1e-9
    assert diagonal[0] > off[0]
    unequal = linear_baseline(Model(0.0, sigma=(0.5, 1.0))).weights
    assert abs(unequal[0, 0] - unequal[1, 1]) > 0.01


@pytest.mark.parametrize(
    "model",
    [
        Model(0.3),
        Model(0.3, sigma=(0.2, 1.5)),
        Model(0.3, **THREE),
        Model(0.3, target_rank=2),
    ],
)
def test_rows_sum_to_one(model):
    weights = linear_baseline(model).weights
    assert weights.shape == (model.length, model.length)
    assert weights.sum(axis=1) == pytest.approx(np.ones(model.length), rel=1e-13)


def test_three_tokens_against_adaptive_cubature():
    sigma = np.array([0.4, 0.7, 0.6])

    def integrand(points):
        h = sigma * points
        logits = h[:, :, None] * h[:, None, :]
        attention = np.exp(logits)
        attention /= attention.sum(axis=2, keepdims=True)
        density = np.prod(norm.pdf(points), axis=1)[:, None]
        both = np.concatenate([attention.reshape(-1, 9), attention.reshape(-1, 9) ** 2], axis=1)
        return density * both

    result = cubature(integrand, [-7] * 3, [7] * 3, rtol=1e-6, atol=1e-10)
    assert result.status == "converged"
    mean, square = result.estimate.reshape(2, 3, 3)
    baseline = linear_baseline(Model(0.3, sigma=tuple(sigma), **THREE))
    expected = 0.7 * mean + 0.3 * np.array(THREE["positional_target"])
    assert baseline.weights == pytest.approx(expected, rel=1e-7)
    exact = 0.5 * 0.49 * ((square - mean**2) @ sigma**2).sum()
    assert baseline.test_error == pytest.approx(exact, rel=1e-6)


@pytest.mark.parametrize("target_rank", [2, 3])
def test_sobol_averages_for_more_fields_and_their_standard_error(target_rank):
    """Given |h_1| = sigma r, the logit h_1.(h_1 - h_2) is sigma^2 r (r - g), g standard normal."""
    sigma = 0.5
    # of the normal density of g times the chi density of r
    constant = 1 / (sqrt(2 * pi) * 2 ** (target_rank / 2 - 1) * gamma(target_rank / 2))

    def moment(power):
        def integrand(g, r):
            density = np.exp(-(g**2 + r**2) / 2) * r ** (target_rank - 1) * constant
            return density * expit(sigma**2 * r * (r - g)) ** power

        return dblquad(integrand, 0, 9, -8, 8, epsabs=1e-8, epsrel=1e-8)[0]

    mean, square = moment(1), moment(2)
    baseline = linear_baseline(Model(0.3, sigma=sigma, target_rank=target_rank))
    exact = 2 * 0.49 * sigma**2 * (square - mean**2)
    assert 0 < baseline.standard_error < 3e-4 * exact
    assert abs(baseline.test_error - exact) < 4 * baseline.standard_error
    assert baseline.weights[0, 0] == pytest.approx(0.7 * mean + 0.18, rel=1e-4)
    assert baseline.weights[1, 1] == pytest.approx(0.7 * mean + 0.18, rel=1e-4)


def test_four_tokens():
    """Sobol again; independent draws with their standard error are the judge."""
    target = np.full((4, 4), 0.25)
    model = Model(0.0, positional_target=target, encodings=[[1], [0], [0], [-1]], sigma=0.9)
    baseline = linear_baseline(model)
    h = 0.9 * np.random.default_rng(8).standard_normal((4, 1, 200_000))
    deviation = model.target(h) - baseline.weights[..., None]
    losses = 0.5 * 0.81 * np.square(deviation).sum(axis=(0, 1))
    scatter = losses.std() / np.sqrt(losses.size)
    assert abs(losses.mean() - baseline.test_error) < 4 * scatter
    assert scatter < 0.003 * baseline.test_error


def test_sentences_drawn_at_random_have_this_error():
    """||y - W x||^2 / (2 d) of whole sentences, for W = E[T] and for matrices next to it.

    With ||Q*||^2 = d, token products are h_k h_l / d along Q* and (d - 1)/d s_l across it.
    """
    dimension, draws = 40, 200_000
    model = Model(0.3, sigma=(0.5, 0.8))
    baseline = linear_baseline(model)
    rng = np.random.default_rng(9)
    direction = rng.standard_normal(dimension)
    direction *= np.sqrt(dimension) / np.linalg.norm(direction)
    x = np.array([0.5, 0.8])[:, None] * rng.standard_normal((draws, 2, dimension))
    fields = (x @ direction).T / np.sqrt(dimension)
    target = model.target(fields[:, None])
    for shift in ([[0, 0], [0, 0]], [[0.1, 0], [0, 0]], [[0, 0], [0.1, -0.1]]):
        weights = baseline.weights + shift
        deviation = target - weights[..., None]
        losses = np.square(np.einsum("iln,nld->nid", deviation, x)).sum(axis=(1, 2))
        losses /= 2 * dimension
        limit = baseline.test_error + 0.5 * (np.square(shift) @ model.variances).sum()
        along = np.square(np.einsum("iln,ln->in", deviation, fields)).sum(axis=0).mean() / 2
        expected = limit + (along - limit) / dimension
        scatter = losses.std() / np.sqrt(draws)
        assert abs(losses.mean() - expected) < 4 * scatter
        assert scatter < 0.004 * expected


def test_result_is_frozen_and_reproducible():
    baseline = linear_baseline(Model(0.3))
    assert isinstance(baseline, LinearBaseline)
    assert type(baseline.test_error) is type(baseline.standard_error) is float
    with pytest.raises(FrozenInstanceError):
        baseline.test_error = 0.0
    with pytest.raises(ValueError, match="read-only"):
        baseline.weights[0, 0] = 0.0
    assert baseline == baseline
    assert len({baseline, linear_baseline(Model(0.3))}) == 2
    assert SEED == 20240203
    again = linear_baseline(Model(0.3, target_rank=2))
    assert again.test_error == linear_baseline(Model(0.3, target_rank=2)).test_error


def test_the_learning_problem_around_the_target_does_not_matter():
    plain = linear_baseline(Model(0.3))
    other = linear_baseline(Model(0.3, regularization=7.0, rank=2, encodings=((3, 1), (0, -2))))
    assert other.test_error == plain.test_error
    assert (other.weights == plain.weights).all()
