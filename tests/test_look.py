"""The look of the site: what is kept in step with the theme, and what the site serves itself."""

import importlib.util
import io
import re
from pathlib import Path

import numpy as np
import pydata_sphinx_theme
import pytest
from fontTools.pens.recordingPen import RecordingPen
from fontTools.ttLib import TTFont
from matplotlib.image import imread

from attnphase.figures import COLORS
from tools import icons

ROOT = Path(__file__).resolve().parent.parent
STATIC = ROOT / "book" / "_static"
TEMPLATES = ROOT / "book" / "_templates"
SITE = ROOT / "_build" / "html"
THEME = Path(pydata_sphinx_theme.__file__).parent / "theme" / "pydata_sphinx_theme"


def read(path):
    return path.read_text(encoding="utf-8")


def lines(text):
    return [line.strip() for line in text.splitlines() if line.strip()]


def test_the_macros_are_those_of_the_theme_without_the_script_of_icons():
    # The digest in the file changes with every release of the theme.
    ours = re.sub(
        r"\A\{#.*?#\}", "", read(TEMPLATES / "static" / "webpack-macros.html"), flags=re.S
    )
    theirs = lines(read(THEME / "static" / "webpack-macros.html"))
    dropped = [line for line in theirs if line not in lines(ours)]
    assert lines(ours) == [line for line in theirs if line not in dropped]
    assert len(dropped) == 2 and "icons" in dropped[0] and "fontawesome.js" in dropped[1]


def test_the_head_is_that_of_the_theme_without_the_scripts_of_the_search():
    def head(text):
        block = re.search(r"block extrahead -?%\}(.*?)\{%-? *endblock", text, re.S)[1]
        return set(re.findall(r"<\w+ [^>]*?(?:name=\"|pathto\(')([\w./:-]+)", block))

    ours, theirs = head(read(TEMPLATES / "layout.html")), head(read(THEME / "layout.html"))
    search = {"_static/searchtools.js", "_static/language_data.js", "searchindex.js"}
    assert ours == {"viewport", "docsearch:language"}
    assert theirs == ours | search | {"docsearch:version", "docbuild:last-update"}


def built_pages():
    pages = [p for p in SITE.rglob("*.html") if p.relative_to(SITE).parts[0] != "_static"]
    assert len(pages) > 20, "build the site first: make html"
    return pages


def test_no_page_loads_the_script_of_icons_and_only_the_search_page_its_scripts():
    for page in built_pages():
        text = read(page)
        assert "fontawesome" not in text.lower(), page
        assert ("searchindex.js" in text) == (page.name == "search.html"), page


def test_every_icon_of_the_pages_is_in_the_font():
    built = [read(page) for page in built_pages()]
    scripts = [read(path) for path in (SITE / "_static" / "scripts").glob("*-theme.js")]
    sheet = read(SITE / "_static" / "styles" / "pydata-sphinx-theme.css")
    named = set(re.findall(r"\bfa-([a-z-]+)", "".join(built + scripts))) - {"solid", "lg"}
    assert {"moon", "magnifying-glass", "xmark"} <= named
    wanted = {}
    for name in named:
        (code,) = re.findall(rf"\.fa-{name}(?:,[^{{}}]*)?:before[^{{}}]*{{content:\"(.+?)\"", sheet)
        wanted[name] = int(code.removeprefix("\\"), 16)
    # Signs that only style sheets name; no page links to a version or to another forge by them.
    for name, sign in re.findall(r"(--pst-icon-[a-z-]+):\"(.)\"", sheet):
        if name not in ("--pst-icon-github", "--pst-icon-gitlab"):
            wanted[name] = ord(sign)
    for other in ("exercise.css", "styles/sphinx-book-theme.css"):
        for code in re.findall(r"content: ?\"\\(f[0-9a-f]{3})\"", read(SITE / "_static" / other)):
            wanted[f"{other} {code}"] = int(code, 16)
    assert len(wanted) > 25
    font = TTFont(STATIC / "icons" / "icons.woff")
    missing = {name: hex(code) for name, code in wanted.items() if code not in font.getBestCmap()}
    assert not missing


def test_the_icons_are_those_of_the_theme_under_another_name():
    ours, theirs = TTFont(STATIC / "icons" / "icons.woff"), TTFont(icons.SOURCE)
    assert set(ours.getBestCmap()) == set(icons.ICONS.values())
    for code in icons.ICONS.values():
        drawings = []
        for font in (ours, theirs):
            pen = RecordingPen()
            font.getGlyphSet()[font.getBestCmap()[code]].draw(pen)
            drawings.append(pen.value)
        assert drawings[0] == drawings[1] and drawings[0], hex(code)
    names = [record.toUnicode() for record in ours["name"].names if record.nameID in (1, 4, 6)]
    assert names and not any("Awesome" in name for name in names)
    assert (STATIC / "icons" / "icons.woff").stat().st_size < 5000


def test_the_fonts_lie_here_with_their_licence_and_all_are_used():
    sheet = read(STATIC / "fonts.css")
    used = set(re.findall(r'url\("([^"]+)"\)', sheet))
    here = {f.relative_to(STATIC).as_posix() for f in STATIC.rglob("*.woff*")}
    assert used == here
    assert "SIL OPEN FONT LICENSE" in read(STATIC / "fonts" / "OFL.txt")
    assert "CC BY 4.0" in read(STATIC / "icons" / "LICENSE.txt")
    assert sheet.count("font-display: swap") == len(used) - 1  # icons have no fallback


def rules():
    return re.sub(r"/\*.*?\*/", "", read(STATIC / "book.css"), flags=re.S)


def test_mechanisms_have_the_colours_of_the_figures():
    found = dict(re.findall(r"--book-(\w+): light-dark\((#\w{6}), #\w{6}\)", rules()))
    assert {name: found[name].upper() for name in COLORS} == dict(COLORS)


def luminance(colour):
    value = np.array([int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)])
    linear = np.where(value <= 0.04045, value / 12.92, ((value + 0.055) / 1.055) ** 2.4)
    return linear @ [0.2126, 0.7152, 0.0722]


@pytest.mark.parametrize("scheme", [0, 1], ids=["light", "dark"])
@pytest.mark.parametrize("ground", ["background", "on-background", "surface"])
def test_text_has_a_contrast_of_four_and_a_half(scheme, ground):
    found = re.findall(r"--pst-color-([\w-]+): light-dark\((#\w{6}), (#\w{6})\)", rules())
    colours = {name: pair[scheme] for name, *pair in found}
    texts = "text-base text-muted heading primary secondary accent info success warning danger"
    for text in texts.split():
        bright, dark = sorted((luminance(colours[text]), luminance(colours[ground])))[::-1]
        assert (bright + 0.05) / (dark + 0.05) >= 4.5, text


def test_the_card_for_links_is_drawn_from_the_stored_data():
    path = ROOT / "book" / "data" / "make_social_card.py"
    spec = importlib.util.spec_from_file_location(path.stem, path)
    card = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(card)
    drawn = io.BytesIO()
    card.draw().savefig(drawn, facecolor=card.PAPER)
    drawn.seek(0)
    stored, again = imread(card.TARGET), imread(drawn)
    assert stored.shape[:2] == (630, 1200) and card.TARGET.stat().st_size < 150_000
    # Smoothing may differ between machines; a line in another place changes more.
    assert np.sum(np.abs(stored - again).max(axis=-1) > 0.3) < 100
