"""Training data at finite dimension, the training risk, and what a trained layer is measured by.

The risk of a sentence needs only the Gram matrix of its tokens ``v_l = x_l + p_l``: since the
rows of ``S`` sum to 1,

    ||y - S v||^2 / d = sum_i (S - T)_i G (S - T)_i^T + c,     G = v v^T / d,

where ``T``, also with rows that sum to 1, is the target's attention as these tokens show it (it
tends to ``T[h*]`` as d grows) and ``c`` is what no attention matrix can fit. Both are computed
once; after that an evaluation of the risk is two products with the matrix of tokens. Chapters
"Local fields and concentration", "Experiments at finite dimension".
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import ceil
from pathlib import Path

import numpy as np
import scipy
from scipy.optimize import OptimizeResult
from scipy.optimize import minimize as scipy_minimize
from scipy.sparse.linalg import LinearOperator, cg, eigsh
from threadpoolctl import ThreadpoolController

from attnphase.baseline import LinearBaseline
from attnphase.model import LARGEST, Array, Model, attention_matrix, check_integer, check_number
from attnphase.proximal import (
    ConvergenceError,
    channel_derivatives,
    channel_loss,
    target_inverse,
)
from attnphase.quadrature import Estimate, replicate_mean, sobol_normals

#: Sentences whose tokens are drawn, or converted to double precision, at a time.
BLOCK = 256
#: Sobol points (log2) and seed of the expectation in the test error.
TEST_LOG2_POINTS, TEST_SEED = 14, 90
#: Scramblings and log2 of the points of each, in the test error of a fitted baseline.
BASELINE_REPLICATES, BASELINE_LOG2_POINTS = 4, 12
#: Weights are of order one; the fields of larger ones than this would overflow.
LARGEST_WEIGHT = 1e6
#: Step of gradient descent, in units of 1 / d (arXiv:2402.03902), and of Adam.
STEP, ADAM_STEP = 0.15, 0.01
#: Averaging constants of Adam (Kingma and Ba, arXiv:1412.6980, algorithm 1).
FIRST_MOMENT, SECOND_MOMENT, ADAM_FLOOR = 0.9, 0.999, 1e-8
#: Steps of gradient descent with which `minimize` begins: fewest and most, and their product with
#: alpha in between.
SETTLING_STEPS, SETTLING_PER_ALPHA = (50, 2000), 20
#: `minimize` leaves L-BFGS at this relative gradient norm, or at the next where Newton's method
#: does not take over; Newton's method goes on to this one; products in one of its linear solves.
HANDOVERS, FINAL, NEWTON_PRODUCTS = (1e-5, 1e-6, 1e-7), 1e-12, 1000
#: Weights that have shrunk to this fraction of the start are zero.
VANISHED = 1e-6
#: Relative rounding of the risk, in units of that of one token's entry.
ROUNDING = 1e3


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

    def hessian(self, weights: Array) -> LinearOperator:
        """Hessian of `risk` at weights ``Q`` of shape (d, r), acting on arrays of shape (d r,).

        A product takes two products with the matrix of tokens, as the gradient does.
        """
        curvature = channel_derivatives(self.target, self.fields(weights), self.metric)[2]
        ridge = self.model.regularization

        def product(direction: Array) -> Array:
            direction = direction.reshape(weights.shape)
            bent = (curvature * self.fields(direction)).sum(axis=(2, 3))
            return ((self.weights_from(bent) + ridge * direction) / self.dimension).ravel()

        return LinearOperator(2 * (weights.size,), matvec=product, dtype=float)

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
    double precision in any case; from one seed the two draw the same teacher and
    different sentences). The encodings' directions are the first vectors of
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
    tokens = np.empty((count, length, dimension), dtype)
    target, metric = np.empty((2, length, length, count))
    floor = np.empty(count)
    for number, bare in enumerate(_draw(model, count, dimension, rng, dtype)):
        block = slice(number * BLOCK, number * BLOCK + len(bare))
        tokens[block] = bare + encodings
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


def _draw(
    model: Model, count: int, dimension: int, rng: np.random.Generator, dtype: type
) -> Iterator[Array]:
    """So many sentences ``x``, in blocks of shape (N, L, d)."""
    scale = np.sqrt(model.variances)[:, None]
    for offset in range(0, count, BLOCK):
        shape = (min(BLOCK, count - offset), model.length, dimension)
        yield scale * rng.standard_normal(shape, dtype)


def _attention(function: Callable[[Array], Array], tokens: Array, weights: Array) -> Array:
    """Attention of sentences of shape (N, L, d) by a function of their fields; (N, L, L)."""
    fields = np.moveaxis(tokens @ weights, 0, -1) / np.sqrt(tokens.shape[2])
    return np.moveaxis(function(fields), -1, 0)


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
    attention = _attention(model.target, bare, teacher)
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
    """Course of a training, one entry for each iteration from the start on, T in number.

    q, m, theta: of token 1 (`Dataset.overlaps`), shape (T,) for one direction (r = t = 1), else
    (T, r, r), (T, r) and (T, r, t); train_loss, shape (T,): the risk at the weights; change: length
    of the step that follows, relative to the weights; V: the response of token 1, in message
    passing only.
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
    ``|| d grad R || / || lambda Q ||`` (without meaning where the weights vanish); test_error:
    ``epsilon_g`` (`expected_test_error`).
    q, m, theta: overlaps of token 1 (those of all tokens: `Dataset.overlaps`), floats for one
    direction (r = t = 1), else arrays of shape (r, r), (r,) and (r, t). V: response, in
    message passing only (nan where none is consistent with the weights). history: the course.
    iterations: their number. converged: whether the tolerance was reached. held_from: iteration
    from which the response was held (see `message_passing`), None if it never was; rivals: number
    of sentences whose proximal problem has a second minimum; excited: number of those that are
    left in the higher one.
    """

    weights: Array = field(repr=False)
    train_loss: float
    gradient: float
    test_error: float
    q: float | Array
    m: float | Array
    theta: float | Array
    V: float | None
    history: History = field(repr=False)
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
    q, m, theta = _first_token(dataset, weights)
    return Trained(
        weights=weights,
        train_loss=train_loss,
        gradient=_relative(gradient, ridge),
        test_error=expected_test_error(dataset, weights),
        q=q,
        m=m,
        theta=theta,
        V=V,
        history=history,
        iterations=len(history.change),
        converged=converged,
        held_from=held_from,
        rivals=rivals,
        excited=excited,
    )


def _relative(change: Array, whole: Array) -> float:
    """Length of an array in units of that of another; 0 where both are 0."""
    length = float(np.linalg.norm(change))
    return length and float(length / np.linalg.norm(whole))


def _first_token(dataset: Dataset, weights: Array) -> tuple[float | Array, ...]:
    """q, m and theta of token 1, floats where the layer and its target have one direction."""
    overlaps = [values[0] for values in dataset.overlaps(weights)]
    if weights.shape[1] == dataset.model.target_rank == 1:
        return tuple(values.item() for values in overlaps)
    return tuple(overlaps)


def starting_weights(dataset: Dataset, start: str | Array, seed: int = 0) -> Array:
    """Weights to begin from, shape (d, r).

    start: "positional", weights along the first encoding direction with entries of mean square
    one (with r > 1 in the first column, the others zero, and the risk's symmetry keeps them so:
    add to them what is to grow); "semantic", the teacher's weights; "random", standard normal
    entries drawn with ``seed``; or an array of shape (d, r), or (d,) for rank one, not all zero (a
    stationary point).
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
    weights = _checked_weights("start", start, shape)
    if not np.linalg.norm(weights) > 0:  # which tiny entries do not pass either
        raise ValueError(
            f"start must not be zero, a stationary point of the risk; got {start!r}, of length 0"
        )
    return weights


def _checked_weights(name: str, value: Array, shape: tuple[int, int]) -> Array:
    """``value`` as a new array of this shape, or the error that names it."""
    try:
        weights = np.array(value)
    except ValueError:  # rows of unequal length
        weights = np.empty(0, dtype=object)
    if weights.shape == shape[:1] and shape[1] == 1:
        weights = weights[:, None]
    if weights.dtype.kind not in "fiu" or weights.shape != shape:
        raise ValueError(
            f"{name} must be an array of real numbers of shape {shape}, got shape "
            f"{weights.shape} and type {weights.dtype}: {value!r}"
        )
    weights = weights.astype(float)
    if not (np.abs(weights) < LARGEST_WEIGHT).all():
        raise ValueError(
            f"{name} must have entries below {LARGEST_WEIGHT:g} in absolute value, got {value!r}"
        )
    return weights


def check_dataset(dataset: object) -> None:
    """Raise ValueError for anything but a `Dataset`."""
    if not isinstance(dataset, Dataset):
        raise ValueError(f"dataset must be an attnphase.Dataset, got {dataset!r}")


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
        fields[token] = _root(np.block(rows)) @ normals[token]
    target = model.target(fields[:, :target_rank])
    loss = channel_loss(target, fields[:, target_rank:] + m[..., None], model.variances)
    return float(0.5 * loss.mean())


def _root(covariance: Array) -> Array:
    """A matrix whose product with its transpose is the covariance, which may be singular."""
    values, vectors = np.linalg.eigh(covariance)
    return vectors * np.sqrt(np.maximum(values, 0.0))


def sampled_test_error(
    dataset: Dataset, weights: Array, sentences: int = 2000, seed: int = 0
) -> Estimate:
    """Test error ``E ||y - f_Q||^2 / (2 d)`` of weights ``Q``, shape (d, r), on fresh sentences.

    The expectation at this dimension, corrections of order 1 / d included, which
    `expected_test_error` leaves out. sentences: their number, at least two; seed: of them, not of
    the dataset. Returns the mean and its standard error. Raises ValueError for a bad argument.
    """
    check_dataset(dataset)
    check_integer("sentences", sentences, 2, 10**9)
    check_integer("seed", seed, 0, 2**63 - 1)
    model, dimension = dataset.model, dataset.dimension
    weights = _checked_weights("weights", weights, (dimension, model.rank))
    # a stream that neither `sample` nor `starting_weights` uses
    rng = np.random.default_rng([dataset.seed, seed, 2])
    errors = []
    for bare in _draw(model, sentences, dimension, rng, float):
        tokens = bare + dataset.encodings
        output = _attention(model.target, bare, dataset.teacher) @ bare
        output -= _attention(attention_matrix, tokens, weights) @ tokens
        errors.append((output * output).sum(axis=(1, 2)) / (2 * dimension))
    return replicate_mean(np.concatenate(errors))


def fit_baseline(dataset: Dataset) -> LinearBaseline:
    """Linear baseline ``f_W(x) = W x`` fitted to the training sentences by least squares.

    The best matrix on these sentences, ``W = (sum y x^T) (sum x x^T)^{-1}``, and its test error in
    the limit of large d, ``E sum_il s_l (T_il - W_il)^2 / 2``, with the standard error of the
    points on which the expectation is taken. As n grows both tend to those of
    `attnphase.linear_baseline`, but for the length of this dataset's teacher. Raises ValueError for
    anything but a dataset.
    """
    check_dataset(dataset)
    model, length = dataset.model, dataset.model.length
    moment, cross = np.zeros((2, length, length))
    for offset in range(0, dataset.count, BLOCK):
        bare = dataset.tokens[offset : offset + BLOCK].astype(float) - dataset.encodings
        gram = bare @ bare.swapaxes(1, 2)
        moment += gram.sum(axis=0)
        cross += (_attention(model.target, bare, dataset.teacher) @ gram).sum(axis=0)
    fitted = np.linalg.solve(moment, cross.T).T
    fitted.setflags(write=False)
    root = _root(dataset.teacher.T @ dataset.teacher / dataset.dimension)
    errors = []
    for seed in np.random.SeedSequence(TEST_SEED).spawn(BASELINE_REPLICATES):
        normals = sobol_normals(length * len(root), BASELINE_LOG2_POINTS, seed)
        fields = root @ normals.reshape(length, len(root), -1)
        gap = model.target(np.sqrt(model.variances)[:, None, None] * fields) - fitted[..., None]
        errors.append(0.5 * (np.square(gap).mean(axis=2) @ model.variances).sum())
    estimate = replicate_mean(errors)
    return LinearBaseline(fitted, estimate.value, estimate.standard_error)


class _Course:
    """The iterates of a training, in the order in which they come."""

    def __init__(self, dataset: Dataset):
        self.dataset = dataset
        self.entries: list[tuple] = []
        self.changes: list[float] = []
        self.last: Array | None = None

    def add(self, weights: Array, train_loss: float) -> None:
        """Record weights of shape (d, r) with the risk there."""
        if self.last is not None:
            self.changes.append(_relative(weights - self.last, self.last))
        self.last = weights
        self.entries.append((*_first_token(self.dataset, weights), train_loss))

    def history(self) -> History:
        """Every iterate but the last, after which no step followed."""
        columns = [np.array(column) for column in zip(*self.entries[:-1], strict=True)]
        q, m, theta, train_loss = columns or np.empty((4, 0))
        return History(q=q, m=m, theta=theta, train_loss=train_loss, change=np.array(self.changes))


def minimize(
    dataset: Dataset,
    start: str | Array = "semantic",
    tolerance: float = 1e-8,
    iterations: int = 5000,
    seed: int = 0,
    settling_steps: int | None = None,
) -> Trained:
    """Train the layer to a local minimum of the training risk.

    start, seed: as in `starting_weights`. tolerance: bound on the norm of the gradient, relative
    to that at the start or, if larger, to that of the ridge's part at the start; iterations: of
    L-BFGS, at most, in all; settling_steps: steps of gradient descent to begin with; None
    for 50, or 20 / alpha where that is more (at most 2,000): with few sentences the valley is flat.

    The risk has several minima, and the one wanted is as a rule that of the start's own valley.
    L-BFGS's first steps, taken while it knows nothing of the curvature, can leap out of it:
    therefore some steps of gradient descent come first (each halved if it would raise the risk).
    L-BFGS (of scipy) then goes most of the way, and Newton's method, its linear equations solved by
    conjugate gradients, the rest: it is not held up by the rounding of the risk, and goes on to
    1e-12 where it can, so that the result does not depend on the order in which the machine adds.
    A start that a symmetry keeps on a ridge, such as a column of zeros, ends in a saddle point.
    Memory beside the dataset: some arrays of one number per sentence, and 20 of the size of the
    weights.

    Raises ValueError for a bad argument, and ConvergenceError, which carries the layer reached (a
    `Trained` with ``converged`` False), if the iterations do not suffice or the tolerance is not
    met (tokens in single precision allow about 1e-6 for one direction and 1e-4 for more), or if
    the weights have vanished where the risk has no minimum: a long step from a very large start,
    or with sigma of 10 and more, can end there.
    """
    check_number("tolerance", tolerance, 0.0, 1.0)
    check_integer("iterations", iterations, 1, 10**6)
    weights = _checked_start(dataset, start, seed)
    if settling_steps is None:
        fewest, most = SETTLING_STEPS
        settling_steps = min(max(fewest, ceil(SETTLING_PER_ALPHA / dataset.alpha)), most)
    check_integer("settling_steps", settling_steps, 0, 10**6)
    course = _Course(dataset)
    value, gradient = dataset.risk(weights)
    course.add(weights, value)
    length = np.linalg.norm(weights)
    ridge = dataset.model.regularization * length / dataset.dimension
    scale = max(np.linalg.norm(gradient), ridge)
    step = STEP * dataset.dimension
    for _ in range(settling_steps):
        trial = weights - step * gradient
        trial_value, trial_gradient = dataset.risk(trial)
        if trial_value < value:
            weights, value, gradient = trial, trial_value, trial_gradient
            course.add(weights, value)
        else:
            step *= 0.5
    left = iterations
    for handover in HANDOVERS:
        weights, reached, used = _lbfgs(dataset, weights, handover * scale, left, course)
        left -= used
        if left <= 0 and reached > handover * scale:
            break  # far from a minimum Newton's method may lead to a saddle point
        weights, reached = _newton(dataset, weights, scale, course)
        if reached <= tolerance * scale or left <= 0:
            break
    layer = trained_layer(dataset, weights, course.history(), bool(reached <= tolerance * scale))
    if not layer.converged:
        raise ConvergenceError(
            f"minimize has not converged: the gradient is {reached / scale:.1e} of its scale "
            f"(tolerance {tolerance:g}) after {iterations - left} of {iterations} iterations",
            layer,
        )
    if np.linalg.norm(weights) < VANISHED * length and not _is_minimum(dataset, weights):
        raise ConvergenceError(
            "minimize has fallen on zero weights, a stationary point that is no minimum: begin "
            "with smaller weights",
            replace(layer, converged=False),
        )
    return layer


def _is_minimum(dataset: Dataset, weights: Array) -> bool:
    """Whether the lowest eigenvalue of the Hessian, by Lanczos' method, is not negative."""
    begin = np.random.default_rng(0).standard_normal(weights.size)
    hessian = dataset.hessian(weights)
    lowest = eigsh(hessian, 1, which="SA", v0=begin, tol=1e-2, return_eigenvectors=False)
    return bool(lowest[0] >= 0)


def _checked_start(dataset: object, start: str | Array, seed: int) -> Array:
    check_dataset(dataset)
    check_integer("seed", seed, 0, 2**63 - 1)
    return starting_weights(dataset, start, seed)


def _lbfgs(
    dataset: Dataset, weights: Array, bound: float, iterations: int, course: _Course
) -> tuple[Array, float, int]:
    """Weights at which L-BFGS has brought the gradient's norm below ``bound``, or got no further.

    Returns them with the norm of the gradient and the number of iterations. The risk is handed
    over multiplied by d, so that the Hessian is of order one.
    """
    size = np.inf

    def objective(flat: Array) -> tuple[float, Array]:
        nonlocal size
        value, gradient = dataset.risk(flat.reshape(weights.shape))
        size = np.linalg.norm(gradient)
        return dataset.dimension * value, dataset.dimension * gradient.ravel()

    def record(intermediate_result: OptimizeResult) -> None:
        moved = intermediate_result.x.reshape(weights.shape).copy()
        course.add(moved, intermediate_result.fun / dataset.dimension)
        if size <= bound:  # of the last evaluation, where a line search ends
            raise StopIteration

    options = {"maxiter": iterations, "maxfun": 20 * iterations, "ftol": 0.0, "gtol": 0.0}
    start = weights.ravel()
    with _one_thread_for_scipy():
        result = scipy_minimize(
            objective, start, jac=True, method="L-BFGS-B", callback=record, options=options
        )
    reached = np.linalg.norm(result.jac) / dataset.dimension
    return result.x.reshape(weights.shape), float(reached), result.nit


def _one_thread_for_scipy() -> AbstractContextManager:
    """Hold the threads of the BLAS that comes with scipy, where numpy has another one.

    L-BFGS needs it for tiny systems only; its threads, spinning between two of them, would take the
    processors from those of numpy, which multiply by the tokens.
    """
    libraries = ThreadpoolController()
    home = Path(scipy.__file__).parent
    own = [
        library["filepath"]
        for library in libraries.info()
        if {home, home.with_name("scipy.libs")} & set(Path(library["filepath"]).parents)
    ]
    return libraries.select(filepath=own).limit(limits=1)


def _newton(dataset: Dataset, weights: Array, scale: float, course: _Course) -> tuple[Array, float]:
    """Newton steps until the gradient is `FINAL` of its scale, stops shrinking, or the risk rises.

    Each linear system is solved as well as the step deserves, whose own error is quadratic.
    Returns the weights and the norm of the gradient there.
    """
    value, gradient = dataset.risk(weights)
    size = np.linalg.norm(gradient)
    rounding = ROUNDING * np.finfo(dataset.tokens.dtype).eps
    while size > FINAL * scale:
        accuracy = max(size / scale, 0.1 * FINAL * scale / size)
        hessian, slope = dataset.hessian(weights), gradient.ravel()
        step, _ = cg(hessian, -slope, rtol=accuracy, maxiter=NEWTON_PRODUCTS)
        trial = weights + step.reshape(weights.shape)
        trial_value, trial_gradient = dataset.risk(trial)
        trial_size = np.linalg.norm(trial_gradient)
        # towards a saddle point the risk would rise by more than its rounding
        if not (trial_size < size and trial_value <= value * (1 + rounding)):
            break
        weights, value, gradient, size = trial, trial_value, trial_gradient, trial_size
        course.add(weights, value)
    return weights, size


def gradient_descent(
    dataset: Dataset,
    start: str | Array = "semantic",
    step: float = STEP,
    iterations: int = 5000,
    seed: int = 0,
) -> Trained:
    """Train the layer by a given number of steps of gradient descent on all sentences.

        Q <- Q - step * d * (gradient of `Dataset.risk`)

    that is, on the sum over sentences as arXiv:2402.03902 writes it; the default step and number
    of steps are those of its experiments. start, seed: as in `starting_weights`. The result's
    ``converged`` is always False: look at its ``gradient``. Raises ValueError for a bad argument,
    and ConvergenceError, which carries the last weights, if the weights run off.
    """
    check_number("step", step, 0.0, LARGEST)

    def update(number: int, gradient: Array) -> Array:
        return step * dataset.dimension * gradient

    return _iterate(dataset, start, iterations, seed, update)


def adam(
    dataset: Dataset,
    start: str | Array = "semantic",
    step: float = ADAM_STEP,
    iterations: int = 5000,
    seed: int = 0,
) -> Trained:
    """Train the layer by a given number of steps of Adam on all sentences.

    As `gradient_descent`, with the step of each weight divided by a running root mean square of
    its gradients (Kingma and Ba, arXiv:1412.6980, algorithm 1), in the units of the weights.
    """
    check_number("step", step, 0.0, LARGEST)
    first, second = 0.0, 0.0

    def update(number: int, gradient: Array) -> Array:
        nonlocal first, second
        gradient = dataset.dimension * gradient
        first = FIRST_MOMENT * first + (1 - FIRST_MOMENT) * gradient
        second = SECOND_MOMENT * second + (1 - SECOND_MOMENT) * gradient**2
        root = np.sqrt(second / (1 - SECOND_MOMENT**number)) + ADAM_FLOOR
        return step * first / (1 - FIRST_MOMENT**number) / root

    return _iterate(dataset, start, iterations, seed, update)


def _iterate(
    dataset: Dataset,
    start: str | Array,
    iterations: int,
    seed: int,
    update: Callable[[int, Array], Array],
) -> Trained:
    """Subtract ``update(number, gradient)`` from the weights, for numbers from 1 on."""
    check_integer("iterations", iterations, 1, 10**6)
    weights = _checked_start(dataset, start, seed)
    course = _Course(dataset)
    for number in range(1, iterations + 1):
        value, gradient = dataset.risk(weights)
        course.add(weights, value)
        moved = weights - update(number, gradient)
        if not (np.abs(moved) < LARGEST_WEIGHT).all():
            raise ConvergenceError(
                f"the weights run off in step {number}: take a smaller step", weights
            )
        weights = moved
    course.add(weights, np.nan)
    return trained_layer(dataset, weights, course.history(), False)
