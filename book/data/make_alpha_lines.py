"""Make alpha_lines.json: the thresholds alpha_c and alpha_l against omega, base case of the book.

Every threshold is computed by `attnphase.critical_alpha` or `attnphase.baseline_alpha`. A search
that finds no crossing is recorded with its reason and without a value.

    python book/data/make_alpha_lines.py [--processes 1] [--output FILE]
"""

from dataclasses import asdict

import numpy as np
from stored_rows import main

import attnphase

SETTINGS = {"log2_points": 15, "replicates": 4, "seed": 0}

#: Steps of 0.025, and where a published figure stands in between or the upper line bends.
OMEGAS = tuple(sorted({round(0.025 * k, 3) for k in range(21)} | {0.38, 0.49}))
LINES = {"alpha_c": attnphase.critical_alpha, "alpha_l": attnphase.baseline_alpha}
#: Where the searches begin: (omega, alpha). A start only; a search widens until it has a bracket.
STARTS = {
    "alpha_c": ((0.0, 0.1, 0.2, 0.3, 0.4, 0.5), (0.64, 0.77, 0.95, 1.25, 1.75, 2.8)),
    "alpha_l": (
        (0.0, 0.1, 0.2, 0.3, 0.38, 0.45, 0.475, 0.49, 0.5),
        (0.75, 0.88, 1.1, 1.49, 2.06, 3.27, 4.4, 7.0, 18.0),
    ),
}
#: Where a search finds no crossing it is tried again from the start times each of these.
RETRIES = (1.0, 1.06, 0.94)


def search(omega: float, line: str) -> dict[str, object]:
    """The threshold, or the reason why none was found."""
    model = attnphase.Model(omega)
    start = float(np.interp(omega, *STARTS[line]))
    reason = ""
    for factor in RETRIES:
        try:
            found = LINES[line](model, guess=factor * start, **SETTINGS)
        except attnphase.ConvergenceError as error:
            reason = str(error)
            continue
        return {
            "value": found.value,
            "standard_error": found.standard_error,
            "bracket": list(found.bracket),
        }
    return {"value": None, "reason": reason}


def tasks() -> list[tuple[str, dict]]:
    """Every row, in the order of the file."""
    return [("rows", {"omega": omega, "line": line}) for line in LINES for omega in OMEGAS]


if __name__ == "__main__":
    model = asdict(attnphase.Model(0.0))
    del model["omega"]
    main(__file__, __doc__, SETTINGS | {"model": model}, tasks(), {"rows": search}, processes=1)
