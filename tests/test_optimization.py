"""Training at finite dimension: the minimum, gradient descent, Adam, and the errors measured after.

The second road is a risk and a gradient written here from the tokens, without Gram matrices.
"""

import json
import os
import subprocess
import sys
from dataclasses import replace
from itertools import pairwise
from math import sqrt

import numpy as np
import pytest
from scipy.optimize import minimize as scipy_minimize
from threadpoolctl import threadpool_info, threadpool_limits

from attnphase import (
    ConvergenceError,
    Dataset,
    Model,
    adam,
    gradient_descent,
    linear_baseline,
    minimize,
    sample,
    training,
)
from attnphase.quadrature import gauss_hermite
from attnphase.training import (
    expected_test_error,
    fit_baseline,
    sampled_test_error,
    starting_weights,
)

BASE = Model(0.3)
THREE = {
    "positional_target": ((0.5, 0.3, 0.2), (0.1, 0.8, 0.1), (0.25, 0.25, 0.5)),
    "encodings": ((1.0, 0.0), (0.0, 1.0), (-1.0, 0.5)),
}
MODELS = {
    "base": BASE,
    "two and two": Model(0.1, sigma=0.8, rank=2, target_rank=2, regularization=0.05),
    "unequal": Model(0.3, sigma=(0.4, 0.9), encodings=((1.0, 0.5), (-0.3, 1.0)), target_rank=2),
    "three": Model(0.3, **THREE, sigma=(0.4, 0.5, 0.7)),
    "three, rank two": Model(0.7, **THREE, rank=2, target_rank=3),
}
each_model = pytest.mark.parametrize("model", MODELS.values(), ids=MODELS)
RUNS = {"minimize": minimize, "gradient_descent": gradient_descent, "adam": adam}
each_run = pytest.mark.parametrize("run", RUNS.values(), ids=RUNS)


def softmax(h):
    power = np.exp(h @ h.swapaxes(1, 2))
    return power / power.sum(axis=2, keepdims=True)


def sentences_of(dataset):
    """x and y of the training sentences, (n, L, d), by the model's definition."""
    x = dataset.tokens.astype(float) - dataset.encodings
    return x, literal_target(dataset, x) @ x


def literal_target(dataset, x):
    model = dataset.model
    target = (1 - model.omega) * softmax(x @ dataset.teacher / sqrt(dataset.dimension))
    return target + model.omega * np.array(model.positional_target)


def literal(dataset, weights):
    """Training risk divided by d, and its gradient, from the tokens."""
    d, ridge = dataset.dimension, dataset.model.regularization
    v, (_, y) = dataset.tokens.astype(float), sentences_of(dataset)
    h = v @ weights / sqrt(d)
    attention = softmax(h)
    gap = attention @ v - y
    value = ((gap**2).sum() / d + ridge * (weights**2).sum()) / (2 * d)
    pull = 2 * gap @ v.swapaxes(1, 2)  # of ||y - S v||^2 on S, then on the scores, then on h
    pull = attention * (pull - (attention * pull).sum(axis=2, keepdims=True))
    pull = (pull + pull.swapaxes(1, 2)) @ h
    slope = np.einsum("nld,nlr->dr", v, pull) / sqrt(d)
    return value, (slope / (2 * d) + ridge * weights) / d


def literal_hessian(dataset, weights, step=1e-4):
    """Dense Hessian of the literal risk, fourth-order differences of its gradient."""
    rows = []
    for entry in np.ndindex(weights.shape):
        shift = np.zeros(weights.shape)
        shift[entry] = step
        near, far = (
            literal(dataset, weights + k * shift)[1] - literal(dataset, weights - k * shift)[1]
            for k in (1, 2)
        )
        rows.append(((8 * near - far) / (12 * step)).ravel())
    return np.array(rows)


def size(array):
    return float(np.linalg.norm(array))


def scale_of(dataset, weights):
    """What the tolerance of `minimize` is relative to."""
    gradient = literal(dataset, weights)[1]
    return max(size(gradient), dataset.model.regularization * size(weights) / dataset.dimension)


def mixed_weights(dataset, seed, scale=1.0):
    """Random weights with a part along the encodings and one along the teacher."""
    rng = np.random.default_rng(seed)
    shape = (dataset.dimension, dataset.model.rank)
    weights = scale * rng.standard_normal(shape)
    weights += dataset.encodings.T @ rng.standard_normal((dataset.model.length, shape[1]))
    return weights + dataset.teacher @ rng.standard_normal((dataset.model.target_rank, shape[1]))


class Recorded(training._Course):
    """A course that keeps its weights."""

    def add(self, weights, train_loss):
        vars(self).setdefault("path", []).append(weights.copy())
        super().add(weights, train_loss)


@pytest.fixture
def courses(monkeypatch):
    """The course of each training of the test."""
    made = []

    def make(dataset):
        made.append(Recorded(dataset))
        return made[-1]

    monkeypatch.setattr(training, "_Course", make)
    return made


@pytest.fixture
def no_work(monkeypatch):
    """Any product with the tokens is an error."""

    def refuse(*arguments):
        raise AssertionError("work was done before the arguments were checked")

    for name in ("fields", "weights_from"):
        monkeypatch.setattr(Dataset, name, refuse)
    monkeypatch.setattr(training, "_draw", refuse)


# --- the Hessian ------------------------------------------------------------------------------


@each_model
def test_hessian_is_the_finite_difference_of_the_literal_gradient(model):
    dataset = sample(model, 2.0, 12, 1)
    weights = mixed_weights(dataset, 2)
    hessian = dataset.hessian(weights)
    assert hessian.shape == (weights.size, weights.size)
    dense = hessian @ np.eye(weights.size)
    expected = literal_hessian(dataset, weights)
    assert size(dense - expected) < 1e-7 * size(expected)
    assert size(dense - dense.T) < 1e-13 * size(dense)
    # the ridge is there, though it is small beside the rest
    bare = replace(dataset, model=replace(model, regularization=1e-12)).hessian(weights)
    np.testing.assert_allclose(
        dense - bare @ np.eye(weights.size),
        model.regularization / 12 * np.eye(weights.size),
        rtol=0,
        atol=1e-12 * np.abs(dense).max() + 1e-12,
    )


def test_hessian_of_single_precision_tokens():
    dataset = sample(BASE, 2.0, 60, 3, np.float32)
    weights = mixed_weights(dataset, 4)
    direction = np.random.default_rng(5).standard_normal(60)
    exact = replace(dataset, tokens=dataset.tokens.astype(float)).hessian(weights) @ direction
    product = dataset.hessian(weights) @ direction
    assert product.dtype == np.float64
    assert 0 < size(product - exact) < 1e-5 * size(exact)


# --- the minimum ------------------------------------------------------------------------------


@each_model
@pytest.mark.parametrize("start", ["positional", "random"])
def test_minimize_ends_in_a_local_minimum_of_the_literal_risk(model, start):
    dataset = sample(model, 2.0, 20, 7)
    first = starting_weights(dataset, start, 8)
    if model.rank > 1 and start == "positional":  # a column of zeros would stay so
        first[:, 1:] = 0.1 * starting_weights(dataset, "random", 9)[:, 1:]
    trained = minimize(dataset, first)
    weights = trained.weights
    value, gradient = literal(dataset, weights)
    assert trained.converged
    assert trained.train_loss == pytest.approx(value, rel=1e-12)
    # it goes on far below the tolerance
    assert size(gradient) < 1e-11 * scale_of(dataset, first)
    assert size(dataset.risk(weights)[1]) <= 1e-12 * scale_of(dataset, first)
    assert value < literal(dataset, first)[0]
    curvature = np.linalg.eigvalsh(literal_hessian(dataset, weights))
    # rotations of the columns cost nothing
    rotations = model.rank * (model.rank - 1) // 2
    assert np.abs(curvature[:rotations]).max(initial=0) < 1e-6 * curvature[-1]
    assert curvature[rotations] > 1e-4 * curvature[-1]
    rng = np.random.default_rng(9)
    for length in (1e-3, 1e-2, 3e-2):
        shifts = length * rng.standard_normal((20, *weights.shape))
        assert all(literal(dataset, weights + shift)[0] > value for shift in shifts)


def test_minimize_does_not_end_in_a_saddle_point():
    for seed in range(25):
        dataset = sample(BASE, (0.5, 1.0, 2.0)[seed % 3], 20, seed)
        for start in ("positional", "semantic", "random"):
            weights = minimize(dataset, start).weights
            if size(weights) > 1e-6:  # below the first transition the layer is zero
                hessian = dataset.hessian(weights) @ np.eye(20)
                assert np.linalg.eigvalsh(hessian)[0] > 0


def test_newton_does_not_climb_to_a_saddle_point():
    """Next to a layer of rank one, with a column of zeros beside it, that a second one would help.

    Along the direction of negative curvature Newton's step leads back to it.
    """
    model = MODELS["two and two"]
    narrow = sample(replace(model, rank=1), 2.0, 20, 7)
    column = minimize(narrow, "positional").weights
    dataset = replace(narrow, model=model)
    saddle = np.column_stack((column, 0 * column))
    curvature, directions = np.linalg.eigh(dataset.hessian(saddle) @ np.eye(40))
    assert curvature[0] < -0.1 * curvature[-1]
    beside = saddle + 0.02 * directions[:, :1].reshape(20, 2)
    value, gradient = dataset.risk(beside)
    assert value < dataset.risk(saddle)[0]
    course = training._Course(dataset)
    weights, reached = training._newton(dataset, beside, 1.0, course)
    np.testing.assert_array_equal(weights, beside)
    assert reached == pytest.approx(size(gradient), rel=1e-12)
    assert not course.entries
    trained = minimize(dataset, beside)
    assert trained.train_loss < value
    assert np.linalg.eigvalsh(dataset.hessian(trained.weights) @ np.eye(40))[0] > -1e-12


def test_lbfgs_goes_on_where_newton_does_not_take_over(monkeypatch):
    dataset = sample(BASE, 2.0, 30, 5)
    scale, handed = scale_of(dataset, dataset.teacher), []

    def idle(dataset, weights, scale, course):
        handed.append(size(literal(dataset, weights)[1]))
        return weights, handed[-1]

    monkeypatch.setattr(training, "_newton", idle)
    with pytest.raises(ConvergenceError):
        minimize(dataset, tolerance=1e-9)
    for gradient, bound in zip(handed, (1e-5, 1e-6, 1e-7), strict=True):
        assert 0.01 * bound < gradient / scale <= bound
    assert minimize(dataset, tolerance=1e-6).converged
    assert len(handed) == 3 + 2


def test_the_seed_is_of_the_random_start():
    dataset = sample(BASE, 2.0, 30, 6)
    for seed in (0, 3):
        layer = minimize(dataset, "random", seed=seed)
        again = minimize(dataset, starting_weights(dataset, "random", seed))
        np.testing.assert_array_equal(layer.weights, again.weights)
        assert layer.history.q[0] == again.history.q[0]


@pytest.mark.parametrize("name", ["base", "three"])
def test_minimize_finds_what_a_trust_region_method_finds_nearby(name):
    dataset = sample(MODELS[name], 2.5, 16, 11)
    trained = minimize(dataset, "semantic")
    near = trained.weights + 0.05 * np.random.default_rng(12).standard_normal((16, 1))
    found = scipy_minimize(
        lambda flat: literal(dataset, flat[:, None])[0] * 16,
        near.ravel(),
        jac=lambda flat: literal(dataset, flat[:, None])[1].ravel() * 16,
        hess=lambda flat: literal_hessian(dataset, flat[:, None]) * 16,
        method="trust-exact",
        options={"gtol": 1e-10},
    )
    np.testing.assert_allclose(found.x[:, None], trained.weights, rtol=0, atol=1e-7)


@pytest.mark.parametrize("name", ["base", "three", "two and two"])
def test_a_start_in_the_same_valley_gives_the_same_minimum(name):
    model = MODELS[name]
    dataset = sample(model, 3.0, 100, 13)
    trained = minimize(dataset)
    start = dataset.teacher + 0.1 * np.random.default_rng(14).standard_normal((100, model.rank))
    again = minimize(dataset, start)
    assert again.train_loss == pytest.approx(trained.train_loss, rel=1e-12)
    # Q Q^T does not see rotations
    one, other = (layer.weights @ layer.weights.T for layer in (trained, again))
    np.testing.assert_allclose(one, other, rtol=0, atol=1e-9 * np.abs(one).max())
    flipped = minimize(dataset, -dataset.teacher)
    np.testing.assert_allclose(flipped.weights, -trained.weights, rtol=0, atol=1e-9)


def test_columns_may_be_rotated():
    dataset = sample(MODELS["two and two"], 3.0, 60, 15)
    trained = minimize(dataset)
    turn = np.linalg.qr(np.random.default_rng(16).standard_normal((2, 2)))[0]
    turned = minimize(dataset, dataset.teacher @ turn)
    np.testing.assert_allclose(turned.weights, trained.weights @ turn, rtol=0, atol=1e-8)
    np.testing.assert_allclose(turned.q, turn.T @ trained.q @ turn, rtol=0, atol=1e-9)
    np.testing.assert_allclose(turned.m, trained.m @ turn, rtol=0, atol=1e-9)
    np.testing.assert_allclose(turned.theta, turn.T @ trained.theta, rtol=0, atol=1e-9)
    assert turned.train_loss == pytest.approx(trained.train_loss, rel=1e-12)
    assert turned.test_error == pytest.approx(trained.test_error, rel=2e-3)


@each_model
def test_a_restart_from_the_minimum_stays(model):
    dataset = sample(model, 2.0, 30, 17)
    trained = minimize(dataset, "positional")
    again = minimize(dataset, trained.weights)
    np.testing.assert_allclose(again.weights, trained.weights, rtol=0, atol=1e-9)
    assert again.train_loss == pytest.approx(trained.train_loss, rel=1e-13)


def test_settling_steps_keep_the_valley_of_the_start():
    """Without them L-BFGS leaps from the positional start into the semantic valley."""
    dataset = sample(BASE, 3.0, 100, 2)
    settled = minimize(dataset, "positional")
    leapt = minimize(dataset, "positional", settling_steps=0)
    assert settled.m > 0.2 > 0.05 > abs(settled.theta)
    assert abs(leapt.theta) > 0.1 > 0.05 > abs(leapt.m)
    assert leapt.iterations < settled.iterations
    # what gradient descent of that step comes to
    slow = gradient_descent(dataset, "positional", iterations=2000)
    assert settled.m == pytest.approx(slow.m, rel=1e-2)
    # where nothing leaps, both are the same minimum
    semantic = [minimize(dataset, settling_steps=steps).weights for steps in (0, 1, 50)]
    for weights in semantic[:2]:
        np.testing.assert_allclose(weights, semantic[2], rtol=0, atol=1e-9)


@pytest.mark.parametrize(
    ("alpha", "steps"), [(2.0, 50), (0.4, 50), (0.39, 52), (0.2, 100), (0.01, 2000), (0.005, 2000)]
)
def test_settling_steps_by_default(alpha, steps):
    """50, or 20 / alpha up to 2,000: the layers are the same, and so are their courses."""
    dataset = sample(BASE, alpha, 200, 3)
    default = minimize(dataset, "positional").history
    given = minimize(dataset, "positional", settling_steps=steps).history
    np.testing.assert_array_equal(default.train_loss, given.train_loss)
    other = minimize(dataset, "positional", settling_steps=steps - 1).history
    assert len(other.train_loss) != len(given.train_loss) or (
        np.abs(other.train_loss[-20:] / given.train_loss[-20:] - 1).max() > 0
    )


def test_few_sentences_need_more_settling():
    """At alpha = 1/12 fifty steps end in a higher valley; the default ends where 500 do."""
    excess = []
    for seed in range(5):
        dataset = sample(BASE, 1 / 12, 1000, seed)
        default = minimize(dataset, "positional")
        longer = minimize(dataset, "positional", settling_steps=500)
        assert default.train_loss == pytest.approx(longer.train_loss, rel=1e-3)
        hasty = minimize(dataset, "positional", settling_steps=50)
        excess.append(hasty.train_loss / default.train_loss - 1)
    assert np.mean(excess) > 0.04


@pytest.mark.parametrize(("sigma", "alpha", "halved"), [(0.5, 2.0, False), (1.5, 10.0, True)])
def test_settling_is_gradient_descent_that_never_climbs(sigma, alpha, halved):
    dataset = sample(Model(0.3, sigma=sigma), alpha, 30, 19)
    start = starting_weights(dataset, "random", 3)
    values, weights, step = [], start, 0.15 * 30
    halvings = 0
    for _ in range(20):
        value, gradient = literal(dataset, weights)
        if not values:
            values.append(value)
        trial = weights - step * gradient
        if literal(dataset, trial)[0] < value:
            weights = trial
            values.append(literal(dataset, trial)[0])
        else:
            step /= 2
            halvings += 1
    assert (halvings > 0) is halved
    history = minimize(dataset, start, settling_steps=20).history
    np.testing.assert_allclose(history.train_loss[: len(values)], values, rtol=1e-11)


def test_one_sentence_alone():
    """It pulls less than the ridge does: no weights at all, from wherever one starts."""
    dataset = sample(BASE, 0.1, 10, 0)
    assert dataset.count == 1
    for start in ("positional", "semantic", "random"):
        trained = minimize(dataset, start)
        assert trained.converged
        assert np.abs(trained.weights).max() < 1e-6
        assert trained.train_loss == pytest.approx(literal(dataset, 0 * trained.weights)[0])
    # with less of a ridge it does pull
    weak = sample(Model(0.3, regularization=1e-4), 0.1, 10, 0)
    trained = minimize(weak, "semantic")
    assert np.abs(trained.weights).max() > 0.1
    assert size(literal(weak, trained.weights)[1]) < 1e-8 * scale_of(weak, weak.teacher)


@pytest.mark.parametrize("start", ["positional", "semantic"])
def test_single_precision_tokens_reach_a_looser_tolerance(start):
    dataset = sample(BASE, 2.0, 100, 3, np.float32)
    with pytest.raises(ConvergenceError, match=r"\(tolerance 1e-08\) after \d+ of 5000") as caught:
        minimize(dataset, start)
    state = caught.value.state
    assert not state.converged
    assert state.iterations == len(state.history.change) > 0
    trained = minimize(dataset, start, tolerance=1e-6)
    assert trained.converged
    exact = minimize(replace(dataset, tokens=dataset.tokens.astype(float)), start)
    for layer in (state, trained):
        assert layer.train_loss == pytest.approx(exact.train_loss, rel=1e-6)
        assert layer.weights.dtype == np.float64
        np.testing.assert_allclose(layer.weights, exact.weights, rtol=0, atol=1e-2)


def test_too_few_iterations_are_an_error_that_carries_the_layer():
    dataset = sample(BASE, 2.0, 30, 4)
    with pytest.raises(ConvergenceError, match="after 1 of 1 iterations") as caught:
        minimize(dataset, "random", iterations=1, settling_steps=0)
    state = caught.value.state
    assert not state.converged
    assert state.weights.shape == (30, 1)
    assert state.iterations == len(state.history.q) <= 10
    assert state.train_loss == pytest.approx(literal(dataset, state.weights)[0], rel=1e-12)
    assert state.train_loss < state.history.train_loss[0]


def test_threads_are_held_for_l_bfgs_only(monkeypatch):
    """Those of scipy's own BLAS, where it has one, and not those of numpy's."""

    def threads():
        return {library["filepath"]: library["num_threads"] for library in threadpool_info()}

    during, evaluate = [], Dataset.risk

    def watched(self, weights):
        during.append(threads())
        return evaluate(self, weights)

    monkeypatch.setattr(Dataset, "risk", watched)
    dataset = sample(BASE, 2.0, 20, 0)
    with threadpool_limits(2):
        before = threads()
        training._lbfgs(dataset, dataset.teacher, 1e-3, 10, training._Course(dataset))
        assert threads() == before
    for path, count in during[-1].items():
        assert count == (1 if "scipy.libs" in path else before[path])


@pytest.mark.parametrize("iterations", [1, 3, 5])
def test_newton_is_not_tried_far_from_a_minimum(iterations):
    """From here Newton's method would lead to a saddle point, and its small gradient pass."""
    dataset = sample(BASE, 1.0, 30, 7)
    with pytest.raises(ConvergenceError, match=f"after {iterations} of {iterations} iterations"):
        minimize(dataset, "positional", iterations=iterations)
    assert minimize(dataset, "positional").converged


@pytest.mark.parametrize(("sigma", "alpha"), [(10.0, 0.5), (20.0, 2.0)])
def test_zero_weights_are_no_result_where_they_are_no_minimum(sigma, alpha):
    """A long step can end beside the origin, where the gradient vanishes by symmetry."""
    dataset = sample(Model(0.3, sigma=sigma), alpha, 30, 0)
    with pytest.raises(ConvergenceError, match="fallen on zero weights") as caught:
        minimize(dataset, "positional")
    assert not caught.value.state.converged
    assert minimize(dataset, "semantic").train_loss < 0.5 * caught.value.state.train_loss


@pytest.mark.parametrize("start", [np.full(20, -(2**63)), np.full(20, 1e-200)])
def test_entries_too_large_or_too_small_to_square_are_refused(start):
    with pytest.raises(ValueError, match="^start must "):
        minimize(sample(BASE, 2.0, 20, 0), start)


def test_a_start_at_the_minimum_needs_no_iterations():
    dataset = sample(BASE, 2.0, 20, 0)
    weights = minimize(dataset).weights
    again = minimize(dataset, weights, tolerance=0.5, iterations=1, settling_steps=0)
    assert again.converged
    np.testing.assert_allclose(again.weights, weights, rtol=0, atol=1e-10)


def test_relative_lengths_where_weights_vanish():
    """Steps of 1 / lambda that end at zero weights: no division by zero."""
    dataset = sample(Model(0.3, regularization=1 / 0.15), 0.05, 20, 0)
    trained = gradient_descent(dataset, iterations=500)
    assert trained.gradient == 0.0 or np.isfinite(trained.gradient)
    assert np.isfinite(trained.history.change).all()


def test_the_fitted_baseline_of_a_singular_teacher():
    """More teachers than dimensions: their covariance has a zero eigenvalue."""
    dataset = sample(Model(0.3, target_rank=4), 3.0, 3, 0)
    assert 0 < fit_baseline(dataset).test_error < 1


def test_the_tolerance_is_relative_to_the_gradient_at_the_start():
    """A tolerance below what the machine can do: the message tells the gradient reached."""
    dataset = sample(BASE, 2.0, 30, 5)
    with pytest.raises(ConvergenceError) as caught:
        minimize(dataset, tolerance=1e-30)
    state = caught.value.state
    reached = size(dataset.risk(state.weights)[1]) / scale_of(dataset, dataset.teacher)
    assert f"the gradient is {reached:.1e} of its scale (tolerance 1e-30" in str(caught.value)
    assert reached < 1e-12
    # at the minimum the ridge is the scale
    start = minimize(dataset).weights
    with pytest.raises(ConvergenceError) as caught:
        minimize(dataset, start, tolerance=1e-30)
    ridge = 0.01 * size(start) / 30
    reached = size(dataset.risk(caught.value.state.weights)[1]) / ridge
    assert f"the gradient is {reached:.1e} of its scale" in str(caught.value)


# --- the course -------------------------------------------------------------------------------


@each_run
@pytest.mark.parametrize("name", ["base", "unequal", "two and two"])
def test_history_is_that_of_the_weights(run, name, courses):
    model = MODELS[name]
    dataset = sample(model, 2.0, 20, 21)
    trained = run(dataset, "positional", iterations=40)
    (course,) = courses
    history, path = trained.history, course.path
    count = trained.iterations
    assert count == len(path) - 1 > 0
    if run is not minimize:
        assert count == 40
        assert not trained.converged
    shapes = {"q": (model.rank,) * 2, "m": (model.rank,), "theta": (model.rank, model.target_rank)}
    for entry, shape in shapes.items():
        shape = () if model.rank == model.target_rank == 1 else shape
        assert getattr(history, entry).shape == (count, *shape)
        assert np.shape(getattr(trained, entry)) == shape
    assert history.train_loss.shape == history.change.shape == (count,)
    assert history.V is None
    np.testing.assert_array_equal(path[0], starting_weights(dataset, "positional"))
    np.testing.assert_array_equal(path[-1], trained.weights)
    variance = model.variances[0]
    for number, weights in enumerate([*path[:-1], trained.weights]):
        one = trained if number == count else history
        q, m, theta, loss = (
            getattr(one, entry) if one is trained else getattr(one, entry)[number]
            for entry in ("q", "m", "theta", "train_loss")
        )
        np.testing.assert_allclose(np.ravel(q), (variance * weights.T @ weights / 20).ravel())
        np.testing.assert_allclose(
            np.ravel(m), dataset.encodings[0] @ weights / sqrt(20), rtol=1e-7, atol=1e-12
        )
        np.testing.assert_allclose(
            np.ravel(theta), (variance * weights.T @ dataset.teacher / 20).ravel(), atol=1e-14
        )
        assert loss == pytest.approx(literal(dataset, weights)[0], rel=1e-11)
    steps = [size(new - old) / size(old) for old, new in pairwise(path)]
    np.testing.assert_allclose(history.change, steps, rtol=1e-12)
    if run is minimize:
        losses = np.append(history.train_loss, trained.train_loss)
        assert (np.diff(losses) <= 1e-12 * losses[1:]).all()
        assert losses[0] > 1.01 * losses[-1]


# --- gradient descent and Adam ----------------------------------------------------------------


@each_model
def test_gradient_descent_is_a_loop_on_the_literal_risk(model):
    dataset = sample(model, 2.0, 15, 23)
    start = mixed_weights(dataset, 24)
    for step, arguments in ((0.15, {}), (0.4, {"step": 0.4})):
        weights = start
        for _ in range(7):
            weights = weights - step * 15 * literal(dataset, weights)[1]
        trained = gradient_descent(dataset, start, iterations=7, **arguments)
        np.testing.assert_allclose(trained.weights, weights, rtol=1e-10, atol=1e-12)
        assert trained.gradient == pytest.approx(
            15 * size(literal(dataset, weights)[1]) / (model.regularization * size(weights))
        )


@pytest.mark.parametrize("run", [gradient_descent, adam])
def test_5000_steps_unless_told_otherwise(run):
    dataset = sample(BASE, 0.5, 6, 25)
    trained = run(dataset, "random", seed=3)
    assert trained.iterations == len(trained.history.train_loss) == 5000
    assert not trained.converged
    np.testing.assert_array_equal(
        trained.weights, run(dataset, starting_weights(dataset, "random", 3)).weights
    )


def test_gradient_descent_comes_to_the_minimum():
    dataset = sample(BASE, 2.0, 50, 26)
    slow, fast = gradient_descent(dataset), minimize(dataset)
    assert slow.train_loss == pytest.approx(fast.train_loss, rel=1e-6)
    np.testing.assert_allclose(slow.weights, fast.weights, rtol=0, atol=2e-3)
    assert (np.diff(slow.history.train_loss) <= 1e-15).all()


@pytest.mark.parametrize("run", [gradient_descent, adam])
def test_weights_that_run_off_are_an_error_that_carries_the_last_ones(run):
    dataset = sample(BASE, 2.0, 20, 27)
    with pytest.raises(ConvergenceError, match="run off in step 1: take a smaller step") as caught:
        run(dataset, step=1e12)
    np.testing.assert_array_equal(caught.value.state, dataset.teacher)


def test_the_weights_carried_are_the_last_ones():
    dataset = sample(BASE, 2.0, 20, 27)
    with pytest.raises(ConvergenceError, match="run off in step") as caught:
        gradient_descent(dataset, step=1e5)
    number = int(str(caught.value).split("step ")[1].split(":")[0])
    assert number > 1
    last = gradient_descent(dataset, step=1e5, iterations=number - 1).weights
    np.testing.assert_array_equal(caught.value.state, last)
    assert np.abs(last).max() < 1e6


def literal_adam(dataset, weights, gradient_of, step, count):
    """Kingma and Ba, algorithm 1, in their symbols; the risk is the sum over sentences."""
    beta1, beta2, epsilon = 0.9, 0.999, 1e-8
    m, v = np.zeros_like(weights), np.zeros_like(weights)
    for t in range(1, count + 1):
        g = dataset.dimension * gradient_of(weights)
        m = beta1 * m + (1 - beta1) * g
        v = beta2 * v + (1 - beta2) * g**2
        corrected = m / (1 - beta1**t), v / (1 - beta2**t)
        weights = weights - step * corrected[0] / (np.sqrt(corrected[1]) + epsilon)
    return weights


@each_model
def test_adam_is_algorithm_1(model):
    dataset = sample(model, 2.0, 15, 29)
    start = mixed_weights(dataset, 30)
    for step, arguments in ((0.01, {}), (0.05, {"step": 0.05})):
        expected = literal_adam(dataset, start, lambda q: literal(dataset, q)[1], step, 12)
        trained = adam(dataset, start, iterations=12, **arguments)
        np.testing.assert_allclose(trained.weights, expected, rtol=1e-9, atol=1e-11)
    # two runs share nothing
    np.testing.assert_array_equal(
        adam(dataset, start, iterations=12, step=0.05).weights, trained.weights
    )


def test_adam_moves_every_weight_by_one_step_at_first():
    dataset = sample(MODELS["three, rank two"], 2.0, 40, 31)
    start = mixed_weights(dataset, 32)
    for step in (0.01, 0.3):
        moved = adam(dataset, start, step=step, iterations=1).weights - start
        np.testing.assert_allclose(
            moved, -step * np.sign(literal(dataset, start)[1]), rtol=1e-4, atol=0
        )


def test_adam_near_a_minimum_feels_its_floor():
    """Gradients of 1e-8 and less: the floor is as large as their root mean square."""
    dataset = sample(BASE, 2.0, 20, 33)
    start = minimize(dataset).weights
    start = start + 1e-7 * np.random.default_rng(34).standard_normal((20, 1))
    assert 20 * np.abs(dataset.risk(start)[1]).max() < 1e-6
    expected = literal_adam(dataset, start, lambda q: dataset.risk(q)[1], 0.01, 1)
    moved = adam(dataset, start, iterations=1).weights - start
    np.testing.assert_allclose(moved, expected - start, rtol=1e-9)
    assert np.abs(moved).min() < 0.009


# --- the baseline -----------------------------------------------------------------------------


@each_model
def test_fitted_baseline_is_least_squares(model):
    dataset = sample(model, 2.0, 20, 35)
    x, y = sentences_of(dataset)
    rows, outputs = (np.moveaxis(part, 1, -1).reshape(-1, model.length) for part in (x, y))
    expected = np.linalg.lstsq(rows, outputs, rcond=None)[0].T
    fitted = fit_baseline(dataset)
    np.testing.assert_allclose(fitted.weights, expected, rtol=1e-9, atol=1e-12)
    with pytest.raises(ValueError, match="read-only"):
        fitted.weights[0, 0] = 0.0


def test_fitted_baseline_does_not_depend_on_the_blocks(monkeypatch):
    dataset = sample(BASE, 3.0, 20, 36)
    whole = fit_baseline(dataset)
    monkeypatch.setattr(training, "BLOCK", 7)
    blocks = fit_baseline(dataset)
    np.testing.assert_allclose(blocks.weights, whole.weights, rtol=1e-12)
    assert blocks.test_error == pytest.approx(whole.test_error, rel=1e-12)


@pytest.mark.parametrize("sigma", [0.5, (0.4, 0.9)])
def test_error_of_the_fitted_baseline_by_quadrature(sigma):
    """E sum_il s_l (T_il - W_il)^2 / 2 with fields of the teacher's own length."""
    dataset = sample(Model(0.3, sigma=sigma), 1.0, 30, 37)
    fitted = fit_baseline(dataset)
    variances = dataset.model.variances
    rho = float((dataset.teacher**2).mean())
    assert abs(rho - 1) > 0.02
    nodes, weights = gauss_hermite(80, 2)
    h = (np.sqrt(variances * rho)[:, None] * nodes).T[..., None]
    target = 0.7 * softmax(h) + 0.3 * np.array([[0.6, 0.4], [0.4, 0.6]])
    expected = 0.5 * weights @ (((target - fitted.weights) ** 2) * variances).sum(axis=(1, 2))
    assert fitted.test_error == pytest.approx(expected, rel=1e-3)
    assert 0 < fitted.standard_error < 1e-3 * expected
    assert abs(fitted.test_error - expected) < 6 * fitted.standard_error


@pytest.mark.parametrize("name", ["base", "three, rank two"])
def test_error_of_the_fitted_baseline_on_fresh_sentences(name):
    dataset = sample(MODELS[name], 0.2, 600, 39)
    fitted = fit_baseline(dataset)
    rng, errors = np.random.default_rng(40), []
    for _ in range(20):
        x = rng.standard_normal((40, dataset.model.length, 600))
        x *= np.sqrt(dataset.model.variances)[:, None]
        gap = literal_target(dataset, x) @ x - fitted.weights @ x
        errors.append((gap**2).sum(axis=(1, 2)) / 1200)
    errors = np.concatenate(errors)
    standard_error = errors.std(ddof=1) / sqrt(errors.size)
    assert abs(errors.mean() - fitted.test_error) < 3 * standard_error < 0.3 * errors.mean()


@pytest.mark.parametrize("name", ["base", "unequal"])
def test_fitted_baseline_tends_to_the_linear_baseline(name):
    model = MODELS[name]
    dataset = sample(model, 10.0, 400, 41)
    # a teacher of the length that the limit has
    gram = dataset.teacher.T @ dataset.teacher / 400
    root = np.linalg.inv(np.linalg.cholesky(gram)).T
    dataset = replace(dataset, teacher=dataset.teacher @ root)
    fitted, limit = fit_baseline(dataset), linear_baseline(model)
    np.testing.assert_allclose(fitted.weights, limit.weights, rtol=0, atol=6e-3)
    assert fitted.test_error == pytest.approx(limit.test_error, rel=1e-2)
    assert fitted.test_error > limit.test_error - 5 * fitted.standard_error


# --- the test error on fresh sentences --------------------------------------------------------


@pytest.fixture
def drawn(monkeypatch):
    """The sentences that are drawn in the test, block by block."""
    blocks, draw = [], training._draw

    def keep(*arguments):
        for block in draw(*arguments):
            blocks.append(block.copy())
            yield block

    monkeypatch.setattr(training, "_draw", keep)
    return blocks


def literal_errors(dataset, weights, x):
    """||y - f_Q(x)||^2 / (2 d) of each sentence."""
    v = x + dataset.encodings
    gap = literal_target(dataset, x) @ x - softmax(v @ weights / sqrt(dataset.dimension)) @ v
    return (gap**2).sum(axis=(1, 2)) / (2 * dataset.dimension)


@each_model
def test_sampled_test_error_is_a_mean_over_sentences_of_the_model(model, drawn):
    dataset = sample(model, 1.0, 90, 43)
    weights = mixed_weights(dataset, 44)
    drawn.clear()
    estimate = sampled_test_error(dataset, weights)
    x = np.concatenate(drawn)
    assert x.shape == (2000, model.length, 90)
    errors = literal_errors(dataset, weights, x)
    assert estimate.value == pytest.approx(errors.mean(), rel=1e-12)
    assert estimate.standard_error == pytest.approx(errors.std(ddof=1) / sqrt(2000), rel=1e-10)
    spread = x.std(axis=(0, 2)) / np.sqrt(model.variances)
    np.testing.assert_allclose(spread, 1.0, rtol=0, atol=4 / sqrt(2 * 2000 * 90))
    assert np.abs(x.mean(axis=(0, 2))).max() < 4 * sqrt(max(model.variances) / (2000 * 90))
    # none is drawn twice, and none is a training sentence
    training_tokens = dataset.tokens[:, 0] - dataset.encodings[0]
    assert len(np.unique(np.concatenate((x[:, 0, 0], training_tokens[:, 0])))) == 2000 + 90
    assert np.abs((x[:90, 0] * training_tokens).mean()) < 4 * model.variances[0] / 90
    teacher = x[:, 0] @ dataset.teacher[:, 0] / sqrt(90 * model.variances[0])
    assert np.abs(teacher).max() < 7


def test_sampled_test_error_with_draws_of_its_own_law():
    dataset = sample(MODELS["unequal"], 1.0, 50, 45)
    weights = mixed_weights(dataset, 46)
    rng = np.random.default_rng(47)
    x = rng.standard_normal((20000, 2, 50)) * np.array([0.4, 0.9])[:, None]
    errors = literal_errors(dataset, weights, x)
    estimate = sampled_test_error(dataset, weights, 20000)
    spread = errors.std() / sqrt(20000)
    assert estimate.standard_error == pytest.approx(spread, rel=0.1)
    assert abs(estimate.value - errors.mean()) < 3 * sqrt(2) * spread


@pytest.mark.parametrize("name", ["base", "three, rank two"])
def test_both_test_errors_agree_at_large_dimension(name):
    dataset = sample(MODELS[name], 2 / 4000, 4000, 48)
    weights = mixed_weights(dataset, 49, 0.5)
    weights += 0.7 * sqrt(4000) * dataset.directions[:1].T
    estimate = sampled_test_error(dataset, weights, 500)
    expected = expected_test_error(dataset, weights)
    assert abs(estimate.value - expected) < 3 * estimate.standard_error < 0.15 * expected


def test_standard_error_is_the_spread_over_seeds():
    dataset = sample(BASE, 1.0, 40, 51)
    weights = mixed_weights(dataset, 52)
    estimates = [sampled_test_error(dataset, weights, 50, seed) for seed in range(200)]
    values = [estimate.value for estimate in estimates]
    assert len(set(values)) == 200
    claimed = sqrt(np.mean([estimate.standard_error**2 for estimate in estimates]))
    assert np.std(values, ddof=1) == pytest.approx(claimed, rel=0.2)
    again = sampled_test_error(dataset, weights, 50, 7)
    assert again == estimates[7]
    # another dataset, other sentences
    other = sampled_test_error(replace(dataset, seed=52), weights, 50, 7)
    assert other.value != again.value


def test_sampled_test_error_does_not_depend_on_the_blocks(monkeypatch):
    dataset = sample(BASE, 1.0, 40, 53)
    weights = mixed_weights(dataset, 54)
    whole = sampled_test_error(dataset, weights, 100)
    for block in (1, 7, 99, 1000):
        monkeypatch.setattr(training, "BLOCK", block)
        parts = sampled_test_error(dataset, weights, 100)
        assert parts.value == pytest.approx(whole.value, rel=1e-13)
        assert parts.standard_error == pytest.approx(whole.standard_error, rel=1e-11)


# --- bad arguments ----------------------------------------------------------------------------

NOT_NUMBERS = ["1", None, True, float("nan")]
BAD = [
    *(("tolerance", value, [minimize]) for value in [*NOT_NUMBERS, 0.0, -1e-8, 1.0, np.inf]),
    *(("settling_steps", value, [minimize]) for value in ["1", True, -1, 1.0, 10**6 + 1]),
    *(("iterations", value, RUNS.values()) for value in [*NOT_NUMBERS, 0, -1, 10.0, 10**6 + 1]),
    *(("seed", value, RUNS.values()) for value in [*NOT_NUMBERS, -1, 1.0, 2**63]),
    *(("step", value, [gradient_descent, adam]) for value in [*NOT_NUMBERS, 0, -0.1, np.inf]),
    *(("start", value, RUNS.values()) for value in ["Semantic", None, 1.0, [[1.0], [1.0, 2.0]]]),
    *(("dataset", value, RUNS.values()) for value in [None, "data", np.ones((20, 2, 20))]),
]


@pytest.fixture(scope="module")
def small():
    return sample(BASE, 1.0, 20, 0)


@pytest.mark.parametrize(("name", "value", "runs"), BAD)
def test_bad_arguments_are_named_and_quoted_before_any_work(name, value, runs, small, no_work):
    for run in runs:
        with pytest.raises(ValueError, match=f"^{name} must ") as caught:
            run(**({"dataset": small} | {name: value}))
        assert repr(value) in str(caught.value)


@each_run
@pytest.mark.parametrize("shape", [(), (19,), (20, 2), (1, 20)])
def test_a_start_of_wrong_shape_is_refused_before_any_work(run, shape, small, no_work):
    with pytest.raises(ValueError, match="^start must be an array of real numbers of") as caught:
        run(small, np.full(shape, 2.5))
    assert f"shape {shape}" in str(caught.value)
    assert "2.5" in str(caught.value)


@each_run
@pytest.mark.parametrize("value", [np.nan, np.inf, -1e6])
def test_a_start_that_is_not_finite_is_refused_before_any_work(run, value, small, no_work):
    start = np.ones(20)
    start[7] = value
    with pytest.raises(ValueError, match="^start must have entries below 1e.06 in abs"):
        run(small, start)
    with pytest.raises(ValueError, match="^start must not be zero"):
        run(small, 0 * np.ones(20))


@pytest.mark.parametrize("value", [*NOT_NUMBERS, 0, 1, -5, 100.0, 10**9 + 1])
def test_at_least_two_fresh_sentences(value, small, no_work):
    with pytest.raises(ValueError, match="^sentences must be ") as caught:
        sampled_test_error(small, small.teacher, value)
    assert repr(value) in str(caught.value)


@pytest.mark.parametrize("value", [*NOT_NUMBERS, -1, 1.0])
def test_bad_seed_of_fresh_sentences(value, small, no_work):
    with pytest.raises(ValueError, match="^seed must be ") as caught:
        sampled_test_error(small, small.teacher, seed=value)
    assert repr(value) in str(caught.value)


@pytest.mark.parametrize("value", [np.ones(19), np.full((20, 1), np.nan), "nonsense", None])
def test_bad_weights_for_fresh_sentences(value, small, no_work):
    with pytest.raises(ValueError, match="must (be|have) "):
        sampled_test_error(small, value)


@pytest.mark.parametrize("value", [None, "data", np.ones((20, 2, 20))])
@pytest.mark.parametrize(
    "measure", [fit_baseline, lambda one: sampled_test_error(one, np.ones(20))], ids=["fit", "test"]
)
def test_what_is_measured_must_be_a_dataset(measure, value, no_work):
    with pytest.raises(ValueError, match="^dataset must be ") as caught:
        measure(value)
    assert repr(value) in str(caught.value)


# --- slow: threads, memory, evaluations -------------------------------------------------------

THREADS = """
import json
from attnphase import Model, minimize, sample
rows = []
for alpha, start in ((2.0, "positional"), (2.0, "semantic"), (1.25, "semantic")):
    trained = minimize(sample(Model(0.3), alpha, 1000, 0), start)
    rows.append([trained.train_loss, trained.test_error, trained.q, trained.m, trained.theta])
    rows[-1] += trained.weights.ravel().tolist()
print(json.dumps(rows))
"""

#: The peak of this program alone: that of getrusage can be its parent's.
MEMORY = """
from pathlib import Path
from attnphase import Model, minimize, sample
def peak():
    status = dict(line.split(":") for line in Path("/proc/self/status").read_text().splitlines())
    return 1024 * int(status["VmHWM"].split()[0])
before = peak()
dataset = sample(Model(0.3), 2.0, 2000, 0)
assert minimize(dataset).converged
print((peak() - before) / dataset.tokens.nbytes)
"""


def output_of(program, threads):
    variables = {name: str(threads) for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS")}
    command = [sys.executable, "-c", program]
    return subprocess.run(
        command, env=os.environ | variables, check=True, capture_output=True, text=True
    ).stdout


@pytest.mark.slow
def test_the_minimum_does_not_depend_on_the_number_of_threads():
    """The order in which sums are taken does: 1e-10 is far above rounding, and below a change."""
    one, two = (np.array(json.loads(output_of(THREADS, threads))) for threads in (1, 2))
    np.testing.assert_allclose(two, one, rtol=1e-10, atol=1e-10)
    assert abs(one[0, 3]) > 0.2 > 0.1 > abs(one[0, 4])
    assert (np.abs(one[1:, 4]) > 0.1).all()


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_memory_is_at_most_twice_that_of_the_tokens():
    """At d = 2000; the bench measures d = 4000."""
    ratio = float(output_of(MEMORY, 1))
    assert 1 < ratio < 2


@pytest.mark.slow
def test_a_minimum_takes_a_thirtieth_of_the_products_of_gradient_descent(monkeypatch):
    """Products with the tokens; how long it takes is measured by the bench."""
    count = 0

    def counted(product):
        def count_it(self, array):
            nonlocal count
            count += 1
            return product(self, array)

        return count_it

    for name in ("fields", "weights_from"):
        monkeypatch.setattr(Dataset, name, counted(getattr(Dataset, name)))
    dataset = sample(BASE, 2.0, 1000, 0)
    gradient_descent(dataset, iterations=10)
    assert count == 2 * (10 + 1)  # as many for 5,000 steps, and for the layer in the end
    count = 0
    assert minimize(dataset).converged
    assert 30 * count <= 2 * 5000
