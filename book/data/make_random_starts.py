"""Which minimum training finds from random weights.

Writes random_starts.json beside this file, omega = 0.3 and d = 300, with these kinds of rows:

    valley  the minima that `attnphase.minimize` reaches from the positional and the semantic start;
    run     5,000 steps of gradient descent, 5,000 of Adam, or `minimize` ("lbfgs"), from standard
            normal weights times a scale; and "bottom", the minimum below the weights reached.

    python book/data/make_random_starts.py [--processes 2] [--output FILE]
"""

from stored_rows import main, measured

from attnphase import Model, adam, gradient_descent, minimize, sample
from attnphase.training import starting_weights

OMEGA, DIMENSION = 0.3, 300
ALPHAS, SCALES = [0.5, 0.75, 1.0, 1.25, 1.5, 2.0, 3.0], [0.1, 0.3, 1.0, 3.0]
#: Data sets (seeds 0, 1, ...), and random starts on each.
SEEDS, RUNS = 10, 2
OPTIMIZERS = {"gradient_descent": gradient_descent, "adam": adam, "lbfgs": minimize}
STARTS = ("positional", "semantic")


def valley(alpha: float, seed: int, start: str) -> dict:
    data = sample(Model(OMEGA), alpha, DIMENSION, seed)
    return measured(minimize(data, start)) | {"teacher": float((data.teacher**2).mean())}


def run(alpha: float, seed: int, scale: float, number: int, optimizer: str) -> dict:
    data = sample(Model(OMEGA), alpha, DIMENSION, seed)
    start = scale * starting_weights(data, "random", number)
    trained = OPTIMIZERS[optimizer](data, start)
    bottom = trained if optimizer == "lbfgs" else minimize(data, trained.weights)
    return measured(trained) | {"bottom": measured(bottom)}


KINDS = {"valley": valley, "run": run}


def tasks() -> list[tuple[str, dict]]:
    """Every row, in the order of the file."""
    valleys = [
        {"alpha": alpha, "seed": seed, "start": start}
        for alpha in ALPHAS
        for seed in range(SEEDS)
        for start in STARTS
    ]
    runs = [
        {"alpha": alpha, "seed": seed, "scale": scale, "number": number, "optimizer": optimizer}
        for alpha in ALPHAS
        for seed in range(SEEDS)
        for scale in SCALES
        for number in range(RUNS)
        for optimizer in OPTIMIZERS
    ]
    return [("valley", key) for key in valleys] + [("run", key) for key in runs]


if __name__ == "__main__":
    main(__file__, __doc__, {"omega": OMEGA, "dimension": DIMENSION}, tasks(), KINDS)
