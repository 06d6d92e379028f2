"""Thresholds: brackets, reproducibility, and each by a second road."""

from dataclasses import replace

import numpy as np
import pytest
from scipy.optimize import brentq

from attnphase import (
    ConvergenceError,
    Model,
    Threshold,
    baseline_alpha,
    critical_alpha,
    linear_baseline,
    onset_alpha,
    solve,
    trace,
)
from attnphase import state_evolution as se
from attnphase.phases import growth_rates
from attnphase.solver import solve_on

BASE = Model(0.3)


@pytest.fixture(scope="module")
def critical():
    return critical_alpha(BASE, log2_points=10, replicates=2)


@pytest.fixture(scope="module")
def meeting():
    return baseline_alpha(BASE, log2_points=10, replicates=2)


def check_bracket(threshold, difference):
    """The comparison passes from below zero to above it between the ends of the bracket."""
    assert isinstance(threshold, Threshold)
    low, high = threshold.bracket
    assert low < threshold.value < high
    assert high - low < 0.5 * threshold.value
    assert (difference(low) < 0).all()
    assert (difference(high) > 0).all()


def differences(alpha, log2_points=10, replicates=2):
    """Train loss of the positional solution less that of the semantic one, by replicate."""
    losses = [
        [one.train_loss for one in solve(BASE, alpha, branch, log2_points, replicates).replicates]
        for branch in ("positional", "semantic")
    ]
    return np.subtract(*losses)


# --- alpha_c --------------------------------------------------------------------------------------


def test_critical_alpha_changes_the_sign_of_the_loss_difference(critical):
    check_bracket(critical, differences)
    assert critical.value == pytest.approx(1.25, abs=0.05)  # 1.2507(38) at 2^12 points
    assert 0 < critical.standard_error < 0.05


def test_critical_alpha_by_newton_steps_with_the_mean_envelope(critical):
    """d epsilon_t / d alpha = E[M]: four solves a branch, no bracket, the same nodes."""
    roots = []
    for nodes in se.replicate_nodes(BASE, 10, 2, 0):
        alpha = 1.24
        for _ in range(4):
            positional, semantic = (
                solve_on(BASE, alpha, branch, (nodes,)) for branch in ("positional", "semantic")
            )
            gap = positional.train_loss - semantic.train_loss
            alpha -= gap / (positional.mean_envelope - semantic.mean_envelope)
        roots.append(alpha)
    assert np.mean(roots) == pytest.approx(critical.value, rel=1e-5)
    error = abs(roots[0] - roots[1]) / 2
    assert critical.standard_error == pytest.approx(error, rel=1e-2)


@pytest.mark.parametrize("guess", [pytest.param(0.8, marks=pytest.mark.slow), 1.9])
def test_the_guess_does_not_matter(critical, guess):
    other = critical_alpha(BASE, log2_points=10, replicates=2, guess=guess)
    assert other.value == pytest.approx(critical.value, rel=1e-5)


def test_thresholds_are_reproducible_in_every_digit(meeting):
    assert baseline_alpha(BASE, log2_points=10, replicates=2) == meeting


@pytest.mark.slow
def test_critical_alpha_keeps_within_its_errors():
    """Seeds and numbers of points change it by no more than the errors allow."""
    found = [
        critical_alpha(BASE, log2_points=log2_points, replicates=4, seed=seed)
        for log2_points, seed in ((12, 0), (12, 1), (12, 2), (13, 3), (14, 4))
    ]
    for i, one in enumerate(found):
        assert 0.0005 < one.standard_error < 0.01
        for two in found[:i]:
            # three joint errors, each estimated from four replicates
            error = np.hypot(one.standard_error, two.standard_error)
            assert abs(one.value - two.value) < 3 * error + 0.002
    assert found[-1].value == pytest.approx(1.247, abs=0.006)


@pytest.mark.slow
@pytest.mark.parametrize("omega", [0.2, 0.4, 0.5])
def test_critical_alpha_at_other_targets(omega):
    model = Model(omega)
    threshold = critical_alpha(model, log2_points=11, replicates=2)
    low, high = threshold.bracket
    assert low < threshold.value < high
    for alpha, sign in ((low, -1), (high, 1)):
        losses = [
            solve(model, alpha, branch, 11, 2).train_loss for branch in ("positional", "semantic")
        ]
        assert sign * (losses[0] - losses[1]) > 0


# --- alpha_l --------------------------------------------------------------------------------------


def test_baseline_alpha_is_where_the_semantic_test_error_meets_the_baseline(meeting):
    level = linear_baseline(BASE).test_error

    def difference(alpha):
        point = solve(BASE, alpha, "semantic", 10, 2)
        return np.array([level - one.test_error for one in point.replicates])

    check_bracket(meeting, difference)
    roots = []
    for nodes in se.replicate_nodes(BASE, 10, 2, 0):

        def gap(alpha, nodes=nodes):
            return level - solve_on(BASE, alpha, "semantic", (nodes,)).test_error

        roots.append(brentq(gap, 1.3, 1.7, xtol=1e-8))
    assert meeting.value == pytest.approx(np.mean(roots), rel=1e-5)
    assert meeting.standard_error == pytest.approx(abs(roots[0] - roots[1]) / 2, rel=1e-2)


def test_attention_beats_the_baseline_only_beyond_the_transition(critical, meeting):
    error = np.hypot(critical.standard_error, meeting.standard_error)
    assert meeting.value - critical.value > 5 * error


@pytest.mark.slow
def test_baseline_alpha_keeps_within_its_errors():
    found = [
        baseline_alpha(BASE, log2_points=log2_points, replicates=4, seed=seed)
        for log2_points, seed in ((12, 0), (12, 1), (13, 2), (14, 3))
    ]
    for i, one in enumerate(found):
        for two in found[:i]:
            error = np.hypot(one.standard_error, two.standard_error)
            assert abs(one.value - two.value) < 3 * error + 0.002


# --- onsets ---------------------------------------------------------------------------------------


def literal_growth(branch, alpha, size, log2_points, replicates):
    """One application of the map to the uninformed solution with a small m or theta put in."""
    nodes = se.replicate_nodes(BASE, log2_points, replicates, 0)
    point = solve_on(BASE, alpha, "uninformed", nodes)
    factors = []
    for some, one in zip(nodes, point.replicates, strict=True):
        if branch == "positional":
            name, small = "m", size * np.array([[1.0], [-1.0]])
            q = one.overlaps.q + size**2 * 0.25
        else:
            name, small = "theta", np.full((2, 1, 1), size)
            q = one.overlaps.q + size**2 / 0.25
        start = replace(one.overlaps, q=q, **{name: small})
        minima = se.solve_channel(BASE, some, start)
        hats = se.conjugates_from(BASE, alpha, some, start, minima)
        parity = se.impose_parity(branch, hats)
        back = se.overlaps_from(BASE, parity)
        factors.append(getattr(back, name).ravel()[0] / size)
    return np.array(factors), growth_rates(point, nodes)[branch]


@pytest.mark.parametrize(
    ("branch", "alpha", "size"), [("positional", 0.06, 3e-3), ("semantic", 0.7, 0.015)]
)
def test_growth_rate_is_what_the_map_does_to_a_small_overlap(branch, alpha, size):
    factors, rate = literal_growth(branch, alpha, size, 14, 6)
    error = factors.std(ddof=1) / np.sqrt(6)
    assert error < 0.03
    assert factors.mean() == pytest.approx(rate, abs=4 * error + 0.005)
    assert rate == pytest.approx(1.0, abs=0.05)  # close to the onset


@pytest.mark.parametrize(("branch", "value"), [("positional", 0.0573), ("semantic", 0.70)])
def test_onsets_are_where_the_growth_rate_passes_one(branch, value):
    found = onset_alpha(BASE, branch, log2_points=11, replicates=2, guess=value)
    assert found.value == pytest.approx(value, abs=max(5 * found.standard_error, 0.03 * value))
    low, high = found.bracket
    assert low < found.value < high
    nodes = se.replicate_nodes(BASE, 11, 2, 0)
    for alpha, sign in ((low, -1), (high, 1)):
        for some in nodes:
            rate = growth_rates(solve_on(BASE, alpha, "uninformed", (some,)), (some,))[branch]
            assert sign * (rate - 1) > 0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("branch", "name", "alphas"),
    [("positional", "m", (0.1, 0.09, 0.08, 0.07)), ("semantic", "theta", (0.95, 0.9, 0.85, 0.8))],
)
def test_overlaps_grow_as_the_square_root_beyond_the_onset(branch, name, alphas):
    """m^2 against alpha, extrapolated to zero, meets the instability of the uninformed solution."""
    onset = onset_alpha(BASE, branch, log2_points=13, replicates=4, guess=0.6 * alphas[-1])
    points = trace(BASE, alphas, branch, log2_points=13, replicates=4)
    squares = [getattr(point, name) ** 2 for point in points]
    crossing = brentq(np.poly1d(np.polyfit(alphas, squares, 2)), 0.3 * alphas[-1], alphas[-1])
    print(branch, onset, crossing, squares)
    assert crossing == pytest.approx(onset.value, rel=0.05)
    assert (np.diff(squares) < 0).all()


def test_growth_rates_of_unequal_tokens_are_what_the_map_does():
    """The same, in a model whose tokens and encodings all differ."""
    model = Model(
        0.3,
        sigma=(0.5, 0.7),
        encodings=((1.0,), (-0.6,)),
        positional_target=((0.7, 0.3), (0.45, 0.55)),
    )
    alpha, nodes = 0.5, se.replicate_nodes(model, 14, 6, 3)
    point = solve_on(model, alpha, "uninformed", nodes)
    rates = growth_rates(point, nodes)
    rho, encodings = model.variances, np.asarray(model.encodings)
    size = 0.02
    factors = {"positional": [], "semantic": []}
    for some, one in zip(nodes, point.replicates, strict=True):
        for branch, signal in (("positional", 0.0), ("semantic", size)):
            mean = size if branch == "positional" else 0.0
            norm = (mean**2 + signal**2) * rho
            start = se.Overlaps(
                one.overlaps.q + norm[:, None, None],
                mean * encodings,
                (signal * rho)[:, None, None],
                one.overlaps.V,
            )
            minima = se.solve_channel(model, some, start)
            hats = se.conjugates_from(model, alpha, some, start, minima)
            back = se.overlaps_from(model, se.impose_parity(branch, hats))
            if branch == "positional":
                factors[branch].append(back.m[0, 0] / (size * encodings[0, 0]))
            else:
                factors[branch].append(back.theta[0, 0, 0] / (size * rho[0]))
    for branch, values in factors.items():
        error = np.std(values, ddof=1) / np.sqrt(6)
        print(branch, np.mean(values), error, rates[branch])
        assert error < 0.06 * rates[branch]
        assert np.mean(values) == pytest.approx(rates[branch], abs=4 * error + 0.005)


# --- where there is none, and bad arguments -------------------------------------------------------


def test_a_target_without_semantics_has_no_transition():
    with pytest.raises(ConvergenceError, match="alpha_l"):
        baseline_alpha(Model(1.0), log2_points=8, replicates=1, guess=20.0)


@pytest.mark.parametrize("function", [critical_alpha, baseline_alpha])
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"log2_points": 3}, r"log2_points must be an integer from 6 to 22, got 3"),
        ({"replicates": 0}, r"replicates must be an integer from 1 to 1024, got 0"),
        ({"seed": -4}, r"seed must be an integer from 0 .*got -4"),
        ({"tolerance": -1}, r"tolerance must be a number above 0 .*got -1"),
        ({"guess": 0.0}, r"guess must be a number above 0.02 and below 30, got 0\.0"),
        ({"guess": float("nan")}, r"guess must be a number above 0.02 and below 30, got nan"),
        ({"guess": 31}, r"guess must be a number above 0.02 and below 30, got 31"),
    ],
)
def test_bad_arguments(function, arguments, message):
    with pytest.raises(ValueError, match=message):
        function(BASE, **({"log2_points": 8, "replicates": 1} | arguments))


@pytest.mark.parametrize("branch", ["uninformed", "both", None])
def test_bad_branch_of_the_onset(branch):
    message = rf"branch must be 'positional' or 'semantic', got .*{branch}"
    with pytest.raises(ValueError, match=message):
        onset_alpha(BASE, branch)


def test_the_bracket_holds_a_change_of_sign_in_every_replicate():
    found = critical_alpha(BASE, log2_points=10, replicates=2)
    ends = []
    for alpha in found.bracket:
        losses = [
            [
                one.train_loss
                for one in solve(
                    BASE, alpha, branch, log2_points=10, replicates=2
                ).replicates
            ]
            for branch in ("positional", "semantic")
        ]
        ends.append(np.sign(np.subtract(*losses)).tolist())
    assert ends == [[-1.0, -1.0], [1.0, 1.0]]


def test_the_semantic_growth_rate_is_built_from_the_conjugates():
    alpha, nodes = 1.0, se.replicate_nodes(BASE, 10, 1, 0)
    point = solve_on(BASE, alpha, "uninformed", nodes)
    minima = se.solve_channel(BASE, nodes[0], point.overlaps)
    spread = np.sqrt(point.q)
    fields, noise = nodes[0].target_fields[:, 0], nodes[0].noise[:, 0]
    force = (minima.fields[:, 0] - spread * noise) / point.V
    # sum over tokens k, l of E[g_k h*_k v_l h*_l] / s, and -alpha E[g v] / s = Vhat
    pairs = ((force * fields).sum(axis=0) * (noise * fields).sum(axis=0)).mean() / spread
    memory = (BASE.variances * point.conjugates.V.ravel()).sum()
    expected = (alpha * pairs + memory) / (BASE.regularization + memory)
    assert growth_rates(point, nodes)["semantic"] == pytest.approx(expected, rel=1e-6)


@pytest.mark.slow
def test_the_guess_may_lie_where_the_positional_branch_has_ended():
    found = critical_alpha(Model(0.0), log2_points=12, guess=2.0)
    assert abs(found.value - 0.613) < 5 * np.hypot(found.standard_error, 0.002)
