"""The model: what it accepts, what it refuses, and attention against a loop by hand."""

from dataclasses import FrozenInstanceError, fields
from fractions import Fraction
from math import exp, inf, nan

import numpy as np
import pytest

from attnphase import Model
from attnphase.model import attention_matrix, row_softmax

THREE_TARGET = ((0.5, 0.3, 0.2), (0.1, 0.8, 0.1), (0.25, 0.25, 0.5))
THREE_ENCODINGS = ((1.0, 0.0), (0.0, 1.0), (-1.0, 0.5))


def three_tokens(**changes):
    arguments = {
        "omega": 0.3,
        "positional_target": THREE_TARGET,
        "encodings": THREE_ENCODINGS,
    }
    return Model(**(arguments | changes))


def naive_attention(h):
    """Row-softmax of h h^T for one sentence, entry by entry, from the definition."""
    length, rank = h.shape
    result = np.empty((length, length))
    for i in range(length):
        for j in range(length):
            logit = sum(h[i, a] * h[j, a] for a in range(rank))
            others = [sum(h[i, a] * h[k, a] for a in range(rank)) for k in range(length)]
            result[i, j] = exp(logit) / sum(exp(other) for other in others)
    return result


# --- what a model holds -----------------------------------------------------------------------


def test_defaults_are_the_base_case():
    model = Model(0.3)
    assert model.omega == 0.3
    assert model.sigma == 0.5
    assert model.regularization == 0.01
    assert model.positional_target == ((0.6, 0.4), (0.4, 0.6))
    assert model.encodings == ((1.0,), (-1.0,))
    assert (model.rank, model.target_rank, model.length) == (1, 1, 2)
    assert model.variances.tolist() == [0.25, 0.25]


def test_arguments_keep_their_order():
    names = [field.name for field in fields(Model)]
    assert names == [
        "omega",
        "sigma",
        "regularization",
        "positional_target",
        "encodings",
        "rank",
        "target_rank",
    ]


def test_omega_has_no_default():
    with pytest.raises(TypeError, match="omega"):
        Model()


@pytest.mark.parametrize("omega", [0, 1, 0.0, 1.0, 0.5, np.float32(0.5), Fraction(3, 10)])
def test_every_omega_of_the_closed_interval_is_accepted(omega):
    model = Model(omega)
    assert model.omega == float(omega)
    assert type(model.omega) is float


def test_token_variances():
    model = three_tokens(sigma=(0.5, 1, 2))
    assert model.length == 3
    assert model.sigma == (0.5, 1.0, 2.0)
    assert model.variances.tolist() == [0.25, 1.0, 4.0]
    assert three_tokens(sigma=0.3).variances == pytest.approx([0.09] * 3, rel=1e-15)
    with pytest.raises(ValueError, match="read-only"):
        model.variances[0] = 1.0


def test_lists_and_arrays_become_tuples_of_floats():
    from_arrays = Model(
        0.3,
        sigma=np.array([0.5, 1.0]),
        positional_target=np.array([[0.6, 0.4], [0.4, 0.6]]),
        encodings=[[1], [-1]],
        rank=np.int64(2),
        target_rank=np.int32(3),
    )
    plain = Model(0.3, sigma=(0.5, 1.0), rank=2, target_rank=3)
    assert from_arrays == plain
    assert hash(from_arrays) == hash(plain)
    assert type(from_arrays.rank) is type(from_arrays.target_rank) is int
    assert all(type(entry) is float for row in from_arrays.encodings for entry in row)


@pytest.mark.parametrize("name", [field.name for field in fields(Model)])
def test_a_model_is_immutable(name):
    model = Model(0.3)
    with pytest.raises(FrozenInstanceError):
        setattr(model, name, getattr(model, name))
    with pytest.raises(FrozenInstanceError):
        delattr(model, name)


def test_changing_the_callers_array_does_not_change_the_model():
    target = np.array([[0.6, 0.4], [0.4, 0.6]])
    model = Model(0.3, positional_target=target)
    target[0] = [1, 0]
    assert model == Model(0.3)


@pytest.mark.parametrize(
    "changes",
    [
        {"omega": 0.31},
        {"sigma": 0.51},
        {"sigma": (0.5, 0.51)},
        {"regularization": 0.011},
        {"positional_target": ((0.6, 0.4), (0.41, 0.59))},
        {"encodings": ((1,), (-1.01,))},
        {"rank": 2},
        {"target_rank": 2},
    ],
)
def test_equality_and_hash_see_every_field(changes):
    base, same = Model(0.3), Model(0.3)
    other = Model(**({"omega": 0.3} | changes))
    assert base == same
    assert hash(base) == hash(same)
    assert base != other
    assert len({base, same, other}) == 2
    assert base != 0.3


def test_repr_rebuilds_the_model():
    model = three_tokens(sigma=(0.5, 1, 2), rank=2)
    assert eval(repr(model)) == model


# --- what it refuses --------------------------------------------------------------------------

OMEGAS = [-0.01, 1.01, -1e-12, 1 + 1e-12, nan, inf, -inf, True, False, "0.3", None, 0.3j, [0.3]]
POSITIVES = [0, 0.0, -0.5, nan, inf, -inf, True, False, None, "0.5", 0.5j]
SIGMA_SEQUENCES = [
    [],
    (0.5,),
    (0.5, 0.5, 0.5),
    (0.5, 0.0),
    (-0.5, 0.5),
    (0.5, nan),
    (inf, 0.5),
    (0.5, True),
    ("0.5", "0.5"),
    (0.5, None),
    (0.5, 1j),
    ((0.5, 0.5),),
    np.array(0.5),
    np.array([True, True]),
]
TARGETS = [
    ((0.6, 0.41), (0.4, 0.6)),
    ((0.6, 0.4), (0.4, 0.59)),
    ((0.6, 0.4 + 1e-9), (0.4, 0.6)),
    ((0, 0), (0, 0)),
    ((1.1, -0.1), (0.4, 0.6)),
    ((nan, 0.4), (0.4, 0.6)),
    ((inf, 0.4), (0.4, 0.6)),
    ((1.0,),),
    ((0.6, 0.4),),
    ((0.6, 0.4), (0.4, 0.6), (0.5, 0.5)),
    THREE_TARGET,
    ((0.6, 0.4), (1.0,)),
    (0.6, 0.4),
    (((0.6, 0.4), (0.4, 0.6)),),
    ((True, False), (False, True)),
    (("0.6", "0.4"), ("0.4", "0.6")),
    ((0.6 + 0j, 0.4), (0.4, 0.6)),
    "A",
    0.6,
    None,
    [],
    {0.6, 0.4},
]
ENCODINGS = [
    ((1,),),
    ((1,), (-1,), (0,)),
    ((1,), (-1, 2)),
    ((), ()),
    (),
    (1, -1),
    (((1,), (-1,)),),
    ((1,), (nan,)),
    ((1,), (-inf,)),
    ((1,), (True,)),
    (("1",), ("-1",)),
    ((1,), (1j,)),
    "ab",
    1.0,
    None,
]
RANKS = [0, -1, 1.0, 1.5, True, False, "1", None, nan, (1,)]

BAD = (
    [("omega", value) for value in OMEGAS]
    + [("sigma", value) for value in POSITIVES + SIGMA_SEQUENCES]
    + [("regularization", value) for value in [*POSITIVES, (0.01, 0.01)]]
    + [("positional_target", value) for value in TARGETS]
    + [("encodings", value) for value in ENCODINGS]
    + [("rank", value) for value in RANKS]
    + [("target_rank", value) for value in RANKS]
)
ALLOWED = {
    "omega": ["number in [0, 1]"],
    "sigma": ["finite positive number", "one number or"],
    "regularization": ["finite positive number"],
    "positional_target": ["shape (2, 2)", "rows that sum to 1", "of finite numbers"],
    # too many rows are seen when A, which has one row a token, does not fit
    "encodings": ["at least two tokens", "of finite numbers", "for each row of encodings"],
    "rank": ["positive integer"],
    "target_rank": ["positive integer"],
}


@pytest.mark.parametrize(("name", "value"), BAD)
def test_bad_input_is_refused_by_name_value_and_rule(name, value):
    with pytest.raises(ValueError) as caught:
        Model(**({"omega": 0.3} | {name: value}))
    message = str(caught.value)
    assert name in message
    assert any(rule in message for rule in ALLOWED[name]), message
    entries = value if isinstance(value, (tuple, list)) and name == "sigma" else ()
    quoted = [repr(value), *map(repr, map(float_or_same, entries))]
    assert any(quote in message for quote in quoted), message


def float_or_same(entry):
    return float(entry) if isinstance(entry, (int, float)) else entry


def test_a_sentence_has_at_least_two_tokens():
    with pytest.raises(ValueError, match="encodings must have .* at least two tokens"):
        Model(0.3, positional_target=((1.0,),), encodings=((1.0,),))


@pytest.mark.parametrize("name", ["sigma", "positional_target", "encodings"])
def test_three_tokens_need_three_of_everything(name):
    two = {"sigma": (0.5, 0.5), "positional_target": ((0.6, 0.4),) * 2, "encodings": ((1,), (-1,))}
    with pytest.raises(ValueError, match="3"):
        three_tokens(**{name: two[name]})


# --- attention --------------------------------------------------------------------------------


@pytest.mark.parametrize("rank", [1, 2, 3])
def test_attention_against_the_definition(rank):
    rng = np.random.default_rng(rank)
    z = 1.5 * rng.standard_normal((3, rank, 20))
    model = three_tokens(rank=rank, target_rank=rank)
    attention = model.attention(z)
    assert attention.shape == (3, 3, 20)
    for sample in range(20):
        expected = naive_attention(z[..., sample])
        assert attention[..., sample] == pytest.approx(expected, rel=1e-12)
        mixed = 0.7 * expected + 0.3 * np.array(THREE_TARGET)
        assert model.target(z)[..., sample] == pytest.approx(mixed, rel=1e-12)
    assert (attention_matrix(z) == attention).all()


def test_two_tokens_in_closed_form():
    """p_11 = 1 / (1 + exp(-z_1 (z_1 - z_2))), and the rows are not the columns."""
    attention = Model(0.3).attention(np.array([[1.2], [-0.4]]))
    first = 1 / (1 + exp(-1.2 * 1.6))
    second = 1 / (1 + exp(-0.4 * 1.6))
    expected = [[first, 1 - first], [1 - second, second]]
    assert attention == pytest.approx(np.array(expected), rel=1e-14)


def test_sample_axes_may_be_any_number():
    rng = np.random.default_rng(0)
    z = rng.standard_normal((2, 1, 3, 4, 5))
    model = Model(0.3)
    for method in (model.attention, model.target):
        assert method(z).shape == (2, 2, 3, 4, 5)
        assert method(z)[..., 1, 2, 3] == pytest.approx(method(z[..., 1, 2, 3]), rel=1e-15)
        assert method(z[..., :0, 0, 0]).shape == (2, 2, 0)


def test_rows_sum_to_one_and_zero_fields_attend_evenly():
    rng = np.random.default_rng(1)
    model = three_tokens(rank=2, target_rank=2)
    z = rng.standard_normal((3, 2, 50))
    for method in (model.attention, model.target):
        assert method(z).sum(axis=1) == pytest.approx(np.ones((3, 50)), rel=1e-14)
        assert (method(z) > 0).all()
    assert model.attention(np.zeros((3, 2))) == pytest.approx(np.full((3, 3), 1 / 3), rel=1e-15)


def test_attention_is_permutation_equivariant():
    rng = np.random.default_rng(2)
    z = rng.standard_normal((3, 2, 50))
    model = three_tokens(rank=2)
    for order in ([1, 0, 2], [2, 0, 1], [2, 1, 0]):
        permuted = model.attention(z[order])
        assert permuted == pytest.approx(model.attention(z)[order][:, order], rel=1e-14)


def test_attention_does_not_see_signs_or_rotations_of_the_weights():
    rng = np.random.default_rng(3)
    z = rng.standard_normal((3, 2, 50))
    model = three_tokens(rank=2)
    rotation, _ = np.linalg.qr(rng.standard_normal((2, 2)))
    turned = np.einsum("ab,lbn->lan", rotation, z)
    assert model.attention(turned) == pytest.approx(model.attention(z), rel=1e-12)
    assert (model.attention(-z) == model.attention(z)).all()


@pytest.mark.parametrize("size", [1e2, 1e4, 1e100])
def test_large_fields_do_not_overflow(size):
    with np.errstate(all="raise", under="ignore"):
        attention = Model(0.0).attention(size * np.array([[1.0], [-2.0]]))
    assert attention.tolist() == [[1.0, 0.0], [0.0, 1.0]]
    with np.errstate(all="raise", under="ignore"):
        # token 1 attends to token 2, which is longer and points the same way
        attention = Model(0.0).attention(size * np.array([[1.0], [2.0]]))
    assert attention.tolist() == [[0.0, 1.0], [0.0, 1.0]]


def test_row_softmax_does_not_see_a_constant_added_to_a_row():
    logits = np.random.default_rng(4).standard_normal((3, 3, 10))
    shifts = np.array([100.0, -3.0, 1e4])[:, None, None]
    assert row_softmax(logits + shifts) == pytest.approx(row_softmax(logits), rel=1e-10)
    ratio = row_softmax(logits)[:, 0] / row_softmax(logits)[:, 1]
    assert ratio == pytest.approx(np.exp(logits[:, 0] - logits[:, 1]), rel=1e-12)


def test_integer_fields_are_not_integer_arithmetic():
    small = np.array([[16], [1]], dtype=np.uint8)  # 16 * 16 is 0 in eight bits
    assert Model(0.3).attention(small) == pytest.approx(
        naive_attention(small.astype(float)), rel=1e-14
    )


@pytest.mark.parametrize("omega", [0.0, 0.3, 1.0])
def test_target_mixes_linearly(omega):
    z = np.random.default_rng(5).standard_normal((2, 1, 30))
    model = Model(omega, positional_target=((0.9, 0.1), (0.2, 0.8)))
    mixed = (1 - omega) * Model(0.0).attention(z)
    mixed[0, 0] += omega * 0.9
    mixed[0, 1] += omega * 0.1
    mixed[1, 0] += omega * 0.2
    mixed[1, 1] += omega * 0.8
    assert model.target(z) == pytest.approx(mixed, rel=1e-14)


def test_student_and_target_may_differ_in_rank():
    model = Model(0.3, rank=2, target_rank=3)
    assert model.attention(np.zeros((2, 2, 4))).shape == (2, 2, 4)
    assert model.target(np.zeros((2, 3, 4))).shape == (2, 2, 4)
    with pytest.raises(ValueError, match=r"\(2, 2, \.\.\.\).*\(2, 3, 4\)"):
        model.attention(np.zeros((2, 3, 4)))
    with pytest.raises(ValueError, match=r"\(2, 3, \.\.\.\).*\(2, 2, 4\)"):
        model.target(np.zeros((2, 2, 4)))


@pytest.mark.parametrize("shape", [(), (2,), (2, 2), (3, 1), (1, 2), (2, 0), (5, 2, 1), (1, 2, 1)])
def test_fields_of_another_shape_are_refused(shape):
    for method in (Model(0.3).attention, Model(0.3).target):
        with pytest.raises(ValueError, match="fields must have shape") as caught:
            method(np.zeros(shape))
        assert "(2, 1, ...)" in str(caught.value)
        assert str(shape) in str(caught.value)
