"""Message passing at larger dimensions than a notebook has time for.

Writes message_passing.json beside this file: the parameters, and two lists of rows,

    fixed_points   message_passing from a positional and a semantic start, to convergence;
    tracks         the first iterations from weights of given overlaps (attnphase.track).

A row that is there already is not computed again, so an interrupted run can be resumed. Each row
runs in a process of its own, whose peak of memory it records. The largest dimension needs 2.5 GB.

    python book/data/make_message_passing.py [--largest 8000]
"""

import argparse
import json
import multiprocessing
import os
import resource
import sys
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import numpy as np
import scipy

from attnphase import Model, message_passing, sample
from attnphase.message_passing import track

FILE = Path(__file__).with_name("message_passing.json")
OMEGA, ALPHA = 0.3, 2.0
#: Dimension: number of data sets (seeds 0, 1, ...).
FIXED_POINTS = {500: 10, 2000: 5, 8000: 2}
TRACKS = {500: 16, 2000: 8, 8000: 4}
#: Start of a track, for weights mu + Theta Q* + sqrt(nu) noise; keep_fraction; iterations.
STARTS = {
    "semantic": {"mu": 0.2, "Theta": 0.4, "nu": 0.3, "keep_fraction": 0.5, "iterations": 10},
    "positional": {"mu": 0.3, "Theta": 0.0, "nu": 0.1, "keep_fraction": 0.85, "iterations": 16},
}


def fixed_point(dimension: int, seed: int, start: str) -> dict:
    trained = message_passing(sample(Model(OMEGA), ALPHA, dimension, seed), start)
    return {name: getattr(trained, name) for name in RESULTS}


def tracked(dimension: int, seed: int, start: str) -> dict:
    data = sample(Model(OMEGA), ALPHA, dimension, seed)
    given = STARTS[start]
    noise = np.random.default_rng([seed, 7]).standard_normal((dimension, 1))
    weights = given["mu"] + given["Theta"] * data.teacher + np.sqrt(given["nu"]) * noise
    history = track(data, weights, given["keep_fraction"], given["iterations"])
    return {name: getattr(history, name).tolist() for name in ("q", "m", "theta", "V")}


RESULTS = ("q", "m", "theta", "V", "train_loss", "test_error", "gradient", "iterations")
RESULTS += ("held_from", "rivals", "excited")
KINDS = {"fixed_points": (FIXED_POINTS, fixed_point), "tracks": (TRACKS, tracked)}


def compute(task: tuple[str, int, int, str]) -> dict:
    kind, dimension, seed, start = task
    row = {"dimension": dimension, "seed": seed, "start": start}
    row |= KINDS[kind][1](dimension, seed, start)
    unit = 1 if sys.platform == "darwin" else 1024
    row["peak_bytes"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
    return row


def layout(head: dict, rows: dict[str, list[dict]]) -> str:
    """The file's text: one line a row."""
    parts = [json.dumps(head, indent=1)[:-2]]
    for kind, some in rows.items():
        lines = ",\n".join("  " + json.dumps(row) for row in some)
        parts.append(f' "{kind}": [\n{lines}\n ]')
    return ",\n".join(parts) + "\n}\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--largest", type=int, default=8000, help="leave out larger dimensions")
    largest = parser.parse_args().largest
    head = {
        "omega": OMEGA,
        "alpha": ALPHA,
        "starts": STARTS,
        "numpy": np.__version__,
        "scipy": scipy.__version__,
    }
    stored = json.loads(FILE.read_text()) if FILE.exists() else {}
    if any(stored.get(name, value) != value for name, value in head.items()):
        raise SystemExit(f"{FILE.name} was made with other parameters or versions: move it away")
    rows = {kind: stored.get(kind, []) for kind in KINDS}
    done = {(kind, r["dimension"], r["seed"], r["start"]) for kind in KINDS for r in rows[kind]}
    tasks = [
        (kind, dimension, seed, start)
        for kind, (counts, _) in KINDS.items()
        for dimension, count in counts.items()
        for seed in range(count)
        for start in STARTS
        if dimension <= largest and (kind, dimension, seed, start) not in done
    ]
    # a pool of concurrent.futures notices a process that was killed
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=context, max_tasks_per_child=1) as pool:
        for number, task in enumerate(sorted(tasks, key=lambda task: task[1]), start=1):
            row = pool.submit(compute, task).result()
            rows[task[0]].append(row)
            order = ("dimension", "seed", "start")
            rows[task[0]].sort(key=lambda r: tuple(r[name] for name in order))
            partial = FILE.with_suffix(".part")
            partial.write_text(layout(head, rows), encoding="utf-8")
            os.replace(partial, FILE)
            print(f"{number}/{len(tasks)}: {task}", flush=True)


if __name__ == "__main__":
    main()
