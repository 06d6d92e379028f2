"""Nodes for expectations over independent standard normal variables, and their standard errors.

Gauss-Hermite and polar rules serve smooth integrands in few dimensions. The expectations of state
evolution have a jump (where the proximal operator jumps), so they are averages over scrambled
Sobol points; independent scramblings of the same points give an honest standard error
(Owen, Annals of Statistics 25, 1541 (1997)).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.special import ndtri, roots_hermitenorm, roots_legendre
from scipy.stats import qmc

from attnphase.model import Array

SOBOL_BITS = 30
#: Two standard normal variables lie further from the origin with probability exp(-72) = 5e-32.
RADIUS = 12.0


def gauss_hermite(order: int, dimension: int) -> tuple[Array, Array]:
    """Tensor-product Gauss-Hermite rule for standard normal variables.

    Returns nodes (dimension, order**dimension) and weights (order**dimension,), whose sum is 1.
    Exact for polynomials of degree below ``2 order`` in each variable.
    """
    nodes, weights = roots_hermitenorm(order)
    grids = np.meshgrid(*[nodes] * dimension, indexing="ij")
    product = np.ones(1)
    for _ in range(dimension):
        product = np.multiply.outer(product, weights / weights.sum()).ravel()
    return np.stack([grid.ravel() for grid in grids]), product


def polar_rule(order: int) -> tuple[Array, Array]:
    """Product rule in polar coordinates for two standard normal variables.

    Gauss-Legendre in the radius up to `RADIUS`, the trapezoidal rule in the angle. Unlike
    Gauss-Hermite it keeps up with integrands that turn steep away from the origin.

    Returns nodes (2, 4 order**2) and weights (4 order**2,), whose sum is 1.
    Raises ValueError for an order below 1.
    """
    points, weights = roots_legendre(order)
    radius = 0.5 * RADIUS * (1 + points)
    weights = weights * radius * np.exp(-0.5 * radius**2)
    angle = np.linspace(0, 2 * np.pi, 4 * order, endpoint=False)
    nodes = np.stack([np.multiply.outer(radius, wave(angle)).ravel() for wave in (np.cos, np.sin)])
    return nodes, np.repeat(weights / weights.sum() / len(angle), len(angle))


def sobol_normals(dimension: int, log2_points: int, seed: np.random.SeedSequence | int) -> Array:
    """Scrambled Sobol points mapped to standard normal variables.

    Returns shape (dimension, 2**log2_points). Each scrambling gives an unbiased average.
    """
    rng = np.random.default_rng(seed)
    points = qmc.Sobol(dimension, scramble=True, bits=SOBOL_BITS, rng=rng)
    uniform = points.random_base2(log2_points)
    # the points lie on a lattice of spacing 2^-30 that holds 0: take the middles of its cells
    return ndtri(uniform.T + 0.5 ** (SOBOL_BITS + 1))


@dataclass(frozen=True)
class Estimate:
    """Mean of independent replicates and its standard error (arrays or floats of equal shape)."""

    value: float
    standard_error: float


def replicate_mean(values: Array) -> Estimate:
    """Mean over the first axis of ``values`` (replicates, ...) with its standard error.

    With R replicates a 95 % interval is value +- t standard_error, where t is the quantile of
    Student's distribution with R - 1 degrees of freedom (3.18 for R = 4). One replicate gives
    a standard error of nan: there is nothing to estimate it from.
    """
    values = np.asarray(values, dtype=float)
    count = len(values)
    mean = values.mean(axis=0)
    spread = np.full_like(mean, np.nan)
    if count > 1:
        spread = values.std(axis=0, ddof=1) / np.sqrt(count)
    if mean.ndim == 0:
        return Estimate(float(mean), float(spread))
    return Estimate(mean, spread)
