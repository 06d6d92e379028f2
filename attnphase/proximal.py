"""The proximal operator of the attention channel, and its Moreau envelope.

    loss(h*, z) = sum_{i,l} s_l (T[h*]_{il} - S[z]_{il})^2
    M(w)        = min_z { 1/2 sum_l (z_l - w_l)^T V_l^{-1} (z_l - w_l) + 1/2 loss(h*, z) }

The minimiser is the proximal operator. The loss is even in ``z`` and not convex, so that the
objective can have several local minima; two of them exchange the lead along a surface of ``w``,
where the operator jumps. Source: arXiv:2402.03902, appendix on state evolution.

Every array has the samples (nodes) on its last axis, so that one numpy operation serves all.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from attnphase.model import Array, attention_matrix

#: A Newton step below this fraction of 1 + |z| is the last one: the error left is its square.
SETTLED = 1e-5
#: Settled nodes are put aside when fewer than this share of the nodes is going on.
CROWDED = 0.3


class ConvergenceError(RuntimeError):
    """An iteration did not reach its tolerance; ``state`` carries where it stopped."""

    def __init__(self, message: str, state: object = None):
        super().__init__(message)
        self.state = state


def channel_loss(target: Array, fields: Array, metric: Array) -> Array:
    """Loss of the channel for given target attention and student fields.

    target: ``T``, shape (L, L, N), its rows sum to 1; fields: ``z``, shape (L, r, N).
    metric: in the limit of large d the token variances ``s``, shape (L,); for single sentences
    at finite d the Gram matrices ``G`` of their tokens, shape (L, L, N).
    Returns ``sum_{i,l} s_l (S[z] - T)_il^2``, or ``sum_{i,k,l} (S[z] - T)_ik G_kl (S[z] - T)_il``,
    shape (N,).
    """
    error = attention_matrix(fields) - target
    return (error * _weigh(metric, error)).sum(axis=(0, 1))


def _weigh(metric: Array, error: Array) -> Array:
    """``error``, shape (L, L, ..., N), with its second axis contracted with the metric."""
    if metric.ndim == 1:
        return metric.reshape((-1,) + (1,) * (error.ndim - 2)) * error
    return np.einsum("klp,ik...p->il...p", metric, error)


def metric_of(metric: Array, nodes: Array | slice) -> Array:
    """The metric of the sentences ``nodes``: variances are those of all."""
    return metric if metric.ndim == 1 else metric[..., nodes]


def channel_derivatives(target: Array, fields: Array, metric: Array) -> tuple[Array, ...]:
    """Half the channel's loss with its gradient and Hessian in the fields.

    Shapes as in `channel_loss`. Returns ``loss / 2`` (N,), gradient (L, r, N) and
    Hessian (L, r, L, r, N).
    """
    if len(fields) == 2:
        return _two_token_derivatives(target, fields, metric)
    return _any_length_derivatives(target, fields, metric)


def _two_token_derivatives(target: Array, fields: Array, metric: Array) -> tuple[Array, ...]:
    """`channel_derivatives` for two tokens, about ten times faster than the general form.

    Row i of the attention has one free entry, the attention to the other token j,
    ``p_i = 1 / (1 + exp(-c_i))`` with ``c_i = z_i . (z_j - z_i)``; the row's half loss is
    ``(s_1 + s_2) (p_i - T_ij)^2 / 2``, with ``G_11 + G_22 - 2 G_12`` for ``s_1 + s_2`` where the
    metric is a matrix.
    """
    rank, count = fields.shape[1:]
    other = fields[::-1]
    logit = (fields * (other - fields)).sum(axis=1)
    attention = 1.0 / (1.0 + np.exp(np.minimum(-logit, 700.0)))
    error = attention - np.stack((target[0, 1], target[1, 0]))
    slope = attention * (1.0 - attention)
    scale = metric.sum() if metric.ndim == 1 else metric[0, 0] + metric[1, 1] - 2.0 * metric[0, 1]
    value = 0.5 * scale * (error * error).sum(axis=0)
    first = scale * error * slope  # d(loss/2)/d c_i
    second = scale * slope * (slope + error * (1.0 - 2.0 * attention))
    own = other - 2.0 * fields  # d c_i / d z_i; d c_i / d z_j = z_i
    gradient = first[:, None] * own + first[::-1, None] * other
    hessian = np.empty((2, rank, 2, rank, count))
    for a in range(rank):
        for b in range(rank):
            curve = second * own[:, a]
            same = curve * own[:, b] + (second * fields[:, a] * fields[:, b])[::-1]
            cross = curve * fields[:, b] + (second * fields[:, a] * own[:, b])[::-1]
            if a == b:
                same -= 2.0 * first
                cross += first + first[::-1]
            hessian[0, a, 0, b], hessian[1, a, 1, b] = same
            hessian[0, a, 1, b], hessian[1, a, 0, b] = cross
    return value, gradient, hessian


def _any_length_derivatives(target: Array, fields: Array, metric: Array) -> tuple[Array, ...]:
    """`channel_derivatives` for any number of tokens.

    With ``a_ij = z_i . z_j``, row i contributes through ``B_ij = d(loss/2)/d a_ij`` and
    ``C^i_mn = d B_im / d a_in``; the chain rule ``d a_ij / d z_k`` does the rest.
    """
    tokens = np.arange(len(fields))
    attention = attention_matrix(fields)
    error = attention - target
    weighted = _weigh(metric, error)
    value = 0.5 * (weighted * error).sum(axis=(0, 1))
    product = attention * weighted
    first = product - attention * product.sum(axis=1, keepdims=True)  # B
    pair = first + first.swapaxes(0, 1)
    gradient = (pair[:, :, None] * fields[None]).sum(axis=1)
    slope = -attention[:, :, None] * attention[:, None]  # d S_im / d a_in, as (i, m, n, p)
    slope[:, tokens, tokens] += attention
    curve = np.einsum("ilmp,ilnp->imnp", slope, _weigh(metric, slope))  # C
    cross = first[:, :, None] * attention[:, None]
    curve -= cross + cross.swapaxes(1, 2)
    curve[:, tokens, tokens] += first
    bend = np.einsum("imnp,nap->imap", curve, fields)
    blocks = np.einsum("ikmp,iabp->kambp", curve, fields[:, :, None] * fields[:, None])
    blocks += np.einsum("kmap,kbp->kambp", bend, fields)
    blocks += np.einsum("mkbp,map->kambp", bend, fields)
    blocks[tokens, :, tokens] += np.einsum("map,kmbp->kabp", fields, bend)
    for a in range(fields.shape[1]):
        blocks[:, a, :, a] += pair
    return value, gradient, blocks


def objective(fields: Array, center: Array, precision: Array, target: Array, metric: Array):
    """Objective of the proximal problem with its gradient and Hessian in ``fields``.

    fields, center: ``z`` and ``w``, shape (L, r, N); precision: ``V^{-1}``, shape (L, r, r);
    target, metric: as in `channel_loss`. Returns arrays of the shapes that
    `channel_derivatives` returns.
    """
    value, gradient, hessian = channel_derivatives(target, fields, metric)
    offset = fields - center
    if offset.shape[1] == 1:
        pull = precision * offset  # matrices of one entry
    else:
        pull = np.einsum("lab,lbp->lap", precision, offset)
    value += 0.5 * np.einsum("lap,lap->p", offset, pull)
    gradient += pull
    for token, block in enumerate(precision):
        hessian[token, :, token] += block[..., None]
    return value, gradient, hessian


def newton_direction(hessian: Array, gradient: Array) -> Array:
    """Newton step ``-H^{-1} g`` for many small systems, made a descent direction where H is not
    positive definite.

    hessian: shape (n, n, N), symmetric; gradient: shape (n, N). Returns shape (n, N).
    Gaussian elimination without pivoting, written over the leading axes; a pivot that is
    negative is replaced by its modulus, and one below 1e-6 by 1e-6.
    """
    size = len(gradient)
    work = hessian.copy()
    step = -gradient
    for k in range(size):
        pivot = np.maximum(np.abs(work[k, k]), 1e-6)
        work[k, k] = pivot
        for i in range(k + 1, size):
            factor = work[k, i] / pivot
            work[i, i:] -= factor * work[k, i:]
            step[i] -= factor * step[k]
    for k in reversed(range(size)):
        for j in range(k + 1, size):
            step[k] -= work[k, j] * step[j]
        step[k] /= work[k, k]
    return step


def descend(start: Array, center: Array, precision: Array, target: Array, metric: Array):
    """Local minimum of the proximal objective that is reached from ``start``, node by node.

    Damped Newton iteration; a step that does not lower the objective is shortened fourfold.
    Shapes as in `objective`. Returns the minimisers (L, r, N) and their objective (N,).
    Raises ConvergenceError if a node has not settled in 200 iterations.
    """
    shape = start.shape
    size, count = shape[0] * shape[1], shape[2]

    def evaluate(fields, nodes):
        value, gradient, hessian = objective(
            fields, center[..., nodes], precision, target[..., nodes], metric_of(metric, nodes)
        )
        gradient = gradient.reshape(size, -1)
        step = newton_direction(hessian.reshape(size, size, -1), gradient)
        return value, step, np.einsum("ip,ip->p", gradient, step)

    result, value = start.copy(), np.empty(count)
    if count == 0:
        return result, value
    nodes, whole = np.arange(count), slice(None)
    z = start.reshape(size, count)
    f, step, slope = evaluate(start, whole)
    length = np.ones(count)
    going = np.ones(count, dtype=bool)
    for _ in range(200):
        move = length * step
        short = (np.abs(move) < SETTLED * (1.0 + np.abs(z))).all(axis=0)
        done = np.flatnonzero(going & short)
        # what so short a step lowers the objective by, to third order in its length
        lower = f + length * (1.0 - 0.5 * length) * slope
        if len(done) == count:
            return (z + move).reshape(shape), lower
        value[nodes[done]] = lower[done]
        for row, own, way in zip(result.reshape(size, count), z, move, strict=True):
            row[nodes[done]] = own[done] + way[done]
        going[done] = False
        left = np.count_nonzero(going)
        if left == 0:
            return result, value
        if left < CROWDED * len(nodes):
            nodes, z, f, step = nodes[going], z[:, going], f[going], step[:, going]
            slope, length, move = slope[going], length[going], move[:, going]
            whole, going = nodes, np.ones(left, dtype=bool)
        trial = z + move
        f_new, step_new, slope_new = evaluate(trial.reshape(shape[:2] + (-1,)), whole)
        refused = np.flatnonzero(~(f_new <= f + 1e-4 * length * slope))  # nan is refused, too
        again = 0.25 * length[refused]
        for new, old in ((trial, z), (step_new, step), (f_new, f), (slope_new, slope)):
            new[..., refused] = old[..., refused]
        z, f, step, slope, length = trial, f_new, step_new, slope_new, np.ones(len(nodes))
        length[refused] = again
    left = np.count_nonzero(going)
    raise ConvergenceError(f"{left} of {count} proximal problems did not settle")


@dataclass(frozen=True)
class Minima:
    """Global minimum of the proximal objective at each node, and the second one where it is known.

    fields: the proximal operator, shape (L, r, N); envelope: the objective there, the Moreau
    envelope, shape (N,). rivals: indices of the nodes with a second local minimum, shape (M,);
    rival_fields, rival_envelope: that minimum, shapes (L, r, M) and (M,).
    """

    fields: Array
    envelope: Array
    rivals: Array
    rival_fields: Array
    rival_envelope: Array

    def rivals_of(self, nodes: Array) -> Array:
        """Positions of ``nodes`` among the rivals. Raises ConvergenceError if one is not there."""
        positions = np.searchsorted(self.rivals, nodes)
        known = np.append(self.rivals, -1)[positions]
        if not np.array_equal(known, nodes):
            raise ConvergenceError(f"nodes {nodes} have no second minimum any more")
        return positions

    def misplaced(self) -> Array:
        """Which rivals are lower than their leader, shape (M,)."""
        return self.rival_envelope < self.envelope[self.rivals]


#: Two minimisers closer than this are the same.
DISTINCT = 1e-4


def target_inverse(target: Array) -> Array:
    """Rank-one fields whose attention is the target, or near it; a start for the global search.

    target: shape (L, L, N). Returns shape (L, 1, N); its negative serves as well.
    Up to a constant in each row, ``log S_il = z_i (z_l - mean z)``: the left singular vector of
    the row-centred log target gives the direction of ``z``, and the scale follows from the
    right one. Exact for two tokens where ``logit T_11 + logit T_22 > 0.01``.
    """
    logs = np.log(np.maximum(target, 1e-9))
    logs -= logs.mean(axis=1, keepdims=True)
    left, singular, right = np.linalg.svd(np.moveaxis(logs, -1, 0))
    direction = left[:, :, 0]
    centred = direction - direction.mean(axis=1, keepdims=True)
    norm = np.maximum((centred**2).sum(axis=1), 1e-4)
    match = np.maximum((centred * right[:, 0]).sum(axis=1), 0.02 * np.sqrt(norm))
    scale = np.minimum(np.sqrt(singular[:, 0] * match / norm), 20.0)
    return (scale * direction.T)[:, None]


def find_minima(
    center: Array, precision: Array, target: Array, metric: Array, inverse: Array
) -> Minima:
    """Global search: descend from ``w``, from the target's inverse and from its negative.

    Shapes as in `objective`; inverse: `target_inverse` of the target. Two tokens and rank one
    have had at most two minima wherever they were counted, and these starts found the lower one
    on every node that was compared with a grid of 81 starts.
    """
    problem = (center, precision, target, metric)
    found = [descend(start, *problem) for start in (center, inverse, -inverse)]
    fields = np.stack([pair[0] for pair in found])
    values = np.stack([pair[1] for pair in found])
    best = values.argmin(axis=0)
    nodes = np.arange(center.shape[-1])
    lowest = np.moveaxis(fields[best, ..., nodes], 0, -1)
    same = (np.abs(fields - lowest) < DISTINCT).all(axis=(1, 2))
    other = np.where(same, np.inf, values)
    second = other.argmin(axis=0)
    rivals = np.flatnonzero(np.isfinite(other[second, nodes]))
    return Minima(
        lowest,
        values[best, nodes],
        rivals,
        np.moveaxis(fields[second[rivals], ..., rivals], 0, -1),
        values[second[rivals], rivals],
    )


def follow_minima(
    minima: Minima,
    center: Array,
    precision: Array,
    target: Array,
    metric: Array,
    inverse: Array | None = None,
    lead: bool = True,
) -> Minima:
    """Minima of a nearby problem, from those of the last one: both are followed, the lower leads.

    With ``lead=False`` each minimum keeps its place, whichever is lower. With ``inverse`` (as in
    `find_minima`) minima that were born since are looked for too, by a descent from the other
    side of the plane ``z . inverse = 0``, at the nodes where the other side can hold a lower one:
    as the loss is not negative, a lower minimum lies in the ball
    ``(z - w)^T V^{-1} (z - w) < 2 M``, and only nodes whose ball meets the plane are tried.
    """
    problem = (center, precision, target, metric)
    fields, envelope = descend(minima.fields, *problem)
    rivals = minima.rivals
    starts = minima.rival_fields
    if inverse is not None:
        norm = (np.linalg.inv(precision)[..., None] * inverse[:, None]).sum(axis=2)
        reach = (center * inverse).sum(axis=(0, 1)) ** 2 < 2 * envelope * (norm * inverse).sum(
            axis=(0, 1)
        )
        reach[rivals] = False
        tried = np.flatnonzero(reach)
        side = np.sign((fields[..., tried] * inverse[..., tried]).sum(axis=(0, 1)))
        rivals = np.concatenate((rivals, tried))
        starts = np.concatenate((starts, -side * inverse[..., tried]), axis=-1)
        order = rivals.argsort()
        rivals, starts = rivals[order], starts[..., order]
    rival_fields, rival_envelope = descend(
        starts, center[..., rivals], precision, target[..., rivals], metric_of(metric, rivals)
    )
    apart = (np.abs(rival_fields - fields[..., rivals]) >= DISTINCT).any(axis=(0, 1))
    rivals, rival_fields = rivals[apart], rival_fields[..., apart]
    rival_envelope = rival_envelope[apart]
    followed = Minima(fields, envelope, rivals, rival_fields, rival_envelope)
    return exchange(followed, followed.misplaced()) if lead else followed


def exchange(minima: Minima, which: Array) -> Minima:
    """The same minima with leader and rival exchanged at the rivals selected by ``which`` (M,)."""
    nodes = minima.rivals[which]
    fields, envelope = minima.fields.copy(), minima.envelope.copy()
    rival_fields, rival_envelope = minima.rival_fields.copy(), minima.rival_envelope.copy()
    fields[..., nodes], rival_fields[..., which] = rival_fields[..., which], fields[..., nodes]
    envelope[nodes], rival_envelope[which] = rival_envelope[which], envelope[nodes]
    return Minima(fields, envelope, minima.rivals, rival_fields, rival_envelope)
