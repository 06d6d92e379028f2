"""One look for every figure of the book: a colour, a marker and a line style per mechanism.

The colours are from the Okabe-Ito palette, which stays distinct for colour-blind readers.
"""

from __future__ import annotations

from types import MappingProxyType

import matplotlib as mpl

from attnphase.model import Array

#: Colour, marker and line style of each mechanism, the same in every chapter.
COLORS = MappingProxyType(
    {
        "positional": "#0072B2",
        "semantic": "#D55E00",
        "uninformed": "#6C6C6C",
        "baseline": "#007A5A",
        "intermediate": "#8C4799",
    }
)
MARKERS = MappingProxyType(
    {
        "positional": "o",
        "semantic": "s",
        "uninformed": "^",
        "baseline": "D",
        "intermediate": "v",
    }
)
LINES = MappingProxyType(
    {
        "positional": "-",
        "semantic": "--",
        "uninformed": ":",
        "baseline": "-.",
        "intermediate": (0, (5, 2, 1, 2, 1, 2)),
    }
)

STYLE = MappingProxyType(
    {
        "figure.figsize": (6.4, 3.8),
        "figure.dpi": 220,  # twice the width at which a page shows a figure
        "figure.facecolor": "white",
        "savefig.facecolor": "white",
        "axes.facecolor": "white",
        "figure.constrained_layout.use": True,
        "font.size": 11,
        "axes.titlesize": 11,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.grid": True,
        "grid.color": "#E4E4E4",
        "grid.linewidth": 0.7,
        "axes.axisbelow": True,
        "lines.linewidth": 1.8,
        "lines.markersize": 5.5,
        "legend.frameon": False,
        "image.cmap": "cividis",
    }
)


def look(mechanism: str, **changes: object) -> dict[str, object]:
    """Keyword arguments for ``Axes.plot`` that draw ``mechanism`` in its colour, marker and line.

    mechanism: a key of `COLORS`. ``changes`` override single entries. Raises ValueError otherwise.
    """
    if mechanism not in COLORS:
        raise ValueError(f"mechanism must be one of {sorted(COLORS)}, got {mechanism!r}")
    style = {
        "color": COLORS[mechanism],
        "marker": MARKERS[mechanism],
        "linestyle": LINES[mechanism],
        "label": mechanism,
    }
    return style | changes


def use_style() -> None:
    """Set the book's style for the rest of a notebook."""
    mpl.rcParams.update(STYLE)


def draw_attention(axes: mpl.axes.Axes, matrix: Array, title: str = "", digits: int = 2) -> None:
    """Draw an attention matrix as cells shaded in grey, which is no mechanism's, with their values.

    matrix: shape (L, L), entries in [0, 1]; row i is the attention that token i pays.
    """
    axes.imshow(matrix, vmin=0.0, vmax=1.0, cmap="Greys")
    for i, row in enumerate(matrix):
        for j, value in enumerate(row):
            shade = "white" if value > 0.62 else "black"
            axes.text(j, i, f"{value:.{digits}f}", ha="center", va="center", color=shade)
    ticks = range(len(matrix))
    labels = [f"token {i + 1}" for i in ticks]
    axes.set_xticks(ticks, labels)
    axes.set_yticks(ticks, labels)
    axes.grid(False)
    axes.set_title(title)
