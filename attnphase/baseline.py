"""The linear positional baseline ``f_W(x) = W x``.

Averaged over a sentence's tokens, ``||y - W x||^2 / d`` tends to ``sum_il s_l (T_il - W_il)^2``,
so the best matrix is ``W = E[T]`` whatever the number of samples, and what it leaves over is

    epsilon_lin = (1 - omega)^2 / 2  sum_il s_l Var( row-softmax(h* h*^T)_il ).

Source: arXiv:2402.03902, section on the linear baseline.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from attnphase.model import Array, Model, attention_matrix
from attnphase.quadrature import gauss_hermite, polar_rule, replicate_mean, sobol_normals

#: Orders of the product rules tried in turn, by the number of integration variables.
ORDERS = {2: (40, 80, 160, 320), 3: (20, 40, 60, 80)}
#: Two rules in a row that differ by less than this fraction end the search.
AGREEMENT = 1e-10
#: Sobol replicates and log2 of their points where a product rule would need too many nodes.
REPLICATES, LOG2_POINTS, SEED = 16, 16, 20240203


@dataclass(frozen=True, eq=False)
class LinearBaseline:
    """Best linear positional map and its test error.

    weights: ``W = E[T]``, shape (L, L), rows sum to 1, read-only. test_error: ``epsilon_lin``, the
    limit of ``E ||y - W x||^2 / (2 d)``. standard_error: of the test error; for up to three
    integration variables it is the difference between the last two quadrature rules instead.
    """

    weights: Array
    test_error: float
    standard_error: float


def linear_baseline(model: Model) -> LinearBaseline:
    """Best linear positional baseline of ``model``; it does not depend on the sample complexity.

    The integral over the ``L t`` target fields is taken by product rules of growing order (polar
    for two fields, Gauss-Hermite for three), by scrambled Sobol points for more fields.
    """
    if not isinstance(model, Model):
        raise ValueError(f"model must be an attnphase.Model, got {model!r}")
    dimension = model.length * model.target_rank
    if dimension in ORDERS:
        error, standard_error = np.inf, np.inf
        for order in ORDERS[dimension]:
            rough = error
            mean, error = _moments(model, *_rule(order, dimension))
            standard_error = abs(error - rough)
            if standard_error <= AGREEMENT * error:
                break
    else:
        uniform = np.full(2**LOG2_POINTS, 0.5**LOG2_POINTS)
        estimates = [
            _moments(model, sobol_normals(dimension, LOG2_POINTS, seed), uniform)
            for seed in np.random.SeedSequence(SEED).spawn(REPLICATES)
        ]
        mean = np.mean([moments[0] for moments in estimates], axis=0)
        estimate = replicate_mean([moments[1] for moments in estimates])
        error, standard_error = estimate.value, estimate.standard_error
    weights = (1 - model.omega) * mean + model.omega * np.array(model.positional_target)
    weights.setflags(write=False)
    return LinearBaseline(weights, float(error), float(standard_error))


def _rule(order: int, dimension: int) -> tuple[Array, Array]:
    return polar_rule(order) if dimension == 2 else gauss_hermite(order, dimension)


def _moments(model: Model, nodes: Array, node_weights: Array) -> tuple[Array, float]:
    """Mean of the semantic attention and the baseline's test error on the given nodes."""
    shape = (model.length, model.target_rank, -1)
    fields = np.sqrt(model.variances)[:, None, None] * nodes.reshape(shape)
    attention = attention_matrix(fields)
    mean = attention @ node_weights
    variance = np.square(attention - mean[..., None]) @ node_weights
    return mean, 0.5 * (1 - model.omega) ** 2 * (variance @ model.variances).sum()
