"""Make book/_static/social_card.png: what a link to the book shows, 1200 by 630 pixels.

The train losses of the two solutions per sentence, at omega = 0.3, from finite_dimension.json, and
the sample complexity at which they cross, from alpha_lines.json.

    python book/data/make_social_card.py [--output FILE]
"""

import argparse
import json
from pathlib import Path

import matplotlib as mpl
import matplotlib.pyplot as plt

from attnphase.figures import COLORS

DATA = Path(__file__).resolve().parent
TARGET = DATA.parent / "_static" / "social_card.png"
OMEGA = 0.3
PAPER, INK, MUTED = "#fdfcfa", "#1d2b3a", "#555d68"


def branches() -> dict[str, tuple[list[float], list[float]]]:
    """Sample complexities and train losses per sentence (times 1000) of both solutions.

    Raises ValueError if the stored data are those of another omega.
    """
    stored = json.loads((DATA / "finite_dimension.json").read_text(encoding="utf-8"))
    if stored["parameters"]["omega"] != OMEGA:
        raise ValueError(f"omega must be {OMEGA}, got {stored['parameters']['omega']}")
    found = {}
    for branch in ("positional", "semantic"):
        rows = [r for r in stored["theory"] if r["branch"] == branch and r["alpha"] >= 0.6]
        rows.sort(key=lambda row: row["alpha"])
        alphas = [row["alpha"] for row in rows]
        found[branch] = (alphas, [1e3 * row["train_loss"] / row["alpha"] for row in rows])
    return found


def crossing() -> float:
    """The stored alpha_c. Raises ValueError if there is not exactly one for `OMEGA`."""
    stored = json.loads((DATA / "alpha_lines.json").read_text(encoding="utf-8"))
    (row,) = [r for r in stored["rows"] if (r["line"], r["omega"]) == ("alpha_c", OMEGA)]
    return row["value"]


def draw() -> plt.Figure:
    """The card."""
    mpl.rcParams |= {"font.family": "DejaVu Sans", "mathtext.fontset": "dejavuserif"}
    figure = plt.figure(figsize=(12, 6.3), dpi=100, facecolor=PAPER)
    figure.text(0.055, 0.86, "Positional or semantic?", size=38, weight="bold", color=INK)
    figure.text(0.055, 0.775, "A phase transition in attention", size=24, color=MUTED)
    axes = figure.add_axes((0.055, 0.14, 0.89, 0.56), facecolor=PAPER)
    alpha_c = crossing()
    for branch, (alphas, losses) in branches().items():
        wins = [(a < alpha_c) == (branch == "positional") for a in alphas]
        color = COLORS[branch]
        axes.plot(alphas, losses, color=color, linewidth=2.5, linestyle=(0, (1, 1.6)))
        best = [(a, y) for a, y, w in zip(alphas, losses, wins, strict=True) if w]
        axes.plot(*zip(*best, strict=True), color=color, linewidth=6, solid_capstyle="round")
        what, point, offset = (
            ("where", best[0], (0, -34)) if branch == "positional" else ("what", best[4], (14, 10))
        )
        axes.annotate(
            f"{branch}: attends to {what}",
            point,
            xytext=offset,
            textcoords="offset points",
            size=19,
            color=color,
        )
    axes.axvline(alpha_c, color=INK, linewidth=1.2, zorder=0)
    axes.text(alpha_c + 0.015, axes.get_ylim()[1], r"$\alpha_c$", size=24, color=INK, va="top")
    axes.set_xlabel("training sentences per dimension", size=16, color=MUTED, labelpad=8)
    axes.set_ylabel("train loss per sentence", size=16, color=MUTED)
    axes.set(xticks=[], yticks=[])
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(MUTED)
    return figure


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", type=Path, default=TARGET)
    output = parser.parse_args().output
    draw().savefig(output, facecolor=PAPER, metadata={"Software": None})
    print(f"{output.name}: {output.stat().st_size} bytes")
