"""Thresholds: brackets, reproducibility, and each by a second road."""

from dataclasses import replace

import numpy as np
import pytest
from scipy.optimize import brentq

from attnphase import (
    ConvergenceError,
    Model,
    Spinodal,
    Threshold,
    baseline_alpha,
    critical_alpha,
    end_alpha,
    linear_baseline,
    onset_alpha,
    phases,
    solve,
    solver,
    spinodal_alpha,
    trace,
)
from attnphase import state_evolution as se
from attnphase.phases import growth_rates
from attnphase.solver import (
    Continuation,
    _find_zero,
    _MapAtOverlap,
    solve_on,
    turning_points,
)

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
                for one in solve(BASE, alpha, branch, log2_points=10, replicates=2).replicates
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


# --- ends -----------------------------------------------------------------------------------------

FLAT = Model(0.0)


@pytest.fixture(scope="module")
def end():
    return end_alpha(FLAT, log2_points=11, replicates=2)


def test_the_positional_branch_ends_where_its_growth_rate_falls_below_one(end):
    """By a scan on each replicate's nodes: above 1 up to the end, below 1 beyond it."""
    low, high = end.bracket
    assert low < end.value < high
    alphas, roots = np.linspace(0.8, 1.1, 13), []
    for nodes in se.replicate_nodes(FLAT, 11, 2, 0):
        path = Continuation(FLAT, "uninformed", (nodes,))
        rates = []
        for alpha in alphas:
            point = path.to(alpha) if path.last else path.begin(alpha)
            rates.append(growth_rates(point, path.nodes)["positional"])
        last = np.flatnonzero(np.array(rates) > 1)[-1]
        assert (np.array(rates[: last - 1]) > 1).all() and (np.array(rates[last + 2 :]) < 1).all()
        slope = (rates[last + 1] - rates[last]) / (alphas[last + 1] - alphas[last])
        roots.append(alphas[last] + (1 - rates[last]) / slope)
        for alpha, sign in ((low, 1), (high, -1)):
            rate = growth_rates(solve_on(FLAT, alpha, "uninformed", (nodes,)), (nodes,))
            assert sign * (rate["positional"] - 1) > 0
    assert end.value == pytest.approx(np.mean(roots), abs=0.005)
    assert end.standard_error == pytest.approx(abs(roots[0] - roots[1]) / 2, abs=0.005)
    assert end.value == pytest.approx(0.934, abs=0.05)  # 0.934(6) on 4 x 2^15 nodes


def test_the_guess_of_the_end_may_lie_beyond_it(end):
    other = end_alpha(FLAT, log2_points=11, replicates=2, guess=1.4)
    assert other.value == pytest.approx(end.value, rel=1e-5)


def test_the_end_is_not_the_onset(end):
    onset = onset_alpha(FLAT, "positional", log2_points=11, replicates=2, guess=0.1)
    assert onset.value < 0.2 < end.value


@pytest.mark.parametrize(
    ("function", "branch", "guess", "far", "side"),
    [
        (end_alpha, "semantic", 20.0, 25.0, "above"),  # it does not end
        (end_alpha, "positional", 0.03, 0.024, "below"),  # it ends, but the guess is before it
        (onset_alpha, "positional", 20.0, 25.0, "below"),  # it begins, but the guess is beyond
    ],
)
def test_a_search_without_a_transition_tells_the_growth_rates_it_found(
    function, branch, guess, far, side
):
    """Not where the transition is, as that is not known."""
    with pytest.raises(ConvergenceError) as error:
        function(BASE, branch, log2_points=8, replicates=1, guess=guess)
    rough = se.replicate_nodes(BASE, solver.ROUGH_LOG2_POINTS, 1, 0)
    rates = [
        growth_rates(solve_on(BASE, alpha, "uninformed", rough), rough)[branch]
        for alpha in (guess, far)
    ]
    assert [rate > 1 for rate in rates] == 2 * [side == "above"]
    name = "end" if function is end_alpha else "onset"
    other = {"above": "below", "below": "above"}[side]
    assert str(error.value) == (
        f"the {branch} {name} was not found: the growth rate is {rates[0]:.4g} at the guess alpha "
        f"= {guess:g} and {rates[1]:.4g} at alpha = {far:g}, {side} 1 wherever it was tried in "
        f"between; if there is one elsewhere, begin at a guess where the rate is {other} 1"
    )
    assert error.value.state == tuple(
        (pytest.approx(alpha), pytest.approx(rate, rel=1e-5))
        for alpha, rate in zip((guess, far), rates, strict=True)
    )


@pytest.mark.parametrize("branch", ["uninformed", "both", None])
def test_bad_branch_of_the_end(branch):
    message = rf"branch must be 'positional' or 'semantic', got .*{branch}"
    with pytest.raises(ValueError, match=message):
        end_alpha(BASE, branch)


def test_growth_rates_with_known_minima_and_half_of_the_nodes():
    nodes = se.replicate_nodes(BASE, 10, 2, 0)
    path = Continuation(BASE, "uninformed", nodes)
    point = path.begin(1.0)
    expected = growth_rates(point, nodes)
    for found in (growth_rates(point, path.nodes), growth_rates(point, path.nodes, path.minima)):
        assert found == pytest.approx(expected, rel=1e-8)


# --- where a branch turns back --------------------------------------------------------------------

TURNING = Model(0.2)


@pytest.fixture(scope="module")
def turn():
    return spinodal_alpha(TURNING, log2_points=14, replicates=1, guess=5.0)


def test_beyond_its_turning_point_a_branch_is_not_found(turn):
    assert isinstance(turn, Spinodal) and isinstance(turn, Threshold)
    assert turn.value == pytest.approx(4.08, abs=0.1)  # 4.081(15) on 4 x 2^14 nodes
    assert turn.overlap == pytest.approx(0.231, abs=0.006)
    assert np.isnan(turn.standard_error) and np.isnan(turn.overlap_error)
    assert turn.bracket == (turn.value, turn.value)
    path = Continuation(TURNING, "positional", se.replicate_nodes(TURNING, 14, 1, 0), 1e-6)
    path.begin(5.0)
    path.to(1.09 * turn.value)
    far = path.last
    near = path.to(1.0225 * turn.value)
    # mu leaves the turning point as the square root of the distance, here of 0.09 and 0.0225
    assert (far.m - turn.overlap) / (near.m - turn.overlap) == pytest.approx(2, abs=0.4)
    assert near.m > turn.overlap + 0.005
    with pytest.raises(ConvergenceError):
        solve(TURNING, 0.97 * turn.value, "positional", 14, 1, tolerance=1e-6, start=near)
    with pytest.raises(ConvergenceError):
        path.to(0.97 * turn.value, 1)
    # on the other side of the turning point there is another fixed point at about the same alpha
    below = 2 * turn.overlap - near.m
    given = _MapAtOverlap(TURNING, below, "positional", path.nodes[0])
    place, x = path._trails[0].visited[-1]
    y, _, _ = _find_zero(given, np.append(x[:2], place), 1e-6)
    assert np.exp(y[2]) == pytest.approx(1.0225 * turn.value, rel=0.03)
    other = solve_on(
        TURNING, float(np.exp(y[2])), "positional", path.nodes, [given.overlaps(y)], 1e-5
    )
    assert other.m == pytest.approx(below, rel=1e-3)


def on_a_parabola(branch, curvature, vertex, place, first, monkeypatch):
    """A continuation whose log alpha is a parabola of its overlap; the overlaps that are asked."""
    asked = []

    def parabola(state_map, start, tolerance, attempts=solver.ATTEMPTS):
        assert attempts == 1  # another one would go far away, and take its time
        own = state_map.own(start)
        asked.append(own)
        return np.array([0.0, 0.0, place + curvature * (own - vertex) ** 2]), None, 0.0

    monkeypatch.setattr(solver, "_find_zero", parabola)
    x = np.array([0.0, 0.0, first if branch == "positional" else np.log(first)])
    trail = solver._Trail(((1.0, x),), np.eye(3), None)
    path = Continuation(BASE, branch, se.replicate_nodes(BASE, 8, 2, 0), 1e-6)
    path._trails = [trail, trail]
    return path, asked


@pytest.mark.parametrize(("branch", "curvature"), [("positional", 60.0), ("semantic", -60.0)])
def test_a_turning_point_is_the_vertex_of_the_parabola(branch, curvature, monkeypatch):
    """Of log alpha against mu or Theta; on either side of it the branch goes on."""
    path, asked = on_a_parabola(branch, curvature, 0.2345, 0.7, 0.3, monkeypatch)
    for alpha, own in turning_points(path):
        assert own == pytest.approx(0.2345, rel=1e-6)
        assert alpha == pytest.approx(np.exp(0.7), rel=1e-6)
    assert asked[0] == pytest.approx(0.3)
    np.testing.assert_allclose(np.array(asked[1:3]) / asked[:2], 0.985, rtol=1e-9)
    assert 0.06 < abs(curvature) * (min(asked) - 0.2345) ** 2 < 0.09


def test_a_parabola_through_a_few_points_is_none(monkeypatch):
    path, _ = on_a_parabola("positional", 1200.0, 0.2345, 0.7, 0.3, monkeypatch)
    with pytest.raises(ConvergenceError, match="is too uneven near its turning point at alpha = 2"):
        turning_points(path)


def test_a_spinodal_is_the_mean_over_the_replicates(monkeypatch):
    seen = []

    def turns(path):
        seen.append((path.branch, path.last.alpha, path.tolerance, len(path.nodes)))
        return [(1.0, 0.39), (2.0, 0.41)]

    monkeypatch.setattr(phases, "turning_points", turns)
    found = spinodal_alpha(BASE, "semantic", 8, 2, tolerance=1e-5, guess=1.5)
    assert seen == [("semantic", 1.5, 1e-5, 2)]
    assert found == Spinodal(
        1.5, pytest.approx(0.5), (1.0, 2.0), pytest.approx(0.4), pytest.approx(0.01)
    )


@pytest.mark.parametrize(("width", "told"), [(0.0149, True), (0.0151, False), (np.nan, False)])
def test_a_fold_whose_overlap_is_not_the_same_on_all_nodes_is_none(width, told, monkeypatch):
    monkeypatch.setattr(
        phases, "turning_points", lambda path: [(1.0, 0.3 - width), (2.0, 0.3 + width)]
    )
    if told:
        assert spinodal_alpha(BASE, "semantic", 8, 2, guess=1.5).overlap == pytest.approx(0.3)
        return
    with pytest.raises(ConvergenceError, match="no fold of the semantic branch") as error:
        spinodal_alpha(BASE, "semantic", 8, 2, guess=1.5)
    assert isinstance(error.value.state, Spinodal)


def test_a_branch_that_begins_continuously_has_no_fold():
    """On few nodes its own staircase turns back, at another overlap on each of them."""
    message = (
        r"no fold of the semantic branch can be told on 2048 nodes: near alpha = 0\.9364 the "
        r"replicates turn back at overlaps from 0\.294 to 0\.338, and the standard error 0\.022 of "
        r"their mean 0\.316 is above 5% of it; take more nodes, and see whether"
    )
    with pytest.raises(ConvergenceError, match=message) as error:
        spinodal_alpha(BASE, "semantic", log2_points=11, replicates=2, guess=1.0)
    assert error.value.state.value == pytest.approx(0.9364, abs=1e-4)


def test_a_branch_that_does_not_turn_has_no_spinodal():
    with pytest.raises(ConvergenceError, match="positional branch does not turn back in alpha"):
        spinodal_alpha(BASE, log2_points=9, replicates=1, guess=3.0)


def test_a_guess_without_the_branch_has_no_spinodal():
    with pytest.raises(ConvergenceError, match="positional branch does not exist at alpha = 2.5"):
        spinodal_alpha(TURNING, log2_points=8, replicates=1, guess=2.5)


def test_too_few_nodes_near_a_turning_point():
    with pytest.raises(ConvergenceError, match=r"is too uneven near .*on 1024 nodes: take more"):
        spinodal_alpha(TURNING, log2_points=10, replicates=1, guess=6.0)


def test_turning_points_of_several_directions_are_not_implemented():
    model = Model(0.3, encodings=((1.0, 0.0), (0.0, 1.0)))
    path = Continuation(model, "positional", se.replicate_nodes(model, 8, 1, 0), 1e-5)
    path.begin(0.5)
    with pytest.raises(NotImplementedError, match="one direction of the encodings"):
        turning_points(path)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"branch": "both"}, r"branch must be 'positional' or 'semantic', got 'both'"),
        ({"log2_points": 3}, r"log2_points must be an integer from 6 to 22, got 3"),
        ({"replicates": 0}, r"replicates must be an integer from 1 to 1024, got 0"),
        ({"seed": -4}, r"seed must be an integer from 0 .*got -4"),
        ({"tolerance": -1}, r"tolerance must be a number above 0 .*got -1"),
        ({"guess": 0.0}, r"^guess must be .*0\.02.*got 0"),
    ],
)
def test_bad_arguments_of_the_spinodal(arguments, message):
    with pytest.raises(ValueError, match=message):
        spinodal_alpha(TURNING, **({"log2_points": 8, "replicates": 1} | arguments))
