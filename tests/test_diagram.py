"""Phase diagram: what it holds, how it is kept in a file, and that nothing else matters."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import fields, replace
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from types import SimpleNamespace
from weakref import WeakSet

import numpy as np
import pytest

from attnphase import (
    BranchGrid,
    ConvergenceError,
    Model,
    Overlaps,
    PhaseDiagram,
    diagram,
    linear_baseline,
    phase_diagram,
    read_diagram,
    solve,
    solver,
)
from attnphase import state_evolution as se
from attnphase.phases import growth_rates
from attnphase.solver import Continuation

ROOT = Path(__file__).parent.parent
STORED = ROOT / "book" / "data" / "phase_diagram.npz"
BRANCHES = ("positional", "semantic", "uninformed")
QUANTITIES = ("q", "m", "V", "theta", "train_loss", "test_error", "mean_envelope", "residual")
MEASURED = ("q", "m", "V", "theta", "train_loss", "test_error")
MODEL = Model(0.0)
ALPHAS, OMEGAS = (0.04, 0.5, 1.0, 2.0), (0.1, 0.3)
#: A sweep that takes no time, with the columns of `fake`.
FAKE = {"log2_points": 7, "replicates": 3, "seed": 5, "tolerance": 1e-4, "progress": False}
FAKE_ALPHAS, FAKE_OMEGAS = (0.5, 1.0), (0.0, 0.1, 0.2, 0.4)


def grids(one):
    return [getattr(one, name) for name in BRANCHES]


def arrays(one):
    """Everything that a diagram holds, by name."""
    found = {name: getattr(one, name) for name in ("alphas", "omegas", "baseline")}
    for name, grid in zip(BRANCHES, grids(one), strict=True):
        for field in fields(BranchGrid):
            value = getattr(grid, field.name)
            parts = value.items() if isinstance(value, dict) else [("", value)]
            found |= {f"{name}.{field.name}.{key}": part for key, part in parts}
    return found


def identical(one, other):
    """Whether two diagrams agree in every digit."""
    mine, others = arrays(one), arrays(other)
    return (
        mine.keys() == others.keys()
        and one.settings == other.settings
        and one.model == other.model
        and all(
            np.array_equal(array, others[name], equal_nan=array.dtype.kind == "f")
            for name, array in mine.items()
        )
    )


@pytest.fixture(scope="module")
def small():
    """Four sample complexities, two targets, on 2 x 512 nodes."""
    return phase_diagram(MODEL, ALPHAS, OMEGAS, progress=False, log2_points=9)


# --- what it holds --------------------------------------------------------------------------------


def test_shapes_and_names(small):
    assert isinstance(small, PhaseDiagram)
    assert small.alphas.tolist() == list(ALPHAS)
    assert small.omegas.tolist() == list(OMEGAS)
    assert small.baseline.shape == (2,)
    for grid in grids(small):
        assert isinstance(grid, BranchGrid)
        assert tuple(grid.standard_error) == MEASURED
        for array in [getattr(grid, name) for name in QUANTITIES]:
            assert array.shape == (2, 4) and array.dtype == float
        for array in (*grid.standard_error.values(), grid.growth, grid.status, grid.found):
            assert array.shape == (2, 4)
    for array in (small.winner, small.rival, small.loss_difference, small.baseline_difference):
        assert array.shape == (2, 4)
    assert small.settings == {
        "log2_points": 9,
        "replicates": 2,
        "seed": 0,
        "tolerance": 1e-5,
        "accuracy": None,
    }


def test_defaults_are_those_of_the_text():
    settings = []

    def spy(compute, omegas):
        settings.append(compute.args[2])
        return [None] * len(list(omegas))

    with pytest.raises(AttributeError):
        phase_diagram(MODEL, (1.0,), (0.3,), map=spy, progress=False)
    assert settings == [
        {"log2_points": 13, "replicates": 2, "seed": 0, "tolerance": 1e-5, "accuracy": None}
    ]


def test_status_of_each_branch(small):
    """At omega = 0.1 the positional branch ends below alpha = 2; semantic ones begin at 0.5-0.7."""
    assert small.positional.status.tolist() == [
        ["absent", "found", "found", "absent"],
        ["absent", "found", "found", "found"],
    ]
    # at omega = 0.1 and alpha = 0.5 the factor is 1.005 on these nodes: too close to tell
    assert small.semantic.status.tolist() == [
        ["absent", "unresolved", "found", "found"],
        ["absent", "absent", "found", "found"],
    ]
    assert (small.uninformed.status == "found").all()
    assert small.winner.tolist() == [
        ["uninformed", "positional", "semantic", "semantic"],
        ["uninformed", "positional", "positional", "semantic"],
    ]
    assert small.rival.tolist() == [
        ["uninformed", "positional", "positional", "uninformed"],
        ["uninformed", "positional", "positional", "positional"],
    ]
    assert np.isnan(small.loss_difference).tolist() == [[False, True, False, False], [False] * 4]
    assert not np.isnan(small.baseline_difference).any()


def test_numbers_are_there_where_a_branch_is_found_and_nowhere_else(small):
    for name, grid in zip(BRANCHES, grids(small), strict=True):
        values = [getattr(grid, key) for key in QUANTITIES] + list(grid.standard_error.values())
        for array in values:
            np.testing.assert_array_equal(np.isfinite(array), grid.status == "found")
            np.testing.assert_array_equal(grid.found, grid.status == "found")
        if name == "uninformed":
            assert np.isnan(grid.growth).all()
            continue
        assert np.isfinite(grid.growth).all()
        assert (grid.growth[grid.status == "absent"] <= 1).all()
        assert (grid.growth[grid.status == "unresolved"] > 1).all()
        assert (grid.residual[grid.found] <= 1e-5).all()


def test_zeros_of_each_branch_are_exact_and_its_own_overlap_is_above_zero(small):
    for name, own, other in (("positional", "m", "theta"), ("semantic", "theta", "m")):
        grid = getattr(small, name)
        assert (getattr(grid, own)[grid.found] > 0.05).all()
        assert (getattr(grid, other)[grid.found] == 0).all()
        assert (grid.standard_error[own][grid.found] > 0).all()
    assert (small.uninformed.m == 0).all() and (small.uninformed.theta == 0).all()


@pytest.mark.parametrize("name", BRANCHES)
def test_points_are_those_of_solve(small, name):
    grid = getattr(small, name)
    for i, j in np.argwhere(grid.found):
        point = solve(
            Model(OMEGAS[i]), ALPHAS[j], name, log2_points=9, replicates=2, tolerance=1e-7
        )
        for key in QUANTITIES[:-1]:
            expected = abs(getattr(point, key))
            found = getattr(grid, key)[i, j]
            assert found == pytest.approx(expected, rel=1e-4), (key, OMEGAS[i], ALPHAS[j])
        for key in MEASURED:
            error = grid.standard_error[key][i, j]
            assert error == pytest.approx(point.standard_error[key], rel=0.02, abs=1e-6), key


def test_growth_is_that_of_the_uninformed_solution(small):
    model = Model(OMEGAS[1])
    nodes = se.replicate_nodes(model, 9, 2, 0)
    for j, alpha in enumerate(ALPHAS):
        point = solve(model, alpha, "uninformed", log2_points=9, replicates=2)
        rates = growth_rates(point, nodes)
        assert small.positional.growth[1, j] == pytest.approx(rates["positional"], rel=1e-4)
        assert small.semantic.growth[1, j] == pytest.approx(rates["semantic"], rel=1e-4)


def test_baseline_is_that_of_each_target(small):
    expected = [linear_baseline(Model(omega)).test_error for omega in OMEGAS]
    assert small.baseline.tolist() == expected


def test_a_branch_goes_on_where_the_uninformed_solution_is_stable_beside_it():
    """At omega = 0.3, beyond alpha = 2.5, continuation finds what an instability does not tell."""
    found = phase_diagram(MODEL, (2.0, 2.6, 3.2), (0.3,), progress=False, log2_points=9)
    assert (found.positional.growth < 1).tolist() == [[False, True, True]]
    assert (found.positional.status == "found").all()
    assert (found.positional.m > 0.25).all()


def test_a_ridge_that_leaves_no_weights_leaves_everything_unresolved():
    found = phase_diagram(
        replace(MODEL, regularization=3.0), (0.3,), (0.3,), progress=False, log2_points=7
    )
    for grid in grids(found):
        assert grid.status.tolist() == [["unresolved"]]
        assert np.isnan(grid.growth).all()
        assert not grid.found.any()
    assert found.winner.tolist() == found.rival.tolist() == [[""]]
    assert np.isnan(found.loss_difference).all() and np.isnan(found.baseline_difference).all()
    assert np.isfinite(found.baseline).all()


def test_a_column_does_not_depend_on_the_others_nor_on_the_omega_of_the_model(small):
    alone = phase_diagram(Model(0.77), ALPHAS, OMEGAS[1:], progress=False, log2_points=9)
    for name, array in arrays(alone).items():
        if name != "alphas":
            both = arrays(small)[name]
            assert np.array_equal(array, both[1:], equal_nan=array.dtype.kind == "f"), name


# --- winner, rival, differences -------------------------------------------------------------------

F, A, U = "found", "absent", "unresolved"
#: Status and train loss of the positional, the semantic and the uninformed branch; then the winner,
#: the rival and the difference of the losses.
CASES = [
    ((F, F, F), (1.0, 2.0, 4.0), "positional", "positional", -1.0),
    ((F, F, F), (2.0, 1.5, 4.0), "semantic", "positional", 0.5),
    ((F, F, F), (2.0, 1.5, 1.0), "uninformed", "positional", 0.5),
    ((A, A, F), (1.0, 2.0, 4.0), "uninformed", "uninformed", 0.0),
    ((F, A, F), (1.0, 2.0, 4.0), "positional", "positional", -3.0),
    ((A, F, F), (1.0, 2.0, 4.0), "semantic", "uninformed", 2.0),
    ((F, U, F), (1.0, 2.0, 4.0), "positional", "positional", np.nan),
    ((U, F, F), (1.0, 2.0, 4.0), "semantic", "", np.nan),
    ((U, A, F), (1.0, 2.0, 4.0), "", "", np.nan),
    ((A, U, F), (1.0, 2.0, 4.0), "", "uninformed", np.nan),
    ((U, U, F), (1.0, 2.0, 4.0), "", "", np.nan),
    ((F, U, F), (4.5, 2.0, 4.0), "", "positional", np.nan),
    ((U, F, F), (4.5, 5.0, 4.0), "", "", np.nan),
    ((U, U, U), (1.0, 2.0, 4.0), "", "", np.nan),
    ((F, F, U), (1.0, 2.0, 4.0), "positional", "positional", -1.0),
    ((F, U, U), (1.0, 2.0, 4.0), "positional", "positional", np.nan),
    ((U, F, U), (1.0, 2.0, 4.0), "semantic", "", np.nan),
]
BASELINE = np.array([0.5, 0.25])


def hand_made():
    """All cases along alpha, for two omegas; the test error of branch b is b + 0.01 j."""
    shape = (2, len(CASES))
    made = {}
    for b, name in enumerate(BRANCHES):
        status = np.tile([case[0][b] for case in CASES], (2, 1))
        found = status == "found"
        loss = np.where(found, np.tile([case[1][b] for case in CASES], (2, 1)), np.nan)
        error = np.where(found, b + 0.01 * np.tile(np.arange(len(CASES)), (2, 1)), np.nan)
        rest = {key: np.full(shape, np.nan) for key in QUANTITIES}
        rest |= {"train_loss": loss, "test_error": error}
        made[name] = BranchGrid(
            **rest, growth=np.full(shape, np.nan), standard_error={}, status=status
        )
    alphas, omegas = np.arange(1.0, len(CASES) + 1), np.array([0.1, 0.2])
    return PhaseDiagram(MODEL, alphas, omegas, **made, baseline=BASELINE, settings={})


@pytest.mark.parametrize("j", range(len(CASES)))
def test_winner_rival_and_differences(j):
    made, (_, _, winner, rival, difference) = hand_made(), CASES[j]
    for i in range(2):
        assert made.winner[i, j] == winner
        assert made.rival[i, j] == rival
        np.testing.assert_equal(made.loss_difference[i, j], difference)
        error = np.nan
        if winner:
            error = BRANCHES.index(winner) + 0.01 * j - BASELINE[i]
        np.testing.assert_equal(made.baseline_difference[i, j], error)


# --- how a branch is followed ---------------------------------------------------------------------


class Walk:
    """A continuation that keeps a diary; the branch can be begun and reached as told."""

    begins, reached, squares = set(), set(), {}
    diary: list = []

    def __init__(self, *arguments):
        self.alpha = None

    def begin(self, alpha):
        self.diary.append(("begin", alpha))
        if alpha not in self.begins:
            raise ConvergenceError("not from a generic start", None)
        self.alpha = alpha

    def copy(self):
        twin = Walk()
        twin.alpha = self.alpha
        return twin

    def overlap_square(self, alpha):
        return self.squares.get(alpha, np.nan)

    def to(self, alpha, halvings, attempts):
        self.diary.append((self.alpha, alpha, halvings, attempts))
        if alpha not in self.reached:
            raise ConvergenceError("lost", None)
        self.alpha = alpha


def follow(monkeypatch, growth, **region):
    """The alphas 1, 2, ... that the branch is found at, and the diary."""
    monkeypatch.setattr(diagram, "Continuation", Walk)
    for name, value in ({"squares": {}} | region | {"diary": []}).items():
        monkeypatch.setattr(Walk, name, value)
    alphas = np.arange(1.0, len(growth) + 1)
    found = []
    for j, path in diagram._follow(MODEL, "semantic", (), alphas, np.array(growth), 1e-5):
        assert path.alpha == alphas[j]
        found.append(path.alpha)
    assert len(set(found)) == len(found)
    return sorted(found), Walk.diary


def test_a_branch_is_followed_from_the_most_unstable_place_to_either_side(monkeypatch):
    found, diary = follow(
        monkeypatch, [0.9, 1.2, 1.5, 1.1, 0.8, 0.7], begins={3.0}, reached={1.0, 2.0, 4.0, 5.0}
    )
    assert found == [1.0, 2.0, 3.0, 4.0, 5.0]
    hard, easy = (2, 4), (0, 1)  # little is tried where the branch need not exist
    assert diary == [
        ("begin", 3.0),
        (3.0, 4.0, *hard),
        (4.0, 5.0, *easy),
        (5.0, 6.0, *easy),
        (3.0, 2.0, *hard),
        (2.0, 1.0, *easy),
        ("begin", 6.0),  # there may be another piece at the largest alpha
    ]


def test_a_branch_is_sought_anew_where_it_must_be_and_at_the_largest_alpha(monkeypatch):
    growth = [1.3, 1.2, 0.9, 0.8, 0.7]
    found, diary = follow(monkeypatch, growth, begins={2.0, 5.0}, reached={4.0})
    assert found == [2.0, 4.0, 5.0]
    assert [alpha for word, alpha, *_ in diary if word == "begin"] == [1.0, 2.0, 5.0]
    assert (2.0, 1.0, 2, 4) in diary and (5.0, 4.0, 0, 1) in diary


def test_where_nothing_is_unstable_two_places_are_tried(monkeypatch):
    found, diary = follow(monkeypatch, [0.5, 0.9, 0.7, 0.6], begins=set(), reached=set())
    assert found == []
    assert diary == [("begin", 2.0), ("begin", 4.0)]


def test_of_equal_places_the_one_with_more_data_is_tried_first(monkeypatch):
    _, diary = follow(monkeypatch, [1.5, 1.5, 1.5], begins={3.0}, reached={1.0, 2.0})
    assert diary == [("begin", 3.0), (3.0, 2.0, 2, 4), (2.0, 1.0, 2, 4)]


def test_without_an_uninformed_solution_a_branch_is_tried_once_and_at_the_end(monkeypatch):
    found, diary = follow(monkeypatch, [np.nan] * 3, begins={3.0}, reached={2.0, 1.0})
    assert found == [1.0, 2.0, 3.0]
    assert diary == [("begin", 3.0), (3.0, 2.0, 2, 4), (2.0, 1.0, 2, 4)]


@pytest.mark.parametrize(("square", "goes_on"), [(0.01, True), (-0.01, False), (np.nan, True)])
def test_a_branch_that_has_gone_to_zero_on_the_way_is_not_followed(square, goes_on, monkeypatch):
    """Only where the uninformed solution is stable: elsewhere an extrapolation is no argument."""
    found, diary = follow(
        monkeypatch,
        [1.5, 1.2, 0.9, 0.8],
        begins={1.0},
        reached={2.0, 3.0, 4.0},
        squares={2.0: -1.0, 3.0: square, 4.0: 0.5},
    )
    assert found == ([1.0, 2.0, 3.0, 4.0] if goes_on else [1.0, 2.0])
    assert ((2.0, 3.0, 0, 1) in diary) == goes_on


def test_what_another_walk_has_found_is_not_found_again(monkeypatch):
    found, diary = follow(monkeypatch, [1.5, 1.1, 1.2, 1.3], begins={1.0, 4.0}, reached={3.0})
    assert found == [1.0, 3.0, 4.0]
    # from 1 to 2 it is lost; from 4 it gets to 3, and not to 2, which is begun anew
    steps = [entry for entry in diary if entry[0] != "begin"]
    assert steps == [(1.0, 2.0, 2, 4), (4.0, 3.0, 2, 4), (3.0, 2.0, 2, 4)]
    found, diary = follow(
        monkeypatch, [1.5, 0.9, 1.2], begins={1.0, 3.0}, reached={2.0, 1.0}, squares={3.0: -1.0}
    )
    assert found == [1.0, 2.0, 3.0]
    assert diary[-1] == (2.0, 3.0, 2, 4) or diary[-1] == ("begin", 3.0)
    assert (2.0, 1.0, 2, 4) not in diary and (3.0, 2.0, 0, 1) not in diary


@pytest.mark.parametrize("accuracy", [None, 0.01])
def test_few_continuations_are_kept_at_a_time(accuracy, monkeypatch):
    """Each holds minima of every node: not one for each point of a column."""
    alive, counts = WeakSet(), []

    class Counted(Continuation):
        def __init__(self, *arguments):
            super().__init__(*arguments)
            alive.add(self)

        def copy(self):
            twin = super().copy()
            alive.add(twin)
            return twin

        def to(self, *arguments):
            counts.append(len(alive))
            return super().to(*arguments)

    monkeypatch.setattr(diagram, "Continuation", Counted)
    alphas = np.linspace(0.6, 1.6, 11)
    found = phase_diagram(
        MODEL, alphas, (0.3,), progress=False, log2_points=8, replicates=2, accuracy=accuracy
    )
    assert found.positional.found.sum() > 8 and len(counts) > 20
    assert max(counts) <= 4


# --- finer nodes ----------------------------------------------------------------------------------


def test_inaccurate_points_are_solved_on_four_times_as_many_nodes():
    model, arguments = Model(0.3), {"progress": False, "log2_points": 8, "seed": 4}
    alphas, fine_nodes = (1.0, 1.5), se.replicate_nodes(model, 10, 2, 4)
    rough = phase_diagram(MODEL, alphas, (0.3,), **arguments)
    fine = phase_diagram(MODEL, alphas[:1], (0.3,), accuracy=1e-7, **arguments)
    assert rough.positional.found.all() and rough.semantic.found.all()
    assert np.array_equal(rough.uninformed.found, [[True, True]])
    for name in BRANCHES[:2]:
        path = Continuation(model, name, se.replicate_nodes(model, 8, 2, 4), 1e-5)
        path.begin(1.0)
        point = path.on(fine_nodes).last
        for key in QUANTITIES:
            assert getattr(getattr(fine, name), key)[0, 0] == abs(getattr(point, key)), key
        assert getattr(fine, name).q[0, 0] != path.last.q
    # a bound between the errors of two points: the one above it is solved again, the other is not
    grid = rough.positional
    errors = np.max([grid.standard_error[k] / getattr(grid, k) for k in ("q", "m", "V")], axis=0)
    some = phase_diagram(MODEL, alphas, (0.3,), accuracy=float(errors.mean()), **arguments)
    assert np.array_equal(some.positional.growth, grid.growth)
    assert ((some.positional.q != grid.q) == (errors > errors.mean())).all()
    assert some.settings["accuracy"] == errors.mean()


@pytest.mark.parametrize("branch", ["positional", "semantic"])
@pytest.mark.parametrize("key", ["q", "own", "V", "other", "train_loss"])
def test_overlaps_and_response_decide_whether_a_point_is_accurate(branch, key):
    """With respect to their size; the overlap that is zero on the branch, and losses, do not."""
    own, other = ("m", "theta") if branch == "positional" else ("theta", "m")
    values = {"q": 0.5, own: -0.1, other: 1e-9, "V": 4.0, "train_loss": 0.01}
    name = {"own": own, "other": other}.get(key, key)
    errors = {each: 0.01 * abs(value) for each, value in values.items()}
    errors[name] = 0.03 * abs(values[name])
    point = SimpleNamespace(branch=branch, standard_error=errors, **values)
    finer = SimpleNamespace(last="finer")
    path = SimpleNamespace(last=point, on=lambda nodes: finer)
    decides = key in ("q", "own", "V")
    assert diagram._accurate(path, 0.02, tuple) is (finer.last if decides else point)
    assert diagram._accurate(path, 0.04, tuple) is point


def test_what_finer_nodes_do_not_have_is_not_found():
    model = Model(0.3)
    nodes = se.replicate_nodes(model, 8, 2, 0)
    path = Continuation(model, "positional", nodes, 1e-5)
    point = path.begin(1.0)
    assert diagram._accurate(path, None, lambda: 1 / 0) is point
    assert diagram._accurate(path, 0.999, lambda: 1 / 0) is point

    def refuse(_):
        raise ConvergenceError("not there", None)

    path.on = refuse
    assert diagram._accurate(path, 1e-9, lambda: nodes) is None


# --- arguments ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"model": 0.3}, r"^model must be an attnphase\.Model, got 0\.3$"),
        ({"model": None}, r"^model must be an attnphase\.Model, got None$"),
        ({"alphas": ()}, r"^alphas must be a sequence of at least one number, got \(\)$"),
        ({"alphas": 1.0}, r"^alphas must be a sequence of numbers, got 1\.0$"),
        ({"alphas": ("a",)}, r"^alphas must be a sequence of numbers, got \('a',\)$"),
        ({"alphas": ("1.0",)}, r"^alphas must be a sequence of numbers, got \('1\.0',\)$"),
        ({"alphas": "12"}, r"^alphas must be a sequence of numbers, got '12'$"),
        ({"alphas": b"12"}, r"^alphas must be a sequence of numbers, got b'12'$"),
        ({"alphas": (0.5, True)}, r"^alphas must be a sequence of numbers, got \(0\.5, True\)$"),
        ({"alphas": np.array([True])}, r"^alphas must be a sequence of numbers, got array"),
        ({"alphas": (None,)}, r"^alphas must be a sequence of numbers, got \(None,\)$"),
        ({"alphas": (1j,)}, r"^alphas must be a sequence of numbers, got \(1j,\)$"),
        ({"alphas": (10**400,)}, r"^alphas must be a sequence of numbers, got \(10{400},\)$"),
        ({"alphas": ((1, 2), (3,))}, r"^alphas must be a sequence of numbers, got \(\(1"),
        ({"alphas": ((1, 2),)}, r"^alphas must be a sequence of at least one number, got \(\("),
        ({"alphas": (1.0, 0.5)}, r"^alphas must increase .* between 0 and .*\[1\.0, 0\.5\]$"),
        ({"alphas": (1.0, 1.0)}, r"^alphas must increase .* between 0 and .*\[1\.0, 1\.0\]$"),
        ({"alphas": (-1.0, 1.0)}, r"^alphas must increase .*got \[-1\.0, 1\.0\]$"),
        ({"alphas": (0.0, 1.0)}, r"^alphas must be above 0, got 0\.0$"),
        ({"alphas": (1.0, np.inf)}, r"^alphas must increase .*got \[1\.0, inf\]$"),
        ({"alphas": (np.nan,)}, r"^alphas must increase .*got \[nan\]$"),
        ({"alphas": (1.0, np.nan)}, r"^alphas must increase .*got \[1\.0, nan\]$"),
        ({"omegas": []}, r"^omegas must be a sequence of at least one number, got \[\]$"),
        ({"omegas": 0.3}, r"^omegas must be a sequence of numbers, got 0\.3$"),
        ({"omegas": True}, r"^omegas must be a sequence of numbers, got True$"),
        ({"omegas": (False, True)}, r"^omegas must be .* numbers, got \(False, True\)$"),
        ({"omegas": ["0", "1"]}, r"^omegas must be a sequence of numbers, got \['0', '1'\]$"),
        ({"omegas": (0.2, 0.1)}, r"^omegas must increase .* between 0 and 1, got \[0\.2, 0\.1\]"),
        ({"omegas": (-0.1, 0.1)}, r"^omegas must increase .*between 0 and 1, got \[-0\.1, 0\.1\]"),
        ({"omegas": (0.1, 1.01)}, r"^omegas must increase .*between 0 and 1, got \[0\.1, 1\.01\]"),
        ({"log2_points": 5}, r"^log2_points must be an integer from 6 to 22, got 5$"),
        ({"log2_points": 23}, r"^log2_points must be an integer from 6 to 22, got 23$"),
        ({"log2_points": 8.0}, r"^log2_points must be an integer from 6 to 22, got 8\.0$"),
        ({"replicates": 0}, r"^replicates must be an integer from 1 to 1024, got 0$"),
        ({"replicates": 1025}, r"^replicates must be an integer from 1 to 1024, got 1025$"),
        ({"seed": -1}, r"^seed must be an integer from 0 to .*, got -1$"),
        ({"seed": 2**63}, r"^seed must be an integer from 0 to .*, got 9223372036854775808$"),
        ({"tolerance": 0.0}, r"^tolerance must be a number above 0 and below 0\.001, got 0\.0$"),
        ({"tolerance": 1e-3}, r"^tolerance must be a number above 0 and below 0\.001, got 0\.001$"),
        ({"accuracy": 0}, r"^accuracy must be a number above 0 and below 1, got 0$"),
        ({"accuracy": 1.0}, r"^accuracy must be a number above 0 and below 1, got 1\.0$"),
        ({"accuracy": "x"}, r"^accuracy must be a number above 0 and below 1, got 'x'$"),
        ({"file": "d.json"}, r"^file must end in \.npz, got 'd\.json'$"),
        ({"file": 5}, r"^file must be a path, got 5$"),
        ({"file": True}, r"^file must be a path, got True$"),
        ({"file": b"d.npz"}, r"^file must be a path, got b'd\.npz'$"),
    ],
)
def test_bad_arguments(arguments, message):
    def never(*_):
        raise AssertionError("a column was asked for")

    good = {"model": MODEL, "alphas": (1.0,), "omegas": (0.3,), "map": never, "progress": False}
    with pytest.raises(ValueError, match=message):
        phase_diagram(**(good | arguments))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rank": 2, "encodings": ((1, 0), (0, 1))}, "got rank = 2, target_rank = 1"),
        ({"target_rank": 2}, "got rank = 1, target_rank = 2"),
        ({"sigma": (0.4, 0.5)}, r"sigma = \(0\.4, 0\.5\)"),
    ],
)
def test_models_that_it_is_not_for(changes, message):
    model = Model(0.3, **changes)
    with pytest.raises(NotImplementedError, match=f"phase_diagram needs .*{message}"):
        phase_diagram(model, (1.0,), (0.3,), progress=False)


@pytest.mark.parametrize("file", [5, None, ("d.npz",)])
def test_a_file_that_is_no_path_is_not_read(file):
    with pytest.raises(ValueError, match=rf"^file must be a path, got {re.escape(repr(file))}$"):
        read_diagram(file)


@pytest.mark.parametrize("kind", [list, tuple, np.array, iter])
def test_axes_may_be_any_iterable_and_hold_zero_and_one(kind, fake):
    found = phase_diagram(MODEL, kind([0.5, 1]), kind([0, 1]), **FAKE)
    assert found.alphas.tolist() == [0.5, 1.0] and found.omegas.tolist() == [0.0, 1.0]
    assert found.alphas.dtype == found.omegas.dtype == float
    assert sorted(fake) == [0.0, 1.0]


def test_integers_of_numpy_are_integers(fake, tmp_path):
    integers = {"log2_points": np.int64(7), "replicates": np.int32(3), "seed": np.uint8(5)}
    found = phase_diagram(
        MODEL, FAKE_ALPHAS, FAKE_OMEGAS, **(FAKE | integers), file=tmp_path / "d.npz"
    )
    assert identical(found, phase_diagram(MODEL, FAKE_ALPHAS, FAKE_OMEGAS, **FAKE))


# --- map and progress -----------------------------------------------------------------------------


@pytest.fixture
def fake(monkeypatch):
    """Columns that are made of random numbers, the same for the same omega; lists those asked for.

    The positional branch is found, the semantic one absent, the uninformed one found.
    """
    calls = []

    def column(model, alphas, settings, omega):
        assert isinstance(omega, float)
        calls.append(omega)
        rng = np.random.default_rng(int(1e6 * omega))
        height = len(alphas)
        values, errors = rng.random((3, 8, height)), rng.random((3, 6, height))
        values[1] = errors[1] = np.nan
        status = np.tile(np.array([[0], [1], [0]], dtype=np.int8), height)
        return diagram._Column(omega, values, errors, rng.random((2, height)), status)

    monkeypatch.setattr(diagram, "_column", column)
    return calls


def sweep(file=None, **changes):
    """The diagram of `fake` columns."""
    arguments = {"model": MODEL, "alphas": FAKE_ALPHAS, "omegas": FAKE_OMEGAS, "file": file}
    return phase_diagram(**(arguments | FAKE | changes))


def lazy_map(function, items):
    for item in items:
        yield function(item)


def eager_map(function, items):
    return [function(item) for item in items]


def backward_map(function, items):
    return [function(item) for item in reversed(items)]


def test_columns_and_quantities_are_put_where_they_belong(fake):
    found = sweep()
    assert fake == list(FAKE_OMEGAS)
    for i, omega in enumerate(FAKE_OMEGAS):
        rng = np.random.default_rng(int(1e6 * omega))
        values, errors, growth = rng.random((3, 8, 2)), rng.random((3, 6, 2)), rng.random((2, 2))
        for b, grid in enumerate(grids(found)):
            for key, expected in zip(QUANTITIES, values[b], strict=True):
                expected = np.full(2, np.nan) if b == 1 else expected
                np.testing.assert_array_equal(getattr(grid, key)[i], expected)
            for key, expected in zip(MEASURED, errors[b], strict=True):
                expected = np.full(2, np.nan) if b == 1 else expected
                np.testing.assert_array_equal(grid.standard_error[key][i], expected)
            np.testing.assert_array_equal(grid.growth[i], growth[b] if b < 2 else np.nan)
            assert (grid.status[i] == ("found", "absent", "found")[b]).all()


@pytest.mark.parametrize("mapper", [lazy_map, eager_map, backward_map, "threads"])
def test_the_map_does_not_matter(mapper, fake):
    expected = sweep()
    if mapper == "threads":
        with ThreadPoolExecutor(2) as pool:
            found = sweep(map=pool.map)
    else:
        found = sweep(map=mapper)
    assert identical(found, expected)
    assert sorted(fake) == sorted(2 * FAKE_OMEGAS)


def test_threads_that_compute_columns_do_not_disturb_each_other():
    arguments = {"progress": False, "log2_points": 8, "replicates": 1}
    expected = phase_diagram(MODEL, (1.2, 1.5), (0.2, 0.3), **arguments)
    with ThreadPoolExecutor(2) as pool:
        found = phase_diagram(MODEL, (1.2, 1.5), (0.2, 0.3), map=pool.map, **arguments)
    assert identical(found, expected)
    assert expected.semantic.found.any() and expected.positional.found.any()


@pytest.mark.parametrize(
    ("which", "message"),
    [
        ([0, 1, 3], r"^map must return each .* once, got none of omegas = \[0\.2\]$"),
        ([], r"^map must return each .* once, got none of omegas = \[0\.0, 0\.1, 0\.2, 0\.4\]$"),
        ([0, 1, 2, 3, 1], r"^map must return each .* once, got one more of omega = 0\.1$"),
        ([0, 0, 1, 2], r"^map must return each .* once, got one more of omega = 0\.0$"),
    ],
)
@pytest.mark.usefixtures("fake")
def test_a_map_that_loses_or_repeats_columns_is_an_error(which, message):
    def wrong(function, items):
        return [function(items[index]) for index in which]

    with pytest.raises(ValueError, match=message):
        sweep(map=wrong)


@pytest.mark.usefixtures("fake")
def test_progress_is_shown_only_if_asked_for(capfd, tmp_path):
    sweep()
    assert capfd.readouterr() == ("", "")
    sweep(progress=True, file=tmp_path / "d.npz")
    shown = capfd.readouterr()
    assert shown.out == ""
    assert "columns" in shown.err and "4/4" in shown.err
    with pytest.raises(KeyboardInterrupt):
        sweep(progress=True, file=tmp_path / "e.npz", map=interrupted_after(3))
    capfd.readouterr()
    sweep(progress=True, file=tmp_path / "e.npz")
    assert "3/4" in capfd.readouterr().err  # begins where it was


# --- the file -------------------------------------------------------------------------------------


def interrupted_after(count):
    def interrupted(function, items):
        for index, item in enumerate(items):
            if index == count:
                raise KeyboardInterrupt
            yield function(item)

    return interrupted


@pytest.mark.parametrize("count", [1, 2, 3])
def test_an_interrupted_sweep_goes_on_where_it_was(count, fake, tmp_path):
    expected, file = sweep(), tmp_path / "d.npz"
    with pytest.raises(KeyboardInterrupt):
        sweep(file, map=interrupted_after(count))
    assert os.listdir(tmp_path) == ["d.npz"]
    with pytest.raises(ValueError, match=rf"lacks {4 - count} of 4 columns: finish it with phase"):
        read_diagram(file)
    fake.clear()
    assert identical(sweep(file), expected)
    assert fake == list(FAKE_OMEGAS[count:])
    assert os.listdir(tmp_path) == ["d.npz"]
    fake.clear()
    written = file.read_bytes()
    for again in (sweep(file), sweep(str(file)), read_diagram(file), read_diagram(str(file))):
        assert identical(again, expected)
    assert fake == [] and file.read_bytes() == written


def test_columns_in_any_order_come_into_the_file_as_they_belong(fake, tmp_path):
    expected, file = sweep(), tmp_path / "d.npz"

    def two(function, items):
        yield function(items[2])
        yield function(items[0])
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        sweep(file, map=two)
    with np.load(file) as stored:
        assert stored["done"].tolist() == [True, False, True, False]
    fake.clear()
    assert identical(sweep(file, map=backward_map), expected)
    assert fake == [0.4, 0.1]
    assert identical(read_diagram(file), expected)


def test_real_columns_come_back_from_the_file_in_every_digit(tmp_path):
    arguments = {"progress": False, "log2_points": 8, "replicates": 1}
    expected = phase_diagram(MODEL, (1.2, 1.5), (0.2, 0.3), **arguments)
    file = tmp_path / "new" / "directory" / "d.npz"
    with pytest.raises(KeyboardInterrupt):
        phase_diagram(
            MODEL, (1.2, 1.5), (0.2, 0.3), file=file, map=interrupted_after(1), **arguments
        )
    assert identical(phase_diagram(MODEL, (1.2, 1.5), (0.2, 0.3), file=file, **arguments), expected)
    assert identical(read_diagram(file), expected)


def test_the_file_grows_by_the_column(fake, tmp_path):
    file, seen = tmp_path / "d.npz", []

    def looking(function, items):
        for item in items:
            if file.exists():
                with np.load(file) as stored:
                    seen.append(stored["done"].tolist())
            yield function(item)

    sweep(file, map=looking)
    assert seen == [[True] * k + [False] * (4 - k) for k in (1, 2, 3)]


CHANGES = [
    ({"model": replace(MODEL, regularization=0.02)}, "model"),
    ({"model": replace(MODEL, sigma=0.6)}, "model"),
    ({"model": replace(MODEL, encodings=((1.0,), (-0.9,)))}, "model"),
    ({"model": replace(MODEL, positional_target=((0.7, 0.3), (0.4, 0.6)))}, "model"),
    ({"alphas": (0.5, 1.1)}, "alphas"),
    ({"alphas": (0.5, 1.0, 1.5)}, "alphas"),
    ({"omegas": (0.0, 0.1, 0.2, 0.3)}, "omegas"),
    ({"omegas": (0.0, 0.1, 0.2)}, "omegas"),
    ({"log2_points": 8}, "settings"),
    ({"replicates": 2}, "settings"),
    ({"seed": 6}, "settings"),
    ({"tolerance": 2e-4}, "settings"),
    ({"accuracy": 0.1}, "settings"),
]


@pytest.mark.parametrize("finished", [True, False])
@pytest.mark.parametrize(("changes", "name"), CHANGES)
def test_a_file_of_another_diagram_is_left_as_it_is(changes, name, finished, fake, tmp_path):
    file = tmp_path / "d.npz"
    if finished:
        sweep(file)
    else:
        with pytest.raises(KeyboardInterrupt):
            sweep(file, map=interrupted_after(2))
    written = file.read_bytes()
    fake.clear()
    with pytest.raises(ValueError, match=rf"another diagram: its {name} are .*left as it is") as e:
        sweep(file, **changes)
    assert str(file) in str(e.value)
    assert fake == [] and file.read_bytes() == written and os.listdir(tmp_path) == ["d.npz"]


def test_the_omega_of_the_model_is_no_part_of_the_file(fake, tmp_path):
    expected = sweep(tmp_path / "d.npz")
    fake.clear()
    assert identical(sweep(tmp_path / "d.npz", model=Model(0.9)), expected)
    assert fake == []


@pytest.mark.usefixtures("fake")
def test_the_model_is_the_same_fresh_and_from_the_file(tmp_path):
    model, file = Model(0.9, sigma=1, regularization=np.float64(0.02)), tmp_path / "d.npz"
    fresh = sweep(model=model)
    assert fresh.model == replace(model, omega=0.0)
    with pytest.raises(KeyboardInterrupt):
        sweep(file, model=model, map=interrupted_after(2))
    for found in (sweep(file, model=model), sweep(file, model=model), read_diagram(file)):
        assert found.model == fresh.model
        assert found.settings == fresh.settings


@pytest.mark.skipif(not STORED.exists(), reason="the data are not there")
def test_the_stored_diagram_is_read_and_left_as_it_is():
    written = STORED.read_bytes()
    stored = read_diagram(STORED)
    assert stored.model == Model(0.0)
    assert stored.semantic.found.any()
    assert STORED.read_bytes() == written


@pytest.mark.parametrize("package", ["attnphase", "numpy", "scipy"])
def test_other_versions_read_a_file_but_do_not_go_on_with_it(package, fake, tmp_path, monkeypatch):
    begun, done = tmp_path / "begun.npz", tmp_path / "done.npz"
    with pytest.raises(KeyboardInterrupt):
        sweep(begun, map=interrupted_after(2))
    expected = sweep(done)
    written = begun.read_bytes()
    version = diagram.version
    monkeypatch.setattr(diagram, "version", lambda n: "0.0.7" if n == package else version(n))
    fake.clear()
    with pytest.raises(ValueError, match=r"was begun with .*0\.0\.7.*it was left as it is"):
        sweep(begun)
    assert fake == [] and begun.read_bytes() == written
    assert identical(sweep(done), expected)  # nothing was to be computed
    assert identical(read_diagram(done), expected)


def spoil(file, how):
    """Make ``file`` a file that is no diagram's."""
    written = file.read_bytes()
    with np.load(file) as stored:
        parts = dict(stored)
    head = json.loads(str(parts["head"]))
    if how == "empty":
        file.write_bytes(b"")
    elif how.startswith("truncated"):
        file.write_bytes(written[: int(len(written) * float(how.split()[1]))])
    elif how == "text":
        file.write_text("omega,alpha\n0.1,0.2\n", encoding="utf-8")
    elif how == "array":
        with open(file, "wb") as stream:
            np.save(stream, parts["values"])
    elif how == "objects":
        np.savez(file, **(parts | {"done": np.array([None] * 4)}))
    elif how == "no head":
        del parts["head"]
        np.savez(file, **parts)
    elif how == "no status":
        del parts["status"]
        np.savez(file, **parts)
    elif how == "another array":
        np.savez(file, **parts, more=np.zeros(3))
    elif how == "head of text":
        np.savez(file, **(parts | {"head": "no json"}))
    elif how == "head of a list":
        np.savez(file, **(parts | {"head": "[1, 2]"}))
    elif how == "head without settings":
        del head["settings"]
        np.savez(file, **(parts | {"head": json.dumps(head)}))
    elif how == "bad model":
        head["model"]["sigma"] = -1
        np.savez(file, **(parts | {"head": json.dumps(head)}))
    elif how == "strange model":
        head["model"]["beta"] = 1
        np.savez(file, **(parts | {"head": json.dumps(head)}))


@pytest.mark.usefixtures("fake")
@pytest.mark.parametrize(
    "how",
    [
        "empty",
        "truncated 0.05",
        "truncated 0.5",
        "truncated 0.98",
        "text",
        "array",
        "objects",
        "no head",
        "no status",
        "another array",
        "head of text",
        "head of a list",
        "head without settings",
        "bad model",
        "strange model",
    ],
)
def test_what_is_no_diagram_is_refused_and_left_as_it_is(how, tmp_path):
    file = tmp_path / "d.npz"
    sweep(file)
    spoil(file, how)
    spoilt = file.read_bytes()
    for use in (sweep, read_diagram):
        with pytest.raises(ValueError, match=r"d\.npz' is no file of phase_diagram: ."):
            use(file)
    assert file.read_bytes() == spoilt
    assert os.listdir(tmp_path) == ["d.npz"]


@pytest.mark.usefixtures("fake")
@pytest.mark.parametrize("name", ["done", "values", "errors", "growth", "status"])
def test_arrays_of_the_wrong_shape_are_refused(name, tmp_path):
    file = tmp_path / "d.npz"
    sweep(file)
    with np.load(file) as stored:
        parts = dict(stored)
    np.savez(file, **(parts | {name: parts[name][..., :-1]}))
    with pytest.raises(ValueError, match=r"is no file of phase_diagram: ."):
        read_diagram(file)


@pytest.mark.usefixtures("fake")
def test_a_byte_that_changed_is_noticed_or_does_not_matter(tmp_path):
    file = tmp_path / "d.npz"
    expected = sweep(file)
    written = file.read_bytes()
    rng, refused = np.random.default_rng(0), 0
    for place in rng.choice(len(written), 300, replace=False):
        broken = bytearray(written)
        broken[place] ^= 1 << rng.integers(8)
        file.write_bytes(broken)
        try:
            assert identical(read_diagram(file), expected)
        except ValueError as error:
            refused += 1
            assert "is no file of phase_diagram" in str(error)
    assert refused > 100


def test_a_file_that_is_not_there_is_not_read(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"d\.npz"):
        read_diagram(tmp_path / "d.npz")


@pytest.mark.usefixtures("fake")
@pytest.mark.parametrize("step", ["savez_compressed", "fsync", "replace"])
def test_an_interrupted_write_leaves_the_file_and_nothing_else(step, tmp_path, monkeypatch):
    file = tmp_path / "d.npz"
    with pytest.raises(KeyboardInterrupt):
        sweep(file, map=interrupted_after(2))
    written = file.read_bytes()

    def interrupt(*_, **__):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(np if step.startswith("savez") else os, step, interrupt)
        with pytest.raises(KeyboardInterrupt):
            sweep(file)
    assert file.read_bytes() == written
    assert os.listdir(tmp_path) == ["d.npz"]
    assert identical(sweep(file), sweep())


@pytest.mark.usefixtures("fake")
def test_two_runs_may_write_one_file(tmp_path, monkeypatch):
    """The second one comes and goes while the first one is about to put its file in place."""
    expected, file, replaced = sweep(), tmp_path / "d.npz", os.replace

    def late(source, target):
        monkeypatch.setattr(os, "replace", replaced)
        assert identical(sweep(file), expected)
        replaced(source, target)

    monkeypatch.setattr(os, "replace", late)
    assert identical(sweep(file), expected)
    assert identical(read_diagram(file), expected)
    assert os.listdir(tmp_path) == ["d.npz"]


@pytest.mark.usefixtures("fake")
def test_the_file_may_be_read_by_whom_other_files_may(tmp_path):
    file, other = tmp_path / "d.npz", tmp_path / "other"
    sweep(file)
    other.touch()
    assert file.stat().st_mode == other.stat().st_mode


@pytest.mark.parametrize("name", ["taken/d.npz", "taken/new/d.npz", 300 * "d" + ".npz"])
def test_a_file_that_cannot_be_written_is_told_before_the_work(name, fake, tmp_path):
    (tmp_path / "taken").touch()
    with pytest.raises(ValueError, match=r"^file '.*d\.npz' cannot be written: .") as error:
        sweep(tmp_path / name)
    assert str(tmp_path / name) in str(error.value)
    assert fake == [] and os.listdir(tmp_path) == ["taken"]


def test_a_full_disk_is_told_before_the_work_and_leaves_the_file(fake, tmp_path, monkeypatch):
    begun, done = tmp_path / "begun.npz", tmp_path / "done.npz"
    with pytest.raises(KeyboardInterrupt):
        sweep(begun, map=interrupted_after(2))
    expected = sweep(done)
    written = begun.read_bytes()
    fake.clear()

    def full(*_, **__):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(np, "savez_compressed", full)
        with pytest.raises(ValueError, match=r"begun\.npz' cannot be written: .*No space left"):
            sweep(begun)
        assert identical(sweep(done), expected)  # it is finished, and nothing is to be written
    assert fake == [] and begun.read_bytes() == written
    assert sorted(os.listdir(tmp_path)) == ["begun.npz", "done.npz"]


# --- slow: processes, clusters, kills, memory, accuracy -------------------------------------------

GRID = {"alphas": (0.5, 1.0, 2.0), "omegas": (0.0, 0.1, 0.2, 0.3)}


@pytest.mark.slow
def test_processes_and_a_dask_cluster_compute_the_same_digits(tmp_path):
    arguments = {"model": MODEL, **GRID, "log2_points": 9, "progress": False}
    expected = phase_diagram(**arguments)
    with ProcessPoolExecutor(2, mp_context=get_context("spawn")) as pool:
        assert identical(phase_diagram(map=pool.map, **arguments), expected)
    with get_context("spawn").Pool(2) as pool:
        assert identical(phase_diagram(map=pool.imap, **arguments), expected)
        assert identical(phase_diagram(map=pool.imap_unordered, **arguments), expected)
    distributed = pytest.importorskip("distributed")
    cluster = distributed.LocalCluster(
        n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None
    )
    with cluster, distributed.Client(cluster) as client, client.get_executor() as executor:
        for _ in range(2):  # the second time there is nothing left to compute
            found = phase_diagram(map=executor.map, file=tmp_path / "d.npz", **arguments)
            assert identical(found, expected)


KILLED = """
import sys
import attnphase
print("begins", flush=True)
attnphase.phase_diagram(
    attnphase.Model(0.0), (1.0, 1.5), [k / 20 for k in range(10)],
    file=sys.argv[1], log2_points=9, replicates=1, progress=False,
)
print("ends", flush=True)
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="there is no SIGKILL")
def test_a_sweep_that_is_killed_three_times_ends_as_if_it_had_not_been(tmp_path):
    rng, file = np.random.default_rng(2024), tmp_path / "d.npz"

    def start():
        command = [sys.executable, "-c", KILLED, str(file)]
        child = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert child.stdout.readline() == "begins\n"
        return child

    def done():
        """Number of columns in the file, which can be read at any moment."""
        return np.count_nonzero(diagram._Sweep.read(file).done) if file.exists() else 0

    kept = 0
    for _ in range(3):
        child, before = start(), kept
        try:
            last = time.monotonic() + 100
            while kept == before and time.monotonic() < last:
                kept = done()
            last = time.monotonic() + rng.uniform(0.0, 0.5)
            while time.monotonic() < last:
                kept = done()
        finally:
            child.send_signal(signal.SIGKILL)
            child.communicate()
        assert child.returncode == -signal.SIGKILL, "it had ended"
        assert before < kept <= done() < 10
        kept = done()
    child = start()
    assert child.communicate()[0] == "ends\n"
    assert child.returncode == 0
    expected = phase_diagram(
        MODEL,
        (1.0, 1.5),
        [k / 20 for k in range(10)],
        log2_points=9,
        replicates=1,
        progress=False,
    )
    assert identical(read_diagram(file), expected)
    # a kill in the midst of a write may leave the directory that the file was written in
    rest = [name for name in os.listdir(tmp_path) if not name.startswith(".phase_diagram-")]
    assert rest == ["d.npz"]


MEMORY = """
import runpy
import sys
from pathlib import Path
import attnphase
made = runpy.run_path(sys.argv[1])
attnphase.phase_diagram(
    attnphase.Model(0.0), made["ALPHAS"], (0.3,), progress=False, **made["SETTINGS"]
)
status = dict(line.split(":") for line in Path("/proc/self/status").read_text().splitlines())
print(1024 * int(status["VmHWM"].split()[0]))
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_memory_of_a_sweep_is_below_a_gigabyte():
    script = ROOT / "book" / "data" / "make_phase_diagram.py"
    command = [sys.executable, "-c", MEMORY, str(script)]
    variables = os.environ | {"OMP_NUM_THREADS": "1"}
    peak = int(subprocess.run(command, env=variables, check=True, capture_output=True).stdout)
    print(f"peak: {peak / 1e6:.0f} MB")
    assert 5e7 < peak < 1e9


@pytest.mark.slow
@pytest.mark.skipif(not STORED.exists(), reason="the data are not there")
def test_stored_points_are_within_a_percent_of_those_on_many_nodes(monkeypatch):
    """30 of them, drawn at random, against 2^17 nodes; those that are not say so by their errors.

    Measured: 25 of 30, and each of the 22 that are said to be accurate within 0.7 %.
    """
    once = partial(solver._find_zero, attempts=1)  # from next to a solution it does, or none is
    monkeypatch.setattr(solver, "_find_zero", once)
    stored = read_diagram(STORED)
    places = [
        (name, i, j) for name in BRANCHES[:2] for i, j in np.argwhere(getattr(stored, name).found)
    ]
    near, sure = 0, 0
    for place in np.random.default_rng(0).choice(len(places), 30, replace=False):
        name, i, j = places[place]
        grid, model = getattr(stored, name), Model(stored.omegas[i])
        own = "m" if name == "positional" else "theta"
        here = {key: getattr(grid, key)[i, j] for key in ("q", "m", "V", "theta")}
        error = max(grid.standard_error[key][i, j] / here[key] for key in ("q", own, "V"))
        accurate = error < 3e-3 and abs(grid.growth[i, j] - 1) > 0.1
        start = Overlaps(
            q=np.full((2, 1, 1), here["q"]),
            m=here["m"] * np.asarray(model.encodings),
            theta=np.full((2, 1, 1), here["theta"]),
            V=np.full((2, 1, 1), here["V"]),
        )
        try:
            point = solve(model, stored.alphas[j], name, 17, 1, seed=1, tolerance=1e-4, start=start)
            off = max(abs(abs(getattr(point, key)) / here[key] - 1) for key in ("q", own, "V"))
        except ConvergenceError:
            off = np.inf
        print(f"{name} {model.omega:.2f} {stored.alphas[j]:.2f} {off:.4f} {error:.4f} {accurate}")
        near += off < 0.01
        sure += accurate
        assert off < 0.01 or not accurate
    print(f"{near} of 30 within 1 %, {sure} said to be accurate")
    assert sure >= 20
    assert near >= 25
