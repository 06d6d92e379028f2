"""Write the icon font of the site: the few icons of Font Awesome that the theme shows.

    python tools/icons.py

The theme comes with all of Font Awesome, as a script of 1.5 MB and as fonts. The pages load
neither: `book/_templates/static/webpack-macros.html` leaves the script out, and
`book/_static/fonts.css` puts this subset in the place of the solid font. tests/test_look.py says
when an icon is missing.
"""

from pathlib import Path

import pydata_sphinx_theme
from fontTools.subset import Options, Subsetter
from fontTools.ttLib import TTFont

#: Code points by what they are called in Font Awesome. The theme names most of them in its pages
#: and some in its style sheets only: the signs of admonitions, exercises and outside links.
ICONS = {
    "angle-down": 0xF107,
    "angle-left": 0xF104,
    "angle-right": 0xF105,
    "arrow-up": 0xF062,
    "arrow-up-right-from-square": 0xF35D,
    "bars": 0xF0C9,
    "bell": 0xF0F3,
    "check-circle": 0xF058,
    "chevron-down": 0xF078,
    "circle-exclamation": 0xF06A,
    "circle-half-stroke": 0xF042,
    "circle-info": 0xF05A,
    "circle-xmark": 0xF057,
    "download": 0xF019,
    "expand": 0xF065,
    "file": 0xF15B,
    "file-pdf": 0xF1C1,
    "lightbulb": 0xF0EB,
    "list": 0xF03A,
    "magnifying-glass": 0xF002,
    "magnifying-glass-minus": 0xF010,
    "moon": 0xF186,
    "pencil": 0xF303,
    "share": 0xF064,
    "sun": 0xF185,
    "triangle-exclamation": 0xF071,
    "xmark": 0xF00D,
}
TARGET = Path(__file__).resolve().parent.parent / "book" / "_static" / "icons" / "icons.woff"
SOURCE = (
    Path(pydata_sphinx_theme.__file__).parent
    / "theme/pydata_sphinx_theme/static/vendor/fontawesome/webfonts/fa-solid-900.ttf"
)


def subset() -> TTFont:
    """The solid font of Font Awesome, with no more than `ICONS` in it, under a name of its own.

    The licence reserves the name of the original. Raises KeyError if an icon is not in the font.
    """
    font = TTFont(SOURCE, recalcTimestamp=False)
    missing = sorted(name for name, code in ICONS.items() if code not in font.getBestCmap())
    if missing:
        raise KeyError(f"not in {SOURCE.name}: {', '.join(missing)}")
    for record in font["name"].names:
        if record.nameID in (1, 3, 4, 6, 16):
            record.string = "BookIcons"
    options = Options()
    options.name_IDs = [0, 1, 2, 3, 4, 5, 6]
    options.layout_features = []
    options.notdef_outline = True
    subsetter = Subsetter(options)
    subsetter.populate(unicodes=ICONS.values())
    subsetter.subset(font)
    font.flavor = "woff"
    return font


if __name__ == "__main__":
    subset().save(TARGET)
    print(f"{TARGET.name}: {len(ICONS)} icons, {TARGET.stat().st_size} bytes")
