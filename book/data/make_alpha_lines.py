"""Make alpha_lines.json: the thresholds alpha_c and alpha_l against omega, base case of the book.

Every threshold is computed by `attnphase.critical_alpha` or `attnphase.baseline_alpha`. The file
is written after each one; a second call goes on where the first was stopped, and refuses to mix
rows made with other parameters. A search that finds no crossing is recorded with its reason and
without a value.

usage: python book/data/make_alpha_lines.py [--log2-points 14] [--replicates 4] [--seed 0]
                                            [--output book/data/alpha_lines.json]
"""

import argparse
import json
from dataclasses import asdict
from pathlib import Path

import numpy as np
import scipy

import attnphase

OMEGAS = (0.0, 0.05, 0.075, 0.1, 0.15, 0.2, 0.25, 0.275, 0.3, 0.325, 0.35, 0.38, 0.4, 0.425, 0.45)
OMEGAS += (0.475, 0.49, 0.5)
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


def search(line: str, omega: float, parameters: dict[str, int]) -> dict[str, object]:
    """One row: the threshold, or the reason why none was found."""
    model = attnphase.Model(omega)
    start = float(np.interp(omega, *STARTS[line]))
    reason = ""
    for factor in RETRIES:
        try:
            found = LINES[line](model, guess=factor * start, **parameters)
        except attnphase.ConvergenceError as error:
            reason = str(error)
            continue
        return {
            "omega": omega,
            "line": line,
            "value": found.value,
            "standard_error": found.standard_error,
            "bracket": list(found.bracket),
        }
    return {"omega": omega, "line": line, "value": None, "reason": reason}


def main() -> None:
    """Fill in the rows that the file does not have yet."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--log2-points", type=int, default=14)
    parser.add_argument("--replicates", type=int, default=4)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--output", type=Path, default=Path(__file__).with_name("alpha_lines.json")
    )
    options = parser.parse_args()
    parameters = {
        "log2_points": options.log2_points,
        "replicates": options.replicates,
        "seed": options.seed,
    }
    model = asdict(attnphase.Model(0.0))
    del model["omega"]
    # through JSON and back, so that tuples compare equal to what the file holds
    head = json.loads(
        json.dumps(
            {
                "made_by": "make_alpha_lines.py",
                "parameters": parameters,
                "model": model,
                "versions": {
                    "attnphase": attnphase.__version__,
                    "numpy": np.__version__,
                    "scipy": scipy.__version__,
                },
            }
        )
    )
    rows = []
    if options.output.exists():
        stored = json.loads(options.output.read_text(encoding="utf-8"))
        rows = stored.pop("rows")
        if stored != head:
            parser.error(f"{options.output} was made with other parameters or versions: {stored}")
    done = {(row["line"], row["omega"]) for row in rows}
    wanted = [(line, omega) for omega in OMEGAS for line in LINES]
    for number, (line, omega) in enumerate(wanted, 1):
        if (line, omega) not in done:
            rows.append(search(line, omega, parameters))
            rows.sort(key=lambda row: (row["line"], row["omega"]))
            lines = ",\n".join("  " + json.dumps(row) for row in rows)
            text = json.dumps(head, indent=1)[:-2] + f',\n "rows": [\n{lines}\n ]\n}}\n'
            options.output.write_text(text, encoding="utf-8")
            print(f"{number}/{len(wanted)} {line} at omega = {omega}", flush=True)


if __name__ == "__main__":
    main()
