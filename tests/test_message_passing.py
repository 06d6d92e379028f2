"""Message passing: what it converges to, its stiffness, its response, and its state evolution."""

import re
import tracemalloc
from dataclasses import FrozenInstanceError, replace
from importlib import import_module
from itertools import product

import numpy as np
import pytest
from scipy.stats import norm

from attnphase import ConvergenceError, Model, Trained, message_passing, sample, solve
from attnphase import state_evolution as se
from attnphase.message_passing import Messages, first_messages, iterate, stiffness, track
from attnphase.proximal import (
    Minima,
    channel_derivatives,
    descend,
    exchange,
    find_minima,
    objective,
)
from attnphase.quadrature import sobol_normals
from attnphase.training import expected_test_error, starting_weights

#: The module; `attnphase.message_passing` is the function.
mp = import_module("attnphase.message_passing")

BASE = Model(0.3)
UNEQUAL = Model(0.3, sigma=(0.4, 0.6))
THREE = Model(
    0.3,
    sigma=(0.4, 0.5, 0.6),
    positional_target=((0.5, 0.3, 0.2), (0.1, 0.8, 0.1), (0.25, 0.25, 0.5)),
    encodings=((1.0, 0.0), (0.0, 1.0), (-1.0, 0.5)),
)
ALPHA = 2.0
#: Runs that converge: model, dimension, seed, start. "held" and "stuck" have to hold the response,
#: and leave sentences in a minimum that is not the lowest.
RUNS = {
    "semantic": (BASE, 300, 1, "semantic"),
    "positional": (BASE, 400, 1, "positional"),
    "held": (BASE, 300, 0, "positional"),
    "stuck": (BASE, 600, 1, "positional"),
    "unequal": (UNEQUAL, 300, 1, "semantic"),
}
each_run = pytest.mark.parametrize("name", RUNS)


@pytest.fixture(scope="module")
def runs():
    """Dataset and trained layer of each of `RUNS`, made when first asked for."""
    made = {}

    def get(name):
        if name not in made:
            model, dimension, seed, start = RUNS[name]
            dataset = sample(model, ALPHA, dimension, seed)
            made[name] = dataset, message_passing(dataset, start)
        return made[name]

    return get


def literal_risk(dataset, weights):
    """Training risk divided by d from the tokens, by the model's definition."""
    model, d = dataset.model, dataset.dimension
    v = dataset.tokens.astype(float)
    x = v - dataset.encodings

    def softmax(h):
        power = np.exp(h @ h.swapaxes(1, 2))
        return power / power.sum(axis=2, keepdims=True)

    target = (1 - model.omega) * softmax(x @ dataset.teacher / np.sqrt(d))
    target += model.omega * np.array(model.positional_target)
    gap = target @ x - softmax(v @ weights / np.sqrt(d)) @ v
    return ((gap**2).sum() / d + model.regularization * (weights**2).sum()) / (2 * d)


def column(response):
    return response[:, None, None]


def channel(dataset, center, response):
    """Arguments of the proximal problem, built here."""
    return center, column(1 / response), dataset.target, dataset.metric


def alone(minima):
    """The same minima with the second ones forgotten."""
    none = np.empty(0, int)
    return Minima(
        minima.fields, minima.envelope, none, minima.fields[..., none], minima.envelope[none]
    )


def lowest_of_grid(problem, side=7, extent=4.0):
    """Lowest envelope over descents from a grid of starts."""
    center = problem[0]
    lowest = np.full(center.shape[-1], np.inf)
    for start in product(np.linspace(-extent, extent, side), repeat=len(center)):
        starts = np.broadcast_to(np.array(start)[:, None, None], center.shape).copy()
        lowest = np.minimum(lowest, descend(starts, *problem)[1])
    return lowest


def weights_at(dataset, mu, signal, noise, seed=0):
    """``mu sqrt(d) u_1 + Theta Q* + sqrt(nu) z``: weights of known overlaps for large d."""
    shape = (dataset.dimension, 1)
    normal = np.random.default_rng([seed, dataset.seed]).standard_normal(shape)
    position = np.sqrt(dataset.dimension) * dataset.directions[:1].T
    return mu * position + signal * dataset.teacher + np.sqrt(noise) * normal


def pull_of(dataset, fields):
    """g at fields that are proximal operators: minus the gradient of half the loss."""
    return -channel_derivatives(dataset.target, fields, dataset.metric)[1]


# --- convergence ------------------------------------------------------------------------------


@each_run
def test_a_converged_layer_is_a_critical_point_of_the_literal_risk(name, runs):
    """The slope by finite differences, along special and random directions, against the ridge's."""
    dataset, trained = runs(name)
    assert trained.converged
    assert trained.gradient < 1e-5
    weights, d = trained.weights, dataset.dimension
    norm = np.linalg.norm(weights)
    ridge = dataset.model.regularization * norm / d
    rng = np.random.default_rng(3)
    randoms = rng.standard_normal((2, d, 1))
    moved = starting_weights(dataset, "semantic")
    for direction in (weights, dataset.directions[:1].T, moved, *randoms):
        step = 1e-3 * norm * direction / np.linalg.norm(direction)
        values = [literal_risk(dataset, weights + k * step) for k in (-2, -1, 1, 2)]
        slope = (8 * (values[2] - values[1]) - (values[3] - values[0])) / (12e-3 * norm)
        assert abs(slope) < 2e-5 * ridge
        # the probe sees a slope where there is one
        assert literal_risk(dataset, weights + 30 * step) > values[2]


@each_run
def test_what_is_measured_at_the_end(name, runs):
    dataset, trained = runs(name)
    weights = trained.weights
    assert weights.shape == (dataset.dimension, 1)
    assert trained.train_loss == pytest.approx(literal_risk(dataset, weights), rel=1e-10)
    assert trained.test_error == expected_test_error(dataset, weights)
    q, m, theta = dataset.overlaps(weights)
    assert (trained.q, trained.m, trained.theta) == (q[0, 0, 0], m[0, 0], theta[0, 0, 0])


def test_a_start_leads_to_the_solution_of_its_kind(runs):
    positional, semantic = runs("positional")[1], runs("semantic")[1]
    assert abs(positional.m) > 0.2 > 0.05 > abs(positional.theta)
    assert abs(semantic.theta) > 0.1 > 0.05 > abs(semantic.m)
    assert semantic.test_error < positional.test_error


@each_run
def test_history(name, runs):
    """One entry for each iteration, of the weights before it, from the start on."""
    dataset, trained = runs(name)
    history, start = trained.history, starting_weights(dataset, RUNS[name][3])
    columns = (history.q, history.m, history.theta, history.train_loss, history.change, history.V)
    assert {array.shape for array in columns} == {(trained.iterations,)}
    assert np.isfinite(columns).all()
    q, m, theta = dataset.overlaps(start)
    first = (q[0, 0, 0], m[0, 0], theta[0, 0, 0])
    assert (history.q[0], history.m[0], history.theta[0]) == pytest.approx(first, rel=1e-14)
    assert history.train_loss[0] == pytest.approx(literal_risk(dataset, start), rel=1e-11)
    ridge_alone = dataset.model.variances[0] / (2 * dataset.model.regularization)
    assert history.V[0] == pytest.approx(ridge_alone, rel=1e-14)
    assert history.change[-1] <= 1e-6 < history.change[:-1].min()
    assert history.q[-1] == pytest.approx(trained.q, rel=3e-6)
    assert history.train_loss[-1] == pytest.approx(trained.train_loss, rel=1e-6)


@pytest.mark.parametrize(("start", "keep"), [("semantic", 0.5), ("random", 0.85), (None, 0.85)])
def test_default_keep_fraction(start, keep):
    """Half from a semantic start, 0.85 from any other."""
    dataset = sample(BASE, ALPHA, 200, 1)
    start = dataset.teacher[:, 0] if start is None else start
    default = message_passing(dataset, start, tolerance=1e-2, seed=2)
    given = message_passing(dataset, start, keep, tolerance=1e-2, seed=2)
    np.testing.assert_array_equal(default.weights, given.weights)
    other = message_passing(dataset, start, keep + 0.05, tolerance=1e-2, seed=2)
    assert np.abs(default.history.q[1] / other.history.q[1] - 1) > 1e-3


def test_positional_start_keeps_as_much_as_a_random_one(runs):
    dataset, trained = runs("positional")
    course = track(dataset, starting_weights(dataset, "positional"), 0.85, 3)
    np.testing.assert_allclose(course.q, trained.history.q[:4], rtol=1e-12)


def test_same_seed_same_weights():
    dataset = sample(BASE, ALPHA, 200, 4)
    one, again, other = (
        message_passing(dataset, "random", tolerance=0.1, seed=seed) for seed in (5, 5, 6)
    )
    np.testing.assert_array_equal(one.weights, again.weights)
    assert one.history.q[0] != other.history.q[0]


def test_the_tolerance_is_met_and_not_exceeded_by_far():
    dataset = sample(BASE, ALPHA, 300, 1)
    counts = []
    for tolerance in (1e-2, 1e-4, 1e-8):
        trained = message_passing(dataset, "semantic", tolerance=tolerance)
        assert trained.history.change[-1] <= tolerance < trained.history.change[-2]
        counts.append(trained.iterations)
    assert counts == sorted(set(counts))


def test_a_solution_is_a_fixed_point_of_another_run(runs):
    dataset, trained = runs("semantic")
    again = message_passing(dataset, trained.weights)
    assert again.history.q[0] == trained.q
    np.testing.assert_allclose(
        again.weights, trained.weights, rtol=0, atol=1e-4 * np.abs(trained.weights).max()
    )


def test_signs_are_arbitrary(runs):
    """Reversed weights stay reversed."""
    dataset, trained = runs("semantic")
    mirrored = message_passing(dataset, -dataset.teacher, keep_fraction=0.5)
    np.testing.assert_allclose(mirrored.weights, -trained.weights, rtol=0, atol=1e-10)


def test_single_precision_tokens_lead_to_the_same_layer():
    single = sample(BASE, ALPHA, 300, 1, np.float32)
    double = replace(single, tokens=single.tokens.astype(float))
    one, other = (message_passing(data, "semantic", tolerance=1e-5) for data in (single, double))
    for name in ("q", "m", "theta", "V", "train_loss", "test_error"):
        assert getattr(one, name) == pytest.approx(getattr(other, name), rel=1e-3, abs=1e-4)


def test_longer_sentences():
    dataset = sample(THREE, ALPHA, 200, 1)
    trained = message_passing(dataset, "semantic")
    assert trained.gradient < 1e-5
    value = literal_risk(dataset, trained.weights)
    assert trained.train_loss == pytest.approx(value, rel=1e-10)
    for seed in range(5):
        step = np.random.default_rng(seed).standard_normal((200, 1))
        step *= 1e-2 * np.linalg.norm(trained.weights) / np.linalg.norm(step)
        assert literal_risk(dataset, trained.weights + step) > value
        assert literal_risk(dataset, trained.weights - step) > value


# --- the response: held, consistent, and irrelevant to the fixed point ------------------------


@each_run
def test_the_response_is_consistent_with_the_weights(name, runs):
    """V_l = s_l / (lambda + sum_k s_k Vhat_k) with the proximal problems centred at z - V g."""
    dataset, trained = runs(name)
    model, fields = dataset.model, dataset.fields(trained.weights)
    response = trained.V * model.variances / model.variances[0]
    center = fields - column(response) * pull_of(dataset, fields)
    problem = channel(dataset, center, response)
    np.testing.assert_allclose(objective(fields, *problem)[1], 0, rtol=0, atol=1e-12)
    minima = find_minima(*problem, dataset.inverse)
    total = model.regularization + model.variances @ stiffness(dataset, minima, response)
    np.testing.assert_allclose(response, model.variances / total, rtol=5e-6)


@each_run
def test_rivals_and_excited_sentences(name, runs):
    """Those with a second minimum, and those left in it: counted against a grid of starts."""
    dataset, trained = runs(name)
    fields = dataset.fields(trained.weights)
    response = trained.V * dataset.model.variances / dataset.model.variances[0]
    center = fields - column(response) * pull_of(dataset, fields)
    problem = channel(dataset, center, response)
    gap = objective(fields, *problem)[0] - lowest_of_grid(problem)
    assert gap.min() > -1e-9
    starts = (center, dataset.inverse, -dataset.inverse)
    ends = np.stack([descend(start, *problem)[0] for start in starts])
    several = (np.abs(ends - ends[0]) > 1e-4).any(axis=(0, 1, 2))
    assert several.sum() == trained.rivals
    assert (gap > 1e-6).sum() == trained.excited
    assert (trained.excited > 0) == (name in ("held", "stuck"))


def stuck(changes):
    """The rule of the documentation: the change has not halved in 100 iterations."""
    return len(changes) > 100 and min(changes[-100:]) > 0.5 * min(changes[:-100])


@each_run
def test_held_from_is_where_the_change_has_not_halved_for_a_hundred_iterations(name, runs):
    trained = runs(name)[1]
    changes = trained.history.change
    first = next((k for k in range(len(changes)) if stuck(changes[:k])), None)
    assert trained.held_from == first
    assert (first is None) == (name not in ("held", "stuck"))


@pytest.mark.parametrize("name", ["held", "stuck"])
def test_the_held_response(name, runs):
    """0.8 of the last one, the Onsager term with it; then 0.75 of the old weights are kept."""
    dataset, trained = runs(name)
    history, held_from, model = trained.history, trained.held_from, dataset.model
    messages = first_messages(dataset, starting_weights(dataset, RUNS[name][3]))
    for _ in range(held_from):
        messages = iterate(dataset, messages, 0.85)
    held = 0.8 * messages.response
    assert (np.abs(np.diff(history.V[: held_from + 1])) > 0).all()
    np.testing.assert_allclose(history.V[held_from:], held[0], rtol=1e-12)
    assert history.q[held_from] == pytest.approx(dataset.overlaps(messages.weights)[0][0, 0, 0])
    # one iteration by hand: every sentence stays in its minimum
    weights, onsager = messages.weights, 0.8 * messages.onsager
    center = dataset.fields(weights) - onsager
    fields = descend(messages.minima.fields, *channel(dataset, center, held))[0]
    pull = (fields - center) / column(held)
    total = model.variances[0] / held[0]
    summed = dataset.weights_from(pull) + (total - model.regularization) * weights
    weights = 0.75 * weights + 0.25 * summed / total
    q, m, theta = dataset.overlaps(weights)
    assert history.q[held_from + 1] == pytest.approx(q[0, 0, 0], rel=1e-10)
    assert history.m[held_from + 1] == pytest.approx(m[0, 0], rel=1e-10)
    assert history.theta[held_from + 1] == pytest.approx(theta[0, 0, 0], rel=1e-9)
    change = np.linalg.norm(weights - messages.weights) / 0.25 / np.linalg.norm(messages.weights)
    assert history.change[held_from] == pytest.approx(change, rel=1e-9)


@pytest.mark.parametrize("factor", [0.3, 0.8, 1.1])
def test_a_fixed_point_does_not_depend_on_the_response(factor):
    """At a converged layer any response leaves the weights where they are."""
    dataset = sample(UNEQUAL, ALPHA, 300, 1)
    trained = message_passing(dataset, "semantic", tolerance=1e-11)
    assert trained.excited == 0
    variances = dataset.model.variances
    response = factor * trained.V * variances / variances[0]
    fields = dataset.fields(trained.weights)
    onsager = column(response) * pull_of(dataset, fields)
    minima = find_minima(*channel(dataset, fields - onsager, response), dataset.inverse)
    at = Messages(trained.weights, fields, response, onsager, minima)
    size = np.abs(trained.weights).max()
    for step, keep in ((mp._settle, 0.0), (mp._settle, 0.75), (iterate, 0.0), (iterate, 0.5)):
        after = step(dataset, at, keep)
        np.testing.assert_allclose(after.weights, trained.weights, rtol=0, atol=1e-9 * size)
    assert np.abs(iterate(dataset, at, 0.0).response / trained.V - 1).max() > 1e-3
    # with another Onsager term it is none
    wrong = iterate(dataset, replace(at, onsager=0 * onsager), 0.0)
    assert np.abs(wrong.weights - trained.weights).max() > 1e-2 * size


# --- one iteration ----------------------------------------------------------------------------


def rough_state(model, dimension=250, seed=2):
    """Messages after two iterations from weights of every kind, half kept."""
    dataset = sample(model, ALPHA, dimension, seed)
    messages = first_messages(dataset, weights_at(dataset, 0.2, 0.4, 0.3))
    for _ in range(2):
        messages = iterate(dataset, messages, 0.5)
    return dataset, messages


@pytest.mark.parametrize("model", [BASE, UNEQUAL, THREE], ids=["base", "unequal", "three"])
def test_an_iteration_by_hand(model):
    """Pulls from a grid of starts, and the sums sentence by sentence."""
    dataset, old = rough_state(model)
    new = iterate(dataset, old, 0.0)
    np.testing.assert_allclose(old.fields, dataset.fields(old.weights), rtol=1e-12)
    center = np.stack(
        [
            [(dataset.tokens[:, token] @ old.weights)[:, 0] / np.sqrt(250) - old.onsager[token, 0]]
            for token in range(model.length)
        ]
    )
    np.testing.assert_allclose(old.center, center, rtol=0, atol=1e-12)
    problem = channel(dataset, center, old.response)
    np.testing.assert_allclose(
        new.minima.envelope, lowest_of_grid(problem, 7 if model.length == 2 else 3), atol=1e-9
    )
    pull = (new.minima.fields - center) / column(old.response)
    np.testing.assert_allclose(pull, pull_of(dataset, new.minima.fields), rtol=0, atol=1e-9)
    hat = stiffness(dataset, new.minima, old.response)
    memory = sum(s * one for s, one in zip(model.variances, hat, strict=True))
    total = model.regularization + memory
    np.testing.assert_allclose(new.response, model.variances / total, rtol=1e-12)
    np.testing.assert_allclose(new.onsager, column(new.response) * pull, rtol=1e-9, atol=1e-13)
    summed = memory * old.weights[:, 0]
    for token in range(model.length):
        summed = summed + pull[token, 0] @ dataset.tokens[:, token] / np.sqrt(250)
    np.testing.assert_allclose(new.weights[:, 0], summed / total, rtol=1e-9, atol=1e-11)


def test_the_lower_minimum_leads():
    """Sentences that come in with their minima exchanged are put right."""
    dataset = sample(BASE, ALPHA, 200, 5)
    first = first_messages(dataset, weights_at(dataset, 0.0, 0.0, 0.3), 100.0)
    old = iterate(dataset, first, 0.9)
    assert len(old.minima.rivals) > 10
    swapped = exchange(old.minima, np.ones(len(old.minima.rivals), bool))
    one, other = (iterate(dataset, state, 0.9) for state in (old, replace(old, minima=swapped)))
    assert not one.minima.misplaced().any()
    np.testing.assert_allclose(other.weights, one.weights, rtol=0, atol=1e-9)


def test_keep_fraction_is_the_share_of_the_old_state():
    dataset, old = rough_state(UNEQUAL)
    plain = iterate(dataset, old, 0.0)
    for keep in (0.3, 0.9):
        mixed = iterate(dataset, old, keep)
        for name in ("weights", "response", "onsager"):
            expected = keep * getattr(old, name) + (1 - keep) * getattr(plain, name)
            np.testing.assert_allclose(getattr(mixed, name), expected, rtol=1e-12, atol=1e-15)
        np.testing.assert_allclose(mixed.fields, dataset.fields(mixed.weights), rtol=1e-13)
        np.testing.assert_array_equal(mixed.minima.fields, plain.minima.fields)


def test_the_change_does_not_depend_on_the_share_kept():
    dataset = sample(BASE, ALPHA, 200, 3)
    weights = weights_at(dataset, 0.2, 0.4, 0.3)
    changes = [track(dataset, weights, keep, 1).change for keep in (0.0, 0.5, 0.9)]
    following = iterate(dataset, first_messages(dataset, weights), 0.0).weights
    expected = np.linalg.norm(following - weights) / np.linalg.norm(weights)
    for change in changes:
        assert change[0] == pytest.approx(expected, rel=1e-12)
        assert np.isnan(change[1])


def test_first_messages():
    dataset = sample(UNEQUAL, ALPHA, 50, 3)
    weights = dataset.teacher
    messages = first_messages(dataset, weights)
    np.testing.assert_allclose(messages.response, [0.16 * 50, 0.36 * 50], rtol=1e-12)
    np.testing.assert_array_equal(messages.center, dataset.fields(weights))
    assert messages.onsager.shape == (2, 1, 100)
    assert not messages.onsager.any()
    assert messages.minima is None
    given = first_messages(dataset, weights, 30.0)
    np.testing.assert_allclose(given.response, [0.16 * 30, 0.36 * 30], rtol=1e-12)
    with pytest.raises(FrozenInstanceError):
        messages.weights = weights


@pytest.mark.parametrize("model", [BASE, UNEQUAL, THREE], ids=["base", "unequal", "three"])
def test_smooth_part_of_the_stiffness_is_the_derivative_of_the_local_pull(model):
    """Each sentence followed in its own minimum: exact."""
    dataset, messages = rough_state(model)
    response = 1.3 * messages.response
    center = messages.center
    minima = find_minima(*channel(dataset, center, response), dataset.inverse)
    found = stiffness(dataset, alone(minima), response)
    step = 1e-4

    def pull(shift):
        moved = center + shift
        fields = descend(minima.fields, *channel(dataset, moved, response))[0]
        return (fields - moved) / column(response)

    for token in range(model.length):
        shift = np.zeros((model.length, 1, 1))
        shift[token] = step
        slope = (pull(shift) - pull(-shift))[token].sum() / (2 * step)
        assert found[token] == pytest.approx(-slope / dataset.dimension, rel=1e-5)


def test_on_the_semantic_branch_hardly_a_sentence_has_a_jump(runs):
    dataset, trained = runs("semantic")
    fields = dataset.fields(trained.weights)
    response = trained.V * dataset.model.variances / dataset.model.variances[0]
    center = fields - column(response) * pull_of(dataset, fields)
    minima = find_minima(*channel(dataset, center, response), dataset.inverse)
    with_jumps = stiffness(dataset, minima, response)
    without = stiffness(dataset, alone(minima), response)
    np.testing.assert_allclose(with_jumps, without, rtol=0.1)


@pytest.mark.parametrize(("model", "width", "accuracy"), [(BASE, None, 0.1), (UNEQUAL, 0.02, 0.06)])
def test_jump_part_of_the_stiffness_is_the_slope_of_the_mean_pull_that_jumps(
    model, width, accuracy, monkeypatch
):
    """Centres smeared by a Gaussian of the kernel's width: slope by Stein's lemma.

    What the lowest minimum adds to the one that was the lowest at the centre itself is the jump;
    E[(g - g_followed) shift_l] / width^2 is its part in d E[g_l] / d w_l. The narrower the kernel,
    the less do jumps bend, grow, or end within it.
    """
    if width is None:
        width = 0.05  # the one that the module uses
    else:
        monkeypatch.setattr(mp, "KERNEL", width)
    dataset = sample(model, 8.0, 500, 5)
    center = dataset.fields(weights_at(dataset, 0.0, 0.0, 0.3))
    response = 28.0 * model.variances / 0.25
    minima = find_minima(*channel(dataset, center, response), dataset.inverse)
    found = stiffness(dataset, minima, response) - stiffness(dataset, alone(minima), response)
    assert len(minima.rivals) > 300
    at = minima.rivals
    center, target = center[..., at], dataset.target[..., at]
    metric, inverse = dataset.metric[..., at], dataset.inverse[..., at]
    leader = minima.fields[..., at]
    products = []
    for shift in sobol_normals(2, 5, 11).T:
        for move in (width * shift, -width * shift):
            problem = (center + column(move), column(1 / response), target, metric)
            lowest = find_minima(*problem, inverse).fields
            followed = descend(leader, *problem)[0]
            jump = ((lowest - followed)[:, 0] / response[:, None]).sum(axis=1)
            products.append(jump * move / width**2)
    expected = -np.mean(products, axis=0) / dataset.dimension
    np.testing.assert_allclose(found, expected, rtol=accuracy)


def test_jump_part_of_the_stiffness_is_a_gaussian_of_the_distance_from_the_jump():
    """Sentence by sentence: D_l^2 N(x; 0, 0.05^2) / ||D||, x = (M_1 - M_2) / ||D||."""
    dataset = sample(UNEQUAL, 2.0, 100, 5)
    response = 28.0 * UNEQUAL.variances / 0.25
    center = dataset.fields(weights_at(dataset, 0.0, 0.0, 0.3))
    minima = find_minima(*channel(dataset, center, response), dataset.inverse)
    found = stiffness(dataset, alone(minima), response) - stiffness(dataset, minima, response)
    expected = np.zeros(2)
    for place, node in enumerate(minima.rivals):
        first, second = minima.fields[:, 0, node], minima.rival_fields[:, 0, place]
        jump = second / response - first / response
        size = np.sqrt(jump[0] ** 2 + jump[1] ** 2)
        distance = (minima.rival_envelope[place] - minima.envelope[node]) / size
        expected += jump**2 / size * norm.pdf(distance, scale=0.05) / 100
    assert len(minima.rivals) > 10
    np.testing.assert_allclose(found, expected, rtol=1e-9)


# --- the centres, and state evolution ---------------------------------------------------------


@pytest.mark.parametrize(("keep", "iterations"), [(0.0, 2), (0.5, 3), (0.8, 6)])
def test_the_centre_of_a_sentence_is_its_field_in_weights_that_never_saw_it(keep, iterations):
    """Leave one sentence out and iterate alike: the Onsager term takes away its own share."""
    dataset = sample(BASE, ALPHA, 400, 7)
    weights = weights_at(dataset, 0.1, 0.6, 0.1)

    def after(data):
        messages = first_messages(data, weights)
        for _ in range(iterations):
            messages = iterate(data, messages, keep)
        return messages

    whole = after(dataset)
    errors, shares = [], []
    for mu in range(0, dataset.count, 100):
        rest = np.delete(np.arange(dataset.count), mu)
        less = replace(
            dataset,
            tokens=dataset.tokens[rest],
            target=dataset.target[..., rest],
            metric=dataset.metric[..., rest],
            floor=dataset.floor[rest],
        )
        unseen = (dataset.tokens[mu] @ after(less).weights)[:, 0] / np.sqrt(400)
        errors.append(whole.center[:, 0, mu] - unseen)
        shares.append(whole.onsager[:, 0, mu])
    # what is left is of the order of 1 / sqrt(d), relative to the share
    assert np.linalg.norm(errors) < 0.2 * np.linalg.norm(shares)


def state_evolution(model, alpha, weights, iterations):
    """Overlaps after each plain iteration, by the map of the limit of large d."""
    mu, signal, noise = weights
    nodes = se.make_nodes(model, 14, 1)
    response = 1 / (2 * model.regularization)
    course = [se.overlaps_of_weights(model, noise, response, np.array([mu]), signal)]
    for _ in range(iterations):
        minima = se.solve_channel(model, nodes, course[-1])
        hats = se.conjugates_from(model, alpha, nodes, course[-1], minima)
        course.append(se.overlaps_from(model, hats))
    return course


@pytest.fixture(scope="module")
def tracked():
    """q, m, theta and V after each of two plain iterations, undamped, from weights near the
    semantic ones: with the Onsager term and without, shape (seeds, 4, 2), and the expected (4, 2).
    """
    start = (0.1, 0.6, 0.1)
    expected = np.array(
        [
            [o.q[0, 0, 0], o.m[0, 0], o.theta[0, 0, 0], o.V[0, 0, 0]]
            for o in state_evolution(UNEQUAL, ALPHA, start, 2)[1:]
        ]
    ).T
    runs, bare = [], []
    for seed in range(6):
        dataset = sample(UNEQUAL, ALPHA, 2000, seed)
        weights = weights_at(dataset, *start)
        once = iterate(dataset, first_messages(dataset, weights), 0.0)
        twice = iterate(dataset, once, 0.0)
        runs.append(np.transpose([row_of(dataset, messages) for messages in (once, twice)]))
        without = iterate(dataset, replace(once, onsager=0 * once.onsager), 0.0)
        bare.append(row_of(dataset, without))
    return np.array(runs), np.array(bare), expected


def row_of(dataset, messages):
    """q, m, theta, V of token 1."""
    q, m, theta = dataset.overlaps(messages.weights)
    return q[0, 0, 0], m[0, 0], theta[0, 0, 0], messages.response[0]


def deviation(found, expected):
    """Of the mean over the seeds, in standard errors."""
    error = found.std(axis=0, ddof=1) / np.sqrt(len(found))
    return (found.mean(axis=0) - expected) / error


def test_the_first_iterations_follow_state_evolution(tracked):
    runs, _, expected = tracked
    assert np.abs(deviation(runs, expected)).max() < 4
    # the seeds agree well enough for that to mean something
    assert (runs.std(axis=0) < 0.15 * np.abs(expected)).all()


def test_without_the_onsager_term_state_evolution_does_not_hold(tracked):
    _, bare, expected = tracked
    assert np.abs(deviation(bare, expected[:, 1])).max() > 8


def test_track_is_plain_iteration():
    dataset = sample(UNEQUAL, ALPHA, 200, 3)
    weights = weights_at(dataset, 0.2, 0.4, 0.3)
    history = track(dataset, weights, 0.5, 4)
    messages = first_messages(dataset, weights)
    for k in range(5):
        found = (history.q[k], history.m[k], history.theta[k], history.V[k])
        assert found == pytest.approx(row_of(dataset, messages), rel=1e-12)
        assert history.train_loss[k] == pytest.approx(
            literal_risk(dataset, messages.weights), rel=1e-10
        )
        messages = iterate(dataset, messages, 0.5)
    assert history.q.shape == (5,)


@pytest.mark.slow
@pytest.mark.parametrize("start", ["positional", "semantic"])
def test_converged_layers_agree_with_state_evolution(start):
    """Five data sets at d = 2000: within 3 standard errors of the mean, and the solver's own."""
    point = solve(BASE, ALPHA, start)
    found = []
    for seed in range(5):
        trained = message_passing(sample(BASE, ALPHA, 2000, seed), start)
        assert trained.converged
        sign = np.sign(trained.m if start == "positional" else trained.theta)
        found.append((trained.q, sign * trained.m, sign * trained.theta))
    found = np.array(found)
    sign = np.sign(point.m if start == "positional" else point.theta)
    expected = np.array([point.q, sign * point.m, sign * point.theta])
    own = np.array([point.standard_error[name] for name in ("q", "m", "theta")])
    error = np.hypot(found.std(axis=0, ddof=1) / np.sqrt(5), own)
    assert (error < 0.02).all()
    assert (np.abs(found.mean(axis=0) - expected) < 3 * error).all()


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_memory_is_that_of_the_tokens_and_some_fields(dtype):
    tracemalloc.start()
    try:
        dataset = sample(BASE, 2.0, 1200, 1, dtype)
        whole = tracemalloc.get_traced_memory()[1]
        tracemalloc.reset_peak()
        track(dataset, dataset.teacher, 0.5, 3)
        later = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert dataset.tokens.nbytes == 2400 * 2 * 1200 * np.dtype(dtype).itemsize
    # one block of sentences at a time is drawn in double precision
    assert max(whole, later) < dataset.tokens.nbytes + 0.6 * 2400 * 2 * 1200 * 8
    # the iterations make no copy of the tokens
    assert later < 1.25 * dataset.tokens.nbytes


# --- failures and bad arguments ---------------------------------------------------------------


@pytest.mark.parametrize(("start", "iterations"), [("semantic", 10), ("positional", 3)])
def test_not_converged_is_an_error_that_carries_the_state(start, iterations):
    dataset = sample(BASE, ALPHA, 300, 1)
    message = f"not converged in {iterations} iterations: .*tolerance 1e-09.* keep_fraction than"
    with pytest.raises(ConvergenceError, match=message) as caught:
        message_passing(dataset, start, tolerance=1e-9, iterations=iterations)
    state = caught.value.state
    assert isinstance(state, Trained)
    assert not state.converged
    assert state.iterations == len(state.history.q) == iterations
    assert state.held_from is None
    keep = 0.5 if start == "semantic" else 0.85
    assert f"than {keep:g}, or more" in str(caught.value)
    assert f"weights by {state.history.change[-1]:.1e} " in str(caught.value)
    course = track(dataset, starting_weights(dataset, start), keep, iterations)
    np.testing.assert_allclose(course.q[:-1], state.history.q, rtol=1e-12)
    assert state.q == pytest.approx(course.q[-1], rel=1e-12)


def test_an_iteration_that_runs_off_is_an_error_that_carries_the_messages():
    """Without damping the course is chaotic: which of the datasets run off, rounding decides."""
    caught = None
    for seed in (0, 4, 5, 3, 1, 6, 7, 8):
        dataset = sample(BASE, ALPHA, 300, seed)
        try:
            message_passing(dataset, "positional", keep_fraction=0)
        except ConvergenceError as error:
            if "runs off" in str(error):
                caught = error
                break
    assert re.search("-.* is not positive: the iteration runs off", str(caught))
    state = caught.state
    assert isinstance(state, Messages)
    assert state.weights.shape == (300, 1)
    minima = find_minima(*channel(dataset, state.center, state.response), dataset.inverse)
    hat = stiffness(dataset, minima, state.response)
    assert BASE.regularization + BASE.variances @ hat < 0


def test_a_response_that_is_not_found_is_nan(monkeypatch):
    monkeypatch.setattr(mp, "stiffness", lambda dataset, *_: np.zeros(2))  # V = s / lambda
    found = []
    for reach in (3.0, 1.2):
        monkeypatch.setattr(mp, "RESPONSE_RANGE", reach)
        with pytest.raises(ConvergenceError, match="has not converged") as caught:
            message_passing(sample(BASE, ALPHA, 200, 1), "semantic", iterations=1)
        found.append(caught.value.state.V * BASE.regularization / BASE.variances[0])
    assert abs(found[0] - 1) < 1e-6 and np.isnan(found[1])


def test_weights_that_decay_to_zero_are_not_waited_for():
    dataset = sample(Model(0.3, regularization=1.0), ALPHA, 100, 0)
    with pytest.raises(ConvergenceError, match="decay to zero") as caught:
        message_passing(dataset, "semantic")
    assert np.linalg.norm(caught.value.state.weights) < 1e-7 * np.sqrt(100)


@pytest.mark.parametrize("keep_fraction", [1.0, 1.5, -0.1, np.nan, True, "half"])
def test_track_and_iterate_check_the_share(keep_fraction):
    dataset = sample(BASE, 1.0, 20, 0)
    with pytest.raises(ValueError, match="^keep_fraction must be"):
        track(dataset, np.ones(20), keep_fraction, 2)
    with pytest.raises(ValueError, match="^keep_fraction must be"):
        iterate(dataset, first_messages(dataset, np.ones(20)), keep_fraction)


def test_track_and_first_messages_check_the_rest():
    dataset = sample(BASE, 1.0, 20, 0)
    for iterations in (0, -2, 1.5, True):
        with pytest.raises(ValueError, match="^iterations must be"):
            track(dataset, np.ones(20), 0.5, iterations)
    for response in (0.0, -1.0, np.nan, "one"):
        with pytest.raises(ValueError, match="^response must be"):
            first_messages(dataset, np.ones(20), response)
    with pytest.raises(ValueError, match="^start must be"):
        first_messages(dataset, np.ones(19))
    with pytest.raises(ValueError, match="^dataset must be"):
        first_messages(BASE, np.ones(20))
    with pytest.raises(NotImplementedError, match="target_rank = 2"):
        track(sample(Model(0.3, target_rank=2), 1.0, 20, 0), np.ones(20), 0.5, 2)


def test_an_iteration_that_runs_off_carries_its_messages(monkeypatch):
    def unsettled(*_):
        raise ConvergenceError("3 of 200 proximal problems did not settle")

    messages = first_messages(sample(BASE, 1.0, 200, 1), np.ones(200))
    monkeypatch.setattr(mp, "find_minima", unsettled)
    with pytest.raises(ConvergenceError, match="runs off: 3 of 200") as caught:
        iterate(sample(BASE, 1.0, 200, 1), messages, 0.5)
    assert caught.value.state is messages


def test_nearest_root_takes_the_nearer_change_of_sign_and_no_jump():
    root = mp._nearest_root(lambda x: (x - 0.9) * (x - 1.2), 1.0)
    assert abs(root - 0.9) < 1e-6
    assert np.isnan(mp._nearest_root(lambda x: 1.0 if x < 1.5 else -1.0, 1.0))
    assert np.isnan(mp._nearest_root(lambda x: 1.0, 1.0))


@pytest.mark.parametrize(("rank", "target_rank"), [(2, 1), (1, 2), (2, 2)])
def test_ranks_above_one_are_not_implemented(rank, target_rank):
    dataset = sample(Model(0.3, rank=rank, target_rank=target_rank), 1.0, 20, 0)
    with pytest.raises(
        NotImplementedError, match=f"got rank = {rank}, target_rank = {target_rank}"
    ):
        message_passing(dataset, "random")


BAD = [
    ("dataset", BASE),
    ("dataset", None),
    ("keep_fraction", 1),
    ("keep_fraction", False),
    ("keep_fraction", np.ones(2)),
    ("seed", None),
    ("seed", True),
    ("seed", -1),
    ("seed", 1.5),
    ("keep_fraction", 1.0),
    ("keep_fraction", -0.1),
    ("keep_fraction", float("nan")),
    ("keep_fraction", "0.5"),
    ("keep_fraction", True),
    ("tolerance", 0),
    ("tolerance", -1e-6),
    ("tolerance", 1.0),
    ("tolerance", float("nan")),
    ("tolerance", "small"),
    ("tolerance", None),
    ("iterations", 0),
    ("iterations", 10.0),
    ("iterations", True),
    ("iterations", 10**6 + 1),
    ("iterations", None),
]


@pytest.mark.parametrize(("name", "value"), BAD)
def test_bad_arguments_are_named_and_quoted(name, value):
    arguments = {"dataset": sample(BASE, 2.0, 20, 0)}
    with pytest.raises(ValueError, match=f"^{name} must be ") as caught:
        message_passing(**(arguments | {name: value}))
    assert repr(value) in str(caught.value)


@pytest.mark.parametrize(
    ("start", "message"),
    [
        ("teacher", "^start must be .*got 'teacher'"),
        (np.ones(19), r"^start must be .* shape \(20, 1\), got shape \(19,\)"),
        (np.full(20, np.nan), "^start must have entries below"),
    ],
)
def test_bad_starts_are_named_and_quoted(start, message):
    with pytest.raises(ValueError, match=message):
        message_passing(sample(BASE, 2.0, 20, 0), start)


def test_results_are_frozen(runs):
    trained = runs("semantic")[1]
    with pytest.raises(FrozenInstanceError):
        trained.q = 0.0
    with pytest.raises(FrozenInstanceError):
        trained.history.q = np.zeros(1)
