"""The look of the figures: one mechanism, one look; legible, opaque, small enough for a phone."""

import matplotlib as mpl
import numpy as np
import pytest
from matplotlib.colors import to_hex, to_rgb
from matplotlib.figure import Figure

from attnphase.figures import COLORS, LINES, MARKERS, STYLE, draw_attention, look, use_style

MECHANISMS = ("positional", "semantic", "uninformed", "baseline", "intermediate")


def luminance(color):
    """Relative luminance of a colour (WCAG 2.1)."""
    rgb = np.array(to_rgb(color))
    linear = np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)
    return linear @ [0.2126, 0.7152, 0.0722]


def contrast(one, other):
    dark, light = sorted([luminance(one), luminance(other)])
    return (light + 0.05) / (dark + 0.05)


def test_the_palette_is_the_documented_one():
    assert dict(COLORS) == dict(
        zip(MECHANISMS, ("#0072B2", "#D55E00", "#6C6C6C", "#007A5A", "#8C4799"), strict=True)
    )
    assert dict(MARKERS) == dict(zip(MECHANISMS, "os^Dv", strict=True))
    dashes = (0, (5, 2, 1, 2, 1, 2))
    assert dict(LINES) == dict(zip(MECHANISMS, ("-", "--", ":", "-.", dashes), strict=True))


@pytest.mark.parametrize("mapping", [COLORS, MARKERS, LINES])
def test_each_mechanism_differs_in_colour_marker_and_line(mapping):
    assert set(mapping) == set(MECHANISMS)
    assert len(set(mapping.values())) == len(MECHANISMS)
    with pytest.raises(TypeError):
        mapping["positional"] = "x"


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_lines_stand_out_from_the_page(mechanism):
    # 3:1 is the WCAG minimum for graphical objects
    assert contrast(COLORS[mechanism], STYLE["axes.facecolor"]) >= 3


def test_look_is_what_plot_takes():
    assert look("semantic") == {
        "color": "#D55E00",
        "marker": "s",
        "linestyle": "--",
        "label": "semantic",
    }
    axes = Figure().subplots()
    (line,) = axes.plot([0, 1], [0, 1], **look("baseline", marker="", label="Wx"))
    assert line.get_color() == COLORS["baseline"]
    assert line.get_marker() == ""
    assert line.get_linestyle() == LINES["baseline"]
    assert line.get_label() == "Wx"
    assert look("baseline")["marker"] == "D"
    (line,) = axes.plot([0, 1], [1, 0], **look("intermediate"))
    assert line.is_dashed()


@pytest.mark.parametrize("mechanism", ["Semantic", "", None, 1])
def test_look_refuses_an_unknown_mechanism(mechanism):
    with pytest.raises(ValueError, match="mechanism must be one of") as caught:
        look(mechanism)
    assert repr(mechanism) in str(caught.value)
    assert all(name in str(caught.value) for name in MECHANISMS)


def test_use_style_sets_an_opaque_legible_style():
    with mpl.rc_context():
        mpl.rcdefaults()
        use_style()
        for key, value in STYLE.items():
            assert mpl.rcParams[key] == (list(value) if key == "figure.figsize" else value)
        for key in ("figure.facecolor", "savefig.facecolor", "axes.facecolor"):
            assert to_hex(mpl.rcParams[key], keep_alpha=True) == "#ffffffff"
        assert mpl.rcParams["savefig.transparent"] is False
        assert mpl.rcParams["figure.figsize"][0] <= 7
        assert mpl.rcParams["font.size"] >= 10
        for key in ("legend.fontsize", "xtick.labelsize", "ytick.labelsize", "axes.labelsize"):
            assert mpl.rcParams[key] == "medium"


def test_the_style_cannot_be_changed_by_accident():
    with pytest.raises(TypeError):
        STYLE["font.size"] = 3


def test_draw_attention_writes_each_entry_in_its_cell():
    matrix = np.array([[0.97, 0.02, 0.01], [0.25, 0.5, 0.25], [0.1, 0.3, 0.6]])
    axes = Figure().subplots()
    axes.grid(True)
    draw_attention(axes, matrix, title="a sentence")
    written = {text.get_position(): text.get_text() for text in axes.texts}
    assert written == {(j, i): f"{matrix[i, j]:.2f}" for i in range(3) for j in range(3)}
    (image,) = axes.images
    assert (image.get_array() == matrix).all()
    assert image.get_clim() == (0.0, 1.0)
    assert axes.get_title() == "a sentence"
    for axis in (axes.xaxis, axes.yaxis):
        assert axis.get_ticklocs().tolist() == [0, 1, 2]
        labels = [label.get_text() for label in axis.get_ticklabels()]
        assert labels == ["token 1", "token 2", "token 3"]
        assert not any(line.get_visible() for line in axis.get_gridlines())
    # row 0 is drawn at the top
    assert axes.get_ylim()[0] > axes.get_ylim()[1]


def test_draw_attention_digits():
    axes = Figure().subplots()
    draw_attention(axes, np.full((2, 2), 0.5), digits=3)
    assert {text.get_text() for text in axes.texts} == {"0.500"}


@pytest.mark.parametrize("value", np.linspace(0, 1, 41))
def test_draw_attention_numbers_are_legible_on_their_cells(value):
    axes = Figure().subplots()
    draw_attention(axes, np.array([[value, 1 - value], [1 - value, value]]))
    (image,) = axes.images
    cell = image.cmap(image.norm(value))
    text = next(text for text in axes.texts if text.get_position() == (0, 0))
    # 4.5:1 is the WCAG minimum for text
    assert contrast(text.get_color(), cell) >= 4.5
