"""The model: one tied, low-rank attention layer and the target that it learns.

A sentence ``x`` has ``L`` Gaussian tokens in dimension ``d``; token ``l`` has covariance
``sigma_l^2 I``. As ``d`` grows, the student and the target see a sentence only through its
local fields (chapter "The task"):

    student  z_l  = (x_l + p_l) Q / sqrt(d)  in R^r,   S[z] = row-softmax(z z^T)
    target   h*_l = x_l Q* / sqrt(d)         in R^t,
             T[h*] = (1 - omega) row-softmax(h* h*^T) + omega A

Source of the model: Cui, Behrens, Krzakala, Zdeborova, arXiv:2402.03902, section 2.
Arrays of fields put the tokens first and the samples last: ``(L, rank, ...)``.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from numbers import Integral, Real

import numpy as np

Array = np.ndarray
#: Largest floating-point number.
LARGEST = sys.float_info.max


def row_softmax(logits: Array) -> Array:
    """Softmax over axis 1 of ``logits`` of shape (L, L, ...); every row of the result sums to 1."""
    weights = np.exp(logits - logits.max(axis=1, keepdims=True))
    return weights / weights.sum(axis=1, keepdims=True)


def attention_matrix(fields: Array) -> Array:
    """Dot-product attention ``row-softmax(h h^T)`` of local fields ``h``.

    fields: shape (L, rank, ...). Returns shape (L, L, ...).
    """
    return row_softmax((fields[:, None] * fields[None]).sum(axis=2))


@dataclass(frozen=True)
class Model:
    """All that defines the learning problem, apart from the sample complexity ``alpha``.

    omega: share of the positional part ``A`` in the target's attention, in [0, 1].
    sigma: standard deviation of a token's entries; one number, or one per token.
    regularization: strength ``lambda`` of the ridge penalty on the weights, positive.
    positional_target: the matrix ``A``, shape (L, L); rows are non-negative and sum to 1.
    encodings: coefficients ``e``, shape (L, K), of the positional encodings
        ``p_l = sum_k e_lk u_k`` in K orthonormal directions ``u_k``.
    rank, target_rank: numbers of columns ``r`` of the student's weights and ``t`` of the target's.

    Raises ValueError, naming the argument, for a value outside these sets.
    Defaults: the base case of arXiv:2402.03902 (its figures use omega = 0.3, among others).
    """

    omega: float
    sigma: float | tuple[float, ...] = 0.5
    regularization: float = 0.01
    positional_target: tuple[tuple[float, ...], ...] = ((0.6, 0.4), (0.4, 0.6))
    encodings: tuple[tuple[float, ...], ...] = ((1.0,), (-1.0,))
    rank: int = 1
    target_rank: int = 1

    def __post_init__(self) -> None:
        _check_real("omega", self.omega, 0.0, 1.0)
        _check_positive("regularization", self.regularization)
        for name in ("rank", "target_rank"):
            value = getattr(self, name)
            if not isinstance(value, Integral) or isinstance(value, bool) or value < 1:
                raise ValueError(f"{name} must be a positive integer, got {value!r}")
        encodings = _table("encodings", self.encodings)
        length = len(encodings)
        if length < 2 or encodings.shape[1] < 1:
            raise ValueError(
                "encodings must have one row for each of at least two tokens and at least one "
                f"column, got {self.encodings!r}"
            )
        target = _table("positional_target", self.positional_target)
        if target.shape != (length, length):
            raise ValueError(
                f"positional_target must have shape ({length}, {length}), one row and one column "
                f"for each row of encodings {self.encodings!r}, "
                f"got shape {target.shape}: {self.positional_target!r}"
            )
        if (target < 0).any() or not np.allclose(target.sum(axis=1), 1.0, rtol=0, atol=1e-12):
            raise ValueError(
                "positional_target must have non-negative entries and rows that sum to 1, "
                f"got {self.positional_target!r}"
            )
        sigma = self.sigma
        if isinstance(sigma, Real):
            _check_positive("sigma", sigma)
            sigma = float(sigma)
        else:
            values = _vector("sigma", sigma)
            if len(values) != length:
                raise ValueError(
                    f"sigma must be one number or one for each of the {length} tokens, "
                    f"got {sigma!r}"
                )
            for value in values:
                _check_positive("sigma", value)
            sigma = tuple(values)
        set_field = object.__setattr__
        set_field(self, "omega", float(self.omega))
        set_field(self, "sigma", sigma)
        set_field(self, "regularization", float(self.regularization))
        set_field(self, "encodings", tuple(map(tuple, encodings.tolist())))
        set_field(self, "positional_target", tuple(map(tuple, target.tolist())))
        set_field(self, "rank", int(self.rank))
        set_field(self, "target_rank", int(self.target_rank))

    @property
    def length(self) -> int:
        """Number of tokens L of a sentence."""
        return len(self.encodings)

    @property
    def variances(self) -> Array:
        """Token variances ``s_l = tr(Sigma_l) / d = sigma_l^2``, shape (L,)."""
        return np.broadcast_to(np.square(self.sigma), (self.length,))

    def attention(self, fields: Array) -> Array:
        """Student attention ``S[z] = row-softmax(z z^T)``.

        fields: ``z = h + m``, shape (L, rank, ...). Returns shape (L, L, ...).
        Raises ValueError for another leading shape.
        """
        return attention_matrix(self._check_fields(fields, self.rank))

    def target(self, fields: Array) -> Array:
        """Target attention ``T[h*] = (1 - omega) row-softmax(h* h*^T) + omega A``.

        fields: ``h*``, shape (L, target_rank, ...). Returns shape (L, L, ...).
        Raises ValueError for another leading shape.
        """
        semantic = attention_matrix(self._check_fields(fields, self.target_rank))
        shape = (self.length, self.length) + (1,) * (semantic.ndim - 2)
        positional = np.reshape(self.positional_target, shape)
        return (1.0 - self.omega) * semantic + self.omega * positional

    def _check_fields(self, fields: Array, rank: int) -> Array:
        fields = np.asarray(fields, dtype=float)
        if fields.ndim < 2 or fields.shape[:2] != (self.length, rank):
            raise ValueError(
                f"fields must have shape ({self.length}, {rank}, ...): tokens, then rank, then "
                f"samples; got {fields.shape}"
            )
        return fields


def _check_real(name: str, value: object, low: float, high: float) -> None:
    if not isinstance(value, Real) or isinstance(value, bool) or not low <= value <= high:
        raise ValueError(f"{name} must be a number in [{low:g}, {high:g}], got {value!r}")


def _check_positive(name: str, value: object) -> None:
    if not isinstance(value, Real) or isinstance(value, bool) or not 0 < value <= LARGEST:
        raise ValueError(f"{name} must be a finite positive number, got {value!r}")


def _array(name: str, value: object, dimension: int, meaning: str) -> Array:
    try:
        # as objects first: strings, booleans and complex numbers would convert without a word
        array = np.array(value, dtype=object)
        array = array.astype(float) if _holds_reals(array) else np.empty(0)
    except (TypeError, ValueError, OverflowError):
        array = np.empty(0)
    if array.ndim != dimension or array.size == 0 or not np.isfinite(array).all():
        raise ValueError(f"{name} must be {meaning} of finite numbers, got {value!r}")
    return array


def _holds_reals(array: Array) -> bool:
    entries = array.ravel().tolist()
    return all(isinstance(entry, Real) and not isinstance(entry, bool) for entry in entries)


def _table(name: str, value: object) -> Array:
    return _array(name, value, 2, "a table (a sequence of rows of equal length)")


def _vector(name: str, value: object) -> list[float]:
    return _array(name, value, 1, "one number or a sequence").tolist()


def check_integer(name: str, value: object, low: int, high: int) -> None:
    """Raise ValueError unless ``value`` is an integer from ``low`` to ``high``."""
    if not isinstance(value, Integral) or isinstance(value, bool) or not low <= value <= high:
        raise ValueError(f"{name} must be an integer from {low} to {high}, got {value!r}")


def check_number(name: str, value: object, low: float, high: float) -> None:
    """Raise ValueError unless ``value`` is a number inside the open interval (low, high)."""
    if not isinstance(value, Real) or isinstance(value, bool) or not low < value < high:
        raise ValueError(
            f"{name} must be a number above {low:g} and below {high:g}, got {value!r}"
        )
