"""Generalized approximate message passing (GAMP) for the tied attention layer.

One iteration, from weights ``Q``, their response ``V`` and the pulls ``g`` of the last one:

    w_l    = (x_l + p_l) Q / sqrt(d) - V_l g_l(last)          fields without their own sentence
    g_l    = (prox(w) - w)_l / V_l                            pull of the sentence
    Vhat_l = -(1 / d) sum_mu d g_l / d w_l                    stiffness
    Q      = (sum_mu,l v_l^T g_l / sqrt(d) + A Q) / (lambda + A),    A = sum_l s_l Vhat_l
    V_l    = s_l / (lambda + A)

``V_l g_l`` is the Onsager term. Where the new weights keep a share of the old ones, so must it:
then it still takes away just what the sentence itself has put into the weights, whatever the
share. A fixed point is a critical point of the training risk. Source: Rangan, arXiv:1010.5141,
for channels with one field; arXiv:2402.03902, appendix, for this one. Chapter "Message passing
and its state evolution".
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from numbers import Real

import numpy as np
from scipy.optimize import brentq

from attnphase.model import LARGEST, Array, Model, check_integer, check_number
from attnphase.proximal import (
    ConvergenceError,
    Minima,
    channel_derivatives,
    channel_loss,
    descend,
    find_minima,
    follow_minima,
    objective,
)
from attnphase.training import (
    Dataset,
    History,
    Trained,
    check_dataset,
    starting_weights,
    trained_layer,
)

#: Share of the old values that an iteration keeps, by the start; OTHER for any other start.
KEEP_FRACTION, OTHER = {"semantic": 0.5}, 0.85
#: Standard deviation, in the fields w, of the kernel that counts the sentences at a jump.
KERNEL = 0.05
#: The iteration is stuck when its change has not halved in so many steps.
PATIENCE = 100
#: To settle, the response is held at this fraction, and this share of the old values is kept.
HELD_RESPONSE, HELD_KEEP_FRACTION = 0.8, 0.75
#: Relative accuracy of the response at the solution, and factors in the search for it.
RESPONSE_TOLERANCE, RESPONSE_STRIDE, RESPONSE_RANGE = 1e-8, 1.01, 3.0
#: Excess of a root of the response above which it is only a jump.
RESPONSE_EXCESS = 1e-3
#: Weights that have shrunk to this fraction of the start are on their way to zero.
DECAYED = 1e-8
#: A sentence whose envelope is this far above the lowest is in another minimum.
EXCITED = 1e-6


@dataclass(frozen=True, eq=False)
class Messages:
    """State of the iteration.

    weights: ``Q``, shape (d, 1); fields: those of all sentences, shape (L, 1, n); response: ``V``,
    shape (L,); onsager: what is to be taken from the fields, shape (L, 1, n); minima: of the last
    proximal problems, None at the start.
    """

    weights: Array
    fields: Array
    response: Array
    onsager: Array
    minima: Minima | None

    @property
    def center(self) -> Array:
        """``w``, the fields without their own sentence's pull, shape (L, 1, n)."""
        return self.fields - self.onsager


def first_messages(dataset: Dataset, weights: Array, response: float | None = None) -> Messages:
    """Messages at the start: given weights of shape (d, 1), and no pull so far.

    response: ``V`` of all tokens divided by their variances; None for half that of the ridge
    alone, ``1 / (2 lambda)``. Raises ValueError for a bad argument, NotImplementedError for ranks
    above one.
    """
    model = _model_of(dataset)
    weights = starting_weights(dataset, weights)
    if response is not None:
        check_number("response", response, 0.0, LARGEST)
    scale = 0.5 / model.regularization if response is None else response
    return Messages(
        weights=weights,
        fields=dataset.fields(weights),
        response=scale * model.variances,
        onsager=np.zeros((model.length, 1, dataset.count)),
        minima=None,
    )


def _model_of(dataset: object) -> Model:
    """The model of a dataset for which message passing is implemented."""
    check_dataset(dataset)
    model = dataset.model
    if (model.rank, model.target_rank) != (1, 1):
        raise NotImplementedError(
            "message passing is implemented for rank = target_rank = 1, got "
            f"rank = {model.rank}, target_rank = {model.target_rank}"
        )
    return model


def stiffness(dataset: Dataset, minima: Minima, response: Array) -> Array:
    """``Vhat_l = -(1 / d) sum_mu d g_l / d w_l``, shape (L,), at the proximal operators ``minima``.

    The derivative has a smooth part, ``V^{-1} (V^{-1} + H)^{-1} V^{-1} - V^{-1}`` with the Hessian
    H of half the loss, and a part from the jump of the proximal operator: where two minima are
    equal, g jumps by ``D``, which adds ``D_l^2 delta(M_1 - M_2)``. The delta is a Gaussian of width
    `KERNEL` in the distance ``(M_1 - M_2) / ||D||`` from the jump.
    """
    length, _, count = minima.fields.shape
    precision = 1.0 / response
    hessian = channel_derivatives(dataset.target, minima.fields, dataset.metric)[2]
    matrix = np.moveaxis(hessian.reshape(length, length, count), -1, 0) + np.diag(precision)
    tokens = np.arange(length)
    soft = np.linalg.inv(matrix)[:, tokens, tokens].sum(axis=0)
    smooth = precision**2 * soft - count * precision
    at = minima.rivals
    jump = (minima.rival_fields - minima.fields[..., at])[:, 0] * precision[:, None]
    size = np.linalg.norm(jump, axis=0)
    distance = (minima.rival_envelope - minima.envelope[at]) / size / KERNEL
    density = np.exp(-0.5 * distance**2) / (np.sqrt(2 * np.pi) * KERNEL * size)
    return -(smooth + (jump**2 * density).sum(axis=1)) / dataset.dimension


def _channel(dataset: Dataset, center: Array, response: Array) -> tuple[Array, ...]:
    """Arguments of `find_minima`: centres, precision, target, metric, inverse."""
    precision = (1.0 / response)[:, None, None]
    return center, precision, dataset.target, dataset.metric, dataset.inverse


def iterate(dataset: Dataset, messages: Messages, keep_fraction: float) -> Messages:
    """One iteration; see the module's head.

    keep_fraction: share of the old weights, response and Onsager term that is kept, in [0, 1).
    Raises ConvergenceError, which carries ``messages``, if the stiffness is not positive or a
    proximal problem does not settle, and ValueError for a bad keep_fraction.
    """
    _check_share(keep_fraction)
    model = dataset.model
    channel = _channel(dataset, messages.center, messages.response)
    try:
        if messages.minima is None:
            minima = find_minima(*channel)
        else:
            minima = follow_minima(messages.minima, *channel)
    except ConvergenceError as error:
        raise ConvergenceError(f"the iteration runs off: {error}", messages) from error
    total = model.regularization + model.variances @ stiffness(dataset, minima, messages.response)
    if not total > 0:
        raise ConvergenceError(
            f"the stiffness lambda + A = {total:.3g} of the weights is not positive: the "
            "iteration runs off; a larger keep_fraction may hold it",
            messages,
        )
    return _renew(dataset, messages, minima, float(total), keep_fraction)


def _settle(dataset: Dataset, messages: Messages, keep_fraction: float) -> Messages:
    """One iteration with the response held, each sentence at the minimum it is in."""
    center, *rest = _channel(dataset, messages.center, messages.response)
    fields, envelope = descend(messages.minima.fields, center, *rest[:-1])
    none = np.empty(0, dtype=int)
    minima = Minima(fields, envelope, none, fields[..., none], envelope[none])
    total = float(dataset.model.variances[0] / messages.response[0])
    return _renew(dataset, messages, minima, total, keep_fraction)


def _renew(
    dataset: Dataset, messages: Messages, minima: Minima, total: float, keep_fraction: float
) -> Messages:
    """New messages from the proximal operators and the stiffness ``lambda + A = total``."""
    pull = (minima.fields - messages.center) / messages.response[:, None, None]
    response = dataset.model.variances / total

    def mix(old: Array, new: Array) -> Array:
        return keep_fraction * old + (1.0 - keep_fraction) * new

    memory = total - dataset.model.regularization
    summed = dataset.weights_from(pull) + memory * messages.weights
    weights = mix(messages.weights, summed / total)
    return Messages(
        weights=weights,
        fields=dataset.fields(weights),
        response=mix(messages.response, response),
        onsager=mix(messages.onsager, response[:, None, None] * pull),
        minima=minima,
    )


def message_passing(
    dataset: Dataset,
    start: str | Array = "semantic",
    keep_fraction: float | None = None,
    tolerance: float = 1e-6,
    iterations: int = 2000,
    seed: int = 0,
) -> Trained:
    """Train the layer by message passing, to a critical point of the training risk.

    start: "positional", "semantic", "random" (drawn with ``seed``) or weights of shape (d, 1), as
    in `starting_weights`. keep_fraction: share of the old values kept in each iteration, in
    [0, 1); None for 0.5 from a semantic start and 0.85 from any other. tolerance: bound on the
    relative change of the weights in one iteration, had it kept nothing; iterations: at most so
    many.

    Where proximal operators jump, single sentences can go on changing their minimum for ever, and
    the weights with them. When the change has not halved in 100 iterations, the response is
    therefore held at 0.8 of its value, at which fewer proximal problems have a second minimum, and
    the iteration goes on from there (`Trained.held_from`). A fixed point is a critical point of
    the risk whatever the response; the ``V`` of the result is the one that is consistent with it
    (with each sentence in its lowest minimum, and the jumps), or nan if there is none nearby.

    Takes two products with the matrix of tokens an iteration, and memory for some arrays of one
    field per token, beside the dataset itself. Which fixed point a start leads to is not
    guaranteed: look at the overlaps.

    Raises ValueError for a bad argument, NotImplementedError for ranks above one, and
    ConvergenceError, which carries the state reached, where the tolerance is not met (a `Trained`
    with ``converged`` False) or the iteration runs off or decays to zero (`Messages`).
    Source: arXiv:2402.03902, appendix on message passing.
    """
    _model_of(dataset)
    if keep_fraction is None:
        keep_fraction = KEEP_FRACTION.get(start, OTHER) if isinstance(start, str) else OTHER
    _check_share(keep_fraction)
    check_number("tolerance", tolerance, 0.0, 1.0)
    check_integer("iterations", iterations, 1, 10**6)
    check_integer("seed", seed, 0, 2**63 - 1)
    messages = first_messages(dataset, starting_weights(dataset, start, seed))
    course: list[tuple[float, ...]] = []
    held_from, step = None, iterate
    vanished = DECAYED * np.linalg.norm(messages.weights)
    while len(course) < iterations:
        following = step(dataset, messages, keep_fraction)
        change = _change(messages, following, keep_fraction)
        course.append(_record(dataset, messages, change))
        messages = following
        if change <= tolerance:
            return _finish(dataset, messages, course, True, held_from)
        if np.linalg.norm(messages.weights) < vanished:
            raise ConvergenceError(
                "the weights decay to zero: from this start the iteration finds no other minimum",
                messages,
            )
        if held_from is None and _stuck([row[-1] for row in course]):
            held_from, step = len(course), _settle
            keep_fraction = HELD_KEEP_FRACTION
            messages = replace(
                messages,
                response=HELD_RESPONSE * messages.response,
                onsager=HELD_RESPONSE * messages.onsager,
            )
    raise ConvergenceError(
        f"message passing has not converged in {iterations} iterations: the last one would change "
        f"the weights by {change:.1e} (tolerance {tolerance:g}); try a larger keep_fraction than "
        f"{keep_fraction:g}, or more iterations",
        _finish(dataset, messages, course, False, held_from),
    )


def track(dataset: Dataset, weights: Array, keep_fraction: float, iterations: int) -> History:
    """Course of so many plain iterations from ``weights`` of shape (d, 1), the start included.

    The last entry of ``change`` is nan. Raises ConvergenceError if the iteration runs off, and
    the errors of `message_passing` for bad arguments.
    """
    _check_share(keep_fraction)
    check_integer("iterations", iterations, 1, 10**6)
    messages = first_messages(dataset, weights)
    course = []
    for _ in range(iterations):
        following = iterate(dataset, messages, keep_fraction)
        course.append(_record(dataset, messages, _change(messages, following, keep_fraction)))
        messages = following
    course.append(_record(dataset, messages, np.nan))
    return _history(course)


def _change(old: Messages, new: Messages, keep_fraction: float) -> float:
    """Relative change of the weights, had nothing of them been kept."""
    moved = np.linalg.norm(new.weights - old.weights) / (1.0 - keep_fraction)
    return float(moved / np.linalg.norm(old.weights))


def _history(course: list[tuple[float, ...]]) -> History:
    q, m, theta, train_loss, response, change = np.array(course).T
    return History(q=q, m=m, theta=theta, train_loss=train_loss, change=change, V=response)


def _check_share(value: object) -> None:
    if not isinstance(value, Real) or isinstance(value, bool) or not 0 <= value < 1:
        raise ValueError(f"keep_fraction must be a number from 0 to below 1, got {value!r}")


def _stuck(changes: list[float]) -> bool:
    early, late = changes[:-PATIENCE], changes[-PATIENCE:]
    return bool(early) and min(late) > 0.5 * min(early)


def _record(dataset: Dataset, messages: Messages, change: float) -> tuple[float, ...]:
    """q, m, theta, train loss, V and change of one iteration, in the order of `_history`."""
    q, m, theta = dataset.overlaps(messages.weights)
    half_loss = 0.5 * channel_loss(dataset.target, messages.fields, dataset.metric)
    risk = dataset.risk_from(half_loss, messages.weights)
    return q[0, 0, 0], m[0, 0], theta[0, 0, 0], risk, messages.response[0], change


def _finish(
    dataset: Dataset,
    messages: Messages,
    course: list[tuple[float, ...]],
    converged: bool,
    held_from: int | None,
) -> Trained:
    response, rivals, excited = _consistent_response(dataset, messages)
    return trained_layer(
        dataset,
        messages.weights,
        _history(course),
        converged,
        V=response,
        held_from=held_from,
        rivals=rivals,
        excited=excited,
    )


def _consistent_response(dataset: Dataset, messages: Messages) -> tuple[float, int, int]:
    """Response of token 1 that is consistent with the weights; `Trained.rivals` and ``excited``.

    The pull of each sentence is that of its field z, whatever V. With ``w = z - V g`` the
    stiffness is a function of V, and V of the stiffness: the root nearest to the last V is taken,
    nan if there is none within a factor of `RESPONSE_RANGE`.
    """
    model = dataset.model
    fields = messages.fields
    pull = -channel_derivatives(dataset.target, fields, dataset.metric)[1]

    def solve_at(scale: float) -> tuple[tuple[Array, ...], Minima]:
        response = scale * model.variances
        channel = _channel(dataset, fields - response[:, None, None] * pull, response)
        return channel, find_minima(*channel)

    def excess(scale: float) -> float:
        response = scale * model.variances
        memory = model.variances @ stiffness(dataset, solve_at(scale)[1], response)
        return float(1.0 - scale * (model.regularization + memory))

    near = float(messages.response[0] / model.variances[0])
    scale = _nearest_root(excess, near)
    channel, lowest = solve_at(near if np.isnan(scale) else scale)
    here = objective(fields, *channel[:-1])[0]
    excited = int((here > lowest.envelope + EXCITED).sum())
    return scale * float(model.variances[0]), len(lowest.rivals), excited


def _nearest_root(function: Callable[[float], float], near: float) -> float:
    """Root of ``function`` in the first interval around ``near`` in which its sign changes.

    nan if there is none, or where the sign changes by a jump.
    """
    ends, values = [near, near], [function(near)] * 2
    factor = 1.0
    while factor < RESPONSE_RANGE:
        factor *= RESPONSE_STRIDE
        for side, end in enumerate((near / factor, near * factor)):
            value = function(end)
            if np.sign(value) != np.sign(values[side]):
                root = float(brentq(function, *sorted((ends[side], end)), rtol=RESPONSE_TOLERANCE))
                return root if abs(function(root)) < RESPONSE_EXCESS else float("nan")
            ends[side], values[side] = end, value
    return float("nan")
