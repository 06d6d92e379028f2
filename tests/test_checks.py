"""The checks of the problem sets: what they accept, what they refuse, and what they say."""

import functools
import sys
import threading
import types
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from attnphase import Model, checks, linear_baseline, solve


class Agreeable:
    """An object that claims to be equal to everything, and to be a number when asked."""

    def _yes(self, *_):
        return True

    __eq__ = __ne__ = __lt__ = __le__ = __gt__ = __ge__ = _yes
    __hash__ = None

    def _self(self, *_):
        return self

    __abs__ = __sub__ = __rsub__ = __add__ = __radd__ = __mul__ = __neg__ = __getitem__ = _self

    def __float__(self):
        return 0.0

    def __array__(self, dtype=None, copy=None):
        return np.array(0.0)


class AgreeableFloat(float):
    __eq__ = __le__ = lambda self, other: True
    __hash__ = float.__hash__


class AgreeableArray(np.ndarray):
    pass


@pytest.mark.parametrize(
    "value", [3, 3.0, *(kind(3) for kind in (np.float64, np.float16, np.uint8, np.array))]
)
def test_numbers_of_python_and_numpy_are_numbers(value):
    assert checks.number("x", value) == 3.0
    assert type(checks.number("x", value)) is float


@pytest.mark.parametrize(
    "value",
    [None, True, np.True_, "3", 3j, [3], np.ones(1), np.nan, np.inf]
    + [Agreeable(), AgreeableFloat(3)],
)
def test_other_things_are_no_numbers(value):
    with pytest.raises(AssertionError, match="`x`"):
        checks.number("x", value)


def test_arrays():
    assert checks.array("x", [[1, 2], [3, 4.5]], (2, 2)).dtype == float
    assert checks.array("x", (np.arange(2), np.arange(2)), (2, 2)).tolist() == [[0, 1], [0, 1]]
    given = np.zeros(3)
    assert checks.array("x", given, (3,)) is not given
    assert checks.array("x", 2.0, ()) == 2.0


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (None, "no answer yet"),
        (np.ones(3), r"shape \(2,\), not \(3,\)"),
        (np.ones((1, 2)), r"shape \(2,\), not \(1, 2\)"),
        ([[Agreeable(), 1.0]], "one real number"),
        (np.array([1.0, np.nan]), "1 entries are not"),
        ([1.0, np.nan], "must be finite, not nan"),
        ([[1.0], [1.0, 2.0]], "different lengths"),
        ([Agreeable(), 1.0], "one real number"),
        (Agreeable(), "array of real numbers"),
        (np.ones(2).view(AgreeableArray), "array of real numbers"),
        (np.array([Agreeable(), 1], dtype=object), "array of real numbers"),
        (np.array([True, False]), "array of real numbers"),
        ("ab", "array of real numbers"),
    ],
)
def test_wrong_arrays_are_refused(value, message):
    with pytest.raises(AssertionError, match=message):
        checks.array("x", value, (2,))


def test_close_compares_within_the_tolerance():
    checks.close("x", 1.0, 1.009, 0.01)
    checks.close("x", [1.0, 2.0], [1.009, 1.991], 0.01)
    with pytest.raises(AssertionError, match="`x` is 1, not 1.011 within 0.01. Look again"):
        checks.close("x", 1.0, 1.011, 0.01, "Look again")
    with pytest.raises(AssertionError, match=r"`x`\[1\] is 2, not 2.5 within 0.01"):
        checks.close("x", [1.0, 2.0], [1.0, 2.5], 0.01)


def test_close_up_to_sign():
    checks.close("x", [-1.0, 2.0], [1.0, -2.0], 1e-9, up_to_sign=True)
    with pytest.raises(AssertionError, match=r"`x`\[0\] is -1, not 1 up to its sign"):
        checks.close("x", [-1.0, 2.0], [1.0, 2.0], 1e-9, up_to_sign=True)
    with pytest.raises(AssertionError):
        checks.close("x", -1.0, 1.0, 1e-9)


def test_a_hidden_check_tells_no_value():
    with pytest.raises(AssertionError) as caught:
        checks.close("x", 1.25, 7.5, 0.125, "A hint.", reveal=False)
    assert "other parameters" in str(caught.value) and "A hint." in str(caught.value)
    assert not any(figure in str(caught.value) for figure in ("1.25", "7.5", "0.125"))


def test_the_hint_is_given_with_every_kind_of_failure():
    for value in (np.array([1.0, np.inf]), [1.0, np.nan], np.ones(3), [1.0, 2.0]):
        with pytest.raises(AssertionError, match="A hint"):
            checks.close("x", value, [1.0, 1.0], 0.1, "A hint")
    with pytest.raises(AssertionError, match="A hint"):
        checks.close("x", np.inf, 1.0, 0.1, "A hint")


def test_a_missing_answer_is_told_in_one_traceback():
    with pytest.raises(AssertionError) as caught:
        checks.call(unwritten, 1.0)
    assert caught.value.__context__ is None


def test_a_comparison_with_nan_fails():
    with pytest.raises(AssertionError):
        checks.close("x", 1.0, np.nan, 0.1)


def test_estimates_are_held_to_three_standard_errors():
    checks.estimate("x", 1.0, 0.01, 1.059, 0.0, 0.02)
    checks.estimate("x", 1.0, 0.01, 1.074, 0.015, 0.02)
    with pytest.raises(AssertionError, match="`x` is 1, not 1.061"):
        checks.estimate("x", 1.0, 0.01, 1.061, 0.0, 0.02)
    with pytest.raises(AssertionError, match="`x` is 1, not 1.076"):
        checks.estimate("x", 1.0, 0.01, 1.076, 0.015, 0.02)
    for error in (0.0, -0.01, 0.021):
        with pytest.raises(AssertionError, match="positive and at most 0.02"):
            checks.estimate("x", 1.0, error, 1.0, 0.0, 0.02)
    with pytest.raises(AssertionError, match="standard error of x"):
        checks.estimate("x", 1.0, np.nan, 1.0, 0.0, 0.02)


def unwritten(x):
    raise NotImplementedError


def nothing(x):
    pass


def in_place(x):
    x += 1
    return x


def faulty(x):
    return 1 / 0


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (unwritten, "`unwritten` is not written yet"),
        (nothing, "returned None"),
        (in_place, "changes the array"),
        (Agreeable(), "a function is expected"),
    ],
)
def test_call_explains(function, message):
    with pytest.raises(AssertionError, match=message):
        checks.call(function, np.zeros(2))


def test_call_passes_the_result_and_the_students_errors():
    assert checks.call(lambda x, y=1: x + y, 2, y=3) == 5
    with pytest.raises(ZeroDivisionError):
        checks.call(faulty, 1)


def test_call_keeps_the_checks_own_array():
    given = np.zeros(2)
    with pytest.raises(AssertionError, match="copy"):
        checks.call(in_place, given)
    assert given.tolist() == [0, 0]


FIELDS = np.array([[0.3, -0.2], [0.1, 0.5]]).reshape(2, 1, 2)


def caught_and_hidden():
    try:
        return Model(omega=0.3).attention(FIELDS)
    except AssertionError:
        return FIELDS


@pytest.mark.parametrize(
    "name", ["attnphase.model", "attnphase.model.Model.attention", "attnphase.baseline"]
)
def test_forbidden_parts_are_noticed(name):
    calls = {
        "attnphase.model": caught_and_hidden,
        "attnphase.model.Model.attention": functools.partial(Model(omega=0.3).attention, FIELDS),
        "attnphase.baseline": lambda: linear_baseline(Model(omega=0.3)),
    }
    with (
        pytest.raises(AssertionError, match=f"without `{name}`"),
        checks.forbid(name),
    ):
        calls[name]()
    assert sys.getprofile() is None


def test_what_is_not_forbidden_runs():
    with checks.forbid("attnphase.solver.solve", "attnphase.baseline"):
        assert Model(omega=0.3).attention(FIELDS).shape == (2, 2, 2)
    name = "attnphase.solver.solve"
    with pytest.raises(AssertionError, match=name), checks.forbid(name):
        solve(Model(omega=0.3), 1.0, log2_points=8)


def in_a_thread(answer):
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(answer).result()


def with_the_profiler_off(answer):
    watching = sys.getprofile()
    sys.setprofile(None)
    try:
        return answer()
    finally:
        sys.setprofile(watching)


def under_another_file_name(answer):
    function = Model.attention
    code = function.__code__.replace(co_filename="elsewhere.py")
    copy = types.FunctionType(code, function.__globals__)
    return copy(Model(omega=0.3), FIELDS)


@pytest.mark.parametrize("way", [in_a_thread, with_the_profiler_off, under_another_file_name])
def test_ways_around_are_noticed(way):
    with (
        pytest.raises(AssertionError, match="profiler|without `attnphase.model.Model.attention`"),
        checks.forbid("attnphase.model.Model.attention"),
    ):
        way(caught_and_hidden)
    assert sys.getprofile() is None
    assert threading.getprofile() is None


def test_a_profiler_that_was_switched_off_is_noticed():
    with pytest.raises(AssertionError, match="profiler"), checks.forbid("attnphase.baseline"):
        sys.setprofile(None)


def test_an_unknown_name_is_an_error():
    with pytest.raises((AttributeError, ImportError)), checks.forbid("attnphase.nonsense"):
        pass


def test_the_module_cannot_be_changed():
    with pytest.raises(AttributeError, match="cannot be changed"):
        checks.close = print
    with pytest.raises(AttributeError, match="cannot be changed"):
        del checks.close
