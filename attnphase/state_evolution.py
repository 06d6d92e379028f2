"""State evolution of the attention layer: the map and its free energy.

Replica-symmetric, at zero temperature, for isotropic tokens (``Sigma_l = sigma_l^2 I``) and
``r = t = 1``. Source: arXiv:2402.03902, appendix on the replica computation.

The expectations are over ``2 L`` standard normal variables ``u_l, v_l``, through

    h*_l = sqrt(rho_l) u_l,
    w_l  = m_l + (theta_l / rho_l) h*_l + sqrt(q_l - theta_l^2 / rho_l) v_l.

Drawn this way the target does not depend on the overlaps, and every conjugate is the exact
derivative of the free energy on the same nodes. The nodes come in pairs (u, v) and (u, -v), so
that the uninformed solution is an exact fixed point on them too.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from attnphase.model import Array, Model, check_integer
from attnphase.proximal import (
    Minima,
    channel_loss,
    find_minima,
    follow_minima,
    target_inverse,
)
from attnphase.quadrature import sobol_normals


@dataclass(frozen=True)
class Overlaps:
    """Order parameters, per token.

    q: ``Q^T Sigma_l Q / d``, shape (L, r, r); m: ``p_l Q / sqrt(d)``, (L, r);
    theta: ``Q^T Sigma_l Q* / d``, (L, r, t); V: the response, (L, r, r).
    """

    q: Array
    m: Array
    theta: Array
    V: Array


@dataclass(frozen=True)
class Conjugates:
    """Conjugate order parameters (the hats), per token; shapes as in `Overlaps`."""

    q: Array
    m: Array
    theta: Array
    V: Array


@dataclass(frozen=True)
class Tie:
    """Nodes at which two minima are equal, so that the proximal operator may be either.

    nodes: their indices, shape (k,), one node or a pair (u, v), (u, -v); share: the weight in
    [0, 1] of their second minimum, the first has the rest. An average over finitely many nodes
    jumps where a node's lead changes; a fixed point that falls on such a jump is one of the
    relaxed map, in which the tied nodes are divided between their two minima.
    """

    nodes: Array
    share: float


@dataclass(frozen=True)
class Nodes:
    """Integration nodes of one replicate and what on them does not depend on the overlaps.

    noise: ``v``, shape (L, r, N); target_fields: ``h*``, shape (L, t, N);
    target: ``T[h*]``, shape (L, L, N); inverse: `target_inverse` of it, shape (L, 1, N).
    """

    noise: Array
    target_fields: Array
    target: Array
    inverse: Array

    @property
    def count(self) -> int:
        """Number of nodes N; each has weight 1 / N."""
        return self.noise.shape[-1]

    def distinct(self, branch: str) -> Nodes:
        """The nodes of which no two are mirror images of each other on that branch.

        With m = theta = 0 the problems at (u, v) and (u, -v) are: one of them stands for both.
        """
        if branch != "uninformed":
            return self
        half = self.count // 2
        parts = (self.noise, self.target_fields, self.target, self.inverse)
        return Nodes(*(part[..., :half] for part in parts))


def make_nodes(model: Model, log2_points: int, seed: np.random.SeedSequence | int) -> Nodes:
    """``2**log2_points`` nodes: scrambled Sobol points (u, v), and the same with -v."""
    length = model.length
    normals = sobol_normals(2 * length, log2_points - 1, seed)
    target_fields = (np.sqrt(model.variances)[:, None] * normals[:length])[:, None]
    target = model.target(target_fields)
    noise = normals[length:, None]

    def twice(array: Array) -> Array:
        return np.concatenate((array, array), axis=-1)

    return Nodes(
        np.concatenate((noise, -noise), axis=-1),
        twice(target_fields),
        twice(target),
        twice(target_inverse(target)),
    )


def prox_centers(model: Model, nodes: Nodes, overlaps: Overlaps) -> Array:
    """The Gaussian centres ``w`` of the proximal problems on the nodes, shape (L, 1, N)."""
    slope = overlaps.theta[:, 0, 0] / model.variances
    return (
        overlaps.m[:, :, None]
        + slope[:, None, None] * nodes.target_fields
        + conditional_spread(model, overlaps)[:, None, None] * nodes.noise
    )


def conditional_spread(model: Model, overlaps: Overlaps) -> Array:
    """Standard deviation of ``w`` given ``h*``, per token, shape (L,)."""
    return np.sqrt(overlaps.q[:, 0, 0] - overlaps.theta[:, 0, 0] ** 2 / model.variances)


#: Nodes per block: few enough that the arrays of one block stay near the processor's second-level
#: cache (2 MB), enough that numpy's own overhead does not count.
BLOCK = 8192


def solve_channel(
    model: Model,
    nodes: Nodes,
    overlaps: Overlaps,
    minima: Minima | None = None,
    search: bool = False,
    lead: bool = True,
) -> Minima:
    """Proximal operator and Moreau envelope on all nodes.

    With ``minima`` of nearby overlaps these are followed, and with ``search`` new ones are looked
    for as well; ``lead`` as in `follow_minima`. Without ``minima`` the search is global
    (`find_minima`).
    """
    center = prox_centers(model, nodes, overlaps)
    precision = np.linalg.inv(overlaps.V)
    parts, offsets = [], range(0, nodes.count, BLOCK)
    for offset in offsets:
        block = slice(offset, offset + BLOCK)
        problem = (center[..., block], precision, nodes.target[..., block], model.variances)
        if minima is None:
            parts.append(find_minima(*problem, nodes.inverse[..., block]))
        else:
            inverse = nodes.inverse[..., block] if search else None
            parts.append(follow_minima(_cut(minima, offset), *problem, inverse, lead))
    rivals = [part.rivals + offset for part, offset in zip(parts, offsets, strict=True)]

    def join(name: str) -> Array:
        return np.concatenate([getattr(part, name) for part in parts], axis=-1)

    return Minima(
        join("fields"),
        join("envelope"),
        np.concatenate(rivals),
        join("rival_fields"),
        join("rival_envelope"),
    )


def _cut(minima: Minima, offset: int) -> Minima:
    """The part of ``minima`` that belongs to the block of nodes that begins at ``offset``."""
    low, high = np.searchsorted(minima.rivals, (offset, offset + BLOCK))
    block = slice(offset, offset + BLOCK)
    return Minima(
        minima.fields[..., block],
        minima.envelope[block],
        minima.rivals[low:high] - offset,
        minima.rival_fields[..., low:high],
        minima.rival_envelope[low:high],
    )


def conjugates_from(
    model: Model,
    alpha: float,
    nodes: Nodes,
    overlaps: Overlaps,
    minima: Minima,
    tie: Tie | None = None,
) -> Conjugates:
    """Conjugates at given overlaps, from ``g_l = (z_l - w_l) / V_l`` averaged over the nodes.

        qhat = alpha E[g^2],   mhat = alpha E[g],   Vhat = -alpha E[g v] / s,
        thetahat = alpha E[g (h* - theta v / s)] / rho,     s^2 = q - theta^2 / rho.

    Equal, node by node, to the forms of arXiv:2402.03902 in which ``w`` is drawn first.
    """
    center = prox_centers(model, nodes, overlaps)
    pull = (minima.fields - center)[:, 0] / overlaps.V[:, 0]
    square = pull * pull
    if tie is not None:
        at, rivals = tie.nodes, minima.rivals_of(tie.nodes)
        other = (minima.rival_fields[..., rivals] - center[..., at])[:, 0] / overlaps.V[:, 0]
        square[:, at] += tie.share * (other * other - square[:, at])
        pull[:, at] += tie.share * (other - pull[:, at])
    rate = alpha / nodes.count
    spread = conditional_spread(model, overlaps)
    memory = rate * (pull * nodes.noise[:, 0]).sum(axis=1) / spread
    signal = rate * (pull * nodes.target_fields[:, 0]).sum(axis=1)
    theta = (signal - overlaps.theta[:, 0, 0] * memory) / model.variances
    return Conjugates(
        q=(rate * square.sum(axis=1))[:, None, None],
        m=(rate * pull.sum(axis=1))[:, None],
        theta=theta[:, None, None],
        V=-memory[:, None, None],
    )


def overlaps_from(model: Model, conjugates: Conjugates) -> Overlaps:
    """Overlaps of the weights ``Q_i`` that the conjugates define, for isotropic tokens.

    With ``D = lambda + sum_l sigma_l^2 Vhat_l`` and ``E = e e^T``:
    ``V_l = sigma_l^2 / D``, ``m = E mhat / D``, ``theta_l = sigma_l^2 Theta`` and
    ``q_l = sigma_l^2 (nu + mhat^T E mhat / D^2 + Theta^2)``, where
    ``Theta = sum_l sigma_l^2 thetahat_l / D`` and ``nu = sum_l sigma_l^2 qhat_l / D^2``.
    """
    return overlaps_of_weights(model, *moments_of_weights(model, conjugates))


def moments_of_weights(model: Model, conjugates: Conjugates) -> tuple[float, float, Array, float]:
    """(nu, 1 / D, mu, Theta) of `overlaps_from`; ``mu = e^T mhat / D`` has shape (K,)."""
    variances = model.variances
    stiffness = model.regularization + variances @ conjugates.V[:, 0, 0]
    mean = np.asarray(model.encodings).T @ conjugates.m[:, 0] / stiffness
    signal = variances @ conjugates.theta[:, 0, 0] / stiffness
    noise = variances @ conjugates.q[:, 0, 0] / stiffness**2
    return noise, 1.0 / stiffness, mean, signal


def overlaps_of_weights(
    model: Model, noise: float, response: float, mean: Array, signal: float
) -> Overlaps:
    """Overlaps of weights with noise nu, response 1 / D, means mu (K,) and signal Theta."""
    variances = model.variances
    norm = noise + mean @ mean + signal**2
    return Overlaps(
        q=(norm * variances)[:, None, None],
        m=(np.asarray(model.encodings) @ mean)[:, None],
        theta=(signal * variances)[:, None, None],
        V=(response * variances)[:, None, None],
    )


def free_energy(
    model: Model,
    alpha: float,
    overlaps: Overlaps,
    conjugates: Conjugates,
    minima: Minima,
) -> float:
    """Replica-symmetric free energy at zero temperature; at its stationary point, the train loss.

        alpha E[M] - 1/2 sum_l (Vhat_l q_l - qhat_l V_l) + sum_l (m_l mhat_l + theta_l thetahat_l)
        - (sum_l sigma_l^2 qhat_l + mhat^T E mhat + (sum_l sigma_l^2 thetahat_l)^2) / (2 D)
    """
    noise, response, mean, signal = moments_of_weights(model, conjugates)
    coupling = 0.5 * (conjugates.q * overlaps.V - conjugates.V * overlaps.q).sum()
    coupling += (conjugates.m * overlaps.m).sum() + (conjugates.theta * overlaps.theta).sum()
    entropic = 0.5 * (noise + mean @ mean + signal**2) / response
    return float(alpha * minima.envelope.mean() + coupling - entropic)


def train_loss(
    model: Model,
    alpha: float,
    nodes: Nodes,
    overlaps: Overlaps,
    minima: Minima,
    tie: Tie | None = None,
) -> float:
    """Train loss by the direct road: ``alpha E[loss(prox)] / 2 + lambda E||Q||^2 / (2 d)``."""
    loss = channel_loss(nodes.target, minima.fields, model.variances)
    if tie is not None:
        other = minima.rival_fields[..., minima.rivals_of(tie.nodes)]
        second = channel_loss(nodes.target[..., tie.nodes], other, model.variances)
        loss[tie.nodes] += tie.share * (second - loss[tie.nodes])
    norm = overlaps.q[0, 0, 0] / model.variances[0]
    return float(0.5 * (alpha * loss.mean() + model.regularization * norm))


def test_error(model: Model, nodes: Nodes, overlaps: Overlaps) -> float:
    """Test error ``epsilon_g = E[loss(h*, h + m)] / 2``: a fresh sentence has fields ``w``."""
    center = prox_centers(model, nodes, overlaps)
    return float(0.5 * channel_loss(nodes.target, center, model.variances).mean())


def impose_parity(branch: str, conjugates: Conjugates) -> Conjugates:
    """Conjugates with those set to zero that are odd under the branch's symmetry.

    With m = 0 the law of (w, h*) does not change under (w, h*) -> (-w, -h*), which turns g into
    -g: E[g] = 0. With theta = 0 the same holds for h* -> -h* alone, and E[g h*] = 0. An average
    over finitely many nodes only comes near; setting the zero is averaging over the mirrored
    nodes too.
    """
    if branch != "positional":
        conjugates = replace(conjugates, m=np.zeros_like(conjugates.m))
    if branch != "semantic":
        conjugates = replace(conjugates, theta=np.zeros_like(conjugates.theta))
    return conjugates


def replicate_nodes(
    model: Model, log2_points: int, replicates: int, seed: int
) -> tuple[Nodes, ...]:
    """Independent sets of nodes for ``replicates`` replicates; they do not depend on alpha.

    Raises ValueError for arguments out of range, NotImplementedError for ranks above one.
    """
    if not isinstance(model, Model):
        raise ValueError(f"model must be an attnphase.Model, got {model!r}")
    check_integer("log2_points", log2_points, 6, 22)
    check_integer("replicates", replicates, 1, 1024)
    check_integer("seed", seed, 0, 2**63 - 1)
    if (model.rank, model.target_rank) != (1, 1):
        raise NotImplementedError(
            "state evolution is implemented for rank = target_rank = 1, got "
            f"rank = {model.rank}, target_rank = {model.target_rank}"
        )
    seeds = np.random.SeedSequence(seed).spawn(replicates)
    return tuple(make_nodes(model, log2_points, one) for one in seeds)
