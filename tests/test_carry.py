"""What a reader carries away: notebooks, the package, the book as a PDF, the site as a zip."""

import io
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from urllib.parse import unquote

import nbformat
import pytest
import yaml
from bs4 import BeautifulSoup

from tools import carry, carry_notebooks, carry_pdf, notebooks

ROOT = Path(__file__).resolve().parent.parent
SITE = ROOT / "_build" / "html"
ADDRESS = "https://example.org/attention"
REPOSITORY = "https://github.com/OWNER/NAME"
LEFT_OVER = re.compile(
    r"\{[\w:-]+\}`|^ *(`{3,}|:{3,})\{|^ *:{3,}|^\$\$ *\([\w-]+\)|^\([\w-]+\)=$", re.MULTILINE
)
RELATIVE = re.compile(r"\]\((?!https://)([^()\s]+)\)")
CHAPTERS = [
    path.relative_to(ROOT).with_suffix("").as_posix() for path in notebooks.chapters(ROOT)
]
ENVIRONMENT = ("ATTNPHASE_SITE", "ATTNPHASE_REPOSITORY")


@cache
def source(page):
    return nbformat.read(ROOT / f"{page}.ipynb", as_version=4)


def prose_of(notebook):
    return [cell.source for cell in notebook.cells if cell.cell_type == "markdown"]


def code_of(notebook):
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def declared(page):
    return source(page).metadata.get("attnphase", {}).get("data", [])


def make(folder, **environment):
    """Export from a folder that holds links to what is in the checkout, and nothing else."""
    (folder / "_build" / "html").mkdir(parents=True)
    for name in ("book", "attnphase", "pyproject.toml", "README.md", "LICENSE", "_config.yml"):
        (folder / name).symlink_to(ROOT / name)
    (folder / "constraints.txt").symlink_to(ROOT / "constraints.txt")
    (folder / "_build" / "html" / "book").symlink_to(SITE / "book")
    with pytest.MonkeyPatch.context() as patch:
        for name in ENVIRONMENT:
            patch.delenv(name, raising=False)
        for name, value in environment.items():
            patch.setenv(name, value)
        carry_notebooks.write_notebooks(folder)
    return folder / "_build"


@pytest.fixture(scope="module")
def local(tmp_path_factory):
    """What a build on one's own machine gives."""
    return make(tmp_path_factory.mktemp("local"))


@pytest.fixture(scope="module")
def published(tmp_path_factory):
    """What the publishing workflow gives."""
    folder = tmp_path_factory.mktemp("published")
    return make(folder, ATTNPHASE_SITE=ADDRESS, ATTNPHASE_REPOSITORY=REPOSITORY)


@pytest.fixture(scope="module")
def everything(local):
    """The zip of all notebooks: name without the top folder -> bytes."""
    with zipfile.ZipFile(local / "html" / "notebooks" / "attnphase-notebooks.zip") as archive:
        names = archive.namelist()
        assert {name.partition("/")[0] for name in names} == {"attnphase-notebooks"}
        return {name.partition("/")[2]: archive.read(name) for name in names}


@pytest.fixture(scope="module")
def built_pages():
    """The articles of the chapters on the site, parsed."""
    return {page: carry_pdf.read_article(SITE, page) for page in CHAPTERS}


def relative_links(notebook):
    """The addresses of links within the download; brackets in formulas are none."""
    text = "\n".join(prose_of(notebook))
    return RELATIVE.findall(re.sub(r"\$\$.+?\$\$|\$.+?\$", "", text, flags=re.DOTALL))


def versions(page, local, published, everything):
    """All forms in which a chapter is exported."""
    yield nbformat.read(local / "html" / "notebooks" / f"{page}.ipynb", as_version=4)
    yield nbformat.read(published / "html" / "notebooks" / f"{page}.ipynb", as_version=4)
    yield nbformat.read(published / "launch" / f"{page}.ipynb", as_version=4)
    yield nbformat.reads(everything[f"{page}.ipynb"].decode(), as_version=4)


@pytest.mark.parametrize("page", CHAPTERS)
def test_notebooks_are_plain_markdown(page, local, published, everything):
    assert any(LEFT_OVER.search(text) for text in prose_of(source(page)))
    for notebook in versions(page, local, published, everything):
        nbformat.validate(notebook)
        assert not [text for text in prose_of(notebook) if LEFT_OVER.search(text)]
        whole = "\n\n".join(prose_of(notebook))
        for element in ("blockquote", "details"):
            assert whole.count(f"<{element}>") == whole.count(f"</{element}>")
        # Without a blank line, the Markdown after the tag would be taken for HTML.
        assert not re.search(r"</?(?:blockquote|details|summary)>\n(?!\n|<summary>)", whole)
        assert all(set(cell.metadata) <= {"tags"} for cell in notebook.cells)


@pytest.mark.parametrize("page", CHAPTERS)
def test_code_and_outputs_are_those_of_the_book(page, local, published, everything):
    expected = [(c.source, c.outputs, c.execution_count, c.id) for c in code_of(source(page))]
    for index, notebook in enumerate(versions(page, local, published, everything)):
        cells = code_of(notebook)
        if index == 2:
            assert "google.colab" in cells.pop(0).source
        assert [(c.source, c.outputs, c.execution_count, c.id) for c in cells] == expected


@pytest.mark.parametrize("page", CHAPTERS)
def test_numbers_are_those_of_the_site(page, local, built_pages):
    article = built_pages[page]
    text = "\n".join(
        prose_of(nbformat.read(local / "html" / "notebooks" / f"{page}.ipynb", as_version=4))
    )

    def on_site(selector, pattern):
        found = [one.get_text() for one in article.select(selector)]
        return [re.search(pattern, one)[0] for one in found]

    assert re.findall(r"\\tag\{(.+?)\}", text) == on_site(".eqno", r"[\d.]+")
    assert re.findall(r"^\*\*(Fig\. .+?)\*\*", text, re.MULTILINE) == on_site(
        "figcaption .caption-number", r"Fig\. [\d.]+"
    )
    titles = r"(?:Lemma|Theorem|Definition|Exercise) [\d.]+"
    boxes = re.findall(rf"<blockquote>\n\n\*\*({titles})\*\*", text)
    assert boxes == on_site("p.admonition-title > .caption-number", titles)
    assert boxes
    solutions = re.findall(r"<summary>Solution to (.+?)</summary>", text)
    assert solutions == [
        re.search(titles, one)[0] for one in on_site(".solution > .admonition-title", ".+")
    ]
    section = article.h1.select_one(".section-number")
    title = re.search(r"^# (.+)$", text, re.MULTILINE)[1]
    assert re.match(r"[\d.]*", title)[0] == (section.get_text().strip() if section else "")


@pytest.mark.parametrize("page", CHAPTERS)
def test_references_read_as_on_the_site(page, local, built_pages):
    called = {}
    for link in built_pages[page].select("a.reference.internal[href*='#']"):
        called.setdefault(link["href"].partition("#")[2], link.get_text().strip())
    exported = nbformat.read(local / "html" / "notebooks" / f"{page}.ipynb", as_version=4)
    by_id = {cell.id: cell.source for cell in exported.cells}
    count = 0
    for cell in source(page).cells:
        if cell.cell_type != "markdown":
            continue
        for role, name in re.findall(r"\{(eq|numref|prf:ref|ref)\}`(.+?)`", cell.source):
            anchor = ("equation-" if role == "eq" else "") + name.lower()
            assert called[anchor] in by_id[cell.id], name
            count += 1
    assert count > 0 or page.endswith("introduction")


@pytest.mark.parametrize("page", CHAPTERS)
def test_citations_read_as_on_the_site_and_lead_to_the_work(page, local, built_pages):
    exported = "\n".join(
        prose_of(nbformat.read(local / "html" / "notebooks" / f"{page}.ipynb", as_version=4))
    )
    links = re.findall(r"\[([^\[\]]+)\]\((https://(?:doi\.org|arxiv\.org)/[^)]+)\)", exported)
    bibliography = BeautifulSoup(
        (SITE / "book" / "appendices" / "bibliography.html").read_text(encoding="utf-8"),
        "html.parser",
    )
    works = {}
    for link in built_pages[page].select("a[href*='bibliography.html#']"):
        entry = bibliography.find(id=link["href"].partition("#")[2])
        for address in entry.select("a.external"):
            works[unquote(address["href"])] = link["title"]
    cited = Counter()
    for text, address in links:
        names, year = re.fullmatch(r"(.+?)(?:, | \()(\d{4})\)?", text).groups()
        first = names.removesuffix(" *et al.*").split(" and ")[0]
        assert first in works[unquote(address)] and year in works[unquote(address)]
        cited[address] += 1
    whole = source(page)
    figures = [cell.metadata.get("mystnb", {}).get("figure", {}) for cell in whole.cells]
    captions = [figure.get("caption", "") for figure in figures]
    keys = re.findall(r"\{cite:[tp]\}`(.+?)`", "\n".join([*prose_of(whole), *captions]))
    assert cited.total() == sum(len(one.split(",")) for one in keys)


@pytest.mark.parametrize("page", CHAPTERS)
def test_links_lead_somewhere(page, local, published, everything):
    single, on_site, launch, tree = versions(page, local, published, everything)
    for notebook in (single, on_site):  # alone in its folder, a notebook has no neighbours
        assert relative_links(notebook) == []
    for notebook, exists in (
        (launch, lambda name: (published / "launch" / name).is_file()),
        (tree, lambda name: name in everything),
    ):
        found = relative_links(notebook)
        assert found
        assert all(exists(os.path.normpath(Path(page).parent / one)) for one in found)
    own = re.findall(rf"\]\({ADDRESS}/([^)#]+)", "\n".join(prose_of(on_site)))
    assert f"{page}.html" in own and len(own) > 1
    assert all((SITE / one).is_file() for one in own)


@pytest.mark.parametrize("page", CHAPTERS)
def test_download_holds_the_data_that_the_notebook_reads(page, local):
    file = local / "html" / "notebooks" / f"{page}.zip"
    head = json.loads(file.with_suffix(".ipynb").read_text(encoding="utf-8"))["cells"][0]["source"]
    if not declared(page):
        assert not file.exists() and ".zip" not in head
        return
    name = page.removeprefix("book/")
    with zipfile.ZipFile(file) as archive:
        inside = {one: archive.read(one) for one in archive.namelist()}
    expected = {os.path.normpath(Path(name).parent / one): one for one in declared(page)}
    assert set(inside) == {f"{name}.ipynb", *expected}
    for place, one in expected.items():
        assert inside[place] == (ROOT / Path(page).parent / one).read_bytes()
        assert f"`{one}`" in head
    assert file.name in head
    assert inside[f"{name}.ipynb"] == file.with_suffix(".ipynb").read_bytes()


def test_head_says_what_to_install(local, published, everything):
    page = "book/question/introduction"
    title = yaml.safe_load((ROOT / "_config.yml").read_text(encoding="utf-8"))["title"]
    single, on_site, launch, tree = (
        notebook.cells[0].source for notebook in versions(page, local, published, everything)
    )
    wheel = f"attnphase-{version()}-py3-none-any.whl"
    for one in (single, on_site, launch, tree):
        assert title in one and f"version {version()}" in one
    assert "`pip install -r requirements.txt`" in tree and "Colab" in launch
    assert f"`pip install {wheel}`" in single and "https:" not in single
    assert f"`pip install {ADDRESS}/notebooks/{wheel}`" in on_site
    assert f"({ADDRESS}/{page}.html)" in on_site and f"({ADDRESS}/{page}.html)" in launch
    assert (published / "html" / "notebooks" / wheel).is_file()


def version():
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    return tomllib.loads(text)["project"]["version"]


def test_wheel_holds_the_package_and_its_licence(local):
    (wheel,) = (local / "html" / "notebooks").glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        about = f"attnphase-{version()}.dist-info"
        modules = {f"attnphase/{path.name}" for path in (ROOT / "attnphase").glob("*.py")}
        meta = {"METADATA", "WHEEL", "RECORD", "top_level.txt", "licenses/LICENSE"}
        assert names == modules | {f"{about}/{name}" for name in meta}
        for name in modules:
            assert archive.read(name) == (ROOT / name).read_bytes()
        assert archive.read(f"{about}/licenses/LICENSE") == (ROOT / "LICENSE").read_bytes()


def test_exports_are_reproducible_and_leave_nothing_behind(local, published, tmp_path):
    (one,) = (local / "html" / "notebooks").glob("*.whl")
    (other,) = (published / "html" / "notebooks").glob("*.whl")
    assert one.read_bytes() == other.read_bytes()
    before = (local / "html" / "notebooks" / "attnphase-notebooks.zip").read_bytes()
    again = make(tmp_path) / "html" / "notebooks" / "attnphase-notebooks.zip"
    assert again.read_bytes() == before
    assert {path.name for path in tmp_path.iterdir()} == {
        *("_build", "_config.yml", "attnphase", "book", "constraints.txt"),
        *("LICENSE", "README.md", "pyproject.toml"),
    }


def test_zip_of_all_notebooks(everything):
    data = {os.path.normpath(Path(p).parent / name) for p in CHAPTERS for name in declared(p)}
    wheel = f"attnphase-{version()}-py3-none-any.whl"
    assert set(everything) == {
        *(f"{page}.ipynb" for page in CHAPTERS),
        *data,
        *("README.txt", "requirements.txt", wheel),
    }
    for name in data:
        assert everything[name] == (ROOT / name).read_bytes()
    lines = everything["requirements.txt"].decode().split()
    needs = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert lines == [*needs["dependencies"], "jupyterlab", f"./{wheel}"]
    assert "-r requirements.txt" in everything["README.txt"].decode()


def test_the_site_offers_what_is_current(local):
    exported = {
        path.relative_to(local / "html"): path.read_bytes()
        for path in (local / "html" / "notebooks").rglob("*")
        if path.is_file()
    }
    if any(os.environ.get(name) for name in ENVIRONMENT):
        pytest.skip("the site was built with its address")
    assert exported == {
        path.relative_to(SITE): path.read_bytes()
        for path in (SITE / "notebooks").rglob("*")
        if path.is_file()
    }


def test_launch_tree_is_written_only_for_a_known_repository(local, published):
    assert not (local / "launch").exists()
    names = {path.name for path in (published / "launch").iterdir()}
    wheel = f"attnphase-{version()}-py3-none-any.whl"
    assert names == {"book", "requirements.txt", "runtime.txt", wheel}
    lines = (published / "launch" / "requirements.txt").read_text(encoding="utf-8").split()
    assert lines == [*notebooks.runtime_pins(ROOT), "jupyterlab", f"./{wheel}"]


def install_cell(published, page):
    text = (published / "launch" / f"{page}.ipynb").read_text(encoding="utf-8")
    return next(c for c in json.loads(text)["cells"] if c["cell_type"] == "code")["source"]


@pytest.mark.parametrize("page", ["book/glm/local_fields", "book/transition/phase_diagram"])
def test_install_cell_does_nothing_outside_colab(page, published, tmp_path, monkeypatch):
    (tmp_path / "content").mkdir()
    monkeypatch.chdir(tmp_path / "content")
    monkeypatch.setattr("subprocess.run", lambda *args, **options: pytest.fail("ran a command"))
    monkeypatch.setattr("urllib.request.urlopen", lambda address: pytest.fail("used the network"))
    exec(install_cell(published, page), {})
    assert [path.name for path in tmp_path.rglob("*")] == ["content"]


def test_install_cell_prepares_colab(published, tmp_path, monkeypatch):
    page = "book/transition/phase_diagram"
    raw = "https://raw.githubusercontent.com/OWNER/NAME/launch"
    (tmp_path / "content").mkdir()
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "alpha_lines.json").write_text("kept", encoding="utf-8")
    monkeypatch.chdir(tmp_path / "content")
    monkeypatch.setitem(sys.modules, "google.colab", object())
    ran, asked = [], []
    monkeypatch.setattr("subprocess.run", lambda command, check: ran.append((command, check)))
    monkeypatch.setattr(
        "urllib.request.urlopen", lambda address: asked.append(address) or io.BytesIO(b"got")
    )
    exec(install_cell(published, page), {})
    ((command, check),) = ran
    assert command[1:4] == ["-m", "pip", "install"] and check
    assert command[-1] == f"{raw}/attnphase-{version()}-py3-none-any.whl"
    assert asked == [f"{raw}/book/data/phase_diagram.npz"]
    assert (published / "launch" / asked[0].removeprefix(f"{raw}/")).is_file()
    assert (tmp_path / "data" / "phase_diagram.npz").read_bytes() == b"got"
    assert (tmp_path / "data" / "alpha_lines.json").read_text(encoding="utf-8") == "kept"


def tiny_export(**given):
    book = carry_notebooks.Book(
        root=ROOT,
        title="T",
        version="1",
        wheel="w.whl",
        site=given.pop("site", None),
        headings={"book/a/x": ("1.", "X"), "book/a/y": ("2.", "Y")},
        labels={"eq-x": ("book/a/x", "(1.1)"), "eq-y": ("book/a/y", "(2.1)")},
        citations={},
    )
    return carry_notebooks.Export(book, "book/a/x", **given)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("By {eq}`eq-x` and {eq}`eq-y`.", "By (1.1) and (2.1)."),
        ("See [the other](y.ipynb), [](y.ipynb).", "See the other, Y."),
        ("{term}`overlaps <overlap>`, {term}`fold`", "overlaps, fold"),
        ("$$\na\n$$ (eq-X)", "$$\na\n\\tag{1.1}\n$$"),
        ("(sec-a)=\n## A", "## A"),
        ("$f(x)\\,(x+p)$ and `[a](b)`", "$f(x)\\,(x+p)$ and `[a](b)`"),
        ("```python\n{eq}`eq-x`\n```", "```python\n{eq}`eq-x`\n```"),
        (
            "a\n:::{seealso}\nb\n:::\nc",
            "a\n\n<blockquote>\n\n**See also**\n\nb\n\n</blockquote>\n\nc",
        ),
        ("```{prf:proof}\nClear.\n```", "*Proof.* Clear. ∎"),
    ],
)
def test_markdown(text, expected):
    assert carry_notebooks.markdown(tiny_export(), text) == expected


def test_links_to_neighbours_and_to_the_site():
    text = "{eq}`eq-y`, [Y](y.ipynb), [terms](../b/terms.md#t)"
    beside = tiny_export(pages=frozenset({"book/a/x", "book/a/y"}))
    assert carry_notebooks.markdown(beside, text) == "[(2.1)](y.ipynb), [Y](y.ipynb), terms"
    on_site = tiny_export(site=ADDRESS)
    assert carry_notebooks.markdown(on_site, text) == (
        f"[(2.1)]({ADDRESS}/book/a/y.html#equation-eq-y), [Y]({ADDRESS}/book/a/y.html), "
        f"[terms]({ADDRESS}/book/b/terms.html#t)"
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{eq}`eq-z`", "nothing with the label 'eq-z'"),
        ("$$\na\n$$ (eq-z)", "nothing with the label 'eq-z'"),
        ("{doc}`x`", "the role 'doc'"),
        ("```{figure} x.png\n```", "the directive 'figure'"),
        (":::{admonition} A\ntext", "is not closed"),
    ],
)
def test_what_has_no_plain_form_is_an_error(text, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        carry_notebooks.markdown(tiny_export(), text)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("ATTNPHASE_SITE", "http://example.org"),
        ("ATTNPHASE_SITE", "https://example.org/?a"),
        ("ATTNPHASE_REPOSITORY", "https://gitlab.com/OWNER/NAME"),
    ],
)
def test_addresses_are_checked(name, value, tmp_path):
    with pytest.raises(ValueError, match=name):
        make(tmp_path, **{name: value})


def test_references_without_an_address_are_an_error(tmp_path):
    entry = "@book{%s, author={A, B}, title={T}, year={2000}%s}\n"
    file = tmp_path / "x.bib"
    file.write_text(entry % ("a", ""), encoding="utf-8")
    with pytest.raises(ValueError, match="a has neither doi nor eprint nor url"):
        carry_notebooks.authors_and_years(file)
    doi = ", doi={10.1/(2)3}"
    file.write_text(entry % ("a", doi), encoding="utf-8")
    assert carry_notebooks.authors_and_years(file) == {
        "a": ("A", "2000", "https://doi.org/10.1/%282%293")
    }
    file.write_text(entry % ("a", doi) + entry % ("b", doi), encoding="utf-8")
    with pytest.raises(ValueError, match="the same authors and the same year"):
        carry_notebooks.authors_and_years(file)


@pytest.mark.parametrize("what", ["notebooks", "pdf", "zip"])
def test_without_a_site_the_command_says_what_to_do(what, tmp_path, capsys):
    shutil.copy(ROOT / "_toc.yml", tmp_path)
    if what == "pdf" and not any(map(shutil.which, carry_pdf.BROWSERS)):
        pytest.skip("no Chromium")
    assert carry.main([what], tmp_path) == 1
    assert "run `make html` first" in capsys.readouterr().err


def test_without_chromium_there_is_no_pdf(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert carry.main(["pdf"], tmp_path) == 1
    assert "install one of ('chromium'," in capsys.readouterr().err


def test_zip_of_a_site(tmp_path):
    site = tmp_path / "_build" / "html"
    (site / "sub").mkdir(parents=True)
    link = '<a class="x" href="{}attnphase-site.zip" download>the <b>zip</b></a>'
    other = '<a href="other.zip">other</a>'
    (site / "index.html").write_text(f"<p>{other} {link.format('')}</p>", encoding="utf-8")
    (site / "sub" / "page.html").write_text(link.format("../"), encoding="utf-8")
    (site / "code.js").write_text("1", encoding="utf-8")
    (site / "code.js.map").write_text("2", encoding="utf-8")
    carry.zip_site(tmp_path)
    first = (site / carry.SITE_ZIP).read_bytes()
    os.utime(site / "code.js", (0, 0))
    carry.zip_site(tmp_path)
    assert (site / carry.SITE_ZIP).read_bytes() == first
    with zipfile.ZipFile(site / carry.SITE_ZIP) as archive:
        inside = {name: archive.read(name).decode() for name in archive.namelist()}
    assert inside == {
        "attnphase-site/index.html": f"<p>{other} the <b>zip</b></p>",
        "attnphase-site/sub/page.html": "the <b>zip</b>",
        "attnphase-site/code.js": "1",
    }


def articles(**pages):
    return {
        f"book/{name}": BeautifulSoup(f"<article>{text}</article>", "html.parser").article
        for name, text in pages.items()
    }


def test_links_between_pages_become_links_in_the_document():
    found = articles(
        a_b='<p id="x"><a href="c.html#y">1</a><a href="#x">2</a><a href="c.html">3</a>'
        '<a href="https://example.org">4</a><a href="../genindex.html">5</a></p>',
        c='<p id="y">y</p>',
    )
    carry_pdf.connect(found, None)
    links = {a.get_text(): a["href"] for a in found["book/a_b"].select("a")}
    assert links == {"1": "#c--y", "2": "#a-b--x", "3": "#c", "4": "https://example.org"}
    assert found["book/c"].p["id"] == "c--y" and found["book/c"]["id"] == "c"


def test_links_to_what_is_not_in_the_document_lead_to_the_site():
    found = articles(a='<a href="../genindex.html">1</a><a href="#alpha=1&amp;omega=0">2</a>')
    carry_pdf.connect(found, ADDRESS)
    assert [link["href"] for link in found["book/a"].select("a")] == [
        f"{ADDRESS}/genindex.html",
        f"{ADDRESS}/book/a.html#alpha=1&omega=0",
    ]


def test_a_link_that_leads_nowhere_is_an_error():
    with pytest.raises(ValueError, match="'c.html#z' leads nowhere"):
        carry_pdf.connect(articles(a='<a href="c.html#z">1</a>', c="<p></p>"), None)


# The slow tests: what was carried away is used as a reader would use it.


def made(name):
    """Return the file `name` of the site. `make site` makes it, after the pages."""
    file = SITE / name
    if not file.is_file() or file.stat().st_mtime < (SITE / "index.html").stat().st_mtime:
        pytest.fail(f"{name} is missing, or older than the site: make site")
    return file


@pytest.fixture(scope="module")
def pdf(chromium):
    return carry_pdf.read_pdf(made("attnphase.pdf"))


@pytest.fixture(scope="module")
def pdf_text(pdf):
    return [page.extract_text() for page in pdf.pages]


def entries(items, level=1):
    for item in items:
        if isinstance(item, list):
            yield from entries(item, level + 1)
        else:
            yield level, item


def squeezed(text):
    return re.sub(r"\W+", "", text)


@pytest.mark.slow
@pytest.mark.xdist_group("carry")
class TestPdf:
    """The book on paper has what the site has."""

    def test_outline_has_every_page_of_the_book(self, pdf):
        found = [item.title for level, item in entries(pdf.outline) if level == 2]
        expected = ["About this book"]
        for _, page in carry_pdf.outline(ROOT)[1:]:
            article = carry_pdf.read_article(SITE, page)
            article.h1.select_one(".headerlink").decompose()
            expected.append(" ".join(article.h1.get_text().split()))
        assert found == expected
        texts = [item.title for level, item in entries(pdf.outline) if level == 3]
        assert r"2.2. Why 1/\sqrt d on each side" in texts

    def test_contents_give_the_pages_of_the_outline(self, pdf, pdf_text):
        pages = {}
        for level, item in entries(pdf.outline):
            if level == 2:
                pages[squeezed(item.title)] = pdf.get_destination_page_number(item) + 1
        first = min(pages.values())
        contents = "\n".join(pdf_text[: first - 1])
        for title, page in pages.items():
            letters = r"\W*".join(map(re.escape, title))
            assert re.search(rf"{letters}\s*{page}\b", contents), (title, page)
            assert title in squeezed(pdf_text[page - 1])

    def test_links(self, pdf):
        named = pdf.named_destinations
        internal, external = 0, set()
        for page in pdf.pages:
            for note in page.get("/Annots", []):
                note = note.get_object()
                action = note.get("/A", {}).get("/URI")
                if action is not None:
                    external.add(action)
                    continue
                target = named[note["/Dest"]]
                assert 0 <= pdf.get_destination_page_number(target) < len(pdf.pages)
                internal += 1
        assert internal > 1000
        assert len(external) > 10
        for address in external:
            assert re.fullmatch(r"https://[\w.-]+\.[a-z]+(/\S*)?", address), address

    def test_equations_and_figures(self, pdf, pdf_text, built_pages):
        text = "\n".join(pdf_text)
        numbers = [n.get_text() for page in built_pages.values() for n in page.select(".eqno")]
        numbers = [re.search(r"\([\d.]+\)", number)[0] for number in numbers]
        assert len(numbers) > 100
        assert [number for number in numbers if number not in text] == []
        figures = sum(len(page.select("figure img")) for page in built_pages.values())
        resources = [page["/Resources"].get("/XObject", {}) for page in pdf.pages]
        drawn = [one.get_object()["/Subtype"] for all in resources for one in all.values()]
        assert drawn.count("/Image") == figures

    def test_pages(self, pdf, pdf_text):
        assert pdf.metadata.title and pdf.metadata.author
        size = (SITE / "attnphase.pdf").stat().st_size
        assert size < 20_000_000
        root = pdf.trailer["/Root"]
        assert root["/MarkInfo"]["/Marked"] and root["/Lang"] == "en"
        for number, text in enumerate(pdf_text[1:], 2):
            assert len(text.split()) > 12, f"page {number} is almost empty"
            assert text.split().count(str(number)) > 0, f"page {number} has no number"


@pytest.fixture(scope="module")
def unpacked(chromium, tmp_path_factory):
    folder = tmp_path_factory.mktemp("offline")
    with zipfile.ZipFile(made(carry.SITE_ZIP)) as archive:
        archive.extractall(folder)
    return folder / "attnphase-site"


@pytest.fixture
def tab(browser):
    page = browser.new_page()
    page.trouble = []
    page.on("pageerror", lambda error: page.trouble.append(str(error)))
    page.on("requestfailed", lambda request: page.trouble.append(f"failed: {request.url}"))
    page.on(
        "request",
        lambda request: request.url.startswith(("file:", "data:", "blob:"))
        or page.trouble.append(f"left the folder: {request.url}"),
    )
    yield page
    page.close()


@pytest.mark.slow
@pytest.mark.xdist_group("carry")
class TestOffline:
    """The unpacked zip of the site, opened from the disk."""

    @pytest.mark.parametrize(
        "name", ["question/introduction", "glm/local_fields", "transition/phase_diagram"]
    )
    def test_chapter(self, name, unpacked, tab):
        file = unpacked / "book" / f"{name}.html"
        tab.goto(file.as_uri(), wait_until="load")
        tab.evaluate("MathJax.startup.promise")
        formulas = tab.evaluate("document.querySelectorAll('.math').length")
        assert formulas > 10
        assert tab.evaluate("document.querySelectorAll('.math mjx-container').length") == formulas
        assert tab.evaluate("document.querySelectorAll('mjx-merror').length") == 0
        # A formula whose font did not load has a width of another font: ask for the font itself.
        assert tab.evaluate("document.fonts.check('16px MJXTEX')")
        tab.evaluate("document.querySelectorAll('img').forEach(i => { i.loading = 'eager'; })")
        tab.wait_for_function("[...document.images].every(i => i.complete)")
        widths = tab.eval_on_selector_all("figure img", "all => all.map(i => i.naturalWidth)")
        assert widths and min(widths) > 100
        assert tab.trouble == []

    def test_search(self, unpacked, tab):
        tab.goto((unpacked / "search.html").as_uri() + "?q=replica")
        tab.wait_for_selector("#search-results li a")
        links = tab.eval_on_selector_all("#search-results li a", "all => all.map(a => a.href)")
        assert any("state_evolution/replicas.html" in link for link in links)
        # The results' excerpts are fetched, which a browser does not do from the disk.
        others = [one for one in tab.trouble if "fetch" not in one and "failed: file:" not in one]
        assert others == []

    def test_explorer(self, unpacked, tab):
        tab.goto((unpacked / "book/transition/explorer.html").as_uri(), wait_until="load")
        tab.wait_for_selector("#explorer-widget:not([hidden]) #explorer-diagram svg")
        assert tab.inner_text("#explorer-readout").strip()
        assert tab.trouble == []

    def test_no_link_leads_to_the_zip_itself(self, unpacked):
        for path in unpacked.rglob("*.html"):
            assert carry.SITE_ZIP not in re.findall(r'href="([^"]*)"', path.read_text("utf-8"))
            assert f'{carry.SITE_ZIP}"' not in path.read_text("utf-8")


RUN = """
import json, sys
cells = json.load(open(sys.argv[1], encoding="utf-8"))["cells"]
code = [cell for cell in cells if cell["cell_type"] == "code"]
names = {"__name__": "__main__"}
for cell in code:
    exec(compile("".join(cell["source"]), cell["id"], "exec"), names)
print("ran", len(code))
"""

INSTALLED = r"""
import json, re
from importlib.metadata import distributions

def names(lines):
    kept = [line for line in lines or [] if "extra ==" not in line]
    return [plain(re.match(r"[\w.-]+", line)[0]) for line in kept]

def plain(name):
    return re.sub(r"[-_.]+", "-", name).lower()

print(json.dumps({plain(one.metadata["Name"]): names(one.requires) for one in distributions()}))
"""


@pytest.fixture(scope="module")
def empty_environment(local, tmp_path_factory):
    """A fresh environment outside of the checkout with the wheel, and what it asks for."""
    folder = tmp_path_factory.mktemp("elsewhere")
    subprocess.run([sys.executable, "-m", "venv", folder / "environment"], check=True)
    python = folder / "environment" / "bin" / "python"
    (wheel,) = (local / "html" / "notebooks").glob("*.whl")
    command = [python, "-m", "pip", "install", "--quiet", "-c", ROOT / "constraints.txt", wheel]
    subprocess.run(command, check=True, cwd=folder)
    return python


@pytest.mark.slow
@pytest.mark.xdist_group("elsewhere")
class TestElsewhere:
    """The package and the notebooks in an environment that has nothing else."""

    def test_environment_has_only_what_the_package_needs(self, empty_environment):
        command = [empty_environment, "-c", INSTALLED]
        listed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        needs = {name: set(names) for name, names in json.loads(listed).items()}
        assert needs["attnphase"] == {"numpy", "scipy", "matplotlib", "tqdm", "threadpoolctl"}
        reached, todo = set(), {"attnphase"}
        while todo:
            name = todo.pop()
            reached.add(name)
            todo |= needs.get(name, set()) - reached
        assert set(needs) - reached - {"pip", "setuptools"} == set()

    def test_every_download_runs(self, empty_environment, local, tmp_path):
        downloads = local / "html" / "notebooks"

        def run(page):
            folder = tmp_path / page.replace("/", "-")
            folder.mkdir()
            if declared(page):
                with zipfile.ZipFile(downloads / f"{page}.zip") as archive:
                    archive.extractall(folder)
            else:
                shutil.copy(downloads / f"{page}.ipynb", folder)
            (notebook,) = folder.rglob("*.ipynb")
            done = subprocess.run(
                [empty_environment, "-c", RUN, notebook.name],
                cwd=notebook.parent,
                env={"PATH": os.environ["PATH"], "MPLBACKEND": "Agg", "OMP_NUM_THREADS": "1"},
                capture_output=True,
                text=True,
            )
            ran = done.stdout.rpartition("ran ")[2].strip()
            whole = str(len(code_of(source(page))))
            return None if done.returncode == 0 and ran == whole else f"{page}\n{done.stderr}"

        with ThreadPoolExecutor(2) as pool:
            failed = [text for text in pool.map(run, CHAPTERS) if text]
        assert not failed, "\n".join(failed)
