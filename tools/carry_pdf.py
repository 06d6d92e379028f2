"""The whole book as one PDF, printed by Chromium from the built pages."""

import html
import json
import logging
import os
import re
import shutil
import tempfile
from pathlib import Path
from urllib.parse import urldefrag

import yaml
from bs4 import BeautifulSoup
from PIL import Image
from playwright.sync_api import sync_playwright
from pypdf import PdfReader, PdfWriter
from pypdf.generic import NameObject, TextStringObject

from tools.carry_notebooks import address, project

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
SHORT = 16  # lines: code up to this length is not split over two pages
ROMAN = ("I", "II", "III", "IV", "V", "VI", "VII", "VIII", "IX", "X")
COLUMNS = 100  # of code, at the 7.7 pt that the style sheet gives it
DOTS = 260  # an inch of paper shows that many of a picture's pixels
TALLEST = 4.8  # inches
# Parts of code that have no colour on paper: each coloured one makes the document larger.
PLAIN = re.compile(r'<span class="(?:n|nn|nb|bp|p|w|o|mi|mf|s[iea])">([^<]*)</span>')
SPLIT = re.compile(r'(<span class="s2">[^<]*)</span><span class="s2">')
# What serves a reader at a screen only.
SCREEN = ".headerlink, .toctree-wrapper, button, script, style, link, noscript, summary, colgroup"
# A formula is read out, searched and copied as the TeX it comes from.
NAME_FORMULAS = """() => {
  for (const item of MathJax.startup.document.math) {
    item.typesetRoot.setAttribute("role", "img");
    item.typesetRoot.setAttribute("aria-label", item.math);
  }
}"""
# The headings, with their formulas as TeX.
HEADINGS = """() => [...document.querySelectorAll("h1, h2, h3, h4, h5, h6")].map(heading => {
  const copy = heading.cloneNode(true);
  for (const formula of copy.querySelectorAll("mjx-container"))
    formula.replaceWith(formula.getAttribute("aria-label"));
  return copy.textContent.replace(/\\s+/g, " ").trim();
})"""
# Elements that are wider than their place, with the start of their text.
OVERFLOW = """() => [...document.querySelectorAll("pre, mjx-container, table, figure")]
  .filter(e => e.scrollWidth > e.clientWidth + 1
               || e.getBoundingClientRect().right > document.body.clientWidth + 1)
  .map(e => `${e.closest("article")?.id}: <${e.localName}> ${e.parentElement.id}
             ${e.textContent.slice(0, 80)}`)"""


def browser():
    """Return the path of a Chromium. Raises FileNotFoundError if there is none."""
    found = next(filter(None, map(shutil.which, BROWSERS)), None)
    if found is None:
        raise FileNotFoundError(f"the PDF is printed by Chromium: install one of {BROWSERS}")
    return found


def outline(root):
    """Return the pages of the book in order: (title of the part or None, name of the page)."""
    contents = yaml.safe_load((root / "_toc.yml").read_text(encoding="utf-8"))
    pages, numbered = [(None, contents["root"])], 0
    for part in contents["parts"]:
        title = part["caption"]
        if part.get("numbered"):
            title = f"Part {ROMAN[numbered]}. {title}"
            numbered += 1
        for index, chapter in enumerate(part["chapters"]):
            pages.append((title if index == 0 else None, chapter["file"]))
    return pages


def slug(page):
    """Return the identifier of a page in the document."""
    return page.rpartition("/")[2].replace("_", "-")


def read_article(site, page):
    """Return the article of a built page, parsed. Raises FileNotFoundError if it is not built."""
    file = site / f"{page}.html"
    if not file.is_file():
        raise FileNotFoundError(f"{file} does not exist: run `make html` first")
    text = file.read_text(encoding="utf-8")
    begin, end = text.index('<article class="bd-article"'), text.index("</article>")
    text = SPLIT.sub(r"\1", PLAIN.sub(r"\1", text[begin:end]))
    return BeautifulSoup(f"{text}</article>", "html.parser").article


def prepare(article, page, site, published):
    """Make the article of `page` fit for paper, in place."""
    for widget in article.select("#explorer-widget"):
        where = f"{published}/{page}.html" if published else None
        text = "The explorer moves, and so is not part of this document: it is in the book's site"
        end = f', <a href="{where}">{where}</a>.</p>' if where else ".</p>"
        widget.replace_with(BeautifulSoup(f"<p><em>{text}</em>{end}", "html.parser"))
    for element in article.select(SCREEN):
        element.decompose()
    for details in article.select("details"):
        details.name = "div"
    for pre in article.select("pre"):
        lines = pre.get_text().splitlines()
        if len(lines) <= SHORT:
            pre["class"] = ["keep"]
        longest = max(map(len, lines), default=0)
        if longest > COLUMNS:
            pre["style"] = f"font-size: {7.7 * COLUMNS / longest:.2f}pt"
    for cell in article.select("td"):
        if len(cell.get_text()) <= len("2000-01-01"):
            cell["style"] = "white-space: nowrap"
    for image in article.select("img"):
        image.attrs.pop("loading", None)
        image["src"] = os.path.normpath(os.path.join(os.path.dirname(page), image["src"]))
        with Image.open(site / image["src"]) as picture:
            width = min(picture.width / DOTS, TALLEST * picture.width / picture.height)
        image["style"] = f"width: {width:.2f}in"
    for level in (5, 4, 3, 2, 1):
        for heading in article.select(f"h{level}"):
            heading.name = f"h{level + 1}"


def connect(articles, published):
    """Make identifiers unique and lead the links to them, in place.

    A link to what is not part of the book (the index, a download, a state of the explorer) leads to
    the published site; if that is not known, only its text is left. Raises ValueError for a link
    whose anchor does not exist.
    """
    anchors = set()
    for page, article in articles.items():
        for element in article.select("[id]"):
            element["id"] = f"{slug(page)}--{element['id']}"
            anchors.add(element["id"])
        article["id"] = slug(page)
        anchors.add(article["id"])
    if len({slug(page) for page in articles}) < len(articles):
        raise ValueError("two pages of the book have the same file name")
    for page, article in articles.items():
        for link in article.select("a[href]"):
            target, fragment = urldefrag(link["href"])
            if re.match(r"[a-z]+:", target):
                continue
            path = os.path.normpath(os.path.join(os.path.dirname(page), target)) if target else ""
            to = path.removesuffix(".html") if target else page
            if to in articles and "=" not in fragment:
                anchor = f"{slug(to)}--{fragment}" if fragment else slug(to)
                if anchor not in anchors:
                    raise ValueError(f"{page}: the link {link['href']!r} leads nowhere")
                link["href"] = f"#{anchor}"
            elif published:
                whole = f"{published}/{path or f'{page}.html'}"
                link["href"] = f"{whole}#{fragment}" if fragment else whole
            else:
                link.unwrap()


def entry(level, anchor, text):
    """Return a line of the table of contents, whose page is filled in later."""
    link = f'<a href="#{anchor}">{text}</a><span class="page" data-to="{anchor}"></span>'
    return f'<p class="level-{level}">{link}</p>'


def document(root):
    """Return the book as one HTML document, to be opened from the folder of the built site."""
    site, published = root / "_build" / "html", address("ATTNPHASE_SITE")
    pages = outline(root)
    articles = {page: read_article(site, page) for _, page in pages}
    for page, article in articles.items():
        prepare(article, page, site, published)
    connect(articles, published)

    config = yaml.safe_load((root / "_config.yml").read_text(encoding="utf-8"))
    title, version = html.escape(config["title"]), project(root)["version"]
    articles[pages[0][1]].h2.string = "About this book"
    contents, heads, body = [], [], []
    for part, page in pages:
        article, name = articles[page], slug(page)
        if part:
            article.insert(0, BeautifulSoup(f'<h1 class="part">{part}</h1>', "html.parser"))
            contents.append(entry(1, name, html.escape(part)))
        contents.append(entry(2, name, article.h2.decode_contents()))
        for section in article.select("section[id]:has(> h3)"):
            contents.append(entry(3, section["id"], section.h3.decode_contents()))
        head = json.dumps(article.h2.get_text(), ensure_ascii=False)
        font = 'font: italic 9pt "Source Serif 4", serif; color: #444;'
        heads.append(f"@page {name} {{ @top-center {{ content: {head}; {font} }} }}")
        heads.append(f"#{name} {{ page: {name}; }}")
        body.append(str(article))
    page = (site / f"{pages[0][1]}.html").read_text(encoding="utf-8")
    (settings,) = re.findall(r"<script>window\.MathJax = (\{.*?\})</script>", page)
    settings = json.loads(settings)
    # Its hidden copies of the formulas would be printed.
    settings["loader"]["load"].remove("a11y/assistive-mml")
    css = (root / "tools" / "carry.css").read_text(encoding="utf-8")
    where = f'<p><a href="{published}">{published}</a></p>' if published else ""
    return f"""<!DOCTYPE html>
<html lang="en" data-theme="light">
<head>
<meta charset="utf-8">
<title>{title}</title>
<link rel="stylesheet" href="_static/pygments.css">
<link rel="stylesheet" href="_static/fonts.css">
<style>{css}
{"".join(heads)}</style>
<script>window.MathJax = {json.dumps(settings)}</script>
<script defer src="mathjax/startup.js"></script>
</head>
<body>
<div class="title-page">
<p class="title">{title.replace("? ", "?<br>")}</p>
<p>{html.escape(config["author"])}</p>
<p class="edition">Version {version}</p>{where}
</div>
<nav class="contents"><h1>Contents</h1>
{"".join(contents)}
</nav>
{"".join(body)}
</body>
</html>
"""


def read_pdf(file):
    """Return a PDF of Chromium. Its count of objects is wrong; pypdf need not say so each time."""
    logging.getLogger("pypdf").setLevel(logging.ERROR)
    return PdfReader(file)


def pages_of(file):
    """Return the pages that the named destinations of a PDF lie on, counted from 1."""
    reader = read_pdf(file)
    return {
        name.removeprefix("/"): reader.get_destination_page_number(destination) + 1
        for name, destination in reader.named_destinations.items()
    }


def name_outline(writer, titles):
    """Give the entries of the outline their titles; Chromium loses formulas and some spaces.

    Raises ValueError if there is not one title for each entry.
    """
    found, todo = [], [writer.root_object["/Outlines"]["/First"]]
    while todo:
        item = todo.pop().get_object()
        found.append(item)
        todo += [item[key] for key in ("/Next", "/First") if key in item]
    for item, title in zip(found, titles, strict=True):
        item[NameObject("/Title")] = TextStringObject(title)


def print_pdf(root):
    """Write _build/html/attnphase.pdf.

    Raises FileNotFoundError if the site is not built or there is no Chromium, RuntimeError if a
    file is missing, a script or a formula fails, something is too wide for the paper, or the pages
    of the contents do not settle.
    """
    site, chromium = root / "_build" / "html", browser()
    text, target = document(root), site / "attnphase.pdf"
    failures = []
    with tempfile.TemporaryDirectory() as temporary, sync_playwright() as playwright:
        # Beside the pages, since a file may only load what lies below its own folder's tree.
        source, draft = site / "_print.html", Path(temporary) / "draft.pdf"
        source.write_text(text, encoding="utf-8")
        chrome = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        try:
            # As wide as the text on paper, so that what is too wide shows.
            page = chrome.new_page(viewport={"width": 643, "height": 950})
            page.emulate_media(media="print", color_scheme="light")
            page.on("pageerror", lambda error: failures.append(f"script: {error}"))
            page.on("requestfailed", lambda request: failures.append(f"missing: {request.url}"))
            page.goto(source.as_uri(), wait_until="load")
            page.evaluate("MathJax.startup.promise")
            page.evaluate("document.fonts.ready")
            page.evaluate(NAME_FORMULAS)
            failures += page.evaluate(
                "[...document.querySelectorAll('mjx-merror')].map(e => 'formula: ' + e.textContent)"
            )
            failures += [f"too wide: {one}" for one in page.evaluate(OVERFLOW)]
            if failures:
                raise RuntimeError("\n".join(failures))
            titles, found = page.evaluate(HEADINGS), None
            for last in (False, True):
                page.pdf(
                    path=draft,
                    prefer_css_page_size=True,
                    print_background=True,
                    outline=last,
                    tagged=last,
                )
                before, found = found, pages_of(draft)
                page.evaluate(
                    """found => document.querySelectorAll("[data-to]").forEach(
                         e => { e.textContent = found[e.dataset.to]; })""",
                    found,
                )
            if before != found:
                raise RuntimeError("the pages changed when the table of contents was filled in")
        finally:
            chrome.close()
            source.unlink()
        writer = PdfWriter(clone_from=read_pdf(draft))
        config = yaml.safe_load((root / "_config.yml").read_text(encoding="utf-8"))
        writer.add_metadata({"/Title": config["title"], "/Author": config["author"]})
        name_outline(writer, titles)
        writer.write(target)
