"""Notation and glossary: every name resolves, every label exists once, and no step is waved at."""

import dataclasses
import importlib
import inspect
import json
import re
from collections import Counter
from pathlib import Path

import pytest

import attnphase

ROOT = Path(__file__).resolve().parent.parent
BOOK = ROOT / "book"
NOTATION = BOOK / "appendices" / "notation.md"
GLOSSARY = BOOK / "appendices" / "glossary.md"
HEADER = ["Symbol", "Meaning", "Equation", "Python"]
NO_NAME = "–"

LABEL = re.compile(r"^[ ]*\$\$[ ]*\(([^)\s]+)\)[ ]*$|^:label:[ ]*(eq-\S+)$", re.MULTILINE)
ROLE = r"\{%s\}`(?:[^`<]*<)?([^`<>]+)>?`"
LINK = re.compile(r"\]\(([^)#\s]+\.(?:ipynb|md))[^)]*\)")
# Phrases that stand where a reason should.
WAVES = re.compile(
    r"\b(?:one (?:easily )?finds|it (?:can|may) (?:easily )?be shown|one can (?:easily )?show"
    r"|clearly|obviously|trivially|straightforward(?:ly)?"
    r"|(?:it is )?easy to (?:see|show)|easily (?:seen|shown)|it is well known that)\b",
    re.IGNORECASE,
)


def prose(path):
    """What a reader reads on the page at ``path``: Markdown, captions and alternative texts."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".md":
        return text
    parts = []
    for cell in json.loads(text)["cells"]:
        if cell["cell_type"] == "markdown":
            parts.append("".join(cell["source"]))
        figure = cell["metadata"].get("mystnb", {})
        parts += [figure[key][part] for key, part in DESCRIPTIONS if key in figure]
    return "\n\n".join(parts)


DESCRIPTIONS = (("figure", "caption"), ("image", "alt"))
PAGES = [ROOT / "index.md", *sorted(BOOK.rglob("*.md"))]
PAGES += sorted(path for path in BOOK.rglob("*.ipynb") if ".ipynb_checkpoints" not in path.parts)
PROSE = {page: prose(page) for page in PAGES}

each_page = pytest.mark.parametrize(
    "page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix()
)


def tables(text):
    """Rows (lists of cells) of every Markdown table with the header of the notation tables."""
    rows, inside = [], False
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if not line.startswith("|"):
            inside = False
        elif cells == HEADER:
            inside = True
        elif inside and not all(re.fullmatch(r":?-+:?", cell) for cell in cells):
            rows.append(cells)
    return rows


def resolve(name):
    """The object that a dotted name stands for, or the annotation of a dataclass field.

    ``package.function(argument)`` names an argument of a function. Raises AttributeError if there
    is no such thing.
    """
    name, _, argument = name.removesuffix(")").partition("(")
    parts = name.split(".")
    for depth in range(1, len(parts) + 1):  # a function may have the name of the module it is in
        try:
            found = importlib.import_module(".".join(parts[:depth]))
            for part in parts[depth:]:
                found = member(found, part)
        except (ImportError, AttributeError):
            continue
        if argument and argument not in inspect.signature(found).parameters:
            raise AttributeError(f"{name} has no argument {argument!r}")
        return found
    raise AttributeError(f"{name} does not exist")


def member(owner, part):
    """Attribute of ``owner``, or the type of its dataclass field."""
    if part in getattr(owner, "__dataclass_fields__", {}):
        return {field.name: field.type for field in dataclasses.fields(owner)}[part]
    return getattr(owner, part)


def python_names(cell):
    return re.findall(r"`([^`]+)`", cell)


ROWS = tables(NOTATION.read_text(encoding="utf-8"))
DEFINED = Counter(a or b for text in PROSE.values() for a, b in LABEL.findall(text))


def test_notation_has_rows_of_four_cells():
    assert len(ROWS) > 60
    for row in ROWS:
        assert len(row) == len(HEADER), row


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0])
def test_row_has_symbol_meaning_equation_and_names_that_resolve(row):
    symbol, meaning, equation, python = row
    assert symbol and len(meaning) > 10
    assert equation == NO_NAME or re.findall(ROLE % "eq", equation)
    names = python_names(python)
    assert names or python == NO_NAME
    for name in names:
        assert name.startswith("attnphase."), name
        resolve(name)


BODY = re.compile(r"^[ ]*\$\$[ ]*\n(.*?)\$\$[ ]*\(([^)\s]+)\)", re.MULTILINE | re.DOTALL)
BODIES = {
    label: body.rpartition("$$")[2] for t in PROSE.values() for body, label in BODY.findall(t)
}
TOKEN = re.compile(r"\\[A-Za-z]+|[A-Za-z]")
DECORATIONS = {r"\hat", r"\mathcal", r"\mathbb", r"\operatorname", r"\pm"}
# Symbols that the sentence around the equation brings in, not the equation.
NAMED_BESIDE = {"$J$", r"$\epsilon_t$", r"$\alpha_l$"}


def base_letter(symbol):
    """First letter (or TeX name of one) of the first formula in a cell; None without a formula."""
    formula = re.match(r"\$([^$]+)\$", symbol)
    letters = TOKEN.findall(formula[1]) if formula else []
    return next((one for one in letters if one not in DECORATIONS), None)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0])
def test_an_equation_of_the_row_contains_its_symbol(row):
    labels, letter = re.findall(ROLE % "eq", row[2]), base_letter(row[0])
    if not labels or letter is None or row[0] in NAMED_BESIDE:
        return
    assert any(letter in TOKEN.findall(BODIES.get(label, "")) for label in labels), (letter, labels)


def test_every_symbol_has_one_row():
    symbols = Counter(row[0] for row in ROWS)
    assert [symbol for symbol, count in symbols.items() if count > 1] == []


def test_every_public_name_is_in_the_tables():
    """By identity, so that a name may be given with the module it comes from."""
    listed = []
    for name in (name for row in ROWS for name in python_names(row[3])):
        parts = name.partition("(")[0].split(".")
        listed += [resolve(".".join(parts[:k])) for k in range(2, len(parts) + 1)]
    missing = [
        name
        for name in attnphase.__all__
        if not any(getattr(attnphase, name) is found for found in listed)
    ]
    assert missing == []


@pytest.mark.parametrize(
    "name",
    [
        "attnphase.Model.omicron",
        "attnphase.nothing",
        "attnphase.FixedPoint.qq",
        "attnphase.solve(alpha_c)",
        "attnphase.state_evolution.Overlaps.q.r",
    ],
)
def test_names_that_do_not_exist_are_noticed(name):
    with pytest.raises(AttributeError):
        resolve(name)


def test_names_resolve_as_attributes_fields_modules_and_arguments():
    assert resolve("attnphase.Model.omega") is not None
    assert resolve("attnphase.FixedPoint.m") is attnphase.FixedPoint.m
    assert resolve("attnphase.state_evolution.Overlaps") is attnphase.Overlaps
    assert resolve("attnphase.solve(alpha)") is attnphase.solve
    assert resolve("attnphase.solver") is importlib.import_module("attnphase.solver")


def test_equation_labels_are_unique():
    assert [label for label, count in DEFINED.items() if count > 1] == []


@each_page
def test_equations_referred_to_exist(page):
    used = set(re.findall(ROLE % "eq", PROSE[page]))
    assert sorted(used - set(DEFINED)) == []


def glossary():
    """Terms of the glossary with their definitions, in order; terms may share a definition."""
    body = re.search(r"^```\{glossary\}\n(.*?)^```", PROSE[GLOSSARY], re.MULTILINE | re.DOTALL)[1]
    entries, waiting = [], []
    for block in re.split(r"\n(?=\S)", body.strip("\n")):
        term, _, definition = block.partition("\n")
        waiting.append(term.strip())
        if definition.strip():
            entries += [(term, definition.strip()) for term in waiting]
            waiting = []
    assert not waiting, waiting
    return entries


def test_glossary_terms_are_unique_and_sorted():
    terms = [term.casefold() for term, _ in glossary()]
    assert len(terms) > 40
    assert len(set(terms)) == len(terms)
    assert terms == sorted(terms)


@pytest.mark.parametrize(("term", "definition"), glossary(), ids=lambda text: text[:30])
def test_glossary_definition_is_short_and_says_where_the_term_is_introduced(term, definition):
    assert term and len(definition.split()) <= 110
    assert LINK.search(definition), "no link to a chapter"


@each_page
def test_terms_referred_to_are_in_the_glossary(page):
    used = {re.sub(r"\s+", " ", term).casefold() for term in re.findall(ROLE % "term", PROSE[page])}
    assert sorted(used - {term.casefold() for term, _ in glossary()}) == []


@each_page
def test_links_to_other_pages_exist(page):
    for target in LINK.findall(PROSE[page]):
        assert (page.parent / target).is_file(), target


@each_page
def test_no_phrase_replaces_a_reason(page):
    """No page says that something can be shown, or is clear, instead of showing it."""
    assert [match[0] for match in WAVES.finditer(re.sub(r"\s+", " ", PROSE[page]))] == []


@pytest.mark.parametrize(
    "text", ["One finds that", "It can be shown", "one  can\nshow", "Clearly,", "is easily seen"]
)
def test_the_phrases_are_recognised(text):
    assert WAVES.search(re.sub(r"\s+", " ", text))
