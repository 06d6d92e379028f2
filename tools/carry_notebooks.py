"""The chapters as notebooks that are read without the site: in JupyterLab, VS Code or Colab.

What only MyST understands becomes plain Markdown. The numbers of equations, figures, lemmas and
exercises are read from the built pages, so they are those of the site.
"""

import html
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
import zipfile
from dataclasses import dataclass, field
from pathlib import Path

import yaml
from pybtex.database import parse_file

from tools import notebooks

ROLE = re.compile(r"\{([\w:]+)\}`([^`]+)`")
LINK = re.compile(r"\[([^\]]*)\]\(([\w./-]+)\.(?:ipynb|md)(#[\w-]+)?\)")
FENCE = re.compile(r"(`{3,}|:{3,})(?:\{([\w:]+)\})? *(.*)")
OPTION = re.compile(r":([\w-]+): *(.*)")
EQUATION = re.compile(r'id="equation-([\w-]+)">\s*<span class="eqno">(\([\d.]+\))')
NUMBERED = re.compile(
    r' id="([\w-]+)"[^>]*>(?:(?! id=").)*?<span class="caption-number">([^<]+?)\s*</span>',
    re.DOTALL,
)
HEADING = re.compile(
    r'<h1>(?:<span class="section-number">([\d.]+)\s*</span>)?(.*?)<a class="headerlink"'
)
OLDEST = 315532800  # 1980-01-01, the first date that a zip file can hold
PYTHON = "3.12"  # of Binder, whose own default is older than the package allows


@dataclass(frozen=True)
class Book:
    """What the exported notebooks need to know of the book."""

    root: Path
    title: str
    version: str
    wheel: str  # file name
    site: str | None  # published address
    headings: dict = field(repr=False)  # page -> (number or "", title)
    labels: dict = field(repr=False)  # label -> (page, how the site calls it)
    citations: dict = field(repr=False)  # key -> (authors, year, address)


@dataclass(frozen=True)
class Export:
    """One form in which a chapter is exported."""

    book: Book
    page: str  # such as book/glm/local_fields
    pages: frozenset = frozenset()  # the pages that lie beside it as notebooks
    kind: str = "single"  # or "all", "launch"


def project(root):
    """Return the table `project` of pyproject.toml."""
    return tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def address(name, pattern=r"https://[^\s?#]+"):
    """Return the address in the environment variable `name`, or None if there is none.

    Raises ValueError if it does not match `pattern`.
    """
    value = os.environ.get(name, "").rstrip("/")
    if value and not re.fullmatch(pattern, value):
        raise ValueError(f"{name} must match {pattern}, got {value!r}")
    return value or None


def authors_and_years(file):
    """Return what is cited: key -> (authors, year, address), as the site writes authors and year.

    Raises ValueError if an entry has no address, or if two cannot be told apart.
    """
    found = {}
    for key, entry in parse_file(str(file)).entries.items():
        names = [" ".join(p.prelast_names + p.last_names) for p in entry.persons["author"]]
        authors = " and ".join(names) if len(names) < 3 else f"{names[0]} *et al.*"
        fields = entry.fields
        if "doi" in fields:
            target = f"https://doi.org/{fields['doi']}"
        elif "eprint" in fields:
            target = f"https://arxiv.org/abs/{fields['eprint']}"
        elif "url" in fields:
            target = fields["url"]
        else:
            raise ValueError(f"{file}: {key} has neither doi nor eprint nor url")
        target = target.replace("(", "%28").replace(")", "%29")
        found[key] = (authors, fields["year"], target)
    if len({entry[:2] for entry in found.values()}) < len(found):
        raise ValueError(f"{file}: two entries have the same authors and the same year")
    return found


def numbers(site):
    """Return headings and labels of the built pages below `site`, as `Book` describes them.

    Raises FileNotFoundError if there is no built site.
    """
    headings, labels = {}, {}
    files = sorted((site / "book").rglob("*.html"))
    if not files:
        raise FileNotFoundError(f"no built pages below {site}: run `make html` first")
    for file in files:
        page = file.relative_to(site).with_suffix("").as_posix()
        text = file.read_text(encoding="utf-8")
        number, title = HEADING.search(text).groups()
        headings[page] = (number or "", html.unescape(re.sub("<[^>]+>", "", title)).strip())
        for pattern in (EQUATION, NUMBERED):
            for label, called in pattern.findall(text):
                labels[label] = (page, called)
    return headings, labels


def read_book(root):
    """Return the Book whose checkout is `root` and whose built site lies in its _build/html."""
    headings, labels = numbers(root / "_build" / "html")
    version = project(root)["version"]
    return Book(
        root=root,
        title=yaml.safe_load((root / "_config.yml").read_text(encoding="utf-8"))["title"],
        version=version,
        wheel=f"attnphase-{version}-py3-none-any.whl",
        site=address("ATTNPHASE_SITE"),
        headings=headings,
        labels=labels,
        citations=authors_and_years(root / "book" / "references.bib"),
    )


def link(export, text, page, anchor=""):
    """Return `text`, linked to `page` if that is a notebook beside this one or on a known site."""
    if page == export.page:
        return text
    if page in export.pages:
        target = os.path.relpath(page, Path(export.page).parent) + ".ipynb"
    elif export.book.site:
        target = f"{export.book.site}/{page}.html{anchor}"
    else:
        return text
    return f"[{text}]({target})"


def label(export, name):
    """Return (page, how the site calls it) of a label. Raises ValueError if there is none.

    In addresses, labels are written in lower case.
    """
    if name.lower() not in export.book.labels:
        raise ValueError(f"{export.page}: the built site has nothing with the label {name!r}")
    return export.book.labels[name.lower()]


def role(export, name, content):
    """Return the Markdown for a role. Raises ValueError for a role that is not known here."""
    if name in ("eq", "numref", "prf:ref", "ref"):
        page, text = label(export, content)
        anchor = ("#equation-" if name == "eq" else "#") + content.lower()
        return link(export, text, page, anchor)
    if name == "term":
        return re.sub(r"\s*<.*>$", "", content, flags=re.DOTALL)
    if name in ("cite:t", "cite:p"):
        form = "{} ({})" if name == "cite:t" else "{}, {}"
        cited = [export.book.citations[key.strip()] for key in content.split(",")]
        links = [f"[{form.format(*entry[:2])}]({entry[2]})" for entry in cited]
        return ", ".join(links) if name == "cite:t" else f"({'; '.join(links)})"
    raise ValueError(f"{export.page}: no Markdown is known for the role {name!r}")


def prose(export, text):
    """Return text without directives, with roles, labels and links turned into Markdown."""

    def to_page(match):
        text, target, anchor = match.groups()
        page = os.path.normpath(Path(export.page).parent / target)
        return link(export, text or export.book.headings[page][1], page, anchor or "")

    def tag(match):
        return f"\\tag{{{label(export, match[1])[1].strip('()')}}}\n$$"

    text = re.sub(r"^\(([\w-]+)\)=\n", "", text, flags=re.MULTILINE)
    text = re.sub(r"^\$\$ \(([\w-]+)\)$", tag, text, flags=re.MULTILINE)
    text = LINK.sub(to_page, text)
    return ROLE.sub(lambda match: role(export, *match.groups()), text)


def directive(export, name, title, lines):
    """Return the Markdown for a directive. Raises ValueError for one that is not known here.

    A quotation is the HTML element, since the marks of a Markdown quotation would end up in
    formulas that go over several lines.
    """
    options = {}
    while lines and (option := OPTION.fullmatch(lines[0])):
        options[option[1]] = option[2]
        lines = lines[1:]
    body = markdown(export, "\n".join(lines)).strip()
    quotation = "<blockquote>\n\n{}\n\n{}\n\n</blockquote>"
    named = f" ({prose(export, title)})" if title else ""
    if name == "admonition":
        return quotation.format(f"**{prose(export, title)}**", body)
    if name == "seealso":
        return quotation.format("**See also**", body)
    if name == "prf:proof":
        return f"*Proof.* {body}" + ("\n\n∎" if body.endswith("$$") else " ∎")
    if name == "exercise" or name.startswith("prf:"):
        return quotation.format(f"**{label(export, options['label'])[1]}**{named}", body)
    if name == "solution":
        summary = f"Solution to {label(export, title)[1]}"
        return f"<details>\n<summary>{summary}</summary>\n\n{body}\n\n</details>"
    raise ValueError(f"{export.page}: no Markdown is known for the directive {name!r}")


def markdown(export, text):
    """Return MyST turned into plain Markdown. Raises ValueError for what is not known here."""
    parts, plain, lines = [], [], text.split("\n")
    while lines:
        line = lines.pop(0)
        fence = FENCE.fullmatch(line)
        if not fence:
            plain.append(line)
            continue
        mark, name, title = fence.groups()
        ends = [i for i, one in enumerate(lines) if re.fullmatch(f"{mark}{mark[0]}*", one.rstrip())]
        if not ends:
            raise ValueError(f"{export.page}: {line!r} is not closed")
        inside, lines = lines[: ends[0]], lines[ends[0] + 1 :]
        parts.append(prose(export, "\n".join(plain)))
        plain = []
        if name:
            parts.append(directive(export, name, title, inside))
        else:
            parts.append("\n".join([line, *inside, mark]))
    parts.append(prose(export, "\n".join(plain)))
    # Between blank lines, or what follows an HTML element would be a part of it.
    return "\n\n".join(part.strip("\n") for part in parts if part.strip())


def markdown_cell(identifier, source):
    """Return a new Markdown cell."""
    return {"cell_type": "markdown", "id": identifier, "metadata": {}, "source": source}


def data_names(notebook):
    """Return the names of the data files that a notebook declares, relative to its folder."""
    return notebook.metadata.get("attnphase", {}).get("data", [])


def data_places(page, notebook):
    """Return where these files lie, relative to the top of the book: such as book/data/x.json."""
    return [os.path.normpath(Path(page).parent / name) for name in data_names(notebook)]


def head(export, notebook):
    """Return the text at the top of an exported notebook."""
    book, name = export.book, Path(export.page).name
    page = f"{book.site}/{export.page}.html"
    where = f" [Read this chapter on the site.]({page})" if book.site else ""
    if export.kind == "launch":
        install = "On Binder it is installed; on Google Colab the next cell installs it."
    elif export.kind == "all":
        install = "`pip install -r requirements.txt`, in the top folder, installs both."
    elif book.site:
        install = f"This installs it: `pip install {book.site}/notebooks/{book.wheel}`."
    else:
        install = (
            f"`pip install {book.wheel}` installs it, once you have that file "
            "from the book's page of downloads."
        )
    needs = "the package attnphase" + (" and JupyterLab" if export.kind == "all" else "")
    text = f"*{book.title}*, version {book.version}.{where} The code needs {needs}. {install}"
    names = [f"`{one}`" for one in data_names(notebook)]
    if names:
        if export.kind == "launch":
            holds = "which the repository holds; on Google Colab the next cell fetches it"
        elif export.kind == "all":
            holds = "which came with it"
        else:
            holds = f"which the download `{name}.zip` holds beside it: keep both folders together"
        text += f" This notebook reads {' and '.join(names)}, {holds}."
    return text


def install_cell(export, notebook, source):
    """Return a code cell that prepares Google Colab, and does nothing elsewhere."""
    lines = [
        "# Google Colab needs the package, and what this chapter reads. Elsewhere: does nothing.",
        "import subprocess",
        "import sys",
        "from pathlib import Path",
        "from urllib.request import urlopen",
        "",
        'if "google.colab" in sys.modules:',
        f'    source = "{source}"',
        f'    wheel = f"{{source}}/{export.book.wheel}"',
        '    command = [sys.executable, "-m", "pip", "install", "--quiet", wheel]',
        "    subprocess.run(command, check=True)",
    ]
    for name, place in zip(
        data_names(notebook), data_places(export.page, notebook), strict=True
    ):
        lines += [
            f'    file = Path("{name}")',
            "    if not file.exists():",
            "        file.parent.mkdir(exist_ok=True)",
            f'        file.write_bytes(urlopen(f"{{source}}/{place}").read())',
        ]
    return {
        "cell_type": "code",
        "execution_count": None,
        "id": "install",
        "metadata": {},
        "outputs": [],
        "source": "\n".join(lines),
    }


def export_chapter(export, notebook, source=None):
    """Return the text of the exported notebook.

    `source` is the raw address of the branch that the launch buttons lead to, for kind "launch".
    """
    cells = [markdown_cell("about", head(export, notebook))]
    if export.kind == "launch":
        cells.append(install_cell(export, notebook, source))
    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            text = markdown(export, cell.source)
            number = export.book.headings[export.page][0]
            if cell is notebook.cells[0] and number:
                text = re.sub(r"\A# ", f"# {number} ", text)
            cells.append({**cell, "source": text})
            continue
        # What only the site understands of the metadata is left out.
        metadata = {key: value for key, value in cell.metadata.items() if key != "mystnb"}
        cells.append({**cell, "metadata": metadata})
        figure = cell.metadata.get("mystnb", {}).get("figure")
        if figure:
            number = label(export, figure["name"])[1]
            caption = f"**{number}** {prose(export, figure['caption'])}"
            cells.append(markdown_cell(f"caption-{cell.id}", caption))
    metadata = {k: v for k, v in notebook.metadata.items() if k != "attnphase"}
    whole = {"cells": cells, "metadata": metadata, "nbformat": 4, "nbformat_minor": 5}
    return json.dumps(whole, indent=1, sort_keys=True, ensure_ascii=False) + "\n"


def build_wheel(folder, book):
    """Build the package's wheel into `folder`; return its path.

    It is built from a copy, so that nothing is left in the checkout, by setuptools of this
    environment, without network. The same sources give the same bytes.
    """
    with tempfile.TemporaryDirectory() as temporary:
        copy, root = Path(temporary), book.root
        for file in [root / "pyproject.toml", root / "README.md", root / "LICENSE"]:
            shutil.copyfile(file, copy / file.name)
        (copy / "attnphase").mkdir()
        for file in sorted((root / "attnphase").glob("*.py")):
            shutil.copyfile(file, copy / "attnphase" / file.name)
        for path in copy.rglob("*"):
            path.chmod(0o755 if path.is_dir() else 0o644)
        (copy / "wheel").mkdir()
        code = "from setuptools import build_meta; build_meta.build_wheel('wheel')"
        environment = {**os.environ, "SOURCE_DATE_EPOCH": str(OLDEST)}
        done = subprocess.run(
            [sys.executable, "-c", code], cwd=copy, env=environment, capture_output=True, text=True
        )
        if done.returncode:
            raise RuntimeError(f"the wheel could not be built:\n{done.stdout}{done.stderr}")
        return Path(shutil.copyfile(copy / "wheel" / book.wheel, folder / book.wheel))


def write_zip(file, members):
    """Write a zip file whose bytes depend only on `members`: name -> bytes, text or path."""
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        for name in sorted(members):
            content = members[name]
            if isinstance(content, Path):
                content = content.read_bytes()
            entry = zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0))
            entry.create_system, entry.external_attr = 3, 0o100644 << 16
            entry.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(entry, content)


def readme(book):
    """Return the text file in the zip of all notebooks."""
    return f"""{book.title}
The chapters as notebooks, version {book.version}.

You need Python 3.11 or newer. In this folder, type

    python3 -m venv environment
    environment/bin/pip install -r requirements.txt
    environment/bin/jupyter lab

and open a notebook below book/. On Windows, environment\\Scripts takes the place of
environment/bin. The second command fetches JupyterLab and what the package attnphase needs;
the package itself lies in this folder.
"""


def write_notebooks(root):
    """Write _build/html/notebooks and, if the repository is known, _build/launch.

    Raises FileNotFoundError if the site is not built, ValueError if a notebook holds something that
    has no form in plain Markdown, or if an address in the environment is not one.
    """
    repository = address("ATTNPHASE_REPOSITORY", r"https://github\.com/[\w.-]+/[\w.-]+")
    book = read_book(root)
    target = root / "_build" / "html" / "notebooks"
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir()
    wheel = build_wheel(target, book)
    read, data = {}, {}
    for path in notebooks.chapters(root):
        page = path.relative_to(root).with_suffix("").as_posix()
        read[page] = notebook = notebooks.read(path)
        files = notebooks.data_files(path, notebook)
        own = dict(zip(data_places(page, notebook), files, strict=True))
        text = export_chapter(Export(book, page), notebook)
        file = target / f"{page}.ipynb"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
        if own:
            members = {name.removeprefix("book/"): one for name, one in own.items()}
            members[f"{page}.ipynb".removeprefix("book/")] = text
            write_zip(file.with_suffix(".zip"), members)
        data |= own

    def tree(kind, requirements, source=None):
        """All chapters side by side, with their data and the wheel: name -> content."""
        pages = frozenset(read)
        members = {
            f"{page}.ipynb": export_chapter(Export(book, page, pages, kind), notebook, source)
            for page, notebook in read.items()
        }
        lines = [*requirements, "jupyterlab", f"./{wheel.name}"]
        return members | data | {wheel.name: wheel, "requirements.txt": "\n".join(lines) + "\n"}

    members = tree("all", project(root)["dependencies"]) | {"README.txt": readme(book)}
    folder = "attnphase-notebooks"
    write_zip(target / f"{folder}.zip", {f"{folder}/{name}": c for name, c in members.items()})

    launch = root / "_build" / "launch"
    shutil.rmtree(launch, ignore_errors=True)
    if repository:
        raw = repository.replace("github.com", "raw.githubusercontent.com") + "/launch"
        # Binder runs with the versions that the stored outputs were computed with.
        members = tree("launch", notebooks.runtime_pins(root), raw)
        members["runtime.txt"] = f"python-{PYTHON}\n"
        for name, content in members.items():
            file = launch / name
            file.parent.mkdir(parents=True, exist_ok=True)
            if isinstance(content, Path):
                shutil.copyfile(content, file)
            else:
                file.write_text(content, encoding="utf-8")
