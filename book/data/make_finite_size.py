"""How trained layers approach the theory as the dimension grows, and how their switch sharpens.

Writes finite_size.json beside this file, omega = 0.3, with these kinds of rows:

    theory  fixed points of state evolution at alpha = 1.5;
    size    layers trained from both starts at alpha = 1.5, for dimensions from 10 to 4000;
    switch  both minima of one data set, for sample complexities around alpha_c: their losses and
            their overlaps.

    python book/data/make_finite_size.py [--processes 2] [--output FILE]

The largest dimension needs 0.5 GB in each process.
"""

from stored_rows import fixed_point, main, measured

from attnphase import Model, minimize, sample, solve

OMEGA, ALPHA = 0.3, 1.5
#: Dimension: number of data sets (seeds 0, 1, ...).
SIZES = {10: 1000, 20: 1000, 50: 600, 100: 400, 200: 200, 500: 100, 1000: 40, 2000: 20, 4000: 10}
SWITCH = {100: 300, 300: 200, 1000: 60}
SWITCH_ALPHAS = [0.5, 0.75, 1.0, 1.1, 1.2, 1.25, 1.3, 1.4, 1.5, 1.75, 2.0]
STARTS = ("positional", "semantic")
POINTS = {"log2_points": 14, "replicates": 4, "seed": 0}
PARAMETERS = {"omega": OMEGA, "alpha": ALPHA, "theory": POINTS}


def theory(branch: str) -> dict:
    return fixed_point(solve(Model(OMEGA), ALPHA, branch, **POINTS))


def size(dimension: int, seed: int, start: str) -> dict:
    data = sample(Model(OMEGA), ALPHA, dimension, seed)
    return measured(minimize(data, start)) | {"teacher": float((data.teacher**2).mean())}


def switch(dimension: int, alpha: float, seed: int) -> dict:
    data = sample(Model(OMEGA), alpha, dimension, seed)
    row = {start: measured(minimize(data, start)) for start in STARTS}
    return row | {"teacher": float((data.teacher**2).mean())}


KINDS = {"theory": theory, "size": size, "switch": switch}


def tasks() -> list[tuple[str, dict]]:
    """Every row, in the order of the file."""
    keys = {
        "theory": [{"branch": start} for start in STARTS],
        "size": [
            {"dimension": dimension, "seed": seed, "start": start}
            for dimension, count in SIZES.items()
            for seed in range(count)
            for start in STARTS
        ],
        "switch": [
            {"dimension": dimension, "alpha": alpha, "seed": seed}
            for dimension, count in SWITCH.items()
            for alpha in SWITCH_ALPHAS
            for seed in range(count)
        ],
    }
    return [(kind, key) for kind, some in keys.items() for key in some]


if __name__ == "__main__":
    main(__file__, __doc__, PARAMETERS, tasks(), KINDS)
