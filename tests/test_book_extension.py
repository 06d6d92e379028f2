"""What tools/book_extension.py adds to the site: links to meanings, downloads, addresses."""

import re
import subprocess
import sys
from functools import cache
from pathlib import Path
from types import SimpleNamespace

import pytest
from bs4 import BeautifulSoup
from docutils import nodes
from PIL import Image
from sphinx.errors import ConfigError

from tools import notebooks

ROOT = Path(__file__).resolve().parent.parent
SITE = ROOT / "_build" / "html"
CHAPTERS = [path.relative_to(ROOT).with_suffix("").as_posix() for path in notebooks.chapters(ROOT)]

sys.path.insert(0, str(ROOT / "tools"))  # as Sphinx imports it
import book_extension  # noqa: E402

each_chapter = pytest.mark.parametrize("name", CHAPTERS)


@cache
def parsed(path):
    return BeautifulSoup(path.read_text(encoding="utf-8"), "html.parser")


def page(name):
    """Return the built page `name`, parsed."""
    return parsed(SITE / f"{name}.html")


def linked_terms(name):
    """Return the terms of the glossary that the page `name` links, in order."""
    links = page(name).select("article a.reference[href*='glossary.html#term-']:has(.std-term)")
    return [re.search(r"#term-(.+)", link["href"])[1] for link in links]


@each_chapter
def test_a_chapter_leads_to_the_glossary(name):
    assert len(set(linked_terms(name))) >= 5


def test_everyday_words_lead_there_only_where_they_are_introduced():
    introduced = book_extension.glossary_terms()
    assert set(introduced) >= book_extension.EVERYDAY
    for name in CHAPTERS:
        source = (ROOT / f"{name}.ipynb").read_text(encoding="utf-8")
        by_hand = set(re.findall(r"\{term\}`(?:[^`<]+<)?([^`>]+)", source))
        for term in book_extension.EVERYDAY & set(linked_terms(name)) - by_hand:
            assert name.removeprefix("book/") in introduced[term], (name, term)


def test_student_s_distribution_is_not_our_student():
    text = page("book/question/introduction").find(string=re.compile("Student"))
    assert text and not text.find_parent("a")


def math(tex):
    return nodes.math("", tex)


@pytest.mark.parametrize(
    ("tex", "identifier"),
    [
        (r"\omega", "symbol-omega"),
        (r"\alpha=n/d", "symbol-alpha"),
        (r"\theta", "symbol-theta_l"),
        (r"\hat V_l", "symbol-hat-V_l"),
        (r"Q_\star", "symbol-Q_-star"),
        ("v_l=x_l+p_l", "letter-v"),
        ("x", "symbol-x_l"),
    ],
)
def test_a_symbol_leads_to_its_row(tex, identifier):
    found, meaning = book_extension.symbol_in(math(tex))
    assert found == identifier
    assert len(meaning) > 5
    assert page("book/appendices/notation").find(id=identifier).find_parent("tr")


@pytest.mark.parametrize("tex", [r"\zeta_l", r"\frac12", "7"])
def test_what_the_notation_does_not_have_leads_nowhere(tex):
    assert book_extension.symbol_in(math(tex)) is None


def test_a_letter_with_two_meanings_tells_both():
    _, meaning = book_extension.symbols()[r"\lambda"]
    assert "ridge" in meaning and "eigenvalue" in meaning


def test_previews_of_symbols_hold_no_markup_of_the_source():
    for address, tip in book_extension.symbol_tips().items():
        assert re.fullmatch(r"\.\./appendices/notation\.html#(symbol|letter)-[\w-]+", address)
        assert not re.search(r"\$|`|\]\(", tip), tip


def test_the_index_lists_each_term_with_its_chapters():
    index = page("genindex")
    entry = index.find("a", string="Onsager term")
    assert "glossary.html#term-Onsager-term" in entry["href"]
    chapters = entry.find_parent("li").find("ul").get_text()
    assert "Message passing" in chapters


def test_the_state_of_the_notebooks_is_what_was_recorded():
    rows = [
        [cell.get_text(strip=True) for cell in row.find_all("td")]
        for row in page("book/appendices/status").select("tbody tr")
    ]
    assert len(rows) == len(CHAPTERS)
    record = notebooks.executions(ROOT)
    expected = {
        (entry["date"], f"{entry['seconds']:.0f} s")
        for name, entry in record.items()
        if name.removesuffix(".ipynb") in CHAPTERS
    }
    assert {(row[1], row[2]) for row in rows} == expected
    assert {row[6] for row in rows} == {"fresh"}


@each_chapter
def test_pictures_are_shown_at_half_their_size(name):
    pictures = page(name).select("article img[src*='_images/']")
    for picture in pictures:
        with Image.open((SITE / f"{name}.html").parent / picture["src"]) as image:
            width, height = image.size
        assert (int(picture["width"]), int(picture["height"])) == (width // 2, height // 2)
        assert picture["loading"] == "lazy"
        assert width >= 1000, "figures have twice the pixels that a page shows"


@each_chapter
def test_a_chapter_offers_its_notebook(name):
    (button,) = page(name).select("a.btn-download-notebook-button")
    reads_data = bool(notebooks.read(ROOT / f"{name}.ipynb").metadata.attnphase.get("data"))
    assert button["href"].endswith(f"/notebooks/{name}{'.zip' if reads_data else '.ipynb'}")


@each_chapter
def test_a_chapter_says_what_comes_before_and_after(name):
    described = page(name).select(".prev-next-area .prev-next-description")
    assert {text.get_text(strip=True) for text in described} <= set(book_extension.pages().values())
    assert len(described) == 2


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("ATTNPHASE_SITE", "http://example.org/book"),
        ("ATTNPHASE_SITE", "example.org"),
        ("ATTNPHASE_SITE", "https://example.org/?page=1"),
        ("ATTNPHASE_REPOSITORY", "https://example.org/owner/book"),
        ("ATTNPHASE_REPOSITORY", "https://github.com/owner"),
    ],
)
def test_an_address_that_cannot_be_is_refused(monkeypatch, name, value):
    monkeypatch.setenv(name, value)
    config = SimpleNamespace(html_theme_options={})
    with pytest.raises(ConfigError, match=f"{name} must be.*{re.escape(repr(value))}"):
        book_extension.configure(None, config)


@pytest.mark.slow
def test_what_the_publisher_knows_is_in_the_pages(monkeypatch, tmp_path):
    monkeypatch.setenv("ATTNPHASE_REPOSITORY", "https://github.com/owner/book")
    monkeypatch.setenv("ATTNPHASE_SITE", "https://owner.example/book/")
    monkeypatch.setenv("ATTNPHASE_CARRIED", "1")
    command = [Path(sys.executable).with_name("jupyter-book"), "build", ".", "--all", "-W", "-n"]
    command += ["--path-output", tmp_path]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    monkeypatch.setattr(sys.modules[__name__], "SITE", tmp_path / "_build" / "html")
    chapter = page("book/question/the_task")
    links = {link["href"] for link in chapter.select(".article-header-buttons a[href^=https]")}
    assert links == {
        "https://github.com/owner/book",
        "https://mybinder.org/v2/gh/owner/book/launch"
        "?urlpath=lab/tree/book/question/the_task.ipynb",
        "https://colab.research.google.com/github/owner/book/blob/launch"
        "/book/question/the_task.ipynb",
    }
    address = "https://owner.example/book/book/question/the_task.html"
    assert chapter.find("link", rel="canonical")["href"] == address
    assert chapter.find("meta", property="og:url")["content"] == address
    image = chapter.find("meta", property="og:image")["content"]
    assert image.startswith("https://owner.example/book/_static/")
    assert (SITE / image.removeprefix("https://owner.example/book/")).exists()
    missing = page("404")
    assert all(link["href"].startswith("/book/") for link in missing.select("link[rel=stylesheet]"))
    downloads = page("book/appendices/downloads")
    assert downloads.find("a", href=re.compile(r"attnphase\.pdf$"))
    assert not page("book/transition/explorer").select(".dropdown-launch-buttons")
