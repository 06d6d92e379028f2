"""Make phase_diagram.npz: all branches over a grid of alpha and omega, base case of the book.

The file is that of `attnphase.phase_diagram`, which keeps finished columns: started again, the
script goes on where it was.

    python book/data/make_phase_diagram.py [--processes 2] [--output FILE]
"""

import argparse
import multiprocessing
import os
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import numpy as np

import attnphase

ALPHAS = np.arange(1, 51) / 20
OMEGAS = np.arange(51) / 100
SETTINGS = {"log2_points": 13, "replicates": 2, "seed": 0}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    default = Path(__file__).with_name("phase_diagram.npz")
    parser.add_argument("--output", type=Path, default=default)
    parser.add_argument("--processes", type=int, default=2)
    options = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = os.environ["OPENBLAS_NUM_THREADS"] = "1"  # of the workers
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(options.processes, mp_context=context) as pool:
        attnphase.phase_diagram(
            attnphase.Model(0.0), ALPHAS, OMEGAS, map=pool.map, file=options.output, **SETTINGS
        )


if __name__ == "__main__":
    main()
