"""Quadrature rules against closed forms, scipy's integrators and the net property."""

from math import factorial, sqrt

import numpy as np
import pytest
from scipy.integrate import dblquad
from scipy.special import expit, ndtr
from scipy.stats import norm
from scipy.stats import t as student

from attnphase import quadrature
from attnphase.quadrature import gauss_hermite, polar_rule, replicate_mean, sobol_normals


def normal_moment(power):
    """E z^power for a standard normal z: (power - 1)!! or zero."""
    return 0.0 if power % 2 else float(np.prod(np.arange(power - 1, 0, -2.0)))


@pytest.mark.parametrize("order", [1, 2, 5, 12])
def test_gauss_hermite_is_exact_below_twice_its_order_and_no_further(order):
    nodes, weights = gauss_hermite(order, 1)
    for power in range(2 * order):
        scale = weights @ np.abs(nodes[0]) ** power
        assert weights @ nodes[0] ** power == pytest.approx(
            normal_moment(power), rel=1e-11, abs=1e-12 * max(scale, 1)
        )
    # the first moment that an n-node rule misses is short by the squared norm of He_n, n!
    missed = normal_moment(2 * order) - weights @ nodes[0] ** (2 * order)
    assert missed == pytest.approx(factorial(order), rel=1e-9)


@pytest.mark.parametrize("dimension", [1, 2, 3])
def test_gauss_hermite_shapes_and_generating_function(dimension):
    nodes, weights = gauss_hermite(14, dimension)
    assert nodes.shape == (dimension, 14**dimension)
    assert weights.shape == (14**dimension,)
    assert weights.sum() == pytest.approx(1, abs=1e-14)
    slope = np.array([0.7, -0.4, 0.2])[:dimension]
    assert weights @ np.exp(slope @ nodes) == pytest.approx(np.exp(slope @ slope / 2), rel=1e-12)
    # variables are independent and in the documented order
    assert (nodes**2) @ weights == pytest.approx(np.ones(dimension), rel=1e-12)


def test_gauss_hermite_mixed_moments():
    nodes, weights = gauss_hermite(6, 2)
    for first in range(0, 12):
        for second in range(0, 12):
            exact = normal_moment(first) * normal_moment(second)
            terms = nodes[0] ** first * nodes[1] ** second
            scale = weights @ np.abs(terms)
            assert weights @ terms == pytest.approx(exact, rel=1e-11, abs=1e-12 * scale)


def test_polar_rule_moments_and_generating_function():
    nodes, weights = polar_rule(40)
    assert nodes.shape == (2, 6400)
    assert weights.shape == (6400,)
    assert weights.sum() == pytest.approx(1, abs=1e-13)
    for first in range(0, 9):
        for second in range(0, 9):
            exact = normal_moment(first) * normal_moment(second)
            terms = nodes[0] ** first * nodes[1] ** second
            assert weights @ terms == pytest.approx(
                exact, rel=1e-10, abs=1e-11 * (weights @ np.abs(terms))
            )
    slope = np.array([0.7, -0.4])
    assert weights @ np.exp(slope @ nodes) == pytest.approx(np.exp(slope @ slope / 2), rel=1e-11)


@pytest.mark.parametrize("scale", [0.25, 1.0, 4.0])
def test_two_variable_rules_on_a_sigmoid(scale):
    def integrand(radius, angle):
        x, y = radius * np.cos(angle), radius * np.sin(angle)
        return expit(scale * x * (x - y)) * radius * np.exp(-(radius**2) / 2) / (2 * np.pi)

    # the integrand is the same at opposite points
    exact, error = dblquad(integrand, -np.pi / 2, np.pi / 2, 0, 12, epsabs=1e-11, epsrel=1e-11)
    exact *= 2
    assert error < 1e-9
    nodes, weights = polar_rule(160)
    assert weights @ expit(scale * nodes[0] * (nodes[0] - nodes[1])) == pytest.approx(
        exact, rel=1e-9
    )
    if scale <= 1:  # Gauss-Hermite is slow on steep integrands
        nodes, weights = gauss_hermite(100, 2)
        assert weights @ expit(scale * nodes[0] * (nodes[0] - nodes[1])) == pytest.approx(
            exact, rel=1e-9
        )


@pytest.mark.parametrize("rule", [lambda order: gauss_hermite(order, 2), polar_rule])
def test_rules_refuse_order_zero(rule):
    with pytest.raises(ValueError, match="n must be a positive integer"):
        rule(0)


def test_sobol_points_have_the_documented_shape_and_follow_their_seed():
    points = sobol_normals(5, 8, 3)
    assert points.shape == (5, 256)
    assert np.isfinite(points).all()
    assert (points == sobol_normals(5, 8, 3)).all()
    assert not (points == sobol_normals(5, 8, 4)).any()
    first, second = np.random.SeedSequence(3).spawn(2)
    assert not (sobol_normals(5, 8, first) == sobol_normals(5, 8, second)).any()


@pytest.mark.parametrize("seed", range(4))
def test_sobol_points_form_a_net(seed):
    """Each of 2^m intervals of equal probability holds one point; so does each elementary box."""
    uniform = ndtr(sobol_normals(4, 10, seed))
    for row in uniform:
        assert (np.sort((row * 1024).astype(int)) == np.arange(1024)).all()
    for split in range(11):
        across, along = 2**split, 2 ** (10 - split)
        box = (uniform[0] * across).astype(int) * along + (uniform[1] * along).astype(int)
        assert (np.sort(box) == np.arange(1024)).all()


def test_sobol_lattice_maps_to_finite_symmetric_normals(monkeypatch):
    """The outermost lattice points, 0 and 1 - 2^-30, map to opposite finite values."""

    class Corners:
        def __init__(self, dimension, **options):
            assert options["bits"] == 30
            assert options["scramble"] is True

        def random_base2(self, log2_points):
            return np.array([[0.0], [0.5 - 2.0**-30], [0.5], [1 - 2.0**-30]])

    monkeypatch.setattr(quadrature.qmc, "Sobol", Corners)
    low, below, above, high = sobol_normals(1, 2, 0)[0]
    assert low == pytest.approx(norm.ppf(2.0**-31), rel=1e-12)
    assert low == pytest.approx(-high, rel=1e-9)
    assert below == pytest.approx(-above, rel=1e-6)


def test_sobol_averages_are_unbiased_and_better_than_independent_draws():
    functions = {
        0.0: lambda z: z[0] * z[1] ** 2,
        1.0: lambda z: z[0] ** 2,
        3.0: lambda z: z[1] ** 4,
        np.exp(0.125): lambda z: np.exp(0.5 * z[2]),
    }
    seeds = np.random.SeedSequence(11).spawn(32)
    points = [sobol_normals(3, 12, seed) for seed in seeds]
    for exact, function in functions.items():
        estimate = replicate_mean([function(z).mean() for z in points])
        assert abs(estimate.value - exact) < 4 * estimate.standard_error
        independent = function(points[0]).std() / sqrt(32 * 4096)
        assert estimate.standard_error < 0.25 * independent


def test_replicate_mean_by_hand():
    estimate = replicate_mean([1, 2, 3, 6])
    assert isinstance(estimate.value, float)
    assert isinstance(estimate.standard_error, float)
    assert estimate.value == 3.0
    assert estimate.standard_error == pytest.approx(sqrt(14 / 3 / 4), rel=1e-14)


def test_replicate_mean_of_arrays():
    estimate = replicate_mean([[[1.0, 5.0]], [[3.0, 5.0]]])
    assert estimate.value.tolist() == [[2.0, 5.0]]
    assert estimate.standard_error.tolist() == [[1.0, 0.0]]


def test_one_replicate_has_no_standard_error():
    assert replicate_mean([2.0]).value == 2.0
    assert np.isnan(replicate_mean([2.0]).standard_error)
    assert np.isnan(replicate_mean([[2.0, 1.0]]).standard_error).all()


def test_replicate_intervals_cover_as_promised():
    draws = np.random.default_rng(5).standard_normal((4, 20000)) + 7.0
    estimate = replicate_mean(draws)
    quantile = student.ppf(0.975, 3)
    assert quantile == pytest.approx(3.18, abs=0.005)
    covered = np.abs(estimate.value - 7.0) < quantile * estimate.standard_error
    # binomial standard error: sqrt(0.95 0.05 / 20000) = 0.0015
    assert covered.mean() == pytest.approx(0.95, abs=0.005)
