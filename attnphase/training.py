"""Training data at finite dimension, the training risk, and what a trained layer is measured by.

The risk of a sentence needs only the Gram matrix of its tokens ``v_l = x_l + p_l``: since the
rows of ``S`` sum to 1,

    ||y - S v||^2 / d = sum_i (S - T)_i G (S - T)_i^T + c,     G = v v^T / d,

where ``T``, also with rows that sum to 1, is the target's attention as these tokens show it (it
tends to ``T[h*]`` as d grows) and ``c`` is what no attention matrix can fit. Both are computed
once; after that an evaluation of the risk is two products with the matrix of tokens. Chapter
"Local fields and concentration".
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from attnphase.model import LARGEST, Array, Model, check_integer, check_number
from attnphase.proximal import channel_derivatives, channel_loss, target_inverse
from attnphase.quadrature import sobol_normals

#: Sentences whose tokens are drawn, or converted to double precision, at a time.
BLOCK = 256
#: Sobol points (log2) and seed of the expectation in the test error.
TEST_LOG2_POINTS, TEST_SEED = 14, 90
#: Weights are of order one; the fields of larger ones than this would overflow.
LARGEST_WEIGHT = 1e6


@dataclass(frozen=True, eq=False)
class Dataset:
    """Training sentences with their targets.

    model, alpha, seed: as given to `sample`. tokens: ``v = x + p``, shape (n, L, d);
    teacher: ``Q*``, shape (d, t); directions: the encodings' ``u_k``, shape (K, d).
    target, metric: ``T`` and ``G`` of each sentence, shape (L, L, n); floor: ``c``, shape (n,).
    """

    model: Model
    alpha: float
    seed: int
    tokens: Array
    teacher: Array
    directions: Array
    target: Array
    metric: Array
    floor: Array

    @cached_property
    def inverse(self) -> Array:
        """Fields that the target's attention suggests (`target_inverse`), shape (L, 1, n)."""
        return target_inverse(self.target)

    @property
    def count(self) -> int:
        """Number of sentences n."""
        return len(self.tokens)

    @property
    def dimension(self) -> int:
        """Dimension d of a token."""
        return self.tokens.shape[2]

    @cached_property
    def encodings(self) -> Array:
        """Positional encodings ``p_l``, shape (L, d)."""
        return np.asarray(self.model.encodings) @ self.directions

    def fields(self, weights: Array) -> Array:
        """Fields ``z_l = (x_l + p_l) Q / sqrt(d)`` of all sentences, shape (L, r, n)."""
        count, length, dimension = self.tokens.shape
        rows = self.tokens.reshape(count * length, dimension)
        weights = weights.astype(self.tokens.dtype, copy=False)
        fields = (rows @ weights).reshape(count, length, -1) / np.sqrt(dimension)
        return np.ascontiguousarray(np.moveaxis(fields, 0, -1), dtype=float)

    def weights_from(self, pulls: Array) -> Array:
        """``sum_mu,l v_l^T g_l / sqrt(d)`` for pulls ``g`` of shape (L, r, n); shape (d, r).

        The transpose of `fields`.
        """
        count, length, dimension = self.tokens.shape
        rows = self.tokens.reshape(count * length, dimension)
        flat = np.moveaxis(pulls, -1, 0).reshape(count * length, -1)
        flat = np.ascontiguousarray(flat, dtype=self.tokens.dtype)
        return (rows.T @ flat).astype(float) / np.sqrt(dimension)

    def risk(self, weights: Array) -> tuple[float, Array]:
        """Training risk divided by d, and its gradient.

            R(Q) = (sum_mu ||y - f_Q||^2 / (2 d) + lambda / 2 ||Q||_F^2) / d,

        whose minimum is the train loss ``epsilon_t``. weights: ``Q``, shape (d, r).
        Returns a float and an array of shape (d, r).
        """
        fields = self.fields(weights)
        half_loss, slope, _ = channel_derivatives(self.target, fields, self.metric)
        ridge = self.model.regularization
        gradient = self.weights_from(slope) + ridge * weights
        return self.risk_from(half_loss, weights), gradient / self.dimension

    def risk_from(self, half_loss: Array, weights: Array) -> float:
        """The value of `risk` where half the channel's loss of each sentence, (n,), is known."""
        ridge = 0.5 * self.model.regularization * (weights**2).sum()
        return float((half_loss + 0.5 * self.floor).sum() + ridge) / self.dimension

    def overlaps(self, weights: Array) -> tuple[Array, Array, Array]:
        """Summary statistics of weights ``Q`` of shape (d, r).

        Returns q (L, r, r), m (L, r) and theta (L, r, t).
        """
        dimension = self.dimension
        variances = self.model.variances[:, None, None]
        return (
            variances * (weights.T @ weights / dimension),
            self.encodings @ weights / np.sqrt(dimension),
            variances * (weights.T @ self.teacher / dimension),
        )


def sample(
    model: Model, alpha: float, dimension: int, seed: int, dtype: type = np.float64
) -> Dataset:
    """Draw a teacher and ``n = round(alpha d)`` training sentences.

    dimension: ``d``, at least the number of tokens and of encoding directions; seed: of all that
    is random; dtype: of the tokens, float64 or float32 (half the memory; targets and losses are
    double precision in any case). The encodings' directions are the first vectors of
    the discrete cosine basis, of which the first is ``(1, ..., 1) / sqrt(d)``.

    Raises ValueError for an argument out of range, MemoryError if this machine cannot hold the
    tokens. Source: arXiv:2402.03902, section 2.
    """
    if not isinstance(model, Model):
        raise ValueError(f"model must be an attnphase.Model, got {model!r}")
    check_number("alpha", alpha, 0.0, LARGEST)
    coefficients = np.asarray(model.encodings)
    length, count_directions = coefficients.shape
    check_integer("dimension", dimension, max(length, count_directions), 10**7)
    check_integer("seed", seed, 0, 2**63 - 1)
    if not any(dtype is one for one in (float, np.float64, np.float32)):
        raise ValueError(f"dtype must be numpy.float64 or numpy.float32, got {dtype!r}")
    needed = float(alpha) * dimension**2 * length * np.dtype(dtype).itemsize
    if needed > (memory := _physical_memory()):
        raise MemoryError(
            f"the tokens of alpha * dimension = {alpha!r} * {dimension!r} sentences take "
            f"{needed / 1e9:.3g} GB, and this machine has {memory / 1e9:.3g} GB; take a smaller "
            "dimension, or dtype=numpy.float32"
        )
    count = round(alpha * dimension)
    if count < 1:
        raise ValueError(
            f"alpha * dimension must be at least one sentence, got alpha = {alpha!r} and "
            f"dimension = {dimension!r}"
        )
    rng = np.random.default_rng(seed)
    teacher = rng.standard_normal((dimension, model.target_rank))
    directions = _cosine_basis(count_directions, dimension)
    encodings = coefficients @ directions
    scale = np.sqrt(model.variances)[:, None]
    tokens = np.empty((count, length, dimension), dtype)
    target, metric = np.empty((2, length, length, count))
    floor = np.empty(count)
    for offset in range(0, count, BLOCK):
        block = slice(offset, min(offset + BLOCK, count))
        drawn = scale * rng.standard_normal((block.stop - offset, length, dimension), dtype)
        tokens[block] = drawn + encodings
        parts = _channel_of(model, tokens[block].astype(float), encodings, teacher)
        target[..., block], metric[..., block], floor[block] = parts
    return Dataset(
        model=model,
        alpha=float(alpha),
        seed=int(seed),
        tokens=tokens,
        teacher=teacher,
        directions=directions,
        target=target,
        metric=metric,
        floor=floor,
    )


def _physical_memory() -> float:
    """Bytes of this machine's memory; infinity where the system does not tell."""
    try:
        return float(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    except (AttributeError, OSError, ValueError):
        return float("inf")


def _cosine_basis(count: int, dimension: int) -> Array:
    """The first ``count`` vectors of the orthonormal discrete cosine basis, (count, d)."""
    angle = np.pi * (np.arange(dimension) + 0.5) / dimension
    rows = np.cos(np.arange(count)[:, None] * angle)
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def _channel_of(
    model: Model, tokens: Array, encodings: Array, teacher: Array
) -> tuple[Array, Array, Array]:
    """Target, metric and floor of sentences ``v`` of shape (N, L, d): see the module's head."""
    dimension = tokens.shape[2]
    bare = tokens - encodings
    fields = np.moveaxis(bare @ teacher, 0, -1) / np.sqrt(dimension)
    attention = np.moveaxis(model.target(fields), -1, 0)  # (N, L, L)
    gram = tokens @ tokens.swapaxes(1, 2) / dimension
    overlap = attention @ (bare @ tokens.swapaxes(1, 2)) / dimension  # y v^T / d
    best = np.linalg.solve(gram, overlap.swapaxes(1, 2)).swapaxes(1, 2)
    # the nearest matrix whose rows sum to 1
    ones = np.linalg.solve(gram, np.ones(gram.shape[:2] + (1,)))[..., 0]
    missing = 1.0 - best.sum(axis=2)
    best += missing[..., None] * (ones / ones.sum(axis=1, keepdims=True))[:, None]
    output = attention @ bare - best @ tokens
    floor = (output * output).sum(axis=(1, 2)) / dimension
    return np.moveaxis(best, 0, -1), np.moveaxis(gram, 0, -1), floor


@dataclass(frozen=True, eq=False)
class History:
    """Course of a training, one entry for each iteration from the start on, shape (T,).

    For rank one: q, m, theta of token 1 (`Dataset.overlaps`); train_loss: the risk at the
    weights; change: length of the step that follows, relative to the weights; V: the response of
    token 1, in message passing only.
    """

    q: Array
    m: Array
    theta: Array
    train_loss: Array
    change: Array
    V: Array | None = None


@dataclass(frozen=True, eq=False)
class Trained:
    """A trained layer.

    weights: ``Q``, shape (d, r). train_loss: ``epsilon_t``, the risk at the weights (with the
    ridge, divided by d); gradient: norm of its gradient relative to that of its ridge part,
    ``|| d grad R || / || lambda Q ||``; test_error: ``epsilon_g`` (`expected_test_error`).
    q, m, theta: overlaps of token 1 (arrays for all tokens: `Dataset.overlaps`). V: response, in
    message passing only (nan where none is consistent with the weights). history: the course.
    iterations: their number. converged: whether the tolerance was reached. held_from: iteration
    from which the response was held (see `message_passing`), None if it never was; rivals: number
    of sentences whose proximal problem has a second minimum; excited: number of those that are
    left in the higher one.
    """

    weights: Array
    train_loss: float
    gradient: float
    test_error: float
    q: float
    m: float
    theta: float
    V: float | None
    history: History
    iterations: int
    converged: bool
    held_from: int | None
    rivals: int
    excited: int


def trained_layer(
    dataset: Dataset,
    weights: Array,
    history: History,
    converged: bool,
    V: float | None = None,  # noqa: N803 - the symbol of the text
    held_from: int | None = None,
    rivals: int = 0,
    excited: int = 0,
) -> Trained:
    """`Trained` with what can be measured at the weights, shape (d, r)."""
    train_loss, gradient = dataset.risk(weights)
    ridge = dataset.model.regularization * weights / dataset.dimension
    q, m, theta = dataset.overlaps(weights)
    return Trained(
        weights=weights,
        train_loss=train_loss,
        gradient=float(np.linalg.norm(gradient) / np.linalg.norm(ridge)),
        test_error=expected_test_error(dataset, weights),
        q=float(q[0, 0, 0]),
        m=float(m[0, 0]),
        theta=float(theta[0, 0, 0]),
        V=V,
        history=history,
        iterations=len(history.change),
        converged=converged,
        held_from=held_from,
        rivals=rivals,
        excited=excited,
    )


def starting_weights(dataset: Dataset, start: str | Array, seed: int = 0) -> Array:
    """Weights to begin from, shape (d, r).

    start: "positional", weights along the first encoding direction with entries of mean square
    one; "semantic", the teacher's weights; "random", standard normal entries drawn with ``seed``;
    or an array of shape (d, r), or (d,) for rank one, not all zero (a stationary point).
    Raises ValueError for anything else.
    """
    shape = (dataset.dimension, dataset.model.rank)
    if isinstance(start, str):
        if start == "random":
            # not default_rng(seed), whose first numbers are the teacher of a dataset of that seed
            return np.random.default_rng([seed, 1]).standard_normal(shape)
        if start == "positional":
            column = np.sqrt(dataset.dimension) * dataset.directions[0]
            return np.column_stack([column] + [0 * column] * (shape[1] - 1))
        if start == "semantic" and dataset.teacher.shape == shape:
            return dataset.teacher.copy()
        raise ValueError(
            'start must be "positional", "semantic" (where rank = target_rank), "random" or an '
            f"array, got {start!r}"
        )
    try:
        weights = np.array(start)
    except ValueError:  # rows of unequal length
        weights = np.empty(0, dtype=object)
    if weights.shape == shape[:1] and shape[1] == 1:
        weights = weights[:, None]
    if weights.dtype.kind not in "fiu" or weights.shape != shape:
        raise ValueError(
            f"start must be an array of real numbers of shape {shape}, got shape "
            f"{weights.shape} and type {weights.dtype}: {start!r}"
        )
    if not (np.abs(weights) < LARGEST_WEIGHT).all():
        raise ValueError(f"start must have entries below {LARGEST_WEIGHT:g}, got {start!r}")
    if not weights.any():
        raise ValueError("start must not be all zeros: they are a stationary point of the risk")
    return weights.astype(float)


def expected_test_error(dataset: Dataset, weights: Array) -> float:
    """Test error ``epsilon_g = E[loss(h*, h + m)] / 2`` of weights ``Q``, shape (d, r).

    The expectation is over the Gaussian fields that the measured overlaps define, so it is that of
    the limit of large d; it is taken on fixed Sobol points and good to about 1e-3 relative.
    """
    model = dataset.model
    q, m, theta = dataset.overlaps(weights)
    rho = dataset.teacher.T @ dataset.teacher / dataset.dimension
    rank, target_rank = theta.shape[1:]
    size = rank + target_rank
    normals = sobol_normals(model.length * size, TEST_LOG2_POINTS, TEST_SEED)
    normals = normals.reshape(model.length, size, -1)
    fields = np.empty_like(normals)
    for token, variance in enumerate(model.variances):
        rows = [[variance * rho, theta[token].T], [theta[token], q[token]]]
        values, vectors = np.linalg.eigh(np.block(rows))
        fields[token] = vectors * np.sqrt(np.maximum(values, 0.0)) @ normals[token]
    target = model.target(fields[:, :target_rank])
    loss = channel_loss(target, fields[:, target_rank:] + m[..., None], model.variances)
    return float(0.5 * loss.mean())
