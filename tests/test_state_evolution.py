"""State evolution: map, free energy, fixed points, their errors, limits, and a simulation."""

from dataclasses import fields, replace
from itertools import product

import numpy as np
import pytest
from scipy.optimize import minimize, minimize_scalar
from scipy.stats import t as student

from attnphase import ConvergenceError, FixedPoint, Model, Overlaps, solve, solver, trace
from attnphase import state_evolution as se
from attnphase.model import attention_matrix
from attnphase.proximal import Minima, channel_loss, descend, exchange, target_inverse
from attnphase.quadrature import polar_rule
from attnphase.solver import Continuation, solve_on

NAMES = ("q", "m", "theta", "V")
THREE = {
    "positional_target": ((0.5, 0.3, 0.2), (0.1, 0.8, 0.1), (0.25, 0.25, 0.5)),
    "encodings": ((1.0, 0.0), (0.0, 1.0), (-1.0, 0.5)),
}
BASE = Model(0.3)
ALPHA = 1.25
#: What a saddle point must satisfy, at several settings: model, alpha, branch.
SETTINGS = [
    (BASE, 0.4, "positional"),
    (BASE, 1.25, "positional"),
    (BASE, 1.25, "semantic"),
    (BASE, 2.0, "semantic"),
    (BASE, 1.25, "uninformed"),
    (Model(0.0), 1.0, "semantic"),
    (Model(0.0), 0.5, "positional"),
    (Model(0.5), 2.5, "positional"),
    (Model(0.5), 2.5, "semantic"),
    (Model(0.3, sigma=(0.4, 0.7)), 2.0, "semantic"),
    (Model(0.3, sigma=(0.4, 0.7)), 2.0, "uninformed"),
    (Model(0.3, sigma=(0.4, 0.7)), 0.8, "positional"),
    (Model(0.5, sigma=(0.4, 0.5)), 0.3, "positional"),
    (Model(0.3, **THREE), 2.0, "semantic"),
    (Model(0.3, **THREE, sigma=(0.4, 0.5, 0.7)), 2.0, "semantic"),
]


def same(one, other):
    """Whether two fixed points agree in every digit of everything that they hold."""
    parts = ("overlaps", "conjugates", "overlaps_error", "conjugates_error")
    arrays = all(
        np.array_equal(getattr(getattr(one, part), name), getattr(getattr(other, part), name))
        for part, name in product(parts, NAMES)
    )
    floats = ("train_loss", "free_energy", "test_error", "mean_envelope", "residual", "evaluations")
    return (
        arrays
        and all(getattr(one, name) == getattr(other, name) for name in floats)
        and one.standard_error == other.standard_error
    )


def fields_from(overlaps, model, xi, eta):
    """(w, h*) as the equations of the paper draw them: w first, then h* given w; shape (L, N)."""
    q, m, theta = overlaps.q[:, 0], overlaps.m, overlaps.theta[:, 0]
    rho = model.variances[:, None]
    w = m + np.sqrt(q) * xi
    return w, theta / np.sqrt(q) * xi + np.sqrt(rho - theta**2 / q) * eta


def nodes_at(model, overlaps, xi, eta):
    """`Nodes` whose fields at ``overlaps`` are those of `fields_from`."""
    w, h = fields_from(overlaps, model, xi, eta)
    q, m, theta = overlaps.q[:, 0], overlaps.m, overlaps.theta[:, 0]
    rho = model.variances[:, None]
    noise = (w - m - theta / rho * h) / np.sqrt(q - theta**2 / rho)
    target = model.target(h[:, None])
    return se.Nodes(noise[:, None], h[:, None], target, target_inverse(target))


def random_overlaps(model, seed):
    """Order parameters that differ between tokens and solve nothing."""
    rng = np.random.default_rng(seed)
    length = model.length
    q = rng.uniform(0.05, 0.3, length)
    theta = rng.uniform(-0.9, 0.9, length) * np.sqrt(q * model.variances)
    response = rng.uniform(5.0, 25.0, length)
    return Overlaps(
        q[:, None, None],
        rng.normal(0, 0.3, (length, 1)),
        theta[:, None, None],
        response[:, None, None],
    )


def random_conjugates(model, seed):
    rng = np.random.default_rng(seed)
    length = model.length
    return se.Conjugates(
        rng.uniform(1e-4, 1e-2, (length, 1, 1)),
        rng.normal(0, 0.02, (length, 1)),
        rng.normal(0, 0.02, (length, 1, 1)),
        rng.uniform(0.005, 0.05, (length, 1, 1)),
    )


def changed(parameters, name, token, step):
    """The same parameters with one entry moved by ``step``."""
    array = getattr(parameters, name).copy()
    array[token] += step
    return replace(parameters, **{name: array})


@pytest.fixture(scope="module")
def points():
    """One cheap fixed point on each branch."""
    return {
        branch: solve(BASE, ALPHA, branch, log2_points=10, replicates=2)
        for branch in solver.BRANCHES
    }


# --- nodes ------------------------------------------------------------------------------------


def test_nodes_are_mirrored_pairs_of_the_right_law():
    model = Model(0.3, **THREE, sigma=(0.4, 0.5, 0.7))
    nodes = se.make_nodes(model, 14, 5)
    half = nodes.count // 2
    assert nodes.count == 2**14
    np.testing.assert_array_equal(nodes.noise[..., :half], -nodes.noise[..., half:])
    np.testing.assert_array_equal(nodes.target_fields[..., :half], nodes.target_fields[..., half:])
    np.testing.assert_array_equal(nodes.target, model.target(nodes.target_fields))
    stacked = np.concatenate((nodes.noise[:, 0], nodes.target_fields[:, 0]))
    expected = np.diag([1, 1, 1, 0.16, 0.25, 0.49])
    np.testing.assert_allclose(np.cov(stacked), expected, rtol=0, atol=5e-3)


@pytest.mark.parametrize("model", [BASE, Model(0.3, **THREE, sigma=(0.4, 0.5, 0.7))])
def test_centers_have_the_covariance_that_the_overlaps_say(model):
    overlaps = random_overlaps(model, 3)
    nodes = se.make_nodes(model, 14, 7)
    center = se.prox_centers(model, nodes, overlaps)[:, 0]
    target_fields = nodes.target_fields[:, 0]
    np.testing.assert_allclose(center.mean(axis=1), overlaps.m[:, 0], rtol=0, atol=2e-3)
    offset = center - overlaps.m
    q, theta = overlaps.q[:, 0, 0], overlaps.theta[:, 0, 0]
    count = nodes.count
    np.testing.assert_allclose(offset @ offset.T / count, np.diag(q), rtol=0, atol=3e-3)
    cross = offset @ target_fields.T / count
    np.testing.assert_allclose(cross, np.diag(theta), rtol=0, atol=3e-3)


def test_distinct_nodes_are_one_of_each_pair_of_mirror_images():
    nodes = se.make_nodes(BASE, 8, 5)
    for branch in ("positional", "semantic"):
        assert nodes.distinct(branch) is nodes
    half = nodes.distinct("uninformed")
    assert half.count == 128
    np.testing.assert_array_equal(nodes.noise, np.concatenate((half.noise, -half.noise), axis=-1))
    for name in ("target_fields", "target", "inverse"):
        part = getattr(half, name)
        np.testing.assert_array_equal(getattr(nodes, name), np.concatenate((part, part), axis=-1))


@pytest.mark.parametrize("alpha", [0.3, 1.25])
def test_half_of_the_nodes_tell_all_of_the_uninformed_solution(alpha):
    nodes = se.make_nodes(BASE, 10, 5)
    half = nodes.distinct("uninformed")
    start = solve(BASE, alpha, "uninformed", log2_points=10, replicates=1).overlaps
    whole, part = (
        solver._solve_replicate(BASE, alpha, "uninformed", some, start, 1e-12)
        for some in (nodes, half)
    )
    for name in ("train_loss", "free_energy", "test_error", "mean_envelope"):
        assert getattr(part, name) == pytest.approx(getattr(whole, name), rel=1e-10)
    for name in NAMES:
        for kind in ("overlaps", "conjugates"):
            one, other = (getattr(getattr(each, kind), name) for each in (part, whole))
            np.testing.assert_allclose(one, other, rtol=1e-10, atol=1e-12)


def test_replicates_are_independent_and_seeded():
    first = se.replicate_nodes(BASE, 8, 3, 1)
    again = se.replicate_nodes(BASE, 8, 3, 1)
    other = se.replicate_nodes(BASE, 8, 3, 2)
    for one, two in zip(first, again, strict=True):
        np.testing.assert_array_equal(one.noise, two.noise)
    everything = [nodes.noise.ravel() for nodes in first + other]
    for i, one in enumerate(everything):
        for two in everything[:i]:
            assert not np.array_equal(one, two)


# --- map and free energy at random order parameters ---------------------------------------------

RANDOM = [
    (BASE, 1),
    (BASE, 2),
    (Model(0.1, sigma=(0.4, 0.7)), 3),
    (Model(0.3, **THREE, sigma=(0.4, 0.5, 0.7)), 4),
]


@pytest.mark.parametrize(("model", "seed"), RANDOM)
def test_conjugates_are_slopes_of_the_free_energy(model, seed):
    """At order parameters that solve nothing, with conjugates that have nothing to do with them."""
    alpha = 1.3
    nodes = se.make_nodes(model, 11, 100 + seed)
    overlaps, hats = random_overlaps(model, seed), random_conjugates(model, seed)
    found = se.conjugates_from(
        model, alpha, nodes, overlaps, se.solve_channel(model, nodes, overlaps)
    )

    def energy(at):
        return se.free_energy(model, alpha, at, hats, se.solve_channel(model, nodes, at))

    # d/dq_l = (found Vhat - Vhat)/2, and so on: zero where the conjugates are the map's
    factor = {"q": ("V", 0.5), "V": ("q", -0.5), "m": ("m", -1.0), "theta": ("theta", -1.0)}
    for name, (hat, sign) in factor.items():
        for token in range(model.length):
            step = 1e-5 * abs(getattr(overlaps, name)[token]).item()
            up, down = (energy(changed(overlaps, name, token, s)) for s in (step, -step))
            slope = (up - down) / (2 * step)
            map_value = getattr(found, hat)[token].item()
            expected = sign * (map_value - getattr(hats, hat)[token].item())
            assert slope == pytest.approx(expected, abs=1e-4 * abs(sign * map_value)), (name, token)


@pytest.mark.parametrize(("model", "seed"), RANDOM)
def test_overlaps_are_slopes_of_the_free_energy(model, seed):
    """The other half of the saddle point: the slope in each conjugate."""
    nodes = se.make_nodes(model, 6, 1)
    overlaps, hats = random_overlaps(model, seed), random_conjugates(model, seed)
    minima = se.solve_channel(model, nodes, overlaps)
    found = se.overlaps_from(model, hats)
    factor = {"q": ("V", 0.5), "V": ("q", -0.5), "m": ("m", 1.0), "theta": ("theta", 1.0)}
    for name, (overlap, sign) in factor.items():
        for token in range(model.length):
            step = 1e-5 * abs(getattr(hats, name)[token]).item()
            up, down = (
                se.free_energy(model, 1.3, overlaps, changed(hats, name, token, s), minima)
                for s in (step, -step)
            )
            slope = (up - down) / (2 * step)
            value = getattr(found, overlap)[token].item()
            expected = sign * (getattr(overlaps, overlap)[token].item() - value)
            assert slope == pytest.approx(expected, abs=1e-5 * (abs(value) + abs(expected)))


@pytest.mark.parametrize(("model", "seed"), RANDOM)
def test_conjugates_equal_those_of_the_paper_node_by_node(model, seed):
    """arXiv:2402.03902 draws w first and h* given w; thetahat then enters Vhat."""
    alpha = 0.9
    overlaps = random_overlaps(model, 30 + seed)
    rng = np.random.default_rng(seed)
    xi, eta = rng.normal(size=(2, model.length, 500))
    nodes = nodes_at(model, overlaps, xi, eta)
    w, h = fields_from(overlaps, model, xi, eta)
    np.testing.assert_allclose(se.prox_centers(model, nodes, overlaps)[:, 0], w, atol=1e-12)
    minima = se.solve_channel(model, nodes, overlaps)
    found = se.conjugates_from(model, alpha, nodes, overlaps, minima)
    q, theta = overlaps.q[:, 0, 0], overlaps.theta[:, 0, 0]
    g = (minima.fields[:, 0] - w) / overlaps.V[:, 0]
    np.testing.assert_allclose(found.q[:, 0, 0], alpha * (g**2).mean(axis=1), rtol=1e-12)
    np.testing.assert_allclose(found.m[:, 0], alpha * g.mean(axis=1), rtol=1e-10)
    rest = h - (theta / np.sqrt(q))[:, None] * xi
    hat = alpha * (g * rest).mean(axis=1) / (model.variances - theta**2 / q)
    np.testing.assert_allclose(found.theta[:, 0, 0], hat, rtol=1e-9)
    response = -alpha * (g * xi).mean(axis=1) / np.sqrt(q) + hat * theta / q
    np.testing.assert_allclose(found.V[:, 0, 0], response, rtol=1e-9)


def test_overlaps_equal_the_base_case_written_out():
    hats = random_conjugates(BASE, 9)
    found = se.overlaps_from(BASE, hats)
    q, theta, response = (getattr(hats, name).sum() for name in ("q", "theta", "V"))
    m = hats.m[0, 0] - hats.m[1, 0]
    stiffness = 0.01 + 0.25 * response
    assert found.V.ravel() == pytest.approx([0.25 / stiffness] * 2, rel=1e-12)
    assert found.m.ravel() == pytest.approx([m / stiffness, -m / stiffness], rel=1e-12)
    assert found.theta.ravel() == pytest.approx([0.25**2 * theta / stiffness] * 2, rel=1e-12)
    norm = 0.25 * (0.25 * q + m**2 + 0.25**2 * theta**2) / stiffness**2
    assert found.q.ravel() == pytest.approx([norm] * 2, rel=1e-12)


def test_overlaps_are_moments_of_the_weights_drawn_coordinate_by_coordinate():
    """The literal weights Q_i of the derivation, in a basis where u_1, u_2 are plane waves."""
    model = Model(0.3, **THREE, sigma=(0.4, 0.5, 0.7))
    hats = random_conjugates(model, 12)
    dimension = 400_000
    rng = np.random.default_rng(77)
    waves = np.stack((np.ones(dimension), np.resize([1.0, -1.0], dimension)))
    gamma = model.variances[:, None]
    target = rng.normal(size=dimension)
    encodings = np.asarray(model.encodings) @ waves  # sqrt(d) p_li
    force = (gamma * hats.theta[:, 0]).sum() * target + (encodings * hats.m).sum(axis=0)
    force += (np.sqrt(gamma * hats.q[:, 0]) * rng.normal(size=(3, dimension))).sum(axis=0)
    stiffness = model.regularization + (gamma * hats.V[:, 0]).sum()
    weights = force / stiffness
    found = se.overlaps_from(model, hats)
    norm = gamma[:, 0] * (weights**2).mean()
    # sampling errors of second moments over 400,000 coordinates: 0.25 %
    np.testing.assert_allclose(found.q[:, 0, 0], norm, rtol=0.01)
    scale = np.sqrt((weights**2).mean())
    np.testing.assert_allclose(
        found.m[:, 0], (encodings * weights).mean(axis=1), rtol=0, atol=0.012 * scale
    )
    signal = gamma[:, 0] * (weights * target).mean()
    np.testing.assert_allclose(found.theta[:, 0, 0], signal, rtol=0, atol=0.003 * scale)
    np.testing.assert_allclose(found.V[:, 0, 0], gamma[:, 0] / stiffness, rtol=1e-12)


def test_train_loss_and_test_error_are_their_definitions():
    overlaps = random_overlaps(BASE, 21)
    overlaps = replace(overlaps, q=np.full((2, 1, 1), 0.2))
    nodes = se.make_nodes(BASE, 8, 3)
    minima = se.solve_channel(BASE, nodes, overlaps)
    center = se.prox_centers(BASE, nodes, overlaps)
    loss = error = 0.0
    for node in range(nodes.count):
        for fields_at, weight in ((minima.fields, 1), (center, 0)):
            z = fields_at[:, 0, node]
            attention = np.exp(np.outer(z, z))
            attention /= attention.sum(axis=1, keepdims=True)
            term = 0.25 * ((nodes.target[..., node] - attention) ** 2).sum() / nodes.count
            loss, error = loss + weight * term, error + (1 - weight) * term
    direct = se.train_loss(BASE, 1.7, nodes, overlaps, minima)
    assert direct == pytest.approx(1.7 * loss / 2 + 0.01 / 2 * 0.2 / 0.25, rel=1e-12)
    assert se.test_error(BASE, nodes, overlaps) == pytest.approx(error / 2, rel=1e-12)


# --- fixed points -------------------------------------------------------------------------------


@pytest.mark.parametrize(("model", "alpha", "branch"), SETTINGS)
def test_fixed_points_close_the_equations(model, alpha, branch):
    """Residual, both roads to the train loss, and parity: evaluated anew at what is returned."""
    point = solve(model, alpha, branch, log2_points=10, replicates=2)
    assert (point.alpha, point.branch) == (alpha, branch)
    assert point.residual <= 1e-7
    assert point.free_energy == pytest.approx(point.train_loss, rel=1e-6)
    if branch != "positional":
        assert (point.overlaps.m == 0).all()
    else:
        assert np.abs(point.overlaps.m).max() > 0.01
    if branch != "semantic":
        assert (point.overlaps.theta == 0).all()
    else:
        assert np.abs(point.overlaps.theta).min() > 0.01
    for nodes, one in zip(se.replicate_nodes(model, 10, 2, 0), point.replicates, strict=True):
        minima = se.solve_channel(model, nodes, one.overlaps)
        hats = se.conjugates_from(model, alpha, nodes, one.overlaps, minima)
        hats = se.impose_parity(branch, hats)
        for name in NAMES:
            value = getattr(hats, name)
            scale = np.abs(value).max() + 1e-12
            np.testing.assert_allclose(getattr(one.conjugates, name), value, atol=1e-6 * scale)
        back = se.overlaps_from(model, hats)
        for name in NAMES:
            value = getattr(one.overlaps, name)
            np.testing.assert_allclose(getattr(back, name), value, rtol=1e-7, atol=1e-15)
        direct = se.train_loss(model, alpha, nodes, one.overlaps, minima)
        energy = se.free_energy(model, alpha, one.overlaps, hats, minima)
        assert direct == pytest.approx(one.train_loss, rel=1e-7)
        assert energy == pytest.approx(direct, rel=1e-6)
        assert one.mean_envelope == pytest.approx(minima.envelope.mean(), rel=1e-7)
        assert one.test_error == se.test_error(model, nodes, one.overlaps)


@pytest.mark.parametrize("branch", ["positional", "semantic"])
def test_conjugates_of_a_fixed_point_are_slopes_of_the_free_energy(points, branch):
    point = points[branch]
    factor = {"q": ("V", 0.5), "V": ("q", -0.5), "m": ("m", -1.0), "theta": ("theta", -1.0)}
    zero = se.Conjugates(*(np.zeros_like(getattr(point.conjugates, name)) for name in NAMES))
    for nodes, one in zip(se.replicate_nodes(BASE, 10, 2, 0), point.replicates, strict=True):
        for name, (hat, sign) in factor.items():
            for token in range(2):
                value = getattr(one.conjugates, hat)[token].item()
                if value == 0:
                    continue  # imposed by parity
                step = 1e-5 * abs(getattr(one.overlaps, name)[token]).item()
                ends = [changed(one.overlaps, name, token, s) for s in (step, -step)]
                up, down = (
                    se.free_energy(BASE, ALPHA, end, zero, se.solve_channel(BASE, nodes, end))
                    for end in ends
                )
                assert (up - down) / (2 * step) == pytest.approx(sign * value, rel=1e-4)


@pytest.mark.parametrize(
    ("model", "branch"), [(BASE, "positional"), (Model(0.3, sigma=(0.4, 0.7)), "semantic")]
)
def test_free_energy_is_stationary_at_a_fixed_point(model, branch):
    """A move of relative size h of any argument changes it by order h^2 only."""
    alpha = 1.25
    point = solve(model, alpha, branch, log2_points=10, replicates=1)
    nodes = se.replicate_nodes(model, 10, 1, 0)[0]
    overlaps, hats = point.replicates[0].overlaps, point.replicates[0].conjugates

    def energy(at, conjugates):
        return se.free_energy(
            model, alpha, at, conjugates, se.solve_channel(model, nodes, at)
        )

    h = 1e-4
    for name in NAMES:
        if not np.any(getattr(overlaps, name)):
            continue
        for sign in (1, -1):
            moved = changed(overlaps, name, slice(None), sign * h * getattr(overlaps, name))
            assert energy(moved, hats) == pytest.approx(point.train_loss, rel=1e-6)
            moved = changed(hats, name, slice(None), sign * h * getattr(hats, name))
            assert energy(overlaps, moved) == pytest.approx(point.train_loss, rel=1e-6)


def test_scalars_are_the_overlaps_of_the_first_token(points):
    for point in points.values():
        assert isinstance(point, FixedPoint)
        for name in NAMES:
            value = getattr(point, name)
            assert type(value) is float
            assert value == getattr(point.overlaps, name).ravel()[0]
        assert set(point.standard_error) == {"q", "m", "V", "theta", "train_loss", "test_error"}
    assert points["positional"].overlaps.m[1, 0] == -points["positional"].m


def test_means_and_errors_are_those_of_the_replicates(points):
    for point in points.values():
        for name in NAMES:
            values = np.array([getattr(one.overlaps, name) for one in point.replicates])
            np.testing.assert_allclose(getattr(point.overlaps, name), values.mean(axis=0))
            error = np.abs(values[0] - values[1]) / 2  # two replicates
            np.testing.assert_allclose(getattr(point.overlaps_error, name), error, atol=1e-15)
            assert point.standard_error[name] == pytest.approx(error.ravel()[0], abs=1e-15)
            values = np.array([getattr(one.conjugates, name) for one in point.replicates])
            np.testing.assert_allclose(getattr(point.conjugates, name), values.mean(axis=0))
        for name in ("train_loss", "test_error"):
            values = [getattr(one, name) for one in point.replicates]
            assert getattr(point, name) == pytest.approx(np.mean(values), rel=1e-14)
            error = abs(values[0] - values[1]) / 2
            assert point.standard_error[name] == pytest.approx(error, rel=1e-9)


def test_one_replicate_has_no_standard_error():
    point = solve(BASE, 1.25, "semantic", log2_points=8, replicates=1)
    assert all(np.isnan(error) for error in point.standard_error.values())


def test_scalars_of_unequal_tokens_are_refused():
    model = Model(0.3, sigma=(0.4, 0.7))
    point = solve(model, 2.0, "semantic", log2_points=8, replicates=1)
    ratio = point.overlaps.q[1, 0, 0] / point.overlaps.q[0, 0, 0]
    assert ratio == pytest.approx(0.49 / 0.16, rel=1e-12)
    for name in ("q", "V", "theta"):
        with pytest.raises(ValueError, match=f"read overlaps.{name}"):
            getattr(point, name)


def test_renaming_the_tokens_changes_nothing():
    """Tokens in another order are other nodes of the same problem: equal within the errors."""
    order = [2, 0, 1]
    target = np.array(THREE["positional_target"])[order][:, order].tolist()
    first = Model(0.3, **THREE, sigma=(0.4, 0.5, 0.7))
    second = Model(
        0.3,
        sigma=(0.7, 0.4, 0.5),
        positional_target=target,
        encodings=[THREE["encodings"][i] for i in order],
    )
    one, two = (solve(model, 2.0, log2_points=10, replicates=4) for model in (first, second))
    bound = 4 * np.hypot(one.standard_error["test_error"], two.standard_error["test_error"])
    assert one.test_error == pytest.approx(two.test_error, abs=bound)
    for name in ("q", "theta", "V"):
        error = np.hypot(
            getattr(one.overlaps_error, name)[order], getattr(two.overlaps_error, name)
        )
        difference = getattr(one.overlaps, name)[order] - getattr(two.overlaps, name)
        assert (np.abs(difference) < 4 * error).all()


def test_slope_of_the_train_loss_is_the_mean_envelope(points):
    """The saddle point is stationary: only the explicit alpha counts."""
    for branch, point in points.items():
        ends = [
            solve(BASE, ALPHA * factor, branch, 10, 2, start=point).train_loss
            for factor in (1.002, 0.998)
        ]
        slope = (ends[0] - ends[1]) / (0.004 * ALPHA)
        assert slope == pytest.approx(point.mean_envelope, rel=1e-4)


@pytest.mark.parametrize("branch", solver.BRANCHES)
def test_same_seed_same_result_in_every_digit(points, branch):
    assert same(solve(BASE, ALPHA, branch, log2_points=10, replicates=2), points[branch])
    other = solve(BASE, ALPHA, branch, log2_points=10, replicates=2, seed=1)
    assert other.q != points[branch].q


@pytest.mark.parametrize("branch", solver.BRANCHES)
def test_the_start_does_not_matter(points, branch):
    """Up to single nodes that may settle on either side of the tie: a few nodes' weight of 2^10."""
    point = points[branch]
    nudged = replace(
        point.overlaps,
        q=1.1 * point.overlaps.q,
        V=0.93 * point.overlaps.V,
        m=1.05 * point.overlaps.m,
        theta=0.96 * point.overlaps.theta,
    )
    other = solve(BASE, ALPHA, branch, log2_points=10, replicates=2, start=nudged)
    for name in NAMES:
        assert getattr(other, name) == pytest.approx(getattr(point, name), rel=5 / 2**10)
    assert other.train_loss == pytest.approx(point.train_loss, rel=1e-5)
    warm = solve(BASE, ALPHA, branch, log2_points=10, replicates=2, start=point)
    assert warm.evaluations < point.evaluations
    assert warm.train_loss == pytest.approx(point.train_loss, rel=1e-9)


def test_signs_are_a_convention(points):
    for branch, name in (("positional", "m"), ("semantic", "theta")):
        point = points[branch]
        flipped = replace(point.overlaps, **{name: -getattr(point.overlaps, name)})
        other = solve(BASE, ALPHA, branch, log2_points=10, replicates=2, start=flipped)
        assert abs(getattr(other, name)) == pytest.approx(abs(getattr(point, name)), rel=0.02)
        assert other.train_loss == pytest.approx(point.train_loss, rel=2e-3)


# --- where a branch does not exist ---------------------------------------------------------------


@pytest.mark.parametrize(
    ("model", "alpha", "branch"),
    [
        (BASE, 0.05, "semantic"),
        pytest.param(BASE, 0.01, "positional", marks=pytest.mark.slow),
        (Model(1.0), 2.0, "semantic"),
    ],
)
def test_a_branch_that_does_not_exist_raises_and_carries_its_state(model, alpha, branch):
    with pytest.raises(ConvergenceError, match=branch) as caught:
        solve(model, alpha, branch, log2_points=8, replicates=1)
    assert isinstance(caught.value.state, Overlaps)
    assert caught.value.state.q.shape == (2, 1, 1)


# --- continuation --------------------------------------------------------------------------------


def test_trace_keeps_the_order_and_equals_single_solves():
    alphas = (1.5, 1.25, 1.6)
    found = trace(BASE, iter(alphas), "semantic", log2_points=10, replicates=2)
    assert isinstance(found, tuple)
    assert tuple(point.alpha for point in found) == alphas
    for point in found:
        single = solve(BASE, point.alpha, "semantic", log2_points=10, replicates=2)
        assert point.train_loss == pytest.approx(single.train_loss, rel=1e-6)
        for name in ("q", "V", "theta"):
            assert getattr(point, name) == pytest.approx(getattr(single, name), rel=5 / 2**10)


def test_trace_of_nothing_is_empty():
    assert trace(BASE, (), "semantic", log2_points=8) == ()


def test_a_lost_branch_raises_with_the_points_found_so_far():
    message = r"semantic branch is lost .* alpha = 0\.3"
    with pytest.raises(ConvergenceError, match=message) as caught:
        trace(BASE, (1.5, 1.25, 0.3), "semantic", log2_points=8, replicates=1)
    assert [point.alpha for point in caught.value.state] == [1.5, 1.25]


# --- the continuation itself ----------------------------------------------------------------------

ALPHAS = (1.25, 1.35, 1.5, 1.65, 1.8, 2.0, 2.2)


def close(one, other, rel=1e-7):
    for name in NAMES:
        for kind in ("overlaps", "conjugates"):
            found, expected = (getattr(getattr(each, kind), name) for each in (one, other))
            np.testing.assert_allclose(found, expected, rtol=rel, atol=1e-12)
    for name in ("train_loss", "free_energy", "test_error", "mean_envelope"):
        assert getattr(one, name) == pytest.approx(getattr(other, name), rel=rel)


def begun(branch="semantic", alpha=1.25, log2_points=9, replicates=1, tolerance=1e-8):
    nodes = se.replicate_nodes(BASE, log2_points, replicates, 0)
    path = Continuation(BASE, branch, nodes, tolerance)
    path.begin(alpha)
    return path


@pytest.mark.parametrize("branch", solver.BRANCHES)
def test_a_continuation_finds_what_cold_starts_find_with_fewer_evaluations(branch):
    nodes = se.replicate_nodes(BASE, 10, 2, 0)
    path = Continuation(BASE, branch, nodes)
    assert path.last is None
    point = path.begin(ALPHAS[0])
    assert same(point, solve_on(BASE, ALPHAS[0], branch, nodes))
    followed, warm, cold = 0, 0, 0
    for alpha in ALPHAS[1:]:
        near = [one.overlaps for one in point.replicates]
        again = solve_on(BASE, alpha, branch, nodes, near)
        fresh = solve_on(BASE, alpha, branch, nodes)
        point = path.to(alpha)
        assert path.last is point
        assert (point.alpha, point.branch) == (alpha, branch)
        assert point.residual <= 1e-8
        close(point, fresh)
        followed += point.evaluations
        warm += again.evaluations
        cold += fresh.evaluations
    assert 1.6 * followed < min(warm, cold)


def test_a_continuation_keeps_the_zeros_of_its_branch_and_its_minima():
    for branch, zero in (("positional", "theta"), ("semantic", "m")):
        path = begun(branch, replicates=2)
        for alpha in (None, 1.4):
            point = path.to(alpha) if alpha else path.last
            assert not getattr(point.overlaps, zero).any()
            for minima, nodes, one in zip(path.minima, path.nodes, point.replicates, strict=True):
                again = se.solve_channel(BASE, nodes, one.overlaps)
                np.testing.assert_allclose(minima.envelope, again.envelope, rtol=0, atol=1e-10)


def test_a_copy_goes_its_own_way():
    path = begun(replicates=2)
    before, minima = path.last, path.minima
    twin = path.copy()
    twin.to(1.5)
    twin.to(1.7)
    assert path.last is before and path.minima[0] is minima[0]
    assert twin.last.alpha == 1.7
    other = begun(replicates=2)
    assert same(path.to(1.4), other.to(1.4))
    assert twin.last.alpha == 1.7


def test_a_continuation_stands_on_other_nodes():
    path = begun("positional", log2_points=8)
    before = path.last
    nodes = se.replicate_nodes(BASE, 10, 2, 7)
    other = path.on(nodes)
    assert path.last is before
    assert other.last.alpha == 1.25 and len(other.last.replicates) == 2
    close(other.last, solve_on(BASE, 1.25, "positional", nodes), 1e-6)
    close(other.to(1.4), solve_on(BASE, 1.4, "positional", nodes), 1e-6)
    back = other.on(se.replicate_nodes(BASE, 9, 2, 3))
    close(back.last, solve_on(BASE, 1.25 * 1.12, "positional", back.nodes), 1e-6)
    with pytest.raises(ValueError, match="zip"):
        other.on(se.replicate_nodes(BASE, 8, 3, 0))


def test_no_fixed_point_on_other_nodes_is_an_error(monkeypatch):
    path, tried = begun(), []

    def refuse(trail, model, alpha, branch, nodes, tolerance, attempts):
        tried.append((alpha, attempts))
        raise ConvergenceError("not there", None)

    monkeypatch.setattr(solver, "_step", refuse)
    with pytest.raises(ConvergenceError, match="not there"):
        path.on(path.nodes)
    assert tried == [(1.25, 1)]  # no halving, and one attempt


def test_the_same_place_twice_is_one_point_of_the_trail():
    path = begun(replicates=2)
    first = path.last
    again = path.to(1.25)
    close(again, first)
    assert again.evaluations <= 6
    path.to(1.4)
    path.to(1.25)
    close(path.to(1.4), solve_on(BASE, 1.4, "semantic", path.nodes))
    for trail in path._trails:
        places = [place for place, _ in trail.visited]
        assert places == [np.log(1.25), np.log(1.4)]


def test_a_trail_predicts_by_the_parabola_through_its_last_three_points():
    def curve(place):
        return np.array([1 - place, 2 + 0.3 * place**2, place - 0.1 * place**2])

    trail = solver._Trail(((0.1, curve(0.1)),), np.eye(3), None)
    np.testing.assert_array_equal(trail.predict(0.2), curve(0.1))
    for place in (0.3, 0.2, 0.45, 0.5):
        trail = trail.then(place, curve(place), np.eye(3), None)
    assert [place for place, _ in trail.visited] == [0.2, 0.45, 0.5]
    np.testing.assert_allclose(trail.predict(0.6), curve(0.6), rtol=1e-12)
    # 1 - place moves by as much as the place
    assert np.abs(trail.predict(0.79) - curve(0.5)).max() > 0.28
    np.testing.assert_array_equal(trail.predict(0.81), curve(0.5))
    back = trail.then(0.2, curve(0.2), np.eye(3), None)
    assert [place for place, _ in back.visited] == [0.45, 0.5, 0.2]


def shy(monkeypatch, refused):
    """Let steps fail where ``refused(last alpha, alpha)``; the alphas that were tried."""
    step, tried = solver._step, []

    def careful(trail, model, alpha, *rest):
        tried.append(alpha)
        if refused(np.exp(trail.visited[-1][0]), alpha):
            raise ConvergenceError("too far", None)
        return step(trail, model, alpha, *rest)

    monkeypatch.setattr(solver, "_step", careful)
    return tried


def test_a_step_that_fails_goes_by_the_geometric_mean(monkeypatch):
    path = begun()
    tried = shy(monkeypatch, lambda last, alpha: alpha > 1.3 * last)
    point = path.to(2.0)
    assert tried == pytest.approx([2.0, np.sqrt(2.5), 2.0])
    close(point, solve_on(BASE, 2.0, "semantic", path.nodes))
    with pytest.raises(ConvergenceError, match="too far"):
        path.to(3.0, halvings=0)
    assert len(tried) == 4 and path.last is point


def test_a_lost_continuation_stays_where_it_got_to(monkeypatch):
    path = begun()
    tried = shy(monkeypatch, lambda last, alpha: alpha > 1.6)
    with pytest.raises(ConvergenceError, match="too far"):
        path.to(2.0, halvings=2)
    half = np.sqrt(2.5)
    assert tried == pytest.approx([2.0, half, 2.0, np.sqrt(2 * half)])
    assert path.last.alpha == pytest.approx(half)
    close(path.last, solve_on(BASE, path.last.alpha, "semantic", path.nodes))


@pytest.mark.parametrize(("branch", "name"), [("positional", "m"), ("semantic", "theta")])
def test_the_square_of_the_overlap_is_extrapolated_linearly(branch, name):
    path = begun(branch, replicates=2)
    assert np.isnan(path.overlap_square(1.0))
    points = [path.last, path.to(1.2), path.to(1.1)][1:]
    scale = 1.0 if branch == "positional" else BASE.variances[0]
    expected = []
    for pair in zip(*[point.replicates for point in points], strict=True):
        squares = [(getattr(one.overlaps, name).ravel()[0] / scale) ** 2 for one in pair]
        expected.append(np.polyval(np.polyfit((1.2, 1.1), squares, 1), 0.9))
    assert path.overlap_square(0.9) == pytest.approx(np.mean(expected), rel=1e-9)
    assert path.overlap_square(0.9) < path.overlap_square(1.1)
    assert path.overlap_square(-50.0) < 0


def test_replicates_that_found_mirror_images_are_averaged_with_one_sign():
    """m and -m are one solution: near the end of the branch the solver may land on either."""
    nodes = se.replicate_nodes(BASE, 9, 2, 0)
    starts = [one.overlaps for one in solve_on(BASE, 1.25, "positional", nodes).replicates]
    point = solve_on(BASE, 1.25, "positional", nodes, starts)
    mirrored = [starts[0], replace(starts[1], m=-starts[1].m)]
    other = solve_on(BASE, 1.25, "positional", nodes, mirrored)
    assert abs(other.m) == pytest.approx(abs(point.m), rel=1e-6)
    assert other.standard_error["m"] == pytest.approx(point.standard_error["m"], rel=1e-4)
    assert abs(other.conjugates.m[0, 0]) == pytest.approx(abs(point.conjugates.m[0, 0]), rel=1e-6)


@pytest.mark.parametrize("bad", [0.0, -1.0, np.nan, np.inf, "1", None, True])
def test_bad_sample_complexities_of_a_continuation(bad):
    path = begun(log2_points=8)
    for go in (path.begin, path.to):
        with pytest.raises(ValueError, match=rf"^alpha must be a number .*got {bad!r}$"):
            go(bad)
    assert path.last.alpha == 1.25


def test_bad_arguments_of_a_continuation():
    with pytest.raises(ValueError, match=r"^branch must be one of .*got 'both'$"):
        Continuation(BASE, "both", ())
    with pytest.raises(ValueError, match=r"^tolerance must be .*got 0$"):
        Continuation(BASE, "semantic", (), 0)


class Toy:
    """A map with a known zero, as `_broyden` sees it."""

    def __init__(self, function):
        self.function, self.points, self.best = function, [], (np.inf, None)

    def __call__(self, x):
        self.points.append(x)
        change = self.function(x)
        size = np.abs(change).max()
        if size < self.best[0]:
            self.best = (size, x)
        return change


SLOPE = np.array([[-0.6, 0.1], [0.2, -0.8]])
ZERO = np.array([0.12, -0.07])


def test_broyden_needs_two_evaluations_where_the_jacobian_is_right():
    toy = Toy(lambda x: SLOPE @ (x - ZERO))
    x, residual, jacobian = solver._broyden(toy, np.zeros(2), SLOPE, 1e-9)
    assert len(toy.points) == 2
    np.testing.assert_allclose(x, ZERO, rtol=1e-12)
    assert residual == toy.best[0] < 1e-9
    np.testing.assert_allclose(jacobian, SLOPE, rtol=1e-9)


def test_broyden_learns_the_jacobian():
    toy = Toy(lambda x: SLOPE @ (x - ZERO) + 0.2 * (x - ZERO) ** 2)
    wrong = SLOPE + 0.15 * np.array([[1.0, -1.0], [1.0, 1.0]])
    x, residual, jacobian = solver._broyden(toy, np.zeros(2), wrong, 1e-9)
    assert 3 < len(toy.points) <= solver.QUICK + 1
    assert residual <= 1e-9
    np.testing.assert_allclose(x, ZERO, atol=1e-8)
    # the last update makes the last step's change exact
    step = toy.points[-1] - toy.points[-2]
    change = toy.function(toy.points[-1]) - toy.function(toy.points[-2])
    np.testing.assert_allclose(jacobian @ step, change, rtol=1e-6)


def test_broyden_does_not_learn_from_jumps_nor_step_far():
    toy = Toy(lambda x: SLOPE @ (x - 5) + (3.0 if x[0] > 0.1 else 0.0))
    _, _, jacobian = solver._broyden(toy, np.zeros(2), SLOPE, 1e-9)
    np.testing.assert_allclose(jacobian, SLOPE, rtol=1e-9)
    steps = np.abs(np.diff(toy.points, axis=0)).max(axis=1)
    assert steps.max() == pytest.approx(0.3)
    assert len(toy.points) <= solver.QUICK + 1


def test_broyden_gives_up_when_it_goes_astray():
    toy = Toy(lambda x: SLOPE @ (x - ZERO))
    x, residual, _ = solver._broyden(toy, np.zeros(2), -0.1 * SLOPE, 1e-9)
    np.testing.assert_array_equal(x, np.zeros(2))
    assert residual == pytest.approx(np.abs(SLOPE @ ZERO).max())
    assert len(toy.points) < 4


def test_the_first_jacobian_is_the_derivative_of_the_map():
    toy = Toy(lambda x: SLOPE @ x + np.array([x[0] ** 2, x[0] * x[1]]))
    x = np.array([0.3, -0.2])
    expected = SLOPE + np.array([[2 * x[0], 0], [x[1], x[0]]])
    np.testing.assert_allclose(solver._jacobian(toy, x), expected, rtol=0, atol=1e-10)
    toy = Toy(lambda x: np.exp(3 * x))
    expected = np.diag(3 * np.exp(3 * x))
    np.testing.assert_allclose(solver._jacobian(toy, x), expected, rtol=1e-5, atol=1e-10)


def test_the_final_search_of_a_continuation_finds_minima_that_its_steps_missed(monkeypatch):
    path = begun("positional", 0.3)
    trail, nodes = path._trails[0], path.nodes
    expected = solve_on(BASE, 0.31, "positional", nodes)
    minima = trail.minima
    assert len(minima.rivals) > 5
    wrong = exchange(minima, minima.rival_envelope < minima.envelope[minima.rivals] + 0.01)
    path._trails = [replace(trail, minima=wrong)]
    channel, broyden, runs = solver.solve_channel, solver._broyden, []

    def blind_at_first(model, nodes, overlaps, minima=None, search=False, lead=True):
        if len(runs) == 1 and minima is not None:
            search = lead = False
        return channel(model, nodes, overlaps, minima, search=search, lead=lead)

    def counted(*arguments):
        runs.append(1)
        found = broyden(*arguments)
        if len(runs) == 1:
            assert found[1] < 1e-8  # a fixed point, if these were the minima
            runs.append(0)
        return found

    monkeypatch.setattr(solver, "solve_channel", blind_at_first)
    monkeypatch.setattr(solver, "_broyden", counted)
    found = path.to(0.31)
    assert runs.count(1) > 1
    close(found, expected, 1e-6)


@pytest.mark.parametrize(("residual", "keeps"), [(0.02, True), (0.04, False), (np.inf, False)])
def test_the_root_finder_takes_over_where_broyden_came_near_or_from_the_last_point(
    residual, keeps, monkeypatch
):
    path, starts, jacobians = begun(), [], []
    last, near = path._trails[0].visited[-1][1], path._trails[0].visited[-1][1] + 0.01
    find_zero, expected = solver._find_zero, solve_on(BASE, 1.3, "semantic", path.nodes)

    def broyden(state_map, x, jacobian, tolerance):
        jacobians.append(jacobian)
        if residual == np.inf:
            raise ConvergenceError("runs off", None)
        return near, residual, jacobian

    def spy(state_map, x, tolerance, attempts=solver.ATTEMPTS):
        starts.append(x)
        assert state_map.minima is None and state_map.searched is None
        return find_zero(state_map, x, tolerance, attempts)

    monkeypatch.setattr(solver, "_broyden", broyden)
    monkeypatch.setattr(solver, "_find_zero", spy)
    close(path.to(1.3), expected)
    np.testing.assert_array_equal(starts[0], near if keeps else last)
    assert len(jacobians) == (1 if residual == np.inf else 2)  # the second time a fresh one


@pytest.mark.parametrize("branch", ["positional", "semantic"])
def test_at_a_given_overlap_the_sample_complexity_is_the_unknown(branch):
    path = begun(branch, log2_points=10)
    place, x = path._trails[0].visited[-1]
    given = solver._MapAtOverlap(BASE, x[2], branch, path.nodes[0])
    y = np.append(x[:2], place)
    assert np.abs(given(y)).max() < 1e-7
    assert given.alpha == pytest.approx(1.25)
    overlaps = given.overlaps(np.append(x[:2], 0.3))  # whatever alpha is
    for name in NAMES:
        np.testing.assert_allclose(
            getattr(overlaps, name), getattr(path.last.replicates[0].overlaps, name), rtol=1e-12
        )
    own = abs(x[2]) if branch == "positional" else np.exp(x[2])
    assert given.own(y) == pytest.approx(own)
    found, _, residual = solver._find_zero(given, y + 0.02, 1e-8)
    assert residual <= 1e-8
    np.testing.assert_allclose(found, y, atol=1e-6)


# --- limits ---------------------------------------------------------------------------------------


def base_average(function):
    """E[function(h*)] over two target fields of variance 1/4 by a polar product rule."""
    nodes, weights = polar_rule(80)
    return function(0.5 * nodes[:, None]) @ weights


def untrained_error(model):
    """Test error of weights zero: uniform attention."""
    zero = np.zeros((2, 1, 1))
    return base_average(lambda h: channel_loss(model.target(h), zero, model.variances)) / 2


def test_little_data_leaves_the_weights_at_zero():
    """The loss is not smooth at w = 0, where z and -z tie: corrections are of order sqrt(alpha)."""
    alpha = 1e-6
    point = solve(BASE, alpha, "uninformed", log2_points=10, replicates=4)
    assert point.test_error == pytest.approx(untrained_error(BASE), rel=5e-3)
    assert point.mean_envelope == pytest.approx(point.train_loss / alpha, rel=1e-3)
    assert point.train_loss / alpha < point.test_error
    assert abs(point.V - 0.25 / 0.01) < 0.1
    assert point.q < 1e-6


def test_much_data_brings_the_best_weights_along_the_target():
    """alpha -> infinity: train loss per sample = test error = the population risk's minimum."""
    alpha = 1e4
    point = solve(BASE, alpha, "semantic", log2_points=11, replicates=16)

    def risk(scale):
        return base_average(
            lambda h: channel_loss(BASE.target(h), scale * h, BASE.variances)
        ) / 2

    best = minimize_scalar(risk, bounds=(0.1, 1.5), method="bounded", options={"xatol": 1e-7})
    assert point.theta == pytest.approx(0.25 * best.x, rel=2e-3)
    assert point.q == pytest.approx(0.25 * best.x**2, rel=4e-3)
    error = 4 * point.standard_error["test_error"]
    assert error < 0.01 * best.fun
    assert point.test_error == pytest.approx(best.fun, abs=error)
    # what is left of the penalty: lambda q / (2 sigma^2 alpha)
    penalty = 0.01 * point.q / 0.5 / alpha
    assert point.train_loss / alpha == pytest.approx(point.test_error + penalty, rel=1e-3)
    assert point.V < 1e-2


def test_a_target_without_semantics_is_learnt_by_position():
    """omega = 1, alpha -> infinity: weights c sqrt(d) u, whose fields are c (e + sigma xi)."""
    model = Model(1.0)
    alpha = 2000.0
    point = solve(model, alpha, "positional", log2_points=12, replicates=4)
    target = np.array(model.positional_target)[..., None]

    def risk(scale):
        position = np.array([1.0, -1.0])[:, None, None]
        return base_average(
            lambda h: channel_loss(target, scale * (position + h), model.variances)
        ) / 2

    best = minimize_scalar(risk, bounds=(0.1, 1.0), method="bounded", options={"xatol": 1e-7})
    assert abs(point.m) == pytest.approx(best.x, rel=5e-3)
    assert point.q == pytest.approx(0.25 * best.x**2, rel=1e-2)
    assert point.test_error == pytest.approx(best.fun, rel=5e-3)
    assert point.train_loss / alpha == pytest.approx(best.fun, rel=5e-3)


def test_tokens_without_spread_leave_a_scalar_problem():
    """sigma -> 0 at lambda of order sigma^2: w -> m, and m minimises a function of one variable."""
    sigma, alpha, ridge = 0.005, 1.25, 0.04
    model = Model(0.3, sigma=sigma, regularization=ridge * sigma**2)
    point = solve(model, alpha, "positional", log2_points=8, replicates=2)
    target = 0.7 * 0.5 + 0.3 * np.array(model.positional_target)

    def risk(m):
        attention = attention_matrix(np.array([[m], [-m]]))
        return alpha * ((target - attention) ** 2).sum() / 2 + ridge * m**2 / 2

    best = minimize_scalar(risk, bounds=(0, 1), method="bounded", options={"xatol": 1e-9})
    assert best.x > 0.1
    assert abs(point.m) == pytest.approx(best.x, rel=2e-3)
    assert point.train_loss / sigma**2 == pytest.approx(best.fun, rel=2e-3)


# --- published values ----------------------------------------------------------------------------

#: Theory published with arXiv:2402.03902 (CC BY 4.0), omega = 0.3; its mse is twice the test error:
#: alpha, then q, m, V, mse (positional) and q, theta, V, mse (semantic), rounded.
PUBLISHED = {
    "positional": (
        (2.0, 0.05001, 0.25857, 11.036, 0.0069809),
        (1.25, 0.04636, 0.25335, 14.455, 0.0068371),
        (0.6809090909090909, 0.03608, 0.23761, 18.273, 0.0065445),
        (0.34545454545454546, 0.02420, 0.19505, 22.054, 0.0066924),
    ),
    "semantic": (
        (2.0, 0.11415, 0.15856, 12.328, 0.0027931),
        (1.5714285714285714, 0.09688, 0.13997, 14.922, 0.0036764),
        (1.24, 0.08139, 0.12105, 17.352, 0.0045762),
    ),
}


@pytest.mark.parametrize("branch", PUBLISHED)
def test_near_the_published_theory(branch):
    """Within 5 %, and 8 % in V on the semantic branch: that is how far its data are resolved."""
    rows = PUBLISHED[branch]
    found = trace(BASE, [row[0] for row in rows], branch, log2_points=12, replicates=2)
    overlap = "m" if branch == "positional" else "theta"
    for point, (_, q, signal, response, error) in zip(found, rows, strict=True):
        assert point.q == pytest.approx(q, rel=0.05)
        assert abs(getattr(point, overlap)) == pytest.approx(signal, rel=0.05)
        assert abs(point.V / response - 1) < (0.08 if branch == "semantic" else 0.05)
        assert 2 * point.test_error == pytest.approx(error, rel=0.05)


# --- arguments ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"branch": "both"}, r"branch must be one of .*'semantic'.*got 'both'"),
        ({"branch": None}, r"branch must be one of .*got None"),
        ({"alpha": 0}, r"alpha must be a number above 0 .*got 0"),
        ({"alpha": -1.5}, r"alpha must be a number above 0 .*got -1\.5"),
        ({"alpha": float("nan")}, r"alpha must be a number above 0 .*got nan"),
        ({"alpha": float("inf")}, r"alpha must be a number above 0 and below .*, got inf"),
        ({"alpha": True}, r"alpha must be a number .*got True"),
        ({"alpha": "1.25"}, r"alpha must be a number .*got '1\.25'"),
        ({"alpha": None}, r"alpha must be a number .*got None"),
        ({"alpha": 1 + 0j}, r"alpha must be a number .*got \(1\+0j\)"),
        ({"log2_points": 5}, r"log2_points must be an integer from 6 to 22, got 5"),
        ({"log2_points": 23}, r"log2_points must be an integer from 6 to 22, got 23"),
        ({"log2_points": 10.0}, r"log2_points must be an integer .*got 10\.0"),
        ({"log2_points": True}, r"log2_points must be an integer .*got True"),
        ({"replicates": 0}, r"replicates must be an integer from 1 to 1024, got 0"),
        ({"replicates": 1025}, r"replicates must be an integer from 1 to 1024, got 1025"),
        ({"replicates": "4"}, r"replicates must be an integer .*got '4'"),
        ({"seed": -1}, r"seed must be an integer from 0 .*got -1"),
        ({"seed": 1.5}, r"seed must be an integer .*got 1\.5"),
        ({"seed": None}, r"seed must be an integer .*got None"),
        ({"tolerance": 0}, r"tolerance must be a number above 0 and below 0\.001, got 0"),
        ({"tolerance": 0.1}, r"tolerance must be a number .*got 0\.1"),
        ({"tolerance": float("nan")}, r"tolerance must be a number .*got nan"),
        ({"start": "positional"}, r"start must be a FixedPoint, Overlaps .*got 'positional'"),
        ({"start": (0.1, 0.2)}, r"start must be a FixedPoint, Overlaps .*got \(0\.1, 0\.2\)"),
    ],
)
def test_bad_arguments_of_solve(arguments, message):
    good = {"alpha": 1.25, "branch": "semantic", "log2_points": 8, "replicates": 1}
    with pytest.raises(ValueError, match=message):
        solve(BASE, **(good | arguments))


@pytest.mark.parametrize(
    ("branch", "start"),
    [("positional", "semantic"), ("semantic", "uninformed"), ("semantic", "positional")],
)
def test_a_start_without_the_overlap_of_the_branch_is_refused(points, branch, start):
    with pytest.raises(ValueError, match=f"start must have a non-zero overlap of the {branch}"):
        solve(BASE, ALPHA, branch, log2_points=8, replicates=1, start=points[start])


@pytest.mark.parametrize("change", [{"q": -0.1}, {"q": 0.01}, {"V": -1.0}, {"V": 0.0}])
def test_a_start_that_no_weights_have_is_refused(points, change):
    overlaps = points["positional"].overlaps
    bad = replace(overlaps, **{name: np.full((2, 1, 1), v) for name, v in change.items()})
    with pytest.raises(ValueError, match="start must have V > 0 and q"):
        solve(BASE, ALPHA, "positional", log2_points=8, replicates=1, start=bad)


@pytest.mark.parametrize("bad", [0.0, -1.0, float("nan"), True, "1"])
def test_bad_sample_complexities_of_trace(bad):
    with pytest.raises(ValueError, match=r"alphas must be a number above 0"):
        trace(BASE, (bad,), "semantic", log2_points=8, replicates=1)


def test_bad_branch_of_trace():
    with pytest.raises(ValueError, match=r"branch must be one of .*got 'both'"):
        trace(BASE, (1.0,), "both", log2_points=8, replicates=1)


@pytest.mark.parametrize("ranks", [{"rank": 2}, {"target_rank": 2}])
def test_higher_ranks_are_refused(ranks):
    with pytest.raises(NotImplementedError, match="rank = target_rank = 1"):
        solve(Model(0.3, **ranks), 1.25)


def test_numpy_numbers_are_numbers(points):
    found = solve(
        BASE,
        np.float64(ALPHA),
        "semantic",
        log2_points=np.int64(10),
        replicates=np.int32(2),
        seed=np.uint8(0),
    )
    assert same(found, points["semantic"])
    assert type(found.alpha) is float


def test_every_field_of_the_parameters_is_per_token(points):
    for part in (points["semantic"].overlaps, points["semantic"].conjugates):
        shapes = {field.name: getattr(part, field.name).shape for field in fields(part)}
        assert shapes == {"q": (2, 1, 1), "m": (2, 1), "theta": (2, 1, 1), "V": (2, 1, 1)}


# --- standard errors, and a road without replicas -------------------------------------------------

QUANTITIES = {
    "positional": ("q", "m", "V", "train_loss", "test_error"),
    "semantic": ("q", "V", "theta", "train_loss", "test_error"),
}


def coverage(branch, seeds=40):
    """Share of 95 % intervals that hold the solution with 64 times as many points."""
    reference = solve(BASE, ALPHA, branch, log2_points=18, replicates=2, seed=1000)
    found = [solve(BASE, ALPHA, branch, log2_points=12, seed=seed) for seed in range(seeds)]
    quantile = student.ppf(0.975, 3)
    names = QUANTITIES[branch]
    held = dict.fromkeys(names, 0)
    for point, name in product(found, names):
        distance = abs(abs(getattr(point, name)) - abs(getattr(reference, name)))
        held[name] += distance <= quantile * point.standard_error[name]
    return {name: count / seeds for name, count in held.items()}


@pytest.mark.slow
@pytest.mark.parametrize("branch", QUANTITIES)
def test_standard_errors_are_honest(branch):
    shares = coverage(branch)
    print(branch, shares)
    assert min(shares.values()) >= 0.85, shares
    absent = "theta" if branch == "positional" else "m"
    point = solve(BASE, ALPHA, branch, log2_points=10, replicates=2)
    assert (getattr(point, absent), point.standard_error[absent]) == (0.0, 0.0)


def train_literally(start, seed, dimension):
    """Minimise the risk of design at finite d, with no reduction to fields; returns statistics.

    Samples, target, positional encodings and loss are arrays of the full dimension.
    """
    rng = np.random.default_rng(seed)
    count = round(ALPHA * dimension)
    x = 0.5 * rng.normal(size=(count, 2, dimension))
    truth = rng.normal(size=dimension)
    direction = np.ones(dimension) / np.sqrt(dimension)
    encodings = np.array([[1.0], [-1.0]]) * direction
    mix = np.array([[0.6, 0.4], [0.4, 0.6]])

    def softmax(fields):
        weights = np.exp(fields[:, :, None] * fields[:, None, :])
        return weights / weights.sum(axis=2, keepdims=True)

    def teach(sentences):
        attention = softmax(sentences @ truth / np.sqrt(dimension))
        return (0.7 * attention + 0.3 * mix) @ sentences

    y, shifted = teach(x), x + encodings

    def risk(weights):
        fields = shifted @ weights / np.sqrt(dimension)
        attention = softmax(fields)
        error = attention @ shifted - y
        value = (error**2).sum() / (2 * dimension) + 0.005 * weights @ weights
        slope = np.einsum("nid,njd->nij", error, shifted) / dimension
        slope = attention * (slope - (attention * slope).sum(axis=2, keepdims=True))
        pull = np.einsum("nij,nj->ni", slope + slope.swapaxes(1, 2), fields)
        gradient = np.einsum("ni,nid->d", pull, shifted) / np.sqrt(dimension)
        return value, gradient + 0.01 * weights

    scale = {"positional": 0.5 * np.sqrt(dimension) * direction, "semantic": 0.5 * truth}
    options = {"maxiter": 3000, "maxfun": 5000, "gtol": 1e-7, "ftol": 0.0}
    result = minimize(risk, scale[start], jac=True, method="L-BFGS-B", options=options)
    assert np.abs(result.jac).max() < 1e-5
    weights = result.x
    fresh = 0.5 * rng.normal(size=(2000, 2, dimension))
    attention = softmax((fresh + encodings) @ weights / np.sqrt(dimension))
    error = ((attention @ (fresh + encodings) - teach(fresh)) ** 2).sum() / 2000 / (2 * dimension)
    return {
        "q": 0.25 * weights @ weights / dimension,
        "m": abs(direction @ weights) / np.sqrt(dimension),
        "theta": 0.25 * abs(weights @ truth) / dimension,
        "train_loss": result.fun / dimension,
        "test_error": error,
    }


@pytest.mark.slow
@pytest.mark.parametrize("branch", ["positional", "semantic"])
def test_weights_trained_at_finite_dimension_have_these_overlaps(branch):
    """Means over 20 data sets at d = 500 against d = infinity.

    The overlaps of one data set fluctuate by 1/sqrt(d); their means are off by a few times 1/d:
    10/d, relative, is allowed for that, beside 3.5 standard errors of the mean.
    """
    dimension, count = 500, 20
    point = solve(BASE, ALPHA, branch, log2_points=14, replicates=4)
    runs = [train_literally(branch, seed, dimension) for seed in range(count)]
    for name in ("q", "train_loss", "test_error", "m" if branch == "positional" else "theta"):
        values = [run[name] for run in runs]
        mean, error = np.mean(values), np.std(values, ddof=1) / np.sqrt(count)
        value = abs(getattr(point, name))
        print(branch, name, f"{value:.5g} {mean:.5g} +- {error:.2g}")
        assert error < 0.04 * value
        assert mean == pytest.approx(value, abs=3.5 * error + 10 / dimension * value)
    other = "theta" if branch == "positional" else "m"
    assert np.mean([run[other] for run in runs]) < 2 / np.sqrt(dimension)


@pytest.fixture(scope="module")
def divided():
    """Nodes, overlaps and minima with rivals, two of which are divided by a constructed tie."""
    nodes = se.make_nodes(BASE, 10, 3)
    overlaps = se.overlaps_of_weights(BASE, 0.3, 110.0, np.array([0.1]), 0.2)
    minima = se.solve_channel(BASE, nodes, overlaps)
    chosen = np.zeros(len(minima.rivals), dtype=bool)
    chosen[[1, 4]] = True
    return nodes, overlaps, minima, chosen


@pytest.mark.parametrize("share", [0.0, 0.3, 1.0])
def test_a_tie_divides_its_nodes_between_their_two_minima(divided, share):
    nodes, overlaps, minima, chosen = divided
    tie = se.Tie(minima.rivals[chosen], share)
    ends = (minima, exchange(minima, chosen))
    hats = [se.conjugates_from(BASE, 1.3, nodes, overlaps, end) for end in ends]
    relaxed = se.conjugates_from(BASE, 1.3, nodes, overlaps, minima, tie)
    for name in ("q", "m", "theta", "V"):
        first, second = (getattr(one, name) for one in hats)
        assert np.abs(first - second).max() > 1e-6
        expected = (1 - share) * first + share * second
        np.testing.assert_allclose(getattr(relaxed, name), expected, rtol=1e-10, atol=1e-13)
    losses = [se.train_loss(BASE, 1.3, nodes, overlaps, end) for end in ends]
    found = se.train_loss(BASE, 1.3, nodes, overlaps, minima, tie)
    assert abs(losses[0] - losses[1]) > 1e-9
    assert found == pytest.approx((1 - share) * losses[0] + share * losses[1], rel=1e-12)


def test_a_fixed_point_on_a_tie_is_exact_and_says_so():
    point = solve(BASE, 2.0, "uninformed", log2_points=12, seed=0)
    assert point.tied == 1 and point.residual < 1e-8
    assert point.free_energy == pytest.approx(point.train_loss, rel=1e-9)


def test_the_final_search_finds_minima_that_the_iteration_missed(monkeypatch):
    nodes = se.make_nodes(BASE, 10, 3)
    start = solve(BASE, 0.3, "uninformed", log2_points=10).overlaps
    right = solver._solve_replicate(BASE, 0.3, "uninformed", nodes, start, 1e-8)
    search, calls = se.find_minima, []

    def blind_at_first(center, precision, target, variances, inverse):
        calls.append(1)
        if len(calls) > 1:
            return search(center, precision, target, variances, inverse)
        fields, envelope = descend(inverse, center, precision, target, variances)
        none = np.zeros(0, dtype=int)
        return Minima(fields, envelope, none, fields[..., none], envelope[none])

    monkeypatch.setattr(se, "find_minima", blind_at_first)
    monkeypatch.setattr(solver, "SEARCH_RADIUS", np.inf)
    found = solver._solve_replicate(BASE, 0.3, "uninformed", nodes, start, 1e-8)
    assert len(calls) > 2
    assert found.train_loss == pytest.approx(right.train_loss, rel=1e-7)


@pytest.mark.parametrize(
    "arguments",
    [("no model", 1.0), (Model(0.3), 10**400), (Model(0.3), 1.0, ["semantic"])],
)
def test_arguments_of_the_wrong_kind_are_refused(arguments):
    with pytest.raises(ValueError, match=r"(model|alpha|branch) must be"):
        solve(*arguments)


@pytest.mark.parametrize(
    ("changes", "branch"),
    [({"regularization": 1e-8}, "positional"), ({"sigma": 1e3}, "uninformed")],
)
def test_what_runs_off_raises_a_convergence_error(changes, branch):
    with pytest.raises(ConvergenceError):
        solve(Model(0.3, **changes), 1.5, branch, log2_points=8, replicates=2)
