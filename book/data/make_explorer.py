"""Make the data of the explorer page: book/_extra/explorer/data.js.

A diagram by `attnphase.phase_diagram` for each pair of token width sigma and regularization, kept
in _build/explorer/ while the script runs, so that it goes on where it was; figures rounded to
four digits.

    python book/data/make_explorer.py [--processes 2] [--output FILE]
"""

import argparse
import json
import multiprocessing
import os
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import numpy as np
import scipy

import attnphase

ALPHAS = np.arange(1, 31) / 10
OMEGAS = np.arange(11) / 20
SIGMAS = (0.4, 0.5, 0.6)
REGULARIZATIONS = (0.001, 0.003, 0.01)
SETTINGS = {"log2_points": 12, "replicates": 2, "seed": 0}
DIGITS = 4
SHOWN = {
    "positional": ("q", "m", "train_loss", "test_error"),
    "semantic": ("q", "theta", "train_loss", "test_error"),
    "uninformed": ("q", "train_loss", "test_error"),
}


def rounded(values: np.ndarray) -> list:
    """Numbers of `DIGITS` digits in nested lists, None for nan."""
    if values.ndim > 1:
        return [rounded(part) for part in values]
    return [None if np.isnan(value) else float(f"{value:.{DIGITS}g}") for value in values]


def entry(diagram: attnphase.PhaseDiagram) -> dict:
    """What the page shows of one diagram."""
    found = {
        "sigma": diagram.model.sigma,
        "regularization": diagram.model.regularization,
        "baseline": rounded(diagram.baseline),
    }
    for name, quantities in SHOWN.items():
        grid = getattr(diagram, name)
        status = ["".join(word[0] for word in row) for row in grid.status.tolist()]
        found[name] = {"status": status}
        found[name] |= {key: rounded(getattr(grid, key)) for key in quantities}
    return found


def main() -> None:
    here = Path(__file__).resolve().parent
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    default = here.parent / "_extra" / "explorer" / "data.js"
    parser.add_argument("--output", type=Path, default=default)
    parser.add_argument("--processes", type=int, default=2)
    options = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = os.environ["OPENBLAS_NUM_THREADS"] = "1"  # of the workers
    context = multiprocessing.get_context("spawn")
    scratch = here.parent.parent / "_build" / "explorer"
    entries = []
    with ProcessPoolExecutor(options.processes, mp_context=context) as pool:
        for sigma in SIGMAS:
            for regularization in REGULARIZATIONS:
                model = attnphase.Model(0.0, sigma=sigma, regularization=regularization)
                kept = scratch / f"sigma_{sigma}_regularization_{regularization}.npz"
                diagram = attnphase.phase_diagram(
                    model, ALPHAS, OMEGAS, map=pool.map, file=kept, **SETTINGS
                )
                entries.append(entry(diagram))
    data = {
        "made_by": Path(__file__).name,
        "parameters": diagram.settings,
        "versions": {
            "attnphase": attnphase.__version__,
            "numpy": np.__version__,
            "scipy": scipy.__version__,
        },
        "alphas": ALPHAS.tolist(),
        "omegas": OMEGAS.tolist(),
        "sigmas": SIGMAS,
        "regularizations": REGULARIZATIONS,
        "diagrams": entries,
    }
    text = json.dumps(data, separators=(",", ":"), allow_nan=False)
    options.output.parent.mkdir(parents=True, exist_ok=True)
    options.output.write_text(f"window.attnphaseExplorer = {text};\n", encoding="utf-8")


if __name__ == "__main__":
    main()
