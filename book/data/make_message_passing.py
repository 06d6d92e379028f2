"""Message passing at larger dimensions than a notebook has time for.

Writes message_passing.json beside this file: the parameters, and two lists of rows,

    fixed_points   message_passing from a positional and a semantic start, to convergence;
    tracks         the first iterations from weights of given overlaps (attnphase.track).

Each row runs in a process of its own, whose peak of memory it records. The largest dimension
needs 2.5 GB.

    python book/data/make_message_passing.py [--output FILE]
"""

import resource
import sys

import numpy as np
from stored_rows import main, measured

from attnphase import Model, message_passing, sample
from attnphase.message_passing import track

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
    return measured(trained) | {name: getattr(trained, name) for name in RESPONSE} | peak()


def tracked(dimension: int, seed: int, start: str) -> dict:
    data = sample(Model(OMEGA), ALPHA, dimension, seed)
    given = STARTS[start]
    noise = np.random.default_rng([seed, 7]).standard_normal((dimension, 1))
    weights = given["mu"] + given["Theta"] * data.teacher + np.sqrt(given["nu"]) * noise
    history = track(data, weights, given["keep_fraction"], given["iterations"])
    return {name: getattr(history, name).tolist() for name in ("q", "m", "theta", "V")} | peak()


def peak() -> dict:
    unit = 1 if sys.platform == "darwin" else 1024
    return {"peak_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit}


RESPONSE = ("V", "held_from", "rivals", "excited")
KINDS = {"fixed_points": fixed_point, "tracks": tracked}
COUNTS = {"fixed_points": FIXED_POINTS, "tracks": TRACKS}
PARAMETERS = {"omega": OMEGA, "alpha": ALPHA, "starts": STARTS}


def tasks() -> list[tuple[str, dict]]:
    """Every row, in the order of the file."""
    return [
        (kind, {"dimension": dimension, "seed": seed, "start": start})
        for kind, counts in COUNTS.items()
        for dimension, count in counts.items()
        for seed in range(count)
        for start in sorted(STARTS)
    ]


if __name__ == "__main__":
    main(__file__, __doc__, PARAMETERS, tasks(), KINDS, processes=1, fresh_process=True)
