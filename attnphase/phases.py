"""Where the mechanisms take over: onsets of the branches, alpha_c and alpha_l.

Each threshold is found on every replicate's nodes by itself, so that what the two sides of a
comparison share drops out, and the spread over replicates gives the standard error.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, partial

import numpy as np
from scipy.optimize import brentq

from attnphase.baseline import linear_baseline
from attnphase.model import Model, check_number
from attnphase.proximal import ConvergenceError, Minima
from attnphase.quadrature import replicate_mean
from attnphase.solver import ROUGH_LOG2_POINTS, Continuation, FixedPoint, turning_points
from attnphase.state_evolution import Nodes, prox_centers, replicate_nodes, solve_channel

#: Range of sample complexities in which thresholds are looked for.
SEARCH_RANGE = (0.02, 30.0)
#: Factor by which the search for a change of sign widens.
STRIDE = 1.25
#: Distance in log alpha up to which one solution is the start for another.
NEAR = 0.03
#: Relative accuracy of each replicate's root, far below its scatter.
ROOT_FRACTION = 1e-7
#: Half width, in standard errors and at least as a fraction, of the bracket that is verified.
BRACKET_ERRORS, BRACKET_FRACTION = 5.0, 1e-3
#: Largest standard error of the overlap at a fold, as a fraction of it. Measured: up to 2 % at true
#: folds, mostly 7 % and more at those that the staircase of few nodes pretends.
FOLD_FRACTION = 0.05


#: Continuations of each branch that stand at solved points.
Memory = dict[str, list[Continuation]]
Advantage = Callable[[float, tuple[Nodes, ...], Memory], float]


@dataclass(frozen=True)
class Threshold:
    """A threshold in the sample complexity.

    value: mean over replicates; standard_error: of that mean; bracket: two sample complexities
    between which the comparison changes sign in every replicate, verified by solving there.
    """

    value: float
    standard_error: float
    bracket: tuple[float, float]


def critical_alpha(
    model: Model,
    log2_points: int = 14,
    replicates: int = 4,
    seed: int = 0,
    tolerance: float = 1e-8,
    guess: float = 1.0,
) -> Threshold:
    """Sample complexity ``alpha_c`` at which both branches have the same train loss.

    Below it the positional solution has the lower train loss, above it the semantic one. guess:
    where the search begins; other arguments as in `attnphase.solve`. Raises ConvergenceError if
    the losses do not cross where both branches exist. Source: arXiv:2402.03902, figure 2.
    """

    def advantage(alpha: float, nodes: tuple[Nodes, ...], memory: Memory) -> float:
        """Train loss of the positional solution less that of the semantic one."""
        losses = {}
        # the semantic branch begins at some alpha, the positional one ends at a larger one
        for branch, missing in (("semantic", -np.inf), ("positional", np.inf)):
            point = _remember(model, alpha, branch, nodes, tolerance, memory)
            if point is None:
                return missing
            losses[branch] = point.train_loss
        return losses["positional"] - losses["semantic"]

    return _threshold(model, advantage, "alpha_c", log2_points, replicates, seed, guess)


def baseline_alpha(
    model: Model,
    log2_points: int = 14,
    replicates: int = 4,
    seed: int = 0,
    tolerance: float = 1e-8,
    guess: float = 1.0,
) -> Threshold:
    """Sample complexity ``alpha_l`` at which the semantic solution meets the linear baseline.

    Above it the test error of the semantic solution is below `linear_baseline`'s. Arguments as
    in `critical_alpha`. Raises ConvergenceError if there is no such point.
    Source: arXiv:2402.03902, figure 3.
    """
    level = linear_baseline(model).test_error

    def advantage(alpha: float, nodes: tuple[Nodes, ...], memory: Memory) -> float:
        """Test error of the baseline less that of the semantic solution."""
        point = _remember(model, alpha, "semantic", nodes, tolerance, memory)
        return -np.inf if point is None else level - point.test_error

    return _threshold(model, advantage, "alpha_l", log2_points, replicates, seed, guess)


def onset_alpha(
    model: Model,
    branch: str,
    log2_points: int = 14,
    replicates: int = 4,
    seed: int = 0,
    tolerance: float = 1e-8,
    guess: float = 0.3,
) -> Threshold:
    """Sample complexity above which the uninformed solution is unstable towards ``branch``.

    branch: "positional" or "semantic". One application of the map multiplies a small overlap by
    `growth_rates`; the onset is where that factor passes 1 from below. guess: where the search
    begins, upwards if the factor is below 1 there, else downwards. Raises ConvergenceError, with
    the factors at both ends, where it does not pass 1 on the way.
    """
    return _instability(model, branch, 1.0, log2_points, replicates, seed, tolerance, guess)


def end_alpha(
    model: Model,
    branch: str = "positional",
    log2_points: int = 14,
    replicates: int = 4,
    seed: int = 0,
    tolerance: float = 1e-8,
    guess: float = 0.7,
) -> Threshold:
    """Sample complexity above which the uninformed solution is stable again towards ``branch``.

    The factor of `growth_rates` passes 1 from above there. A branch that is small there ends
    there, as it joins the uninformed one; one that is not goes on. guess: where the search
    begins, between the onset and the end: upwards if the factor is above 1 there, else downwards.
    Raises ConvergenceError, with the factors at both ends, where it does not pass 1 on the way.
    """
    return _instability(model, branch, -1.0, log2_points, replicates, seed, tolerance, guess)


def _instability(
    model: Model,
    branch: str,
    sign: float,
    log2_points: int,
    replicates: int,
    seed: int,
    tolerance: float,
    guess: float,
) -> Threshold:
    """Where the growth rate passes 1, upwards (sign 1) or downwards (sign -1)."""
    if branch not in ("positional", "semantic"):
        raise ValueError(f"branch must be 'positional' or 'semantic', got {branch!r}")

    def advantage(alpha: float, nodes: tuple[Nodes, ...], memory: Memory) -> float:
        point = _remember(model, alpha, "uninformed", nodes, tolerance, memory)
        if point is None:
            raise ConvergenceError(f"no uninformed fixed point found at alpha = {alpha:g}", memory)
        path = memory["uninformed"][-1]
        return sign * (growth_rates(point, path.nodes, path.minima)[branch] - 1.0)

    name = f"the {branch} {'onset' if sign > 0 else 'end'}"
    try:
        return _threshold(model, advantage, name, log2_points, replicates, seed, guess)
    except _OneSign as error:
        ends = [(alpha, 1.0 + sign * difference) for alpha, difference in error.state]
    (near, first), (far, last) = ends
    side, other = ("above", "below") if first > 1.0 else ("below", "above")
    raise ConvergenceError(
        f"{name} was not found: the growth rate is {first:.4g} at the guess alpha = {near:g} and "
        f"{last:.4g} at alpha = {far:g}, {side} 1 wherever it was tried in between; if there "
        f"is one elsewhere, begin at a guess where the rate is {other} 1",
        tuple(ends),
    )


@dataclass(frozen=True)
class Spinodal(Threshold):
    """A sample complexity at which two fixed points of one branch meet and vanish.

    bracket: least and largest value of the replicates; overlap: the branch's own (mu for the
    positional one, Theta for the semantic one) at the meeting; overlap_error: its standard error.
    """

    overlap: float
    overlap_error: float


def spinodal_alpha(
    model: Model,
    branch: str = "positional",
    log2_points: int = 14,
    replicates: int = 4,
    seed: int = 0,
    tolerance: float = 1e-6,
    guess: float = 6.0,
) -> Spinodal:
    """Sample complexity at which a branch turns back: beyond it there is no fixed point nearby.

    guess: a sample complexity at which the branch exists; it is followed from there towards
    smaller overlaps, with the overlap given and alpha unknown, past the turning point, whose place
    is the vertex of a parabola through its neighbourhood. Other arguments as in `attnphase.solve`.
    Raises ConvergenceError if the branch does not exist at the guess or does not turn, or if the
    average over the nodes is too uneven there: then take more nodes.

    The standard error is that of the scatter of replicates; between sets of few nodes and of many
    the value shifts by about as much again. A branch that begins or ends continuously
    (`onset_alpha`, `end_alpha`) has no spinodal of this kind, but the staircase that an average
    over few nodes is may pretend one close to its end. The replicates then mostly disagree on the
    overlap: ConvergenceError is raised, with the `Spinodal` as its ``state``, where overlap_error
    is above 5 % of the overlap. A single replicate cannot tell, and two may agree by chance
    (3 % was seen): compare with more nodes, and with more replicates.
    """
    check_number("guess", guess, *SEARCH_RANGE)
    if branch not in ("positional", "semantic"):
        raise ValueError(f"branch must be 'positional' or 'semantic', got {branch!r}")
    nodes = replicate_nodes(model, log2_points, replicates, seed)
    path = Continuation(model, branch, nodes, tolerance)
    path.begin(guess)
    turns = np.array(turning_points(path))
    mean = replicate_mean(turns)
    fold = Spinodal(
        value=float(mean.value[0]),
        standard_error=float(mean.standard_error[0]),
        bracket=(float(turns[:, 0].min()), float(turns[:, 0].max())),
        overlap=float(mean.value[1]),
        overlap_error=float(mean.standard_error[1]),
    )
    if replicates > 1 and not fold.overlap_error <= FOLD_FRACTION * abs(fold.overlap):
        raise ConvergenceError(
            f"no fold of the {branch} branch can be told on {2**log2_points} nodes: near alpha = "
            f"{fold.value:.4g} the replicates turn back at overlaps from {turns[:, 1].min():.3g} "
            f"to {turns[:, 1].max():.3g}, and the standard error {fold.overlap_error:.2g} of their "
            f"mean {fold.overlap:.3g} is above {FOLD_FRACTION:.0%} of it; take more nodes, and see "
            "whether the branch begins or ends continuously there (onset_alpha, end_alpha)",
            fold,
        )
    return fold


def growth_rates(
    point: FixedPoint, nodes: tuple[Nodes, ...], minima: tuple[Minima, ...] | None = None
) -> dict[str, float]:
    """Factors by which one application of the map multiplies a small m or theta.

    point: an uninformed fixed point, solved on ``nodes``; minima: of the proximal problems there,
    where they are known. With ``g`` at that point and
    ``s_l^2 = q_l`` Stein's lemma gives both derivatives without differentiating the proximal
    operator, jumps included:

        d E[g_k] / d m_l = E[g_k v_l] / s_l,
        d E[g_k h*_k] / d Theta = sum_l E[g_k v_l h*_l h*_k] / s_l.

    Returns the largest eigenvalue for "positional" (directions of the encodings) and the factor
    for "semantic", averaged over the sets of nodes. A node that the solution divides between two
    equal minima (`Tie`) counts with the minimum that leads, whatever its share: an error of about
    one node's weight.
    """
    model, alpha = point.model, point.alpha
    variances, encodings = model.variances, np.asarray(model.encodings)
    rates = []
    if minima is None:
        minima = tuple(
            solve_channel(model, some, replicate.overlaps)
            for some, replicate in zip(nodes, point.replicates, strict=True)
        )
    for some, replicate, found in zip(nodes, point.replicates, minima, strict=True):
        overlaps = replicate.overlaps
        pull = (found.fields - prox_centers(model, some, overlaps))[:, 0] / overlaps.V[:, 0]
        noise, target_fields = some.noise[:, 0], some.target_fields[:, 0]
        spread = np.sqrt(overlaps.q[:, 0, 0])
        stiffness = variances[0] / overlaps.V[0, 0, 0]
        response = alpha * (pull @ noise.T) / some.count / spread
        positional = np.linalg.eigvals(encodings.T @ response @ encodings / stiffness)
        tilted = alpha * ((pull * target_fields) @ (noise * target_fields).T) / some.count / spread
        semantic = (tilted.sum(axis=1) - variances * np.diag(response)).sum() / stiffness
        rates.append((positional.real.max(), semantic))
    means = np.mean(rates, axis=0)
    return {"positional": float(means[0]), "semantic": float(means[1])}


def _remember(
    model: Model,
    alpha: float,
    branch: str,
    nodes: tuple[Nodes, ...],
    tolerance: float,
    memory: Memory,
) -> FixedPoint | None:
    """Fixed point at ``alpha``, which is added to ``memory``, or None if there is none.

    From a point in ``memory`` that is near enough, otherwise from a generic start: by
    continuation over long distances one may end on another, unstable solution.
    """
    known = memory.setdefault(branch, [])
    ranked = sorted(known, key=lambda path: abs(np.log(path.last.alpha / alpha)))
    for last in [*ranked[:1], None]:
        try:
            if last is None:
                path = Continuation(model, branch, nodes, tolerance)
                path.begin(alpha)
            elif abs(np.log(last.last.alpha / alpha)) < NEAR:
                path = last.copy()
                path.to(alpha)
            else:
                continue
        except ConvergenceError:
            continue
        known.append(path)
        return path.last
    return None


def _threshold(
    model: Model,
    advantage: Advantage,
    name: str,
    log2_points: int,
    replicates: int,
    seed: int,
    guess: float,
) -> Threshold:
    """Root of ``advantage`` in alpha, which passes from negative to positive."""
    nodes = replicate_nodes(model, log2_points, replicates, seed)
    rough_nodes = replicate_nodes(model, ROUGH_LOG2_POINTS, 1, seed)
    memory: Memory = {}
    # the searches come back to their ends: each alpha is solved once, and found missing once
    rough_difference = cache(partial(advantage, nodes=rough_nodes, memory=memory))
    rough = brentq(rough_difference, *_sign_change(rough_difference, name, guess), rtol=1e-4)
    differences = []
    for some in nodes:
        own: Memory = {}
        for branch, paths in memory.items():
            closest = min(paths, key=lambda path: abs(path.last.alpha - rough))
            with suppress(ConvergenceError):  # then it is sought anew
                own[branch] = [closest.on((some,))]
        differences.append(cache(partial(advantage, nodes=(some,), memory=own)))
    estimate = replicate_mean([_refine(difference, rough, name) for difference in differences])
    half = BRACKET_FRACTION * estimate.value
    if replicates > 1:
        half = max(half, BRACKET_ERRORS * estimate.standard_error)
    for _ in range(6):
        bracket = (estimate.value - half, estimate.value + half)
        signs = [[np.sign(difference(alpha)) for alpha in bracket] for difference in differences]
        if all(sign == [-1.0, 1.0] for sign in signs):
            return Threshold(estimate.value, estimate.standard_error, bracket)
        half *= 2
    raise ConvergenceError(f"{name} has no bracket in which every replicate changes sign", bracket)


def _refine(difference: Callable[[float], float], rough: float, name: str) -> float:
    """Root of ``difference`` near ``rough``: widen a bracket until it holds one, then brentq."""
    width = 0.004 * rough
    low, high = rough - width, rough + width
    for _ in range(8):
        below, above = difference(low), difference(high)
        if np.isfinite([below, above]).all() and below < 0 < above:
            return brentq(difference, low, high, xtol=ROOT_FRACTION * rough, rtol=ROOT_FRACTION)
        if below >= 0:
            low, high = low - 2 * (high - low), low
        else:
            low, high = high, high + 2 * (high - low)
    raise ConvergenceError(f"{name} of one replicate is not near the rough value {rough:g}", rough)


class _OneSign(ConvergenceError):
    """No change of sign; state: (alpha, difference) at the guess and at the last place tried."""


def _sign_change(
    difference: Callable[[float], float], name: str, guess: float
) -> tuple[float, float]:
    """Bracket of the change from negative to positive, searched outwards from ``guess``.

    An infinite difference stands for a missing solution; the ends returned are finite.
    """
    check_number("guess", guess, *SEARCH_RANGE)
    low = high = guess
    if difference(guess) > 0:
        while difference(low) > 0:
            low, high = low / STRIDE, low
            if low < SEARCH_RANGE[0]:
                ends = ((guess, difference(guess)), (high, difference(high)))
                raise _OneSign(f"{name} is below {SEARCH_RANGE[0]}, if it exists", ends)
    else:
        while difference(high) <= 0:
            low, high = high, high * STRIDE
            if high > SEARCH_RANGE[1]:
                ends = ((guess, difference(guess)), (low, difference(low)))
                raise _OneSign(f"{name} is above {SEARCH_RANGE[1]}, if it exists", ends)
    for _ in range(16):
        if np.isfinite([difference(low), difference(high)]).all():
            return low, high
        middle = float(np.sqrt(low * high))
        low, high = (low, middle) if difference(middle) > 0 else (middle, high)
    raise ConvergenceError(
        f"{name}: the comparison changes sign only where one side of it is missing, between "
        f"alpha = {low:g} and {high:g}",
        (low, high),
    )
