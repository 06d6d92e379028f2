"""Time the solver in the base case: a table on the terminal, and _build/bench.json.

* warm: one evaluation of the state-evolution map on one set of nodes, near its fixed point, the
  proximal problems followed from the last evaluation; the median over repeats.
* cold: one fixed point by `attnphase.solve`, four replicates, without a start.

The number of threads is measured: CPU seconds over the seconds of the clock.
"""

import json
import os
import platform
import statistics
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import scipy

import attnphase
from attnphase import state_evolution as evolution

ROOT = Path(__file__).resolve().parent.parent
MODEL = attnphase.Model(omega=0.3)
ALPHA = 1.5
REPLICATES = 4
REPEATS = 21
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


def main():
    """Print the table row by row and write it to _build/bench.json."""
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
    file = ROOT / "_build" / "bench.json"
    file.parent.mkdir(exist_ok=True)
    file.write_text(json.dumps({**report, "versions": versions, "rows": rows}, indent=1) + "\n")
    print(f"written: {file.relative_to(ROOT)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
