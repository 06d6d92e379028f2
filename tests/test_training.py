"""Training data, the training risk by a literal road, overlaps, starts and the test error."""

from dataclasses import FrozenInstanceError, fields, replace
from math import exp, sqrt

import numpy as np
import pytest

from attnphase import Dataset, Model, Trained, sample, training
from attnphase.quadrature import gauss_hermite

BASE = Model(0.3)
THREE = {
    "positional_target": ((0.5, 0.3, 0.2), (0.1, 0.8, 0.1), (0.25, 0.25, 0.5)),
    "encodings": ((1.0, 0.0), (0.0, 1.0), (-1.0, 0.5)),
}
FOUR = {
    "positional_target": tuple(np.random.default_rng(4).dirichlet(np.ones(4), 4)),
    "encodings": ((1.0, 0.2), (-0.5, 0.7), (0.3, -1.0), (0.0, 0.4)),
}
#: Models of several lengths, ranks, numbers of encoding directions and variances.
MODELS = {
    "base": BASE,
    "rank two": Model(0.4, rank=2),
    "two and two": Model(0.1, sigma=0.8, rank=2, target_rank=2, regularization=0.3),
    "unequal": Model(0.3, sigma=(0.4, 0.9), encodings=((1.0, 0.5), (-0.3, 1.0)), target_rank=2),
    "three": Model(0.3, **THREE, sigma=(0.4, 0.5, 0.7)),
    "three, rank two": Model(0.7, **THREE, rank=2, target_rank=3),
    "four": Model(0.2, **FOUR, sigma=(0.4, 0.5, 0.7, 1.1), rank=2),
}
each_model = pytest.mark.parametrize("model", MODELS.values(), ids=MODELS)


def softmax_attention(h):
    """row-softmax(h h^T) of one sentence's fields, shape (L, r), entry by entry."""
    rows = []
    for one in h:
        weights = [exp(float(one @ other)) for other in h]
        rows.append([weight / sum(weights) for weight in weights])
    return np.array(rows)


def literal_encodings(model, dimension):
    """p from the definition of the discrete cosine basis, shape (L, d)."""
    site = np.arange(dimension)
    basis = [np.full(dimension, 1 / sqrt(dimension))]
    for k in range(1, len(model.encodings[0])):
        basis.append(sqrt(2 / dimension) * np.cos(np.pi * k * (2 * site + 1) / (2 * dimension)))
    return np.array(model.encodings) @ np.array(basis)


def literal_error(model, tokens, teacher, weights):
    """||y - f_Q||^2 of each sentence from its tokens v = x + p, by the model's definition."""
    d = tokens.shape[2]
    p = literal_encodings(model, d)
    errors = []
    for v in tokens.astype(float):
        x = v - p
        attention = (1 - model.omega) * softmax_attention(x @ teacher / sqrt(d))
        attention = attention + model.omega * np.array(model.positional_target)
        difference = attention @ x - softmax_attention(v @ weights / sqrt(d)) @ v
        errors.append((difference**2).sum())
    return np.array(errors)


def literal_risk(dataset, weights):
    """Training risk divided by d, sentence by sentence."""
    model = dataset.model
    errors = literal_error(model, dataset.tokens, dataset.teacher, weights)
    ridge = model.regularization * (weights**2).sum()
    return (errors.sum() / (2 * dataset.dimension) + ridge / 2) / dataset.dimension


def weights_of(dataset, seed, scale=1.0):
    """Random weights with a part along the encodings and one along the teacher."""
    rng = np.random.default_rng(seed)
    shape = (dataset.dimension, dataset.model.rank)
    weights = scale * rng.standard_normal(shape)
    weights += dataset.encodings.T @ rng.standard_normal((dataset.model.length, shape[1])) * 3
    return weights + dataset.teacher @ rng.standard_normal((dataset.model.target_rank, shape[1]))


# --- the sample -------------------------------------------------------------------------------


@each_model
def test_shapes_and_what_is_recorded(model):
    dataset = sample(model, 2.5, 21, 7)
    length, directions = np.shape(model.encodings)
    assert (dataset.model, dataset.alpha, dataset.seed) == (model, 2.5, 7)
    assert dataset.count == 52  # 52.5, rounded to even
    assert dataset.dimension == 21
    assert dataset.tokens.shape == (52, length, 21)
    assert dataset.teacher.shape == (21, model.target_rank)
    assert dataset.directions.shape == (directions, 21)
    assert dataset.target.shape == dataset.metric.shape == (length, length, 52)
    assert dataset.floor.shape == (52,)
    assert dataset.inverse.shape == (length, 1, 52)
    np.testing.assert_allclose(dataset.encodings, literal_encodings(model, 21), rtol=0, atol=1e-14)
    np.testing.assert_allclose(
        dataset.directions @ dataset.directions.T, np.eye(directions), rtol=0, atol=1e-14
    )


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_tokens_and_teacher_have_the_law_of_the_model(dtype):
    """Entries are independent with the token's variance about its encoding: 4 standard errors."""
    model = MODELS["unequal"]
    dataset = sample(model, 3.0, 400, 3, dtype)
    bare = dataset.tokens.astype(float) - dataset.encodings
    entries = bare[:, 0].size
    for token, variance in enumerate(model.variances):
        scaled = bare[:, token] / sqrt(variance)
        assert abs(scaled.mean()) < 4 / sqrt(entries)
        assert abs((scaled**2).mean() - 1) < 4 * sqrt(2 / entries)
        assert abs((scaled**4).mean() - 3) < 4 * sqrt(96 / entries)
        assert abs((scaled[1:] * scaled[:-1]).mean()) < 4 / sqrt(entries)
        assert abs((scaled[:, 1:] * scaled[:, :-1]).mean()) < 4 / sqrt(entries)
        # the mean over sentences does not lean on the encodings
        along = scaled.mean(axis=0) @ dataset.directions.T * sqrt(dataset.count)
        assert np.abs(along).max() < 4
    cross = (bare[:, 0] * bare[:, 1]).mean() / np.prod(model.sigma)
    assert abs(cross) < 4 / sqrt(entries)
    teacher = dataset.teacher
    assert abs(teacher.mean()) < 4 / sqrt(teacher.size)
    assert abs((teacher**2).mean() - 1) < 4 * sqrt(2 / teacher.size)


def test_same_seed_same_numbers_and_another_seed_others():
    one, again, other = (sample(BASE, 2.0, 300, seed) for seed in (5, 5, 6))
    for field in fields(Dataset)[3:]:
        np.testing.assert_array_equal(getattr(one, field.name), getattr(again, field.name))
    assert np.abs(one.tokens - other.tokens).min(axis=(0, 2)).max() > 0
    assert abs((one.teacher * other.teacher).mean()) < 0.3
    # no sentence is drawn twice, within a block or in the next one
    assert len(np.unique(one.tokens[:, 0, 0])) == one.count == 600


def test_blocks_do_not_show(monkeypatch):
    """Sentences are drawn one after the other, however many at a time."""
    one = sample(MODELS["three"], 2.0, 40, 5)
    monkeypatch.setattr(training, "BLOCK", 7)
    other = sample(MODELS["three"], 2.0, 40, 5)
    np.testing.assert_array_equal(one.tokens, other.tokens)
    for name in ("target", "metric", "floor"):
        np.testing.assert_allclose(getattr(one, name), getattr(other, name), rtol=1e-10, atol=1e-14)


def test_single_precision_tokens_take_half_the_memory_and_give_the_same_risk():
    model = MODELS["unequal"]
    single, double = sample(model, 2.0, 200, 9, np.float32), sample(model, 2.0, 200, 9)
    assert single.tokens.dtype == np.float32
    assert double.tokens.dtype == np.float64
    assert 2 * single.tokens.nbytes == double.tokens.nbytes
    np.testing.assert_array_equal(single.teacher, double.teacher)
    for name in ("teacher", "directions", "target", "metric", "floor", "inverse"):
        assert getattr(single, name).dtype == np.float64
    weights = weights_of(single, 1)
    # the same sentences in double precision
    exact = replace(single, tokens=single.tokens.astype(float))
    value, gradient = single.risk(weights)
    expected, slope = exact.risk(weights)
    assert value == pytest.approx(expected, rel=1e-6)
    np.testing.assert_allclose(gradient, slope, rtol=0, atol=1e-5 * np.abs(slope).max())
    assert value == pytest.approx(literal_risk(exact, weights), rel=1e-6)
    assert gradient.dtype == single.fields(weights).dtype == np.float64
    assert single.weights_from(single.fields(weights)).dtype == np.float64
    # other sentences of the same law: within the fluctuations of 400 of them
    errors = [literal_error(model, one.tokens, one.teacher, weights) for one in (single, double)]
    spread = sqrt(sum(error.var() / len(error) for error in errors))
    assert abs(errors[0].mean() - errors[1].mean()) < 4 * spread


# --- the risk ---------------------------------------------------------------------------------


@each_model
@pytest.mark.parametrize("scale", [0.1, 1.0, 3.0])
def test_risk_is_the_literal_sum_over_sentences(model, scale):
    """The Gram route and ||y - f||^2 from the tokens are the same number, for each sentence."""
    dataset = sample(model, 3.0, 24, 11)
    weights = weights_of(dataset, 2, scale)
    errors = literal_error(model, dataset.tokens, dataset.teacher, weights)
    # an independent contraction of (S - T) G (S - T)^T, with S from the fields
    z = dataset.fields(weights)
    for mu in range(dataset.count):
        gap = softmax_attention(z[..., mu]) - dataset.target[..., mu]
        seen = np.trace(gap @ dataset.metric[..., mu] @ gap.T) + dataset.floor[mu]
        assert seen * dataset.dimension == pytest.approx(errors[mu], rel=1e-11)
    assert dataset.risk(weights)[0] == pytest.approx(literal_risk(dataset, weights), rel=1e-12)


@each_model
def test_gradient_is_the_finite_difference_of_the_literal_risk(model):
    dataset = sample(model, 2.0, 9, 13)
    weights = weights_of(dataset, 3, 0.7)
    gradient = dataset.risk(weights)[1]
    assert gradient.shape == weights.shape
    step = 1e-4
    for entry in np.ndindex(weights.shape):
        shift = np.zeros(weights.shape)
        shift[entry] = step

        def along(k, shift=shift):
            return literal_risk(dataset, weights + k * shift)

        slope = (8 * (along(1) - along(-1)) - (along(2) - along(-2))) / (12 * step)
        assert gradient[entry] == pytest.approx(slope, rel=1e-7, abs=1e-9 * np.abs(gradient).max())


def test_risk_of_zero_weights_is_that_of_uniform_attention():
    dataset = sample(MODELS["three"], 2.0, 30, 17)
    x = dataset.tokens - dataset.encodings
    loss = 0.0
    for one, v in zip(x, dataset.tokens, strict=True):
        h = one @ dataset.teacher / sqrt(30)
        attention = 0.7 * softmax_attention(h) + 0.3 * np.array(THREE["positional_target"])
        loss += ((attention @ one - v.mean(axis=0)) ** 2).sum()
    value, gradient = dataset.risk(np.zeros((30, 1)))
    assert value == pytest.approx(loss / (2 * 30**2), rel=1e-12)
    assert (gradient == 0).all()


@each_model
def test_target_and_floor_are_the_best_that_attention_can_do(model):
    """Among matrices with rows that sum to 1: no other has a smaller ||y - S v||^2."""
    dataset = sample(model, 1.0, 15, 19)
    rng = np.random.default_rng(23)
    np.testing.assert_allclose(dataset.target.sum(axis=1), 1.0, rtol=0, atol=1e-9)
    x = dataset.tokens - dataset.encodings
    for mu, v in enumerate(dataset.tokens):
        h = x[mu] @ dataset.teacher / sqrt(15)
        attention = (1 - model.omega) * softmax_attention(h)
        attention += model.omega * np.array(model.positional_target)
        y = attention @ x[mu]
        # least squares in the free entries: row = e_1 + sum_k a_k (e_k - e_1)
        free = np.linalg.lstsq((v[1:] - v[0]).T, (y - v[0]).T, rcond=None)[0].T
        best = np.column_stack((1 - free.sum(axis=1), free))
        np.testing.assert_allclose(dataset.target[..., mu], best, rtol=1e-7, atol=1e-9)
        floor = ((y - best @ v) ** 2).sum() / 15
        assert dataset.floor[mu] == pytest.approx(floor, rel=1e-8, abs=1e-13)
        move = rng.standard_normal(best.shape)
        move -= move.mean(axis=1, keepdims=True)
        assert ((y - (best + 1e-3 * move) @ v) ** 2).sum() / 15 > dataset.floor[mu]
        np.testing.assert_allclose(
            dataset.metric[..., mu], [[a @ b / 15 for b in v] for a in v], rtol=1e-12
        )


def test_target_metric_and_floor_tend_to_those_of_large_dimension():
    """G -> diag(s) at rate 1 / sqrt(d); T -> T[h*] and c -> 0 at rate 1 / d."""
    model = MODELS["unequal"]
    spread = []
    for dimension in (100, 400, 1600):
        dataset = sample(model, 400 / dimension, dimension, 29)
        assert dataset.count == 400
        bare = dataset.tokens - dataset.encodings
        limit = model.target(np.moveaxis(bare @ dataset.teacher, 0, -1) / sqrt(dimension))
        off_limit = dataset.metric - np.diag(model.variances)[..., None]
        spread.append(
            (
                dimension * (dataset.target - limit).std(),
                sqrt(dimension) * off_limit.std(),
                dimension * dataset.floor.mean(),
            )
        )
    spread = np.array(spread)
    assert (spread > 0.5).all()
    np.testing.assert_allclose(spread[1:] / spread[0], 1.0, rtol=0, atol=0.15)


@each_model
def test_weights_from_is_the_transpose_of_fields(model):
    dataset = sample(model, 2.0, 20, 31)
    rng = np.random.default_rng(37)
    weights = rng.standard_normal((20, model.rank))
    pulls = rng.standard_normal((model.length, model.rank, dataset.count))
    z = dataset.fields(weights)
    assert z.shape == pulls.shape
    assert z.flags.c_contiguous
    for mu, token in np.ndindex(dataset.count, model.length):
        expected = dataset.tokens[mu, token] @ weights / sqrt(20)
        np.testing.assert_allclose(z[token, :, mu], expected, rtol=1e-11, atol=1e-14)
    back = dataset.weights_from(pulls)
    summed = sum(
        np.outer(dataset.tokens[mu, token], pulls[token, :, mu])
        for mu, token in np.ndindex(dataset.count, model.length)
    )
    np.testing.assert_allclose(back, summed / sqrt(20), rtol=1e-11, atol=1e-12)
    assert (back * weights).sum() == pytest.approx((pulls * z).sum(), rel=1e-11)


@each_model
def test_overlaps_are_their_definitions(model):
    dataset = sample(model, 1.0, 33, 41)
    weights = weights_of(dataset, 5)
    q, m, theta = dataset.overlaps(weights)
    p = literal_encodings(model, 33)
    for token in range(model.length):
        covariance = model.variances[token] * np.eye(33)
        np.testing.assert_allclose(q[token], weights.T @ covariance @ weights / 33, rtol=1e-12)
        np.testing.assert_allclose(m[token], p[token] @ weights / sqrt(33), rtol=1e-10)
        np.testing.assert_allclose(
            theta[token], weights.T @ covariance @ dataset.teacher / 33, rtol=1e-12
        )


# --- the test error ---------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["base", "two and two", "unequal", "three", "three, rank two"])
def test_expected_test_error_is_that_of_fresh_sentences(name):
    """Sentences drawn here, ||y - f||^2 / (2 d) from their tokens: 3 standard errors."""
    model, d, count = MODELS[name], 4000, 800
    dataset = sample(model, 2 / d, d, 43)
    weights = weights_of(dataset, 7, 0.8)
    weights += sqrt(d) * np.outer(dataset.directions[0], (0.5, 1.0)[: model.rank])
    rng = np.random.default_rng(47)
    p = literal_encodings(model, d)
    errors = []
    for _ in range(count // 50):
        x = np.sqrt(model.variances)[:, None] * rng.standard_normal((50, model.length, d))
        errors.append(literal_error(model, x + p, dataset.teacher, weights) / (2 * d))
    errors = np.concatenate(errors)
    expected = training.expected_test_error(dataset, weights)
    standard_error = errors.std(ddof=1) / sqrt(count)
    assert standard_error < 0.05 * expected
    # the encodings add |S p|^2 / (2 d) and the like, which must not show
    assert 1 / d < standard_error
    assert abs(errors.mean() - expected) < 3 * standard_error


def test_test_error_of_zero_weights():
    """Uniform attention against T[h*]: a Gauss-Hermite average for one softmax of two fields."""
    dataset = sample(BASE, 1.0, 500, 53)
    rho = 0.25 * float((dataset.teacher**2).mean())
    nodes, weights = gauss_hermite(80, 2)
    first, second = sqrt(rho) * nodes
    gaps = [
        0.7 / (1 + np.exp(other * one - one * one)) + 0.3 * 0.6 - 0.5
        for one, other in ((first, second), (second, first))
    ]
    expected = 0.5 * 0.25 * 2 * sum(weights @ gap**2 for gap in gaps)
    value = training.expected_test_error(dataset, np.zeros((500, 1)))
    assert value == pytest.approx(expected, rel=1e-3)


def test_test_error_of_a_wholly_positional_target():
    """omega = 1: the target is A, and zero weights attend uniformly."""
    dataset = sample(Model(1.0), 1.0, 100, 59)
    value = training.expected_test_error(dataset, np.zeros((100, 1)))
    assert value == pytest.approx(0.5 * 0.25 * 4 * 0.1**2, rel=1e-12)
    dataset = sample(Model(1.0, **THREE, sigma=(0.4, 0.5, 0.7)), 1.0, 100, 59)
    value = training.expected_test_error(dataset, np.zeros((100, 1)))
    gap = np.array(THREE["positional_target"]) - 1 / 3
    assert value == pytest.approx(0.5 * (gap**2 @ [0.16, 0.25, 0.49]).sum(), rel=1e-12)


def test_test_error_of_positional_weights_without_noise():
    """sigma -> 0: the fields are m = +-mu alone, and the attention is that of +-mu."""
    dataset = sample(Model(1.0, sigma=1e-5), 1.0, 100, 61)
    mu = 0.35
    weights = mu * sqrt(100) * dataset.directions.T
    p11 = 1 / (1 + exp(-2 * mu**2))
    value = training.expected_test_error(dataset, weights)
    assert value == pytest.approx(0.5 * 1e-10 * 4 * (0.6 - p11) ** 2, rel=1e-6)


@pytest.mark.parametrize("rank", [1, 2])
def test_the_teacher_makes_no_error_on_a_wholly_semantic_target(rank):
    """omega = 0, and the part of the teacher along the encodings is taken out."""
    model = Model(0.0, sigma=(0.5, 0.8), rank=rank, target_rank=rank)
    dataset = sample(model, 1.0, 200, 67)
    bare = dataset.teacher - dataset.directions.T @ (dataset.directions @ dataset.teacher)
    dataset = replace(dataset, teacher=bare)
    assert training.expected_test_error(dataset, bare) < 1e-12
    turn = np.linalg.qr(np.random.default_rng(71).normal(size=(rank, rank)))[0]
    assert training.expected_test_error(dataset, bare @ turn) < 1e-12
    assert training.expected_test_error(dataset, 1.5 * bare) > 1e-3


def test_test_error_does_not_change_with_the_sign_of_the_weights_but_with_their_mean():
    dataset = sample(BASE, 1.0, 200, 73)
    weights = weights_of(dataset, 9)
    value = training.expected_test_error(dataset, weights)
    assert training.expected_test_error(dataset, -weights) == pytest.approx(value, rel=2e-3)
    assert training.expected_test_error(dataset, weights) == value
    along = weights + 0.8 * sqrt(200) * dataset.directions.T
    assert abs(training.expected_test_error(dataset, along) / value - 1) > 0.05


# --- starts, results, and bad arguments -------------------------------------------------------


def test_starting_weights():
    dataset = sample(Model(0.3, encodings=((1.0, 0.5), (-1.0, 0.5))), 1.0, 50, 79)
    positional = training.starting_weights(dataset, "positional")
    np.testing.assert_allclose(positional, np.ones((50, 1)), rtol=1e-14)
    semantic = training.starting_weights(dataset, "semantic")
    np.testing.assert_array_equal(semantic, dataset.teacher)
    assert not np.shares_memory(semantic, dataset.teacher)
    random = training.starting_weights(dataset, "random")
    np.testing.assert_array_equal(random, training.starting_weights(dataset, "random", 0))
    np.testing.assert_array_equal(
        training.starting_weights(dataset, "random", seed=4),
        np.random.default_rng([4, 1]).standard_normal((50, 1)),
    )
    assert np.abs(random - training.starting_weights(dataset, "random", 4)).min() > 0
    own = np.arange(50.0)
    for given in (own, own[:, None], own.tolist(), own.astype(int)):
        weights = training.starting_weights(dataset, given)
        np.testing.assert_array_equal(weights, own[:, None])
        assert weights.dtype == np.float64
        assert not np.shares_memory(weights, own)


def test_starting_weights_of_rank_two():
    dataset = sample(MODELS["two and two"], 1.0, 30, 83)
    positional = training.starting_weights(dataset, "positional")
    np.testing.assert_allclose(positional, np.column_stack((np.ones(30), np.zeros(30))))
    np.testing.assert_array_equal(training.starting_weights(dataset, "semantic"), dataset.teacher)
    assert training.starting_weights(dataset, "random").shape == (30, 2)


@pytest.mark.parametrize("start", ["Semantic", "", "zeros"])
def test_an_unknown_start_is_named(start):
    with pytest.raises(ValueError, match=f'start must be "positional", .* got {start!r}'):
        training.starting_weights(sample(BASE, 1.0, 20, 0), start)


def test_a_semantic_start_needs_equal_ranks():
    with pytest.raises(ValueError, match="rank = target_rank.* got 'semantic'"):
        training.starting_weights(sample(MODELS["rank two"], 1.0, 20, 0), "semantic")


@pytest.mark.parametrize("shape", [(), (19,), (20, 2), (1, 20), (20, 1, 1)])
def test_a_start_of_wrong_shape_is_quoted(shape):
    with pytest.raises(ValueError, match="start must be an array .* shape") as caught:
        training.starting_weights(sample(BASE, 1.0, 20, 0), np.ones(shape))
    assert f"shape (20, 1), got shape {shape} and type float64" in str(caught.value)


@pytest.mark.parametrize(
    "start", [["a"] * 20, {}, [[1.0], [1.0, 2.0]], 1j * np.ones(20), np.ones(20, dtype=bool), None]
)
def test_a_start_that_is_no_array_of_real_numbers(start):
    with pytest.raises(ValueError, match="start must be "):
        training.starting_weights(sample(BASE, 1.0, 20, 0), start)


def test_a_random_start_is_not_the_teacher_of_the_same_seed():
    dataset = sample(BASE, 1.0, 400, 5)
    start = training.starting_weights(dataset, "random", 5)
    assert abs((start * dataset.teacher).mean()) < 4 / np.sqrt(400)
    assert np.array_equal(start, training.starting_weights(dataset, "random", 5))
    assert not np.array_equal(start, training.starting_weights(dataset, "random", 6))


def test_a_start_of_zeros_would_not_move():
    with pytest.raises(ValueError, match="start must not be zero"):
        training.starting_weights(sample(BASE, 1.0, 20, 0), np.zeros(20))


@pytest.mark.parametrize("alpha", [1e6, 1e308])
def test_a_dataset_too_large_for_memory_is_refused_before_the_work(alpha):
    with pytest.raises(MemoryError, match=r"tokens of alpha \* dimension .* GB"):
        sample(BASE, alpha, 10**5, 0)


def test_a_vector_is_no_start_for_rank_two():
    with pytest.raises(ValueError, match=r"start .* shape \(20, 2\), got shape \(20,\)"):
        training.starting_weights(sample(MODELS["two and two"], 1.0, 20, 0), np.ones(20))


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 1e160])
def test_a_start_that_is_not_finite(value):
    start = np.ones((20, 1))
    start[3] = value
    with pytest.raises(ValueError, match="start must have entries below 1e\\+06 in absolute value"):
        training.starting_weights(sample(BASE, 1.0, 20, 0), start)


BAD = [
    ("model", "base"),
    ("model", None),
    ("alpha", 0),
    ("alpha", -1.0),
    ("alpha", float("nan")),
    ("alpha", float("inf")),
    ("alpha", "2"),
    ("alpha", True),
    ("alpha", None),
    ("dimension", 100.0),
    ("dimension", True),
    ("dimension", 1),
    ("dimension", 0),
    ("dimension", -5),
    ("dimension", 10**7 + 1),
    ("dimension", "100"),
    ("seed", -1),
    ("seed", 1.0),
    ("seed", None),
    ("seed", 2**63),
    ("seed", False),
    ("dtype", np.float16),
    ("dtype", int),
    ("dtype", "double"),
    ("dtype", None),
]


@pytest.mark.parametrize(("name", "value"), BAD)
def test_bad_arguments_of_sample_are_named_and_quoted(name, value):
    arguments = {"model": BASE, "alpha": 2.0, "dimension": 20, "seed": 0, "dtype": np.float64}
    with pytest.raises(ValueError, match=f"^{name} must be ") as caught:
        sample(**(arguments | {name: value}))
    assert repr(value) in str(caught.value)


def test_dimension_must_hold_the_tokens_and_the_directions():
    wide = Model(0.3, encodings=((1.0, 0.0, 0.5), (-1.0, 0.2, 0.0)))
    for model, least in ((BASE, 2), (wide, 3), (MODELS["four"], 4)):
        with pytest.raises(ValueError, match=f"dimension .* from {least} to .*, got {least - 1}"):
            sample(model, 2.0, least - 1, 0)
        smallest = sample(model, 2.0, least, 0)
        weights = weights_of(smallest, 1)
        assert smallest.risk(weights)[0] == pytest.approx(literal_risk(smallest, weights), rel=1e-9)


def test_at_least_one_sentence():
    with pytest.raises(ValueError, match=r"alpha \* dimension .* alpha = 0.02 and dimension = 20"):
        sample(BASE, 0.02, 20, 0)
    assert sample(BASE, 0.03, 20, 0).count == 1


def test_numpy_scalars_are_numbers():
    dataset = sample(BASE, np.float64(2.0), np.int64(20), np.int32(3))
    np.testing.assert_array_equal(dataset.tokens, sample(BASE, 2, 20, 3).tokens)
    assert type(dataset.alpha) is float
    assert type(dataset.seed) is int


def test_results_are_frozen():
    dataset = sample(BASE, 1.0, 20, 0)
    with pytest.raises(FrozenInstanceError):
        dataset.alpha = 2.0
    history = training.History(*np.zeros((5, 3)))
    assert history.V is None
    with pytest.raises(FrozenInstanceError):
        history.q = np.ones(3)
    weights = weights_of(dataset, 1)
    trained = training.trained_layer(dataset, weights, history, False)
    with pytest.raises(FrozenInstanceError):
        trained.converged = True


def test_trained_layer_measures_the_weights():
    model = Model(0.3, sigma=(0.4, 0.9))
    dataset = sample(model, 1.0, 30, 89)
    weights = weights_of(dataset, 11)
    history = training.History(*np.zeros((5, 4)))
    trained = training.trained_layer(
        dataset, weights, history, True, V=3.0, held_from=2, rivals=5, excited=1
    )
    assert isinstance(trained, Trained)
    value, gradient = dataset.risk(weights)
    q, m, theta = dataset.overlaps(weights)
    assert trained.weights is weights
    assert trained.history is history
    assert trained.train_loss == value
    assert trained.gradient == pytest.approx(
        30 * np.sqrt((gradient**2).sum()) / (0.01 * np.sqrt((weights**2).sum())), rel=1e-12
    )
    assert trained.test_error == training.expected_test_error(dataset, weights)
    assert (trained.q, trained.m, trained.theta) == (q[0, 0, 0], m[0, 0], theta[0, 0, 0])
    assert (trained.V, trained.iterations, trained.converged) == (3.0, 4, True)
    assert (trained.held_from, trained.rivals, trained.excited) == (2, 5, 1)
    bare = training.trained_layer(dataset, weights, history, False)
    assert (bare.V, bare.held_from, bare.rivals, bare.excited) == (None, None, 0, 0)
    assert not bare.converged
    for name in ("train_loss", "gradient", "test_error", "q", "m", "theta"):
        assert type(getattr(trained, name)) is float
    # what is long is not shown
    assert "weights" not in repr(trained)
    assert "history" not in repr(trained)
    assert f"train_loss={value!r}" in repr(trained)
