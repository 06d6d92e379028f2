"""Trained layers at d = 1000 against the sample complexity, with the theory's fixed points.

Writes finite_dimension.json beside this file, omega = 0.3, with these kinds of rows:

    theory            fixed points of state evolution;
    minimum           layers trained by `attnphase.minimize` from a positional and a semantic start,
                      with the test error on 2,000 fresh sentences;
    baseline          the linear baseline fitted to the same sentences;
    gradient_descent  5,000 steps, at the sample complexities of the published experiment.

    python book/data/make_finite_dimension.py [--processes 2] [--output FILE]
"""

from stored_rows import fixed_point, main, measured

from attnphase import Model, gradient_descent, minimize, sample, solve
from attnphase.training import fit_baseline, sampled_test_error

OMEGA, DIMENSION, SEEDS, SENTENCES = 0.3, 1000, 10, 2000
ALPHAS = [k / 12 for k in range(1, 26)]
#: Some of the published ones, and the seeds of gradient descent there.
PUBLISHED, DESCENT_SEEDS = [0.5075, 1.005, 1.25375, 1.5025, 2.0], 3
#: The semantic branch grows out of the uninformed one between these.
SEMANTIC_FROM, UNINFORMED_TO = 0.75, 0.75
POINTS = {"log2_points": 14, "replicates": 4, "seed": 0}
PARAMETERS = {
    "omega": OMEGA,
    "dimension": DIMENSION,
    "fresh_sentences": SENTENCES,
    "theory": POINTS,
}


def theory(alpha: float, branch: str) -> dict:
    return fixed_point(solve(Model(OMEGA), alpha, branch, **POINTS))


def minimum(alpha: float, seed: int, start: str) -> dict:
    data = sample(Model(OMEGA), alpha, DIMENSION, seed)
    trained = minimize(data, start)
    fresh = sampled_test_error(data, trained.weights, SENTENCES)
    return measured(trained) | {
        "fresh_test_error": fresh.value,
        "fresh_standard_error": fresh.standard_error,
        "teacher": float((data.teacher**2).mean()),
    }


def baseline(alpha: float, seed: int) -> dict:
    fitted = fit_baseline(sample(Model(OMEGA), alpha, DIMENSION, seed))
    return {"weights": fitted.weights.tolist(), "test_error": fitted.test_error}


def descent(alpha: float, seed: int, start: str) -> dict:
    return measured(gradient_descent(sample(Model(OMEGA), alpha, DIMENSION, seed), start))


KINDS = {
    "theory": theory,
    "minimum": minimum,
    "baseline": baseline,
    "gradient_descent": descent,
}


def tasks() -> list[tuple[str, dict]]:
    """Every row, in the order of the file."""
    starts, everywhere = ("positional", "semantic"), sorted({*ALPHAS, *PUBLISHED})
    branches = [(alpha, "positional") for alpha in everywhere]
    branches += [(alpha, "semantic") for alpha in everywhere if alpha >= SEMANTIC_FROM]
    branches += [(alpha, "uninformed") for alpha in everywhere if alpha <= UNINFORMED_TO]
    keys = {
        "theory": [{"alpha": alpha, "branch": branch} for alpha, branch in branches],
        "minimum": [
            {"alpha": alpha, "seed": seed, "start": start}
            for alpha in everywhere
            for seed in range(SEEDS)
            for start in starts
        ],
        "baseline": [
            {"alpha": alpha, "seed": seed} for alpha in everywhere for seed in range(SEEDS)
        ],
        "gradient_descent": [
            {"alpha": alpha, "seed": seed, "start": start}
            for alpha in PUBLISHED
            for seed in range(DESCENT_SEEDS)
            for start in starts
        ],
    }
    return [(kind, key) for kind, some in keys.items() for key in some]


if __name__ == "__main__":
    main(__file__, __doc__, PARAMETERS, tasks(), KINDS)
