"""What the site has beyond what jupyter-book gives: a Sphinx extension.

* The first use of a glossary term on a page leads to the glossary, and the index lists it.
* The symbols that a chapter's first box names lead to their rows in the notation.
* Directives that list the chapters, the state of the notebooks and the BibTeX entry.
* A button that downloads a chapter as a notebook, with its data; buttons that launch it elsewhere
  where the address of the repository is known.
* Descriptions of the pages (book/pages.yml) for search engines and for the links to the previous
  and the next page.
* Images that are shown at half their size in pixels, and loaded when they come into view.

Three environment variables change the build; each may be left out:

ATTNPHASE_REPOSITORY  https address of the repository, on GitHub: buttons that launch the notebooks
                      of its branch `launch`
ATTNPHASE_SITE        https address at which the site is published: canonical links, social cards
ATTNPHASE_CARRIED     1 if the PDF and the zip of the site are made after the build: the page of
                      downloads then offers them
"""

import html
import os
import re
from functools import cache
from pathlib import Path
from urllib.parse import urlsplit

import notebooks
import yaml
from docutils import nodes
from PIL import Image
from sphinx import addnodes
from sphinx.errors import ConfigError
from sphinx.transforms import SphinxTransform
from sphinx.util.docutils import SphinxDirective

ROOT = Path(__file__).resolve().parent.parent
NOTATION = "book/appendices/notation"
UNLINKED = {"book/appendices/glossary", "book/appendices/bibliography", "index"}
# Terms that are also everyday words: linked only in the chapters that their entries name.
EVERYDAY = {"bracket", "column", "concentration", "conjugate", "continuation", "fold", "kink"}
EVERYDAY |= {"node", "parity", "pull", "residual", "response", "rival", "status", "tie"}
# Nothing inside of these is made a link.
CLOSED = (nodes.title, nodes.reference, nodes.literal, nodes.term, nodes.caption, nodes.image)
CLOSED += (addnodes.pending_xref, nodes.math, nodes.raw, nodes.rubric)


@cache
def pages():
    """Return the description of each page: name of the page -> one sentence."""
    return yaml.safe_load((ROOT / "book" / "pages.yml").read_text(encoding="utf-8"))


@cache
def glossary_terms():
    """Return the terms of the glossary: term -> names of the chapters that its entry links."""
    text = (ROOT / "book" / "appendices" / "glossary.md").read_text(encoding="utf-8")
    block = re.search(r"```\{glossary\}\n(.*?)```", text, re.DOTALL)[1]
    entries = re.findall(r"^(\S.*)\n((?: +\S.*\n|\n)*)", block, re.MULTILINE)
    return {term: re.findall(r"\.\./([\w/]+)\.\w+\)", meaning) for term, meaning in entries}


@cache
def symbols():
    """Return the symbols of the notation: TeX -> (identifier of its row, meaning in Markdown).

    A letter with two meanings has those of the last table, which names both.
    """
    text = (ROOT / f"{NOTATION}.md").read_text(encoding="utf-8")
    usual, _, double = text.partition("## One letter, two meanings")
    found = {}
    for part, kind in ((double, "letter"), (usual, "symbol")):
        for line in part.splitlines():
            cells = [cell.strip() for cell in line.split("|")]
            # Rows such as "$x$ in the solver" say themselves where they hold: nothing leads there.
            if not cells[1:] or not re.fullmatch(r"(\$[^$]+\$(, )?)+", cells[1]):
                continue
            meaning = f"{cells[2]}; elsewhere: {cells[3]}" if kind == "letter" else cells[2]
            for symbol in map(plain, re.findall(r"\$(.+?)\$", cells[1])):
                words = re.findall(r"\w+|\*", symbol)
                identifier = f"{kind}-{'-'.join(words)}".replace("*", "star")
                found.setdefault(symbol, (identifier, meaning))
    return found


def plain(symbol):
    """Return TeX without the spaces that do not change it, and without what follows an equals."""
    return re.sub(r"\s+(?![a-zA-Z])", "", symbol.partition("=")[0]).strip()


def symbol_in(math):
    """Return the entry of `symbols` for what the formula `math` begins with, or None.

    The base case drops the index of the token: there `q` stands for `q_l`.
    """
    symbol, known = plain(math.astext()), symbols()
    letter = known.get(symbol.removesuffix("_l"), ("",))
    if letter[0].startswith("letter-"):
        return letter
    return known.get(symbol) or known.get(f"{symbol}_l")


class LinkTerms(SphinxTransform):
    """Link the first use of each glossary term on a page, and enter it in the index."""

    default_priority = 400  # before the index is collected and references are resolved

    def apply(self):
        page = self.env.docname
        if page in UNLINKED:
            return
        name = {
            term.lower(): term
            for term, introduced in glossary_terms().items()
            if term not in EVERYDAY or page.removeprefix("book/") in introduced
        }
        words = "|".join(re.escape(term) for term in sorted(name, key=len, reverse=True))
        pattern = re.compile(rf"(?<![\w-])({words})(?:s|es)?(?![\w-])", re.IGNORECASE)
        seen = set()
        for link in list(self.document.findall(addnodes.pending_xref)):
            target = link["reftarget"].lower()
            if link.get("reftype") == "term" and target not in seen:
                seen.add(target)
                link.parent.insert(link.parent.index(link), self.entry(link["reftarget"]))
        for text in list(self.document.findall(nodes.Text)):
            if not in_running_text(text):
                continue
            parts, end = [], 0
            for match in pattern.finditer(text):
                term = name[match[1].lower()]
                if term.lower() in seen or match[0] == "Student":  # the statistician
                    continue
                seen.add(term.lower())
                link = addnodes.pending_xref(
                    "",
                    nodes.inline("", match[0], classes=["xref", "std", "std-term"]),
                    refdomain="std",
                    reftype="term",
                    reftarget=term,
                    refexplicit=True,
                    refwarn=True,
                    refdoc=self.env.docname,
                )
                parts += [nodes.Text(text[end : match.start()]), self.entry(term), link]
                end = match.end()
            if parts:
                text.parent.replace(text, [*parts, nodes.Text(text[end:])])

    def entry(self, term):
        """Return an anchor for the index, with the entry that leads to it: term, then chapter."""
        identifier = f"index-{self.env.new_serialno('index')}"
        chapter = next(iter(self.document.findall(nodes.title))).astext()
        entries = [("single", f"{term}; {chapter}", identifier, "", None)]
        entry = addnodes.index(entries=entries, inline=True)
        target = nodes.target("", "", ids=[identifier])
        self.document.note_explicit_target(target)
        return nodes.inline("", "", entry, target)


def in_running_text(node):
    """Return whether `node` is text of a paragraph that is no link, title, code or caption."""
    inside = False
    while node is not None:
        if isinstance(node, CLOSED):
            return False
        inside = inside or isinstance(node, nodes.paragraph)
        node = node.parent
    return inside


class LinkSymbols(SphinxTransform):
    """Lead from the symbols in a chapter's first box to their rows in the notation."""

    default_priority = 401

    def apply(self):
        if self.env.docname == NOTATION:
            self.mark_rows()
            return
        for item in self.document.findall(nodes.list_item):
            if not item.astext().startswith("Symbols"):
                continue
            for math in list(item.findall(nodes.math)):
                found = symbol_in(math)
                if found:
                    uri = self.address(found[0])
                    link = nodes.reference("", "", refuri=uri, internal=True, classes=["symbol"])
                    math.parent.replace(math, link)
                    link += math

    def address(self, identifier):
        """Return the address of a row of the notation, seen from this page."""
        return f"{os.path.relpath(NOTATION, Path(self.env.docname).parent)}.html#{identifier}"

    def mark_rows(self):
        """Give each row of the notation the identifiers of its symbols."""
        for row in self.document.findall(nodes.row):
            for math in row[0].findall(nodes.math):
                found = symbols().get(plain(math.astext()))
                if found and not self.document.ids.get(found[0]):
                    target = nodes.target("", "", ids=[found[0]])
                    self.document.note_explicit_target(target)
                    math.parent.insert(0, target)


def symbol_tips():
    """Return what hovering over a symbol shows: address of the row -> HTML."""
    tips = {}
    for symbol, (identifier, meaning) in symbols().items():
        text = html.escape(meaning, quote=False)
        text = re.sub(r"\[([^]]+)\]\([^)]+\)", r"\1", text)
        text = re.sub(r"\$(.+?)\$", r"\\(\1\\)", text)
        text = re.sub(r"`([^`]+)`", r"<code>\1</code>", text)
        text = re.sub(r"\*\*?(.+?)\*\*?", r"<em>\1</em>", text)
        math = html.escape(symbol, quote=False)
        address = f"../appendices/notation.html#{identifier}"
        tips[address] = f"<p>\\({math}\\) {text}</p>"
    return tips


class Chapters(SphinxDirective):
    """A list of all pages of the parts of the book, each with what it is for."""

    def run(self):
        listed = []
        for part in table_of_contents():
            listed.append(nodes.rubric("", part["caption"]))
            entries = nodes.bullet_list(classes=["chapter-list"])
            for chapter in part["chapters"]:
                paragraph = nodes.paragraph()
                paragraph += link_to(chapter["file"])
                paragraph += nodes.Text(f" {pages()[chapter['file']]}")
                entries += nodes.list_item("", paragraph)
            listed.append(entries)
        return listed


class State(SphinxDirective):
    """A table of the notebooks: when each was executed, how long that took, what it holds."""

    def run(self):
        record = notebooks.executions(ROOT)
        head = ["Notebook", "Executed", "Run time", "Code cells", "Figures", "Size", "Outputs"]
        rows = []
        listed = [chapter["file"] for part in table_of_contents() for chapter in part["chapters"]]
        order = {name: place for place, name in enumerate(listed)}
        for path in notebooks.chapters(ROOT):
            name = path.relative_to(ROOT).as_posix()
            book = notebooks.read(path)
            code = [cell for cell in book.cells if cell.cell_type == "code"]
            figures = sum("figure" in cell.metadata.get("mystnb", {}) for cell in code)
            entry = record.get(name)
            if entry is None or entry["digest"] != book.metadata.attnphase.get("digest"):
                raise self.severe(f"{name}: execution not recorded; run: make execute")
            fresh = "fresh" if notebooks.is_fresh(path, ROOT) else "stale"
            seconds, size = f"{entry['seconds']:.0f} s", f"{path.stat().st_size / 1000:.0f} kB"
            page = name.removesuffix(".ipynb")
            row = [link_to(page), entry["date"], seconds, len(code), figures, size, fresh]
            rows.append((order[page], row))
        return [table(head, [row for _, row in sorted(rows, key=lambda pair: pair[0])])]


def link_to(page):
    """Return a link to `page`, with its title as its text."""
    return addnodes.pending_xref(
        "",
        nodes.inline("", ""),
        refdomain="std",
        reftype="doc",
        reftarget=f"/{page}",
        refexplicit=False,
        refwarn=True,
    )


def table(head, rows):
    """Return a table whose entries are text, numbers or links."""

    def row(entries):
        cells = [one if isinstance(one, nodes.Node) else nodes.Text(str(one)) for one in entries]
        return nodes.row("", *(nodes.entry("", nodes.paragraph("", "", cell)) for cell in cells))

    group = nodes.tgroup("", *(nodes.colspec(colwidth=1) for _ in head), cols=len(head))
    group += nodes.thead("", row(head))
    group += nodes.tbody("", *map(row, rows))
    return nodes.table("", group)


@cache
def table_of_contents():
    """Return the parts of _toc.yml."""
    return yaml.safe_load((ROOT / "_toc.yml").read_text(encoding="utf-8"))["parts"]


def address(name):
    """Return the https address that the environment variable `name` holds, or None.

    Raises ConfigError if it holds something else.
    """
    value = os.environ.get(name)
    if not value:
        return None
    parts = urlsplit(value)
    if parts.scheme != "https" or not parts.netloc or parts.query or parts.fragment:
        raise ConfigError(f"{name} must be an https address, got {value!r}")
    return value.rstrip("/")


def configure(app, config):
    """Take over what the environment says of the repository and of the published address."""
    config.tippy_custom_tips = symbol_tips()
    if os.environ.get("ATTNPHASE_CARRIED") == "1":
        app.tags.add("carried")
    repository = address("ATTNPHASE_REPOSITORY")
    if repository:
        if not re.fullmatch(r"https://github\.com/[\w.-]+/[\w.-]+", repository):
            raise ConfigError(
                "ATTNPHASE_REPOSITORY must be https://github.com/OWNER/NAME, since Colab opens "
                f"nothing else, got {repository!r}"
            )
        config.html_theme_options |= {
            "repository_url": repository,
            "repository_branch": "launch",
            "use_repository_button": True,
            "launch_buttons": {
                "binderhub_url": "https://mybinder.org",
                "colab_url": "https://colab.research.google.com",
                "notebook_interface": "jupyterlab",
            },
        }
    site = address("ATTNPHASE_SITE")
    if site:
        config.html_baseurl = config.ogp_site_url = f"{site}/"
        config.notfound_urls_prefix = urlsplit(site).path.rstrip("/") + "/"
        config.ogp_image = f"{site}/_static/social_card.png"
        config.ogp_image_alt = "Positional and semantic attention trade places as data grow."


def describe(app, env):
    """Give each page its description."""
    for page in env.found_docs:
        if page not in pages():
            raise ConfigError(f"book/pages.yml says nothing of the page {page}")
        env.metadata[page]["og:description"] = pages()[page]


def add_description(app, pagename, templatename, context, doctree):
    """Describe a page to search engines."""
    if pagename in pages():
        content = html.escape(pages()[pagename])
        tag = f'<meta name="description" content="{content}" />\n'
        context["metatags"] = context.get("metatags", "") + tag


def finish_page(app, pagename, templatename, context, doctree):
    """Add to a page what its template needs, and size its images."""
    for side in ("prev", "next"):
        if context.get(side):
            target = os.path.normpath(Path(pagename).parent / context[side]["link"])
            context[side]["description"] = pages().get(target.removesuffix(".html"))
    if not doctree:
        return
    body = re.sub(r"<img [^>]*?/>", lambda tag: size(app, tag[0]), context["body"])
    context["body"] = mend(body)
    context["header_buttons"] = [
        button for button in context["header_buttons"] if button.get("label") != "download-buttons"
    ]
    source = Path(app.env.doc2path(pagename))
    if source.suffix == ".ipynb":
        suffix = ".zip" if notebooks.data_files(source, notebooks.read(source)) else ".ipynb"
        what = "with its data" if suffix == ".zip" else ""
        context["header_buttons"].insert(
            0,
            {
                "type": "link",
                "url": context["pathto"](f"notebooks/{pagename}{suffix}", 1),
                "tooltip": f"Download this chapter as a notebook {what}".strip(),
                "icon": "fas fa-download",
                "label": "download-notebook-button",
            },
        )


def mend(body):
    """Return the HTML of a page without what a screen reader would stumble over.

    Exercises and proofs all bear the same few identifiers; a link that is only a formula has no
    name; the list of works says that it holds list items, which it does not.
    """
    body = re.sub(r' id="(?:exercise-content|solution-content|proof|proof-content)"', "", body)
    body = body.replace('<div role="list" class="citation-list">', '<div class="citation-list">')
    body = body.replace(' role="doc-biblioentry"', "")

    def name(link):
        return f'<a aria-label="{link[3].strip()}" {link[1]}>{link[2]}</a>'

    formula = r'\s*<span class="math[^>]*>\\\(([^<]*)\\\)</span>\s*'
    return re.sub(rf"<a ([^>]*)>({formula})</a>", name, body)


def size(app, tag):
    """Return an <img> with half of the picture's pixels as its size, loaded when it is needed."""
    source = re.search(r'src="[^"]*_images/([^"]+\.png)"', tag)
    if not source:
        return tag
    (path,) = [path for path, name in app.builder.images.items() if name == source[1]]
    with Image.open(Path(app.srcdir) / path) as picture:
        width, height = picture.size
    extra = f'width="{width // 2}" height="{height // 2}" loading="lazy" decoding="async"'
    return tag.replace("<img ", f"<img {extra} ")


def remove_unused(app, exception):
    """Remove from the built site the theme's files that no page loads: icons, maps of sources."""
    if exception:
        return
    static = Path(app.outdir) / "_static"
    for file in {*static.rglob("*.map"), *static.glob("scripts/fontawesome.js*")}:
        file.unlink()


def setup(app):
    """Register all of it."""
    app.add_transform(LinkTerms)
    app.add_transform(LinkSymbols)
    app.add_directive("chapters", Chapters)
    app.add_directive("notebook-state", State)
    app.connect("config-inited", configure, priority=400)
    app.connect("env-updated", describe)
    app.connect("html-page-context", add_description, priority=400)  # before opengraph's own
    app.connect("html-page-context", finish_page, priority=520)  # after the theme's buttons
    app.connect("build-finished", remove_unused)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
