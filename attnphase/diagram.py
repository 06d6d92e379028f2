"""The phase diagram: every branch over a grid of sample complexities and positional shares.

A column of the grid, one positional share of the target, is followed by continuation along the
sample complexity; columns are independent of each other, so that they can be computed anywhere
and in any order. Source: arXiv:2402.03902, figures 2 and 3.
"""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from functools import cache, partial
from importlib.metadata import version
from numbers import Real
from pathlib import Path
from tempfile import TemporaryDirectory
from zipfile import BadZipFile

import numpy as np
from tqdm import tqdm

from attnphase.baseline import linear_baseline
from attnphase.model import LARGEST, Array, Model, check_integer, check_number
from attnphase.phases import growth_rates
from attnphase.proximal import ConvergenceError
from attnphase.solver import ATTEMPTS, BRANCHES, Continuation, FixedPoint
from attnphase.state_evolution import Nodes, replicate_nodes

#: What the diagram holds of each fixed point.
QUANTITIES = ("q", "m", "V", "theta", "train_loss", "test_error", "mean_envelope", "residual")
#: Those of them that have a standard error.
MEASURED = ("q", "m", "V", "theta", "train_loss", "test_error")
#: A refinement takes 2**REFINEMENT times as many nodes.
REFINEMENT = 2
#: Status of a branch at a point.
STATUS = ("found", "absent", "unresolved")
FOUND, ABSENT, UNRESOLVED = range(3)


@dataclass(frozen=True)
class BranchGrid:
    """One branch over the diagram; every array has shape (omegas, alphas), nan if not found.

    q, m, V, theta: overlaps of token 1, m and theta by their moduli; train_loss, test_error,
    mean_envelope, residual: as in `FixedPoint`; standard_error: arrays by name.
    growth: the factor of `growth_rates`, above 1 where the uninformed solution is unstable
    towards this branch (nan for the uninformed one itself). status, as text:

    * "found": a fixed point of this branch;
    * "absent": none was found, and the uninformed solution is stable towards the branch;
    * "unresolved": none was found on these nodes, and the uninformed solution is unstable towards
      the branch, or was not found itself. The overlap may be too small to be told from zero, or
      the ridge so strong that weights shrink to nothing.
    """

    q: Array
    m: Array
    V: Array
    theta: Array
    train_loss: Array
    test_error: Array
    mean_envelope: Array
    residual: Array
    growth: Array
    standard_error: dict[str, Array]
    status: Array

    @property
    def found(self) -> Array:
        """Where there is a fixed point."""
        return self.status == "found"


@dataclass(frozen=True)
class PhaseDiagram:
    """All branches over a grid; arrays of shape (omegas, alphas). Made by `phase_diagram`.

    model: its omega is 0, whatever the columns' are; alphas (A,), omegas (W,): the grid;
    positional, semantic, uninformed: `BranchGrid`; baseline: test error of `linear_baseline` for
    each omega, shape (W,); settings: numbers of nodes, replicates, seed, tolerance.
    """

    model: Model
    alphas: Array
    omegas: Array
    positional: BranchGrid
    semantic: BranchGrid
    uninformed: BranchGrid
    baseline: Array
    settings: dict[str, float]

    @property
    def winner(self) -> Array:
        """Name of the branch with the lowest train loss among those found at each point.

        A branch that is "unresolved" at a point takes no part there. Where the uninformed branch
        is then the lowest the name is empty: the unresolved one is lower, or they are equally good.
        Where the positional or the semantic branch is the lowest it is named all the same, though
        the unresolved one was not compared with it.
        """
        losses = [getattr(self, name).train_loss for name in BRANCHES]
        lowest = np.where(np.isnan(losses), np.inf, losses).argmin(axis=0)
        names = np.asarray(BRANCHES, dtype="<U10")[lowest]
        doubtful = (self.positional.status == "unresolved") | (self.semantic.status == "unresolved")
        doubtful &= names == "uninformed"
        return np.where(doubtful | ~np.isfinite(losses).any(axis=0), "", names)

    @property
    def rival(self) -> Array:
        """Name of the branch that the semantic side is compared with in `loss_difference`.

        "positional" where it is found, "uninformed" where it is absent, and empty where it is
        unresolved.
        """
        names = np.where(self.positional.status == "absent", "uninformed", "positional")
        return np.where(self.positional.status == "unresolved", "", names)

    @property
    def loss_difference(self) -> Array:
        """Train loss of the `rival` less that of the semantic branch.

        Where the semantic branch is absent the uninformed one stands for it; nan where one of
        the two is unresolved.
        """
        return self._side("positional") - self._side("semantic")

    @property
    def baseline_difference(self) -> Array:
        """Test error of the `winner` less that of the linear baseline; nan without a winner."""
        winner, error = self.winner, np.full(self.semantic.q.shape, np.nan)
        for name in BRANCHES:
            error = np.where(winner == name, getattr(self, name).test_error, error)
        return error - self.baseline[:, None]

    def _side(self, name: str) -> Array:
        grid = getattr(self, name)
        absent = grid.status == "absent"
        return np.where(absent, self.uninformed.train_loss, grid.train_loss)


def phase_diagram(
    model: Model,
    alphas: Iterable[float],
    omegas: Iterable[float],
    map: Callable[..., Iterable] = map,  # noqa: A002 - the builtin, or one that stands for it
    progress: bool = True,
    log2_points: int = 13,
    replicates: int = 2,
    seed: int = 0,
    tolerance: float = 1e-5,
    accuracy: float | None = None,
    file: str | os.PathLike | None = None,
) -> PhaseDiagram:
    """All branches of ``model`` over a grid of ``alphas`` and ``omegas``.

    alphas: sample complexities, increasing, shape (A,); omegas: positional shares of the target
    that take the place of the model's own, increasing, shape (W,). log2_points, replicates, seed,
    tolerance: as in `attnphase.solve`; the columns share their nodes.

    map: anything that is called like the builtin: ``Executor.map`` of `concurrent.futures` or of a
    Dask client's ``get_executor()``, ``imap`` or ``imap_unordered`` of a `multiprocessing.Pool`.
    Columns go through it, in any order, and the result does not depend on it. progress: whether to
    show a bar.

    accuracy: where the standard error of an overlap, or of V, is above this fraction of it, the
    point of the positional or semantic branch is solved again on four times as many nodes; None
    never does. It is the ends of the branches that need it, and it takes several times as long.

    file: path of a file (``.npz``) that keeps finished columns, so that a sweep that was
    interrupted goes on where it was; it is replaced in one step. `read_diagram` reads it.

    Raises ValueError for bad arguments, for a file that belongs to another diagram or cannot be
    written, and for a map that does not return each column once;
    NotImplementedError for ranks above one and for tokens of different variance.
    """
    if not isinstance(model, Model):
        raise ValueError(f"model must be an attnphase.Model, got {model!r}")
    if (model.rank, model.target_rank) != (1, 1) or np.ptp(model.variances) > 0:
        raise NotImplementedError(
            "phase_diagram needs rank = target_rank = 1 and tokens of one variance, got "
            f"rank = {model.rank}, target_rank = {model.target_rank}, sigma = {model.sigma!r}"
        )
    alphas = _axis("alphas", alphas, LARGEST)
    omegas = _axis("omegas", omegas, 1.0)
    if alphas[0] == 0:
        raise ValueError("alphas must be above 0, got 0.0")
    check_number("tolerance", tolerance, 0.0, 1e-3)
    if accuracy is not None:
        check_number("accuracy", accuracy, 0.0, 1.0)
    check_integer("log2_points", log2_points, 6, 22)
    check_integer("replicates", replicates, 1, 1024)
    check_integer("seed", seed, 0, 2**63 - 1)
    settings = {
        "log2_points": int(log2_points),
        "replicates": int(replicates),
        "seed": int(seed),
        "tolerance": float(tolerance),
        "accuracy": None if accuracy is None else float(accuracy),
    }
    sweep = _Sweep.empty(model, alphas, omegas, settings)
    if file is not None:
        file = _path(file)
        if file.suffix != ".npz":
            raise ValueError(f"file must end in .npz, got {str(file)!r}")
        sweep = sweep.begun(file)
    missing = {float(omegas[index]): index for index in np.flatnonzero(~sweep.done)}
    compute = partial(_column, model, alphas, settings)
    bar = tqdm(
        map(compute, list(missing)),
        total=len(omegas),
        initial=len(omegas) - len(missing),
        desc="columns",
        disable=not progress,
    )
    for column in bar:
        if column.omega not in missing:
            raise ValueError(
                "map must return each column that it is asked for once, got one more of "
                f"omega = {column.omega}"
            )
        sweep.add(missing.pop(column.omega), column)
        if file is not None:
            sweep.write(file)
    if missing:
        raise ValueError(
            "map must return each column that it is asked for once, got none of omegas = "
            f"{list(missing)}"
        )
    return sweep.diagram()


def read_diagram(file: str | os.PathLike) -> PhaseDiagram:
    """The diagram that `phase_diagram` kept in ``file``.

    Raises ValueError if columns are missing in it, or if it is no such file.
    """
    sweep = _Sweep.read(_path(file))
    if not sweep.done.all():
        missing = np.count_nonzero(~sweep.done)
        raise ValueError(
            f"{str(file)!r} lacks {missing} of {len(sweep.done)} columns: finish it with "
            "phase_diagram"
        )
    return sweep.diagram()


def _path(file: str | os.PathLike) -> Path:
    try:
        return Path(file)
    except TypeError as error:
        raise ValueError(f"file must be a path, got {file!r}") from error


def _axis(name: str, values: Iterable[float], largest: float) -> Array:
    try:
        # as objects first: strings and booleans would convert without a word
        axis = np.array(list(values), dtype=object)
        entries = [values] if isinstance(values, str | bytes) else axis.ravel().tolist()
        if not all(isinstance(entry, Real) and not isinstance(entry, bool) for entry in entries):
            raise TypeError("not a number")
        axis = axis.astype(float)
    except (TypeError, ValueError, OverflowError) as error:
        raise ValueError(f"{name} must be a sequence of numbers, got {values!r}") from error
    if axis.ndim != 1 or not len(axis):
        raise ValueError(f"{name} must be a sequence of at least one number, got {values!r}")
    if not ((np.diff(axis) > 0).all() and axis[0] >= 0 and axis[-1] <= largest):
        raise ValueError(
            f"{name} must increase and lie between 0 and {largest:g}, got {axis.tolist()}"
        )
    return axis


@dataclass
class _Column:
    """What one column holds, the one of a positional share ``omega``.

    values: shape (branches, quantities, A); errors: (branches, measured, A);
    growth: (2, A), of the positional and the semantic branch; status: (branches, A).
    """

    omega: float
    values: Array
    errors: Array
    growth: Array
    status: Array


def _column(model: Model, alphas: Array, settings: dict, omega: float) -> _Column:
    """All branches at one positional share."""
    model = replace(model, omega=omega)
    names = ("log2_points", "replicates", "seed")
    nodes = replicate_nodes(model, *[settings[name] for name in names])
    tolerance = settings["tolerance"]
    shape = (len(BRANCHES), len(alphas))
    growth = np.full((2, len(alphas)), np.nan)
    points: dict[str, list[FixedPoint | None]] = {name: [None] * len(alphas) for name in BRANCHES}
    path = Continuation(model, "uninformed", nodes, tolerance)
    for j in reversed(range(len(alphas))):
        try:
            point = path.to(alphas[j]) if path.last else path.begin(alphas[j])
        except ConvergenceError:  # the ridge may leave no weights but zero
            continue
        points["uninformed"][j] = point
        rates = growth_rates(point, path.nodes, path.minima)
        growth[:, j] = rates["positional"], rates["semantic"]
    finer = settings["log2_points"] + REFINEMENT
    fine_nodes = cache(partial(replicate_nodes, model, finer, *[settings[n] for n in names[1:]]))
    for name, rate in zip(("positional", "semantic"), growth, strict=True):
        for j, path in _follow(model, name, nodes, alphas, rate, tolerance):
            points[name][j] = _accurate(path, settings["accuracy"], fine_nodes)
    column = _Column(
        omega,
        np.full((shape[0], len(QUANTITIES), shape[1]), np.nan),
        np.full((shape[0], len(MEASURED), shape[1]), np.nan),
        growth,
        np.full(shape, UNRESOLVED, dtype=np.int8),
    )
    for b, name in enumerate(BRANCHES):
        for j, point in enumerate(points[name]):
            if point is not None:
                column.values[b, :, j] = [abs(getattr(point, key)) for key in QUANTITIES]
                column.errors[b, :, j] = [point.standard_error[key] for key in MEASURED]
                column.status[b, j] = FOUND
            elif name != "uninformed" and growth[b, j] <= 1.0:
                column.status[b, j] = ABSENT
    return column


def _follow(
    model: Model,
    branch: str,
    nodes: tuple[Nodes, ...],
    alphas: Array,
    growth: Array,
    tolerance: float,
) -> Iterator[tuple[int, Continuation]]:
    """Index of each alpha at which the branch is found, with a continuation that stands there.

    It goes on from there, so that what is needed of it must be taken at once. The branch is sought
    from a generic start where the uninformed solution is most unstable towards it, and followed
    from there to either side until it is lost; what is left is sought anew where the uninformed
    solution is unstable, and at the largest alpha.
    """
    found = np.zeros(len(alphas), dtype=bool)
    order = np.lexsort((-alphas, -growth))
    for k, anchor in enumerate([*order, len(alphas) - 1]):
        if found[anchor] or not (growth[anchor] > 1.0 or k in (0, len(alphas))):
            continue
        begun = Continuation(model, branch, nodes, tolerance)
        try:
            begun.begin(alphas[anchor])
        except ConvergenceError:
            continue
        found[anchor] = True
        yield anchor, begun
        for side in (range(anchor + 1, len(alphas)), range(anchor - 1, -1, -1)):
            path = begun.copy()
            for j in side:
                stable = growth[j] <= 1.0
                if found[j] or (stable and path.overlap_square(alphas[j]) < 0):
                    break  # met, or gone to zero on the way
                try:
                    path.to(alphas[j], *((0, 1) if stable else (2, ATTEMPTS)))
                except ConvergenceError:
                    break
                found[j] = True
                yield j, path


def _accurate(
    path: Continuation, accuracy: float | None, nodes: Callable[[], tuple[Nodes, ...]]
) -> FixedPoint | None:
    """The point of ``path``, on the finer ``nodes`` if it is not accurate; None if not there.

    What finer nodes do not have was no fixed point but a step of the staircase that an average
    over few nodes is.
    """
    point = path.last
    own = "m" if point.branch == "positional" else "theta"
    errors = [point.standard_error[key] / abs(getattr(point, key)) for key in ("q", own, "V")]
    if accuracy is None or not max(errors) > accuracy:
        return point
    try:
        return path.on(nodes()).last
    except ConvergenceError:
        return None


#: What a damaged or foreign file makes of its reading.
UNREADABLE = (
    BadZipFile,
    EOFError,
    KeyError,
    NotImplementedError,
    OSError,
    RuntimeError,
    TypeError,
    ValueError,
    zlib.error,
)


@dataclass
class _Sweep:
    """The columns of a diagram that are done, and the file that keeps them."""

    model: Model
    alphas: Array
    omegas: Array
    settings: dict[str, float]
    versions: dict[str, str]
    done: Array
    values: Array
    errors: Array
    growth: Array
    status: Array

    @classmethod
    def empty(cls, model: Model, alphas: Array, omegas: Array, settings: dict) -> _Sweep:
        names = ("attnphase", "numpy", "scipy")
        versions = {name: version(name) for name in names}
        width, height, branches = len(omegas), len(alphas), len(BRANCHES)
        return cls(
            replace(model, omega=0.0),  # a file does not hold it
            alphas,
            omegas,
            settings,
            versions,
            np.zeros(width, dtype=bool),
            np.full((width, branches, len(QUANTITIES), height), np.nan),
            np.full((width, branches, len(MEASURED), height), np.nan),
            np.full((width, 2, height), np.nan),
            np.full((width, branches, height), UNRESOLVED, dtype=np.int8),
        )

    @property
    def head(self) -> dict[str, object]:
        model = asdict(self.model)
        del model["omega"]
        head = {"model": model, "settings": self.settings, "versions": self.versions}
        return json.loads(json.dumps(head))  # tuples compare equal to what a file holds

    def begun(self, file: Path) -> _Sweep:
        """The sweep to go on with: the one in ``file``, or this one if there is none.

        Raises ValueError where columns are missing and the file cannot be written.
        """
        try:
            sweep = self.resumed(file) if file.exists() else self
            if not sweep.done.all():
                sweep.write(file, rehearsal=True)
        except OSError as error:
            raise ValueError(f"file {str(file)!r} cannot be written: {error}") from error
        return sweep

    def add(self, index: int, column: _Column) -> None:
        for name in ("values", "errors", "growth", "status"):
            getattr(self, name)[index] = getattr(column, name)
        self.done[index] = True

    def write(self, file: Path, rehearsal: bool = False) -> None:
        """Replace ``file`` in one step; in a rehearsal do all that but the replacement.

        It is written in a directory of its own beside the file, as others may write it, too.
        """
        file.parent.mkdir(parents=True, exist_ok=True)
        names = ("alphas", "omegas", "done", "values", "errors", "growth", "status")
        arrays = {name: getattr(self, name) for name in names}
        with TemporaryDirectory(dir=file.parent, prefix=".phase_diagram-") as directory:
            partial_file = Path(directory) / file.name
            with open(partial_file, "wb") as stream:
                np.savez_compressed(stream, head=json.dumps(self.head), **arrays)
                stream.flush()
                os.fsync(stream.fileno())
            if not rehearsal:
                os.replace(partial_file, file)

    @classmethod
    def read(cls, file: Path) -> _Sweep:
        try:
            with np.load(file, allow_pickle=False) as stored:
                head = json.loads(str(stored["head"]))
                arrays = {name: stored[name] for name in stored.files if name != "head"}
            model = Model(omega=0.0, **head["model"])
            sweep = cls(model=model, settings=head["settings"], versions=head["versions"], **arrays)
            blank = cls.empty(model, sweep.alphas, sweep.omegas, sweep.settings)
            for name in arrays:
                found, shape = getattr(sweep, name), getattr(blank, name).shape
                if found.shape != shape or found.dtype != getattr(blank, name).dtype:
                    raise ValueError(f"{name} has shape {found.shape}, not {shape}")
        except FileNotFoundError:
            raise
        except UNREADABLE as error:
            raise ValueError(f"{str(file)!r} is no file of phase_diagram: {error}") from error
        return sweep

    def resumed(self, file: Path) -> _Sweep:
        """The sweep in ``file``, if it is of the same diagram."""
        stored = _Sweep.read(file)
        for name, own, other in (
            ("model", self.head["model"], stored.head["model"]),
            ("settings", self.settings, stored.settings),
            ("alphas", self.alphas.tolist(), stored.alphas.tolist()),
            ("omegas", self.omegas.tolist(), stored.omegas.tolist()),
        ):
            if own != other:
                raise ValueError(
                    f"file {str(file)!r} holds another diagram: its {name} are {other}, not {own}; "
                    "it was left as it is"
                )
        if not stored.done.all() and stored.versions != self.versions:
            raise ValueError(
                f"file {str(file)!r} was begun with {stored.versions}, not {self.versions}; "
                "it was left as it is"
            )
        return stored

    def diagram(self) -> PhaseDiagram:
        grids = {}
        for b, name in enumerate(BRANCHES):
            values = dict(zip(QUANTITIES, np.moveaxis(self.values[:, b], 1, 0), strict=True))
            errors = dict(zip(MEASURED, np.moveaxis(self.errors[:, b], 1, 0), strict=True))
            growth = self.growth[:, b] if b < 2 else np.full(self.growth[:, 0].shape, np.nan)
            status = np.asarray(STATUS, dtype="<U10")[self.status[:, b]]
            grids[name] = BranchGrid(**values, growth=growth, standard_error=errors, status=status)
        baseline = [linear_baseline(replace(self.model, omega=o)).test_error for o in self.omegas]
        return PhaseDiagram(
            model=self.model,
            alphas=self.alphas,
            omegas=self.omegas,
            baseline=np.array(baseline),
            settings=self.settings,
            **grids,
        )
