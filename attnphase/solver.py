"""Fixed points of state evolution: root finder, continuation, replicates and their errors.

The map is `attnphase.state_evolution`'s; here it is written in coordinates in which its zeros are
the fixed points of one branch only, and solved on several independent sets of nodes, whose spread
gives every figure its standard error. Chapter "Solving the equations".
"""

from __future__ import annotations

from collections.abc import Iterable
from copy import copy
from dataclasses import dataclass, fields, replace

import numpy as np
from scipy.optimize import root

from attnphase.model import LARGEST, Array, Model, check_number
from attnphase.proximal import ConvergenceError, Minima, exchange, target_inverse
from attnphase.quadrature import replicate_mean
from attnphase.state_evolution import (
    Conjugates,
    Nodes,
    Overlaps,
    Tie,
    conditional_spread,
    conjugates_from,
    free_energy,
    impose_parity,
    make_nodes,
    moments_of_weights,
    overlaps_of_weights,
    replicate_nodes,
    solve_channel,
    test_error,
    train_loss,
)

BRANCHES = ("positional", "semantic", "uninformed")

#: Coordinates (logarithms, or mu itself) beyond which an iteration has run off.
FARTHEST = 60.0
#: Noise nu in the weights below which they have shrunk to nothing.
VANISHED = 1e-9
#: New minima are looked for whenever a coordinate has moved this far since the last search.
SEARCH_RADIUS = 3e-3


class _Map:
    """The state-evolution map of one branch on one set of nodes, in the solver's coordinates.

    Coordinates ``x``: log nu, log(1 / D), then mu (positional) or log Theta (semantic). The value
    of the map is the relative change of each in one application, so that the uninformed solution
    is no zero of the other two branches' maps: a point with mu = 0 is never called positional.
    Holds the minima of the last evaluation, which the next one follows.
    """

    def __init__(self, model: Model, alpha: float, branch: str, nodes: Nodes):
        self.model, self.alpha, self.branch, self.nodes = model, alpha, branch, nodes
        self.minima: Minima | None = None
        self.searched: Array | None = None
        self.evaluations = 0
        self.best: tuple[float, Array] = (np.inf, np.empty(0))

    def overlaps(self, x: Array) -> Overlaps:
        return _overlaps_at(self.model, self.branch, x)

    def __call__(self, x: Array) -> Array:
        """Relative change at ``x``, each node at its global minimum."""
        moved = self.searched is None or np.abs(x - self.searched).max() > SEARCH_RADIUS
        self._solve(x, search=moved)
        if moved:
            self.searched = x.copy()
        change = self._change(x)
        size = float(np.abs(change).max())
        if size < self.best[0]:
            self.best = (size, x.copy())
        return change

    def held(self, x: Array, tie: Tie | None = None) -> Array:
        """Relative change at ``x``, each node at the minimum that it is at: smooth in ``x``.

        With a tie, its nodes are divided, and their distance from the tie is appended, in
        standard deviations of ``w``.
        """
        self._solve(x, lead=False)
        change = self._change(x, tie)
        return change if tie is None else np.append(change, self._gap(x, tie.nodes[0]))

    def check_resolved(self, x: Array) -> None:
        """Raise ConvergenceError if the branch's own overlap is too small to be told from zero.

        Close to zero the average over the nodes is a staircase in the overlap, with a step at
        each node that changes its lead, and it may cross the diagonal by chance.
        """
        overlaps = self.overlaps(x)
        total = overlaps.q[0, 0, 0] / self.model.variances[0]
        resolved = max(LOST, LOST_NODES / self.nodes.count) * total
        if self.branch != "uninformed" and total - np.exp(x[0]) < resolved:
            raise ConvergenceError(
                f"the {self.branch} branch does not exist at alpha = {self.alpha:g}, or too close "
                f"to its end to be told from the uninformed one on {self.nodes.count} nodes",
                overlaps,
            )

    def forget(self) -> None:
        """Search globally at the next evaluation, as after an excursion to far overlaps."""
        self.minima = self.searched = None

    def _solve(self, x: Array, **how: bool) -> None:
        if not (np.abs(x) < FARTHEST).all():
            raise ConvergenceError(
                f"the iteration for the {self.branch} branch runs off at alpha = {self.alpha:g}, "
                f"to coordinates {x.tolist()}"
            )
        overlaps = self.overlaps(x)
        if self.own(x) < np.sqrt(VANISHED):
            raise ConvergenceError(
                f"the {self.branch} branch does not exist at alpha = {self.alpha:g}, or was not "
                "reached: the iteration runs into m = theta = 0",
                overlaps,
            )
        if x[0] < np.log(VANISHED):
            raise ConvergenceError(
                f"the weights of the {self.branch} branch shrink to zero at alpha = "
                f"{self.alpha:g}: the regularization may leave no other solution",
                overlaps,
            )
        self.minima = solve_channel(self.model, self.nodes, overlaps, self.minima, **how)
        self.evaluations += 1

    def own(self, x: Array) -> float:
        """Size of mu or Theta, whichever the branch has."""
        if self.branch == "uninformed":
            return 1.0
        return float(np.linalg.norm(x[2:]) if self.branch == "positional" else np.exp(x[2]))

    def _change(self, x: Array, tie: Tie | None = None) -> Array:
        overlaps = self.overlaps(x)
        hats = conjugates_from(self.model, self.alpha, self.nodes, overlaps, self.minima, tie)
        noise, response, mean, signal = moments_of_weights(self.model, hats)
        # 1 / D <= 0, or no noise at all, is as far from a solution as can be
        noise, response = (value if value > 0 else 1e-300 for value in (noise, response))
        change = [np.log(noise) - x[0], np.log(response) - x[1]]
        if self.branch == "positional":
            change.extend((mean - x[2:]) / np.linalg.norm(x[2:]))
        elif self.branch == "semantic":
            change.append(signal / np.exp(x[2]) - 1.0)
        return np.array(change)

    def _gap(self, x: Array, node: int) -> float:
        minima, overlaps = self.minima, self.overlaps(x)
        rival = minima.rivals_of(node)
        difference = minima.rival_fields[:, 0, rival] - minima.fields[:, 0, node]
        slope = difference / overlaps.V[:, 0, 0] * conditional_spread(self.model, overlaps)
        gap = minima.rival_envelope[rival] - minima.envelope[node]
        return float(gap / np.linalg.norm(slope))


class _MapAtOverlap(_Map):
    """The map with the branch's own overlap given, and the sample complexity unknown.

    Coordinates ``x``: log nu, log(1 / D), log alpha. A branch that turns back in alpha, where two
    fixed points meet, is a function of its overlap all the way. own: mu of the one direction of
    the encodings, or log Theta.
    """

    def __init__(self, model: Model, own: float, branch: str, nodes: Nodes):
        super().__init__(model, np.nan, branch, nodes)
        self.given = own

    def overlaps(self, x: Array) -> Overlaps:
        return super().overlaps(self._full(x))

    def _full(self, x: Array) -> Array:
        return np.append(x[:2], self.given)

    def own(self, x: Array) -> float:
        return super().own(self._full(x))

    def _change(self, x: Array, tie: Tie | None = None) -> Array:
        self.alpha = float(np.exp(x[2]))
        return super()._change(self._full(x), tie)


def _overlaps_at(model: Model, branch: str, x: Array) -> Overlaps:
    mean = x[2:] if branch == "positional" else np.zeros(len(model.encodings[0]))
    signal = np.exp(x[2]) if branch == "semantic" else 0.0
    return overlaps_of_weights(model, np.exp(x[0]), np.exp(x[1]), mean, signal)


def _coordinates(model: Model, branch: str, overlaps: Overlaps) -> Array:
    """Coordinates of `_Map` at the given overlaps; inverse of `_overlaps_at`.

    Raises ValueError for overlaps that no weights have, or that are zero where the branch's own
    overlap is not.
    """
    variances, length = model.variances, model.length
    expected = {"q": (length, 1, 1), "m": (length, 1), "theta": (length, 1, 1), "V": (length, 1, 1)}
    for name, shape in expected.items():
        found = np.shape(getattr(overlaps, name))
        if found != shape:
            raise ValueError(f"start.{name} must have shape {shape} for this model, got {found}")
    signal = abs(overlaps.theta[0, 0, 0]) / variances[0]
    mean = np.linalg.lstsq(np.asarray(model.encodings), overlaps.m[:, 0], rcond=None)[0]
    noise = overlaps.q[0, 0, 0] / variances[0] - mean @ mean - signal**2
    if not (noise > 0 and 0 < overlaps.V[0, 0, 0] < np.inf and noise < np.inf):
        raise ValueError(
            "start must have V > 0 and q / sigma^2 above mu^2 + (theta / sigma^2)^2, got "
            f"token 1 with q = {overlaps.q[0, 0, 0]:g}, m = {overlaps.m[0, 0]:g}, "
            f"theta = {overlaps.theta[0, 0, 0]:g}, V = {overlaps.V[0, 0, 0]:g}"
        )
    own = {"positional": np.linalg.norm(mean), "semantic": signal}.get(branch, 1.0)
    if own == 0:
        raise ValueError(f"start must have a non-zero overlap of the {branch} branch, got 0")
    x = [np.log(noise), np.log(overlaps.V[0, 0, 0] / variances[0])]
    if branch == "positional":
        x.extend(mean)
    elif branch == "semantic":
        x.append(np.log(signal))
    return np.array(x)


@dataclass(frozen=True)
class _Replicate:
    """Fixed point on one set of nodes."""

    overlaps: Overlaps
    conjugates: Conjugates
    train_loss: float
    free_energy: float
    mean_envelope: float
    test_error: float
    residual: float
    evaluations: int
    tie: Tie | None


#: Settings of scipy's hybrid Powell root finder: step of the finite differences (squared),
#: first trust radius relative to |x|, and limit of evaluations.
ROOT = {"xtol": 1e-13, "eps": 1e-6, "factor": 1.0, "maxfev": 32}
#: The same for a map that is smooth, as each node stays at its minimum: short differences.
HELD_ROOT = ROOT | {"eps": 1e-13, "maxfev": 40}
#: A root finder that stalls at a larger residual than this has not come near a fixed point.
STALLED = 0.03
#: Runs of the root finder, with damped iterations in between.
ATTEMPTS = 4
#: Number of damped iterations, and the share of the old value that each keeps.
ITERATIONS = 25
KEEP_FRACTION = {"positional": 0.85, "semantic": 0.5, "uninformed": 0.5}
#: A branch's own overlap (mu or Theta), squared, must be above this fraction of the squared norm,
#: and above this many nodes' weight times it.
LOST, LOST_NODES = 1e-4, 40.0
#: Rounds of the active-set iteration over nodes that change their lead.
ROUNDS = 40
#: An envelope found lower by more than this means that the search had missed a minimum.
ENVELOPE_SLACK = 1e-9
#: Solutions, each followed by a search for lower minima.
SEARCHES = 4
MOVING = "the global minima of the proximal problem keep changing"


def _find_zero(
    state_map: _Map, x: Array, tolerance: float, attempts: int = ATTEMPTS
) -> tuple[Array, Tie | None, float]:
    """Zero of the map, the tie that it lies on, if any, and its residual.

    Where the root finder does not get there from ``x``, damped iteration brings it nearer.
    Raises ConvergenceError if no zero is found.
    """
    for attempt in range(attempts):
        if attempt:
            state_map.forget()
            x = _iterate(state_map, x)
        near, _ = _best_of_root_finder(state_map, x)
        residual = float(np.abs(state_map(near)).max())
        if residual <= tolerance:
            return near, None, residual
        if residual < STALLED:
            settled = _settle(state_map, near, tolerance)
            if settled is not None:
                return settled
    raise ConvergenceError(
        f"no {state_map.branch} fixed point found at alpha = {state_map.alpha:g}: the relative "
        f"change in one application stays at {residual:.1e} (tolerance {tolerance:g}); the branch "
        "may not exist there, or lie far from the start",
        state_map.overlaps(near),
    )


def _iterate(state_map: _Map, x: Array) -> Array:
    """Damped iterations of the map, `ITERATIONS` of them.

    Raises ConvergenceError if the branch is lost on the way.
    """
    branch = state_map.branch
    for _ in range(ITERATIONS):
        change = state_map(x)
        change[:2] = np.clip(change[:2], -1.0, 1.0)
        if branch == "positional":
            change[2:] *= np.linalg.norm(x[2:])
        x = x + (1.0 - KEEP_FRACTION[branch]) * change
    state_map.check_resolved(x)
    return x


def _best_of_root_finder(state_map: _Map, x: Array) -> tuple[Array, float]:
    """Where scipy's root finder had the smallest residual, starting from ``x``, and that residual.

    It may run off to overlaps at which the proximal problem cannot be solved: that ends the run.
    """
    state_map.best = (np.inf, x)
    try:
        root(state_map, x, method="hybr", options=ROOT)
    except ConvergenceError:
        state_map.forget()
    residual, x = state_map.best
    return x, residual


def _settle(state_map: _Map, x: Array, tolerance: float) -> tuple[Array, Tie | None, float] | None:
    """Zero of the map near ``x``, where jumps of single nodes stop the root finder, or None.

    Active-set iteration: hold every node at its minimum and solve the smooth equations; let the
    nodes change their lead whose other minimum is now the lower one; repeat until none is. If a
    set of leads comes back, the zero lies on a tie: a node that changes to and fro is divided,
    with its share as one more unknown and the tie as one more equation.
    """
    seen: set[bytes] = set()
    tied: Array | None = None
    for _ in range(ROUNDS):
        try:
            x, tie, residual = _solve_held(state_map, x, tied)
        except ConvergenceError:  # a tied node has one minimum only where the solver went
            return None
        if not residual <= tolerance:
            return None
        minima = state_map.minima
        wrong = minima.misplaced()
        if tie is not None:
            at = minima.rivals_of(tie.nodes)
            inside = 0.0 <= tie.share <= 1.0
            wrong[at] = tie.share > 1.0
            if not inside:
                tied = None
            elif not wrong.any():
                return x, tie, residual
        elif not wrong.any():
            return x, None, residual
        leads = wrong.tobytes() + np.sign(minima.fields[0, 0, minima.rivals]).tobytes()
        if leads in seen and tied is None and wrong.any():
            depth = minima.envelope[minima.rivals] - minima.rival_envelope
            nearest = depth[wrong].min()
            tied = minima.rivals[wrong & (depth <= nearest * (1 + 1e-6))]
            if not len(tied):
                return None
            wrong[minima.rivals_of(tied)] = False
        seen.add(leads)
        state_map.minima = exchange(minima, wrong)
    return None


def _solve_held(state_map: _Map, x: Array, tied: Array | None) -> tuple[Array, Tie | None, float]:
    """Zero of the held map, with the nodes ``tied`` divided if there are any, and its residual."""
    if tied is None:
        found = root(state_map.held, x, method="hybr", options=HELD_ROOT)
        return found.x, None, float(np.abs(state_map.held(found.x)).max())

    def equations(y: Array) -> Array:
        return state_map.held(y[:-1], Tie(tied, float(y[-1])))

    found = root(equations, np.append(x, 0.5), method="hybr", options=HELD_ROOT)
    residual = float(np.abs(equations(found.x)).max())
    return found.x[:-1], Tie(tied, float(found.x[-1])), residual


def _solve_replicate(
    model: Model,
    alpha: float,
    branch: str,
    nodes: Nodes,
    start: Overlaps,
    tolerance: float,
) -> _Replicate:
    state_map = _Map(model, alpha, branch, nodes)
    x = _coordinates(model, branch, start)
    for _ in range(SEARCHES):
        x, tie, residual = _find_zero(state_map, x, tolerance)
        overlaps = state_map.overlaps(x)
        minima = state_map.minima
        search = solve_channel(model, nodes, overlaps)
        state_map.evaluations += 1
        if (search.envelope >= minima.envelope - ENVELOPE_SLACK).all():
            break
        state_map.minima, state_map.searched = search, x
    else:
        raise ConvergenceError(MOVING, overlaps)
    return _replicate_at(state_map, x, tie, residual)


def _replicate_at(state_map: _Map, x: Array, tie: Tie | None, residual: float) -> _Replicate:
    """What a zero of the map is worth; its minima are those that the map is at."""
    state_map.check_resolved(x)
    model, alpha, nodes = state_map.model, state_map.alpha, state_map.nodes
    overlaps, minima = state_map.overlaps(x), state_map.minima
    hats = conjugates_from(model, alpha, nodes, overlaps, minima, tie)
    hats = impose_parity(state_map.branch, hats)
    return _Replicate(
        overlaps=overlaps,
        conjugates=hats,
        train_loss=train_loss(model, alpha, nodes, overlaps, minima, tie),
        free_energy=free_energy(model, alpha, overlaps, hats, minima),
        mean_envelope=float(minima.envelope.mean()),
        test_error=test_error(model, nodes, overlaps),
        residual=residual,
        evaluations=state_map.evaluations,
        tie=tie,
    )


#: Nodes of the first rough solution.
ROUGH_LOG2_POINTS, ROUGH_SEED = 11, 402
#: Damped iterations and root finder take turns this often for it.
ROUGH_ATTEMPTS = 12
#: Residual that is good enough for a rough solution.
ROUGH_RESIDUAL = 2e-3
#: Ratio of sample complexities in a continuation from above, and its number of steps.
CLIMB, CLIMBS = 1.25, 5


def _rough_solution(model: Model, alpha: float, branch: str) -> Overlaps:
    """Fixed point on few nodes, from a generic start, by damped iteration and the root finder."""
    start = _generic_start(model)
    if branch == "positional" and not start.m.any():
        raise ConvergenceError("all encodings are zero: there is no positional branch", start)
    nodes = make_nodes(model, ROUGH_LOG2_POINTS, ROUGH_SEED)
    state_map = _Map(model, alpha, branch, nodes)
    x = _coordinates(model, branch, start)
    for _ in range(ROUGH_ATTEMPTS):
        x = _iterate(state_map, x)
        best, residual = _best_of_root_finder(state_map, x)
        if residual < ROUGH_RESIDUAL:
            return state_map.overlaps(best)
        state_map.forget()
    raise ConvergenceError(
        f"no {branch} fixed point found at alpha = {alpha:g} in {ROUGH_ATTEMPTS * ITERATIONS} "
        "damped iterations from a generic start",
        state_map.overlaps(x),
    )


def _generic_start(model: Model) -> Overlaps:
    """Overlaps far from the uninformed ones on every branch, to start an iteration from."""
    fields = target_inverse(np.asarray(model.positional_target)[..., None])[:, 0, 0]
    encodings = np.asarray(model.encodings)
    mean = np.linalg.lstsq(encodings, fields, rcond=None)[0]
    if np.linalg.norm(encodings @ mean) < 0.1:
        mean = mean + 0.3
    mean = mean * np.sign(mean[np.abs(mean).argmax()])  # either sign solves; this one is shown
    return overlaps_of_weights(model, 0.3, 0.6 / model.regularization, mean, 0.6)


def _cold_start(model: Model, alpha: float, branch: str) -> Overlaps:
    """Rough solution at ``alpha``, or by continuation from a larger one where that fails."""
    try:
        return _rough_solution(model, alpha, branch)
    except ConvergenceError as error:
        first = error
    for climb in range(1, CLIMBS + 1):
        try:
            overlaps = _rough_solution(model, alpha * CLIMB**climb, branch)
        except ConvergenceError:
            continue
        nodes = make_nodes(model, ROUGH_LOG2_POINTS, ROUGH_SEED)
        try:
            for step in reversed(range(climb)):
                there = alpha * CLIMB**step
                overlaps = _solve_replicate(model, there, branch, nodes, overlaps, 1e-6).overlaps
        except ConvergenceError:
            break
        return overlaps
    raise first


@dataclass(frozen=True)
class FixedPoint:
    """A fixed point of state evolution: means over independent replicates, with their errors.

    overlaps, conjugates: per token (`Overlaps`, `Conjugates`); overlaps_error, conjugates_error:
    their standard errors. train_loss: ``epsilon_t``; free_energy: the same by the other road;
    test_error: ``epsilon_g``; mean_envelope: ``E[M] = d epsilon_t / d alpha``.
    residual: largest relative change of nu, 1 / D, mu, Theta in one application of the map, over
    the replicates; evaluations: of the map, summed over the replicates; tied: number of nodes,
    over all replicates, that are divided between two equal minima (`Tie`). standard_error: by name,
    for q, m, V, theta (token 1), train_loss and test_error. replicates: the single solutions.

    For rank one and equal token variances ``q``, ``m``, ``V`` and ``theta`` are floats; ``m`` is
    that of token 1, and its sign, like that of ``theta``, is a convention.
    """

    model: Model
    alpha: float
    branch: str
    overlaps: Overlaps
    conjugates: Conjugates
    overlaps_error: Overlaps
    conjugates_error: Conjugates
    train_loss: float
    free_energy: float
    test_error: float
    mean_envelope: float
    residual: float
    evaluations: int
    tied: int
    standard_error: dict[str, float]
    replicates: tuple[_Replicate, ...]

    @property
    def q(self) -> float:
        """``q = Q^T Sigma Q / d``, one token's variance of the student field."""
        return self._one("q")

    @property
    def m(self) -> float:
        """``m = p_1^T Q / sqrt(d)``, the positional overlap of token 1."""
        return float(self.overlaps.m[0, 0])

    @property
    def V(self) -> float:  # noqa: N802 - the symbol of the text
        """``V``, the response: how far one token's field moves under a unit force."""
        return self._one("V")

    @property
    def theta(self) -> float:
        """``theta = Q^T Sigma Q* / d``, the semantic overlap."""
        return self._one("theta")

    def _one(self, name: str) -> float:
        values = getattr(self.overlaps, name)
        if np.ptp(self.model.variances) > 0:
            raise ValueError(
                f"{name} differs between tokens of different variance; read overlaps.{name}, "
                f"here {values.ravel().tolist()!r}"
            )
        return float(values[0, 0, 0])


def _aligned(replicate: _Replicate, other: _Replicate) -> _Replicate:
    """The same fixed point with the sign of m, which is free, that the other one has."""
    overlaps, hats = replicate.overlaps, replicate.conjugates
    if (overlaps.m * other.overlaps.m).sum() >= 0:
        return replicate
    return replace(
        replicate, overlaps=replace(overlaps, m=-overlaps.m), conjugates=replace(hats, m=-hats.m)
    )


def _summarize(model: Model, alpha: float, branch: str, replicates: list[_Replicate]) -> FixedPoint:
    replicates = [_aligned(replicate, replicates[0]) for replicate in replicates]

    def arrays(kind: type, part: str) -> tuple[object, object]:
        parts = [getattr(replicate, part) for replicate in replicates]
        names = [field.name for field in fields(kind)]
        means = [replicate_mean([getattr(one, name) for one in parts]) for name in names]
        return kind(*[e.value for e in means]), kind(*[e.standard_error for e in means])

    overlaps, overlaps_error = arrays(Overlaps, "overlaps")
    conjugates, conjugates_error = arrays(Conjugates, "conjugates")
    floats = {
        name: replicate_mean([getattr(replicate, name) for replicate in replicates])
        for name in ("train_loss", "free_energy", "test_error", "mean_envelope")
    }
    errors = {
        name: float(getattr(overlaps_error, name).ravel()[0]) for name in ("q", "m", "V", "theta")
    }
    errors |= {name: floats[name].standard_error for name in ("train_loss", "test_error")}
    return FixedPoint(
        model=model,
        alpha=alpha,
        branch=branch,
        overlaps=overlaps,
        conjugates=conjugates,
        overlaps_error=overlaps_error,
        conjugates_error=conjugates_error,
        **{name: estimate.value for name, estimate in floats.items()},
        residual=max(replicate.residual for replicate in replicates),
        evaluations=sum(replicate.evaluations for replicate in replicates),
        tied=sum(len(one.tie.nodes) for one in replicates if one.tie is not None),
        standard_error=errors,
        replicates=tuple(replicates),
    )


def solve_on(
    model: Model,
    alpha: float,
    branch: str,
    nodes: tuple[Nodes, ...],
    starts: Iterable[Overlaps] | None = None,
    tolerance: float = 1e-8,
) -> FixedPoint:
    """Fixed point on given sets of nodes, one replicate each; see `solve`.

    starts: overlaps to start from, one for each set of nodes; None for a cold start.
    """
    check_number("alpha", alpha, 0.0, LARGEST)
    _check_request(branch, tolerance)
    alpha, nodes = float(alpha), _distinct(nodes, branch)
    replicates = _solve_replicates(model, alpha, branch, nodes, starts, tolerance)
    return _summarize(model, alpha, branch, replicates)


def _distinct(nodes: tuple[Nodes, ...], branch: str) -> tuple[Nodes, ...]:
    return tuple(some.distinct(branch) for some in nodes)


def _solve_replicates(
    model: Model,
    alpha: float,
    branch: str,
    nodes: tuple[Nodes, ...],
    starts: Iterable[Overlaps] | None,
    tolerance: float,
) -> list[_Replicate]:
    if starts is None:
        starts = [_cold_start(model, alpha, branch)] * len(nodes)
    return [
        _solve_replicate(model, alpha, branch, some, start, tolerance)
        for some, start in zip(nodes, starts, strict=True)
    ]


def solve(
    model: Model,
    alpha: float,
    branch: str = "semantic",
    log2_points: int = 14,
    replicates: int = 4,
    seed: int = 0,
    tolerance: float = 1e-8,
    start: FixedPoint | Overlaps | None = None,
) -> FixedPoint:
    """Fixed point of state evolution on one branch at sample complexity ``alpha = n / d``.

    branch: "positional" (theta = 0), "semantic" (m = 0) or "uninformed" (both zero); the zeros
    are imposed, and a branch's own overlap is never zero in what is returned.
    log2_points: each replicate averages over ``2**log2_points`` nodes (6 to 22); replicates:
    independent scramblings (1 to 1024), whose spread gives the standard errors; seed: of all.
    tolerance: bound on the `FixedPoint.residual`. start: a fixed point or overlaps nearby;
    without it, a rough solution is found from a generic start.

    Raises ValueError for bad arguments and ConvergenceError, which carries the last overlaps as
    its ``state``, where no such fixed point is found: the branch may not exist there.

    Close to the end of a branch, and to its onset, the replicates scatter widely and four of them
    are too few for an honest error: take more points and more replicates, and look at
    ``replicates``. For more than two tokens the search for the global minimum of the proximal
    problem (`attnphase.proximal.find_minima`) is a good heuristic, not an exhaustive one.
    Source: arXiv:2402.03902, state-evolution equations.
    """
    nodes = replicate_nodes(model, log2_points, replicates, seed)
    return solve_on(model, alpha, branch, nodes, _starts(start, replicates), tolerance)


def _starts(start: FixedPoint | Overlaps | None, count: int) -> list[Overlaps] | None:
    if start is None:
        return None
    if isinstance(start, Overlaps):
        return [start] * count
    if not isinstance(start, FixedPoint):
        raise ValueError(f"start must be a FixedPoint, Overlaps or None, got {start!r}")
    if len(start.replicates) == count:
        return [replicate.overlaps for replicate in start.replicates]
    return [start.overlaps] * count


@dataclass(frozen=True)
class _Trail:
    """Where a continuation stands on one set of nodes, and what the next point is predicted from.

    visited: the last points as (log alpha, coordinates), at most `MEMORY`; jacobian: of the map
    there; minima: of the proximal problems at the last one.
    """

    visited: tuple[tuple[float, Array], ...]
    jacobian: Array
    minima: Minima

    def predict(self, log_alpha: float) -> Array:
        """Coordinates extrapolated through the last points by the Lagrange polynomial.

        Where that would lead far away, those of the last point.
        """
        last = self.visited[-1][1]
        places = np.array([place for place, _ in self.visited])
        guess = np.zeros_like(last)
        for k, (place, x) in enumerate(self.visited):
            others = np.delete(places, k)
            guess += x * np.prod((log_alpha - others) / (place - others))
        return guess if np.abs(guess - last).max() < LONGEST_STEP else last

    def then(self, log_alpha: float, x: Array, jacobian: Array, minima: Minima) -> _Trail:
        """The trail that goes on to the point ``x``."""
        kept = [visit for visit in self.visited if visit[0] != log_alpha]
        return _Trail((*kept, (log_alpha, x))[-MEMORY:], jacobian, minima)


#: Points that a continuation extrapolates from.
MEMORY = 3
#: Evaluations that Broyden's method gets, largest step in a coordinate, and the largest relative
#: misfit that still tells of the derivative: a larger one comes from nodes that jump.
QUICK, LONGEST_STEP, LARGEST_GAIN = 10, 0.3, 0.5
#: Factor by which the residual may exceed the least one so far.
ASTRAY = 4.0
#: Step of the finite differences that the first Jacobian is made of.
DIFFERENCE = 1e-3


def _broyden(
    state_map: _Map, x: Array, jacobian: Array, tolerance: float
) -> tuple[Array, float, Array]:
    """Broyden's method with the Jacobian of a point nearby: best point, residual, Jacobian.

    A good prediction with a good Jacobian needs three or four evaluations, where the root finder,
    which begins with finite differences, needs three times as many.
    """
    state_map.best = (np.inf, x)
    change = state_map(x)
    for _ in range(QUICK):
        least = state_map.best[0]
        if least <= tolerance or np.abs(change).max() > ASTRAY * least:
            break
        step = -np.linalg.lstsq(jacobian, change)[0]
        step *= min(1.0, LONGEST_STEP / np.abs(step).max())
        x = x + step
        new = state_map(x)
        gain = new - change - jacobian @ step
        if np.linalg.norm(gain) < LARGEST_GAIN * np.linalg.norm(step):  # no node has jumped
            jacobian = jacobian + np.outer(gain, step) / (step @ step)
        change = new
    residual, x = state_map.best
    return x, residual, jacobian


def _jacobian(state_map: _Map, x: Array) -> Array:
    """Derivative of the map's relative change, by central differences."""
    shifts = DIFFERENCE * np.eye(len(x))
    columns = [state_map(x + shift) - state_map(x - shift) for shift in shifts]
    return np.array(columns).T / (2 * DIFFERENCE)


def _step(
    trail: _Trail,
    model: Model,
    alpha: float,
    branch: str,
    nodes: Nodes,
    tolerance: float,
    attempts: int,
) -> tuple[_Replicate, _Trail]:
    """The fixed point at ``alpha`` from those that the trail has visited, and the trail to it.

    Raises ConvergenceError where it does not get there.
    """
    state_map = _Map(model, alpha, branch, nodes)
    state_map.minima, place = trail.minima, float(np.log(alpha))
    x, jacobian = trail.predict(place), trail.jacobian
    for _ in range(SEARCHES):
        tie, residual = None, np.inf
        try:
            x, residual, jacobian = _broyden(state_map, x, jacobian, tolerance)
            if residual > tolerance:
                jacobian = _jacobian(state_map, x)
                x, residual, jacobian = _broyden(state_map, x, jacobian, tolerance)
        except ConvergenceError:
            jacobian = trail.jacobian
        if not residual <= tolerance:
            state_map.forget()
            x = x if residual < STALLED else trail.visited[-1][1]
            x, tie, residual = _find_zero(state_map, x, tolerance, attempts)
        known = state_map.minima
        state_map._solve(x, search=True)
        if (state_map.minima.envelope >= known.envelope - ENVELOPE_SLACK).all():
            state_map.minima = known
            replicate = _replicate_at(state_map, x, tie, residual)
            return replicate, trail.then(place, x, jacobian, known)
    raise ConvergenceError(MOVING, state_map.overlaps(x))


class Continuation:
    """One branch followed along the sample complexity, on given sets of nodes.

    model, branch, nodes, tolerance: as in `solve_on`. The first point is found as by `solve_on`;
    each further one starts from an extrapolation of the last three, with the Jacobian of the map
    and the minima of the proximal problems from the last one. ``last`` is the last point.
    """

    def __init__(
        self, model: Model, branch: str, nodes: tuple[Nodes, ...], tolerance: float = 1e-8
    ):
        _check_request(branch, tolerance)
        self.model, self.branch, self.tolerance = model, branch, tolerance
        self.nodes = _distinct(nodes, branch)
        self.last: FixedPoint | None = None
        self._trails: list[_Trail] = []

    def copy(self) -> Continuation:
        """Another continuation that stands at the same point."""
        return copy(self)  # what it holds is replaced, never changed

    def on(self, nodes: tuple[Nodes, ...]) -> Continuation:
        """A continuation that stands at the same point on other nodes.

        nodes: as many sets as its own, or any number if it has one set. Raises ConvergenceError
        if there is no fixed point on them.
        """
        other = Continuation(self.model, self.branch, nodes, self.tolerance)
        trails = self._trails * len(nodes) if len(self._trails) == 1 else self._trails
        for trail, some in zip(trails, other.nodes, strict=True):
            place, x = trail.visited[-1]
            overlaps = _overlaps_at(self.model, self.branch, x)
            minima = solve_channel(self.model, some, overlaps)
            other._trails.append(_Trail(((place, x),), trail.jacobian, minima))
        other.to(self.last.alpha, 0, 1)
        return other

    @property
    def minima(self) -> tuple[Minima, ...]:
        """Minima of the proximal problems at the last point, one for each set of nodes."""
        return tuple(trail.minima for trail in self._trails)

    def overlap_square(self, alpha: float) -> float:
        """The square of the branch's own overlap (mu or Theta) by linear extrapolation in alpha.

        The mean over the sets of nodes, from the last two points; nan from a single one. Close to
        a continuous end of the branch it is what goes to zero linearly.
        """
        if len(self._trails[0].visited) < 2:
            return np.nan
        values = []
        for trail, nodes in zip(self._trails, self.nodes, strict=True):
            state_map = _Map(self.model, alpha, self.branch, nodes)
            (near, a), (far, b) = [
                (np.exp(place), state_map.own(x) ** 2) for place, x in trail.visited[:-3:-1]
            ]
            values.append(a + (a - b) * (alpha - near) / (near - far))
        return float(np.mean(values))

    def begin(self, alpha: float, starts: Iterable[Overlaps] | None = None) -> FixedPoint:
        """The first point, from ``starts`` as in `solve_on`."""
        check_number("alpha", alpha, 0.0, LARGEST)
        alpha = float(alpha)
        replicates = _solve_replicates(
            self.model, alpha, self.branch, self.nodes, starts, self.tolerance
        )
        trails = []
        for nodes, replicate in zip(self.nodes, replicates, strict=True):
            state_map = _Map(self.model, alpha, self.branch, nodes)
            x = _coordinates(self.model, self.branch, replicate.overlaps)
            jacobian = _jacobian(state_map, x)
            state_map(x)  # its minima are again those of x
            trails.append(_Trail(((float(np.log(alpha)), x),), jacobian, state_map.minima))
        self._trails = trails
        self.last = _summarize(self.model, alpha, self.branch, replicates)
        return self.last

    def to(self, alpha: float, halvings: int = 4, attempts: int = ATTEMPTS) -> FixedPoint:
        """The point at ``alpha``; where the solver fails, by way of the geometric mean.

        halvings: of the step; attempts: of the root finder at each.
        Raises ConvergenceError if the branch is lost; the continuation then stays where it got to.
        """
        check_number("alpha", alpha, 0.0, LARGEST)
        alpha = float(alpha)
        try:
            pairs = [
                _step(trail, self.model, alpha, self.branch, nodes, self.tolerance, attempts)
                for trail, nodes in zip(self._trails, self.nodes, strict=True)
            ]
        except ConvergenceError:
            if halvings == 0:
                raise
            self.to(float(np.sqrt(alpha * self.last.alpha)), halvings - 1, attempts)
            return self.to(alpha, halvings - 1, attempts)
        replicates, self._trails = [list(part) for part in zip(*pairs, strict=True)]
        self.last = _summarize(self.model, alpha, self.branch, replicates)
        return self.last


#: A turning point is sought by steps of this factor in the branch's own overlap, at most this many,
#: until the sample complexity has gone back by this much of its logarithm; the vertex is that of
#: the parabola through what lies within as much of it.
OVERLAP_STEP, OVERLAP_STEPS, TURNED = 0.985, 80, 0.06


#: Fewest points that the parabola is fitted to.
FEWEST = 6


def turning_points(path: Continuation) -> list[tuple[float, float]]:
    """Where the branch turns back in alpha, for each set of nodes: (alpha, own overlap).

    From the point where ``path`` stands the branch is followed towards smaller overlaps (mu or
    Theta), with the sample complexity as the unknown. Raises ConvergenceError if it does not turn.
    """
    if len(path._trails[0].visited[-1][1]) != 3:
        raise NotImplementedError("turning points need one direction of the encodings")
    ends = []
    for trail, nodes in zip(path._trails, path.nodes, strict=True):
        place, x = trail.visited[-1]
        overlaps, places, minima = [], [], trail.minima
        known = [np.append(x[:2], place)]
        own = x[2]
        for _ in range(OVERLAP_STEPS):
            state_map = _MapAtOverlap(path.model, own, path.branch, nodes)
            state_map.minima = minima
            start = known[-1] if len(known) < 2 else 2 * known[-1] - known[-2]
            y, _, _ = _find_zero(state_map, start, path.tolerance, attempts=1)
            minima = state_map.minima
            known.append(y)
            overlaps.append(state_map.own(y))
            places.append(y[2])
            turn = int(np.abs(np.array(places) - places[0]).argmax())
            if abs(places[-1] - places[turn]) > TURNED:
                break
            own = own * OVERLAP_STEP if path.branch == "positional" else own + np.log(OVERLAP_STEP)
        else:
            raise ConvergenceError(
                f"the {path.branch} branch does not turn back in alpha: from "
                f"{np.exp(places[0]):g} it was followed to {np.exp(places[-1]):g}",
                path.last,
            )
        near = np.abs(np.array(places) - places[turn]) < TURNED
        if np.count_nonzero(near) < FEWEST:
            raise ConvergenceError(
                f"the {path.branch} branch is too uneven near its turning point at alpha = "
                f"{np.exp(places[turn]):g} on {nodes.count} nodes: take more",
                path.last,
            )
        curve = np.polynomial.Polynomial.fit(np.array(overlaps)[near], np.array(places)[near], 2)
        vertex = float(curve.deriv().roots()[0].real)
        ends.append((float(np.exp(curve(vertex))), vertex))
    return ends


def trace(
    model: Model,
    alphas: Iterable[float],
    branch: str,
    log2_points: int = 14,
    replicates: int = 4,
    seed: int = 0,
    tolerance: float = 1e-8,
    start: FixedPoint | Overlaps | None = None,
) -> tuple[FixedPoint, ...]:
    """Fixed points along ``alphas`` by continuation, in the order given; see `solve`.

    Each point starts from the last ones; where that fails the step is halved, up to four times.
    Raises ConvergenceError, with the points found so far as its ``state``, where the branch is
    lost.
    """
    _check_request(branch, tolerance)
    nodes = replicate_nodes(model, log2_points, replicates, seed)
    starts = _starts(start, replicates)
    path = Continuation(model, branch, nodes, tolerance)
    points: list[FixedPoint] = []
    for alpha in alphas:
        check_number("alphas", alpha, 0.0, LARGEST)
        try:
            points.append(path.to(alpha) if points else path.begin(alpha, starts))
        except ConvergenceError as error:
            raise ConvergenceError(
                f"the {branch} branch is lost on the way to alpha = {alpha:g}: {error}",
                tuple(points),
            ) from error
    return tuple(points)


def _check_request(branch: object, tolerance: object) -> None:
    if not isinstance(branch, str) or branch not in BRANCHES:
        raise ValueError(f"branch must be one of {BRANCHES}, got {branch!r}")
    check_number("tolerance", tolerance, 0.0, 1e-3)
