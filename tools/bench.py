"""Time solver, phase diagram and training: tables on the terminal, and _build/bench.json.

* warm: one evaluation of the state-evolution map on one set of nodes, near its fixed point, the
  proximal problems followed from the last evaluation; the median over repeats.
* cold: one fixed point by `attnphase.solve`, four replicates, without a start.

The number of threads is measured: CPU seconds over the seconds of the clock.

Training, each dimension in a process of its own, alpha = 2:

* evaluation: of the risk with its gradient; blas: its two products with the matrix of tokens alone;
  the ratio of the two, from alternating repeats (medians).
* minimize: `attnphase.minimize` to 1e-8 from either start; peak: of memory, over the size of the
  matrix of tokens, everything in the process included.
* descent: 5,000 steps of `attnphase.gradient_descent`, at d = 1000.

The largest dimension takes 3.3 GB; --largest 4000 leaves it out.

Diagram: `attnphase.phase_diagram` on square grids, in two processes with one thread each. accurate:
share of the points found whose standard error is below 1 % for q, the branch's own overlap and V;
peak: of memory, the parent and its largest worker. --diagram 25 leaves the larger one out.
"""

import argparse
import json
import multiprocessing
import os
import platform
import resource
import statistics
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import scipy

import attnphase
from attnphase import state_evolution as evolution
from attnphase.training import starting_weights

ROOT = Path(__file__).resolve().parent.parent
MODEL = attnphase.Model(omega=0.3)
ALPHA = 1.5
REPLICATES = 4
REPEATS = 21
DIAGRAMS, PROCESSES = (25, 50), 2
DIMENSIONS, TRAINING_ALPHA, DESCENT_DIMENSION = (1000, 4000, 10000), 2.0, 1000
STARTS = ("semantic", "positional")
#: Bytes in the unit of ru_maxrss.
RSS_UNIT = 1 if sys.platform == "darwin" else 1024
COLUMNS = ("what", "branch", "points", "replicates", "evaluations", "threads", "seconds")


def timed(task):
    """Run `task` once; return its result, the threads that it kept busy and the seconds."""
    wall, cpu = time.perf_counter(), time.process_time()
    result = task()
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    return result, max(1, round(cpu / wall)), wall


def cold(branch, log2_points):
    """Return the fixed point and its row of the table."""
    point, threads, seconds = timed(
        lambda: attnphase.solve(
            MODEL, ALPHA, branch, log2_points=log2_points, replicates=REPLICATES, seed=0
        )
    )
    row = ("cold", branch, 2**log2_points, REPLICATES, point.evaluations, threads, seconds)
    return point, dict(zip(COLUMNS, row, strict=True))


def warm(point, log2_points):
    """Return the row of one evaluation at overlaps near those of the fixed point."""
    nodes = evolution.make_nodes(MODEL, log2_points, seed=0)
    minima = evolution.solve_channel(MODEL, nodes, point.overlaps)
    times = []
    for repeat in range(REPEATS):
        shift = 1 + 1e-4 * (-1) ** repeat
        overlaps = replace(point.overlaps, V=point.overlaps.V * shift)

        def evaluate(overlaps=overlaps, minima=minima):
            found = evolution.solve_channel(MODEL, nodes, overlaps, minima)
            hats = evolution.conjugates_from(MODEL, ALPHA, nodes, overlaps, found)
            evolution.overlaps_from(MODEL, evolution.impose_parity(point.branch, hats))
            return found

        minima, threads, seconds = timed(evaluate)
        times.append((threads, seconds))
    threads, seconds = (statistics.median(column) for column in zip(*times, strict=True))
    row = ("warm", point.branch, 2**log2_points, 1, 1, threads, seconds)
    return dict(zip(COLUMNS, row, strict=True))


def training(dimension):
    """Return the row of one dimension; to be called in a process of its own."""
    data = attnphase.sample(MODEL, TRAINING_ALPHA, dimension, seed=0)
    rows = data.tokens.reshape(-1, dimension)
    start = starting_weights(data, "semantic")
    vector = start[:, 0]
    times = []
    for _ in range(REPEATS):
        _, _, blas = timed(lambda: rows.T @ (rows @ vector))
        _, _, evaluation = timed(lambda: data.risk(start))
        times.append((evaluation, blas))
    evaluation, blas = (statistics.median(column) for column in zip(*times, strict=True))
    row = {"dimension": dimension, "evaluation": evaluation, "blas": blas}
    row["ratio"] = evaluation / blas
    for name in STARTS:
        _, row["threads"], row[name] = timed(lambda name=name: attnphase.minimize(data, name))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * RSS_UNIT
    row["peak"] = peak / data.tokens.nbytes
    if dimension == DESCENT_DIMENSION:
        for name in STARTS:
            descent = timed(lambda name=name: attnphase.gradient_descent(data, name))[2]
            row[f"descent_{name}"] = descent
    return row


def training_table(largest):
    """Print the table of the training row by row, and return the rows."""
    print(f"training, alpha = {TRAINING_ALPHA}; seconds")
    print("dimension evaluation   blas  ratio  minimize: semantic positional  peak", flush=True)
    rows, context = [], multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=context, max_tasks_per_child=1) as pool:
        for dimension in (d for d in DIMENSIONS if d <= largest):
            try:
                row = pool.submit(training, dimension).result()
            except MemoryError as error:
                print(f"{dimension:9d} left out: {error}", flush=True)
                continue
            rows.append(row)
            print(
                "{dimension:9d} {evaluation:10.4f} {blas:6.4f} {ratio:6.2f} {semantic:19.2f}"
                " {positional:10.2f} {peak:5.2f}".format(**row),
                flush=True,
            )
            for name in STARTS:
                if descent := row.get(f"descent_{name}"):
                    print(
                        f"          5,000 steps of gradient descent, {name}: {descent:.1f},"
                        f" {descent / row[name]:.0f} times minimize",
                        flush=True,
                    )
    return rows


def diagram(size):
    """Return the row of the phase diagram of size x size points."""
    alphas, omegas = np.linspace(0.12, 3.0, size), np.linspace(0.0, 0.5, size)
    os.environ["OMP_NUM_THREADS"] = "1"  # of the workers
    start = time.perf_counter()
    with ProcessPoolExecutor(PROCESSES, mp_context=multiprocessing.get_context("spawn")) as pool:
        found = attnphase.phase_diagram(MODEL, alphas, omegas, map=pool.map, progress=False)
    row = {"size": size, "processes": PROCESSES, "seconds": time.perf_counter() - start}
    errors = []
    for grid, own in ((found.positional, "m"), (found.semantic, "theta")):
        for name in ("q", own, "V"):
            ratio = grid.standard_error[name] / getattr(grid, name)
            errors.append(np.where(grid.found, ratio, np.nan))
    worst = np.concatenate([np.max(errors[:3], axis=0), np.max(errors[3:], axis=0)])
    row["points"] = int(np.isfinite(worst).sum())
    row["accurate"] = float((worst < 0.01).sum() / row["points"])
    row["peak"] = sum(
        resource.getrusage(who).ru_maxrss * RSS_UNIT
        for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    )
    return row


def diagram_table(largest):
    """Print the table of the diagrams row by row, and return the rows."""
    print("phase diagram", flush=True)
    print("  size processes  seconds  points accurate  peak (MB)", flush=True)
    rows, context = [], multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=context, max_tasks_per_child=1) as pool:
        for size in (size for size in DIAGRAMS if size <= largest):
            row = pool.submit(diagram, size).result()
            rows.append(row)
            print(
                "{size:6d} {processes:9d} {seconds:8.1f} {points:7d} {accurate:8.3f}"
                " {0:10.0f}".format(row["peak"] / 1e6, **row),
                flush=True,
            )
    return rows


def main():
    """Print the tables row by row and write them to _build/bench.json."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--largest", type=int, default=DIMENSIONS[-1], help="dimension in training")
    parser.add_argument("--diagram", type=int, default=DIAGRAMS[-1], help="points along an axis")
    options = parser.parse_args()
    trained = training_table(options.largest)
    diagrams = diagram_table(options.diagram)
    print(f"omega = {MODEL.omega}, alpha = {ALPHA}")
    print("what  branch      points replicates evaluations threads   seconds", flush=True)
    rows = []
    for branch in ("positional", "semantic"):
        for log2_points in (14, 16):
            point, cold_row = cold(branch, log2_points)
            for row in (cold_row, warm(point, log2_points)):
                rows.append(row)
                print(
                    "{what:5} {branch:10} {points:7d} {replicates:10d} {evaluations:11d}"
                    " {threads:7d} {seconds:9.4f}".format(**row),
                    flush=True,
                )
    versions = {
        "python": platform.python_version(),
        "numpy": np.__version__,
        "scipy": scipy.__version__,
        "attnphase": attnphase.__version__,
    }
    report = {"omega": MODEL.omega, "alpha": ALPHA, "processors": os.cpu_count()}
    report |= {"versions": versions, "rows": rows, "training": trained, "diagrams": diagrams}
    file = ROOT / "_build" / "bench.json"
    file.parent.mkdir(exist_ok=True)
    file.write_text(json.dumps(report, indent=1) + "\n")
    print(f"written: {file.relative_to(ROOT)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
