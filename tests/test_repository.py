"""The repository keeps its promises: stored outputs, table of contents, pins, metadata."""

import os
import re
import tomllib
from importlib import metadata
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

import attnphase
from tools import notebooks

ROOT = Path(__file__).resolve().parent.parent
CHAPTERS = notebooks.chapters(ROOT)
PROBLEM_SETS = notebooks.problem_sets(ROOT)
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]

# A path of somebody's machine, an object's address, a duration.
MACHINE_PATH = re.compile(r"(?<![\w.])/(?:home|root|tmp|work|Users|usr|opt)/|[A-Z]:\\")
ADDRESS = re.compile(r" at 0x[0-9a-f]+")
DURATION = re.compile(r"\d ?(?:ms|s|sec|seconds|minutes|µs)\b")


def load(name):
    return yaml.safe_load((ROOT / name).read_text(encoding="utf-8"))


def identify(path):
    return path.relative_to(ROOT / "book").as_posix()


each_chapter = pytest.mark.parametrize("path", CHAPTERS, ids=identify)
each_notebook = pytest.mark.parametrize("path", CHAPTERS + PROBLEM_SETS, ids=identify)


def code_cells(notebook):
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def output_text(cell):
    """Return everything a reader can read in the outputs of `cell`, joined."""
    texts = []
    for output in cell.outputs:
        texts.append(output.get("text", ""))
        texts += [value for kind, value in output.get("data", {}).items() if "text/" in kind]
    return "\n".join(texts)


def test_the_book_has_notebooks():
    assert CHAPTERS
    assert len(PROBLEM_SETS) == 4


@each_notebook
def test_every_cell_was_executed_in_order(path):
    counts = [cell.execution_count for cell in code_cells(notebooks.read(path)) if cell.source]
    assert counts == list(range(1, len(counts) + 1))


@each_notebook
def test_outputs_hold_no_error_and_no_stderr(path):
    for cell in code_cells(notebooks.read(path)):
        for output in cell.outputs:
            assert output.output_type != "error", cell.source
            assert output.get("name") != "stderr", output.text


@each_notebook
def test_outputs_hold_nothing_that_changes_with_the_machine(path):
    for cell in code_cells(notebooks.read(path)):
        text = output_text(cell)
        for pattern in (MACHINE_PATH, ADDRESS, DURATION):
            assert not pattern.search(text), f"{pattern.pattern} in the output of\n{cell.source}"
        for output in cell.outputs:
            assert "image/svg+xml" not in output.get("data", {}), "nbval compares SVG text"


@each_notebook
def test_cells_use_no_magics(path):
    for cell in code_cells(notebooks.read(path)):
        assert not re.search(r"^\s*[%!]", cell.source, re.MULTILINE), cell.source


@each_notebook
def test_metadata_is_what_the_tools_write_and_no_account(path):
    notebook = notebooks.read(path)
    assert set(notebook.metadata) == {"attnphase", "kernelspec", "language_info"}
    assert set(notebook.metadata.attnphase) <= {"data", "digest"}
    assert notebook.metadata.kernelspec == notebooks.KERNEL
    assert notebook.metadata.language_info == {"name": "python"}
    allowed = {"mystnb", "tags"} if path in CHAPTERS else {"nbgrader"}
    for cell in notebook.cells:
        assert set(cell.metadata) <= allowed


@each_notebook
def test_stored_outputs_are_fresh(path):
    assert notebooks.is_fresh(path, ROOT), "run: make book"


@each_chapter
def test_data_files_that_the_code_reads_are_declared(path):
    notebook = notebooks.read(path)
    code = "\n".join(cell.source for cell in code_cells(notebook))
    used = {file for file in (ROOT / "book" / "data").rglob("*") if file.name in code}
    assert used == set(notebooks.data_files(path, notebook))


@each_chapter
def test_figures_have_a_caption_and_alternative_text(path):
    names = []
    for cell in code_cells(notebooks.read(path)):
        pictures = sum("image/png" in output.get("data", {}) for output in cell.outputs)
        if not pictures:
            continue
        assert pictures == 1, f"one figure a cell:\n{cell.source}"
        assert cell.source.rstrip().endswith("plt.show()"), cell.source
        described = cell.metadata.get("mystnb", {})
        names.append(described["figure"]["name"])
        assert len(described["figure"]["caption"]) > 20, cell.source
        assert len(described["image"]["alt"]) > 20, cell.source
        assert not re.search(r"[$\\]", described["image"]["alt"]), "alternative text is plain"
    assert all(name.startswith("fig-") for name in names)


@each_chapter
def test_page_has_one_title_and_sections(path):
    cells = notebooks.read(path).cells
    prose = "\n".join(cell.source for cell in cells if cell.cell_type == "markdown")
    prose = re.sub(r"^(```|:::).*?^\1", "", prose, flags=re.MULTILINE | re.DOTALL)
    assert len(re.findall(r"^# ", prose, re.MULTILINE)) == 1
    assert re.search(r"^## ", prose, re.MULTILINE)


def test_every_page_is_in_the_table_of_contents():
    listed = [chapter["file"] for part in load("_toc.yml")["parts"] for chapter in part["chapters"]]
    texts = [text for text in (ROOT / "book").rglob("*.md") if text.name != "README.md"]
    pages = CHAPTERS + sorted(texts)
    found = [page.relative_to(ROOT).with_suffix("").as_posix() for page in pages]
    assert sorted(listed) == sorted(found)


def test_every_page_is_described_in_a_sentence():
    listed = [chapter["file"] for part in load("_toc.yml")["parts"] for chapter in part["chapters"]]
    described = load("book/pages.yml")
    assert list(described) == ["index", *listed, "genindex", "search", "404", "prf-prf"]
    for page, sentence in described.items():
        assert re.fullmatch(r"[A-Z][^$\\`*_<>]{25,130}\.", sentence), page


@each_notebook
def test_execution_is_recorded(path):
    entry = notebooks.executions(ROOT)[path.relative_to(ROOT).as_posix()]
    assert entry["digest"] == notebooks.read(path).metadata.attnphase.digest
    assert 0 < entry["seconds"] < notebooks.CELL_SECONDS
    assert re.fullmatch(r"20\d\d-\d\d-\d\d", entry["date"])


@each_chapter
def test_stated_run_time_is_the_recorded_one(path):
    """Within a factor of two and ten seconds: machines differ, and so do two runs on one."""
    said = re.search(r"(\d+) seconds to run", notebooks.read(path).cells[0].source)
    seconds = notebooks.executions(ROOT)[path.relative_to(ROOT).as_posix()]["seconds"]
    assert seconds / 2 - 10 < int(said[1]) < 2 * seconds + 10


def test_file_names_are_ascii():
    for folder in ("attnphase", "book", "tests", "tools"):
        for path in (ROOT / folder).rglob("*"):
            assert path.name.isascii(), path


def test_conda_environment_is_in_step_with_pyproject():
    extras = PROJECT["optional-dependencies"]
    wanted = {f"python{PROJECT['requires-python']}", "pip"}
    wanted.update(PROJECT["dependencies"], extras["book"], extras["test"], extras["course"])
    environment = load("environment.yml")
    conda = [entry for entry in environment["dependencies"] if isinstance(entry, str)]
    rest = [entry for entry in environment["dependencies"] if not isinstance(entry, str)]
    assert sorted(conda) == sorted(wanted)
    assert rest == [{"pip": ["-e ."]}]


def test_constraints_pin_versions_and_nothing_else():
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    for line in lines:
        assert re.fullmatch(r"#.*|[A-Za-z0-9._-]+==[A-Za-z0-9.+!]+", line), line


def needed_packages():
    """Return the names of all packages that the environment of `make` consists of."""
    needed, todo = set(), [("attnphase", ("book", "test", "browser", "course"))]
    while todo:
        name, extras = todo.pop()
        for requirement in map(Requirement, metadata.requires(name) or []):
            marker = requirement.marker
            applies = [marker is None or marker.evaluate({"extra": e}) for e in ("", *extras)]
            child = canonicalize_name(requirement.name)
            if any(applies) and child not in needed:
                needed.add(child)
                todo.append((child, requirement.extras))
    return needed


# `make test CONSTRAINTS=` tries the newest releases, which bring packages that no pin knows.
pinned_environment = pytest.mark.skipif(
    os.environ.get("CONSTRAINTS") == "", reason="the environment was made without the pins"
)


@pinned_environment
def test_every_package_of_the_environment_is_pinned():
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pinned = {canonicalize_name(line.partition("==")[0]) for line in lines if "==" in line}
    assert {"numpy", "sphinx", "nbval", "nbgrader"} <= needed_packages() <= pinned


@pinned_environment
def test_the_pins_can_be_had_with_the_oldest_python():
    oldest = PROJECT["requires-python"].removeprefix(">=") + ".0"
    for name in needed_packages():
        wanted = metadata.metadata(name).get("Requires-Python", "")
        assert oldest in SpecifierSet(wanted), f"{name} wants Python {wanted}"


def test_versions_agree():
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert attnphase.__version__ == PROJECT["version"]
    assert load("CITATION.cff")["version"] == PROJECT["version"]
    assert re.search(r"^## (\S+)", changelog, re.MULTILINE)[1] == PROJECT["version"]
    appendices = ROOT / "book" / "appendices"
    cite = (appendices / "cite.md").read_text(encoding="utf-8")
    assert re.search(r"version = \{(.+)\}", cite)[1] == PROJECT["version"]
    downloads = (appendices / "downloads.md").read_text(encoding="utf-8")
    assert set(re.findall(r"attnphase(?:-|` )(\d[\d.]*\d)", downloads)) == {PROJECT["version"]}


def test_citation_names_the_paper():
    citation = load("CITATION.cff")
    assert citation["authors"] == [{"name": "The attnphase authors"}]
    paper = citation["references"][0]
    assert paper["doi"] == "10.48550/arXiv.2402.03902"
    cite = (ROOT / "book" / "appendices" / "cite.md").read_text(encoding="utf-8")
    cite = " ".join(cite.split())
    for said in (citation["title"], paper["title"], paper["doi"], f"{{{paper['year']}}}"):
        assert said in cite
    assert f"year = {{{load('_config.yml')['copyright']}}}" in cite
    for author in paper["authors"]:
        assert author["family-names"].replace("á", "\\'a") in cite


def test_every_reference_can_be_looked_up():
    text = (ROOT / "book" / "references.bib").read_text(encoding="utf-8")
    entries = re.split(r"^@", text, flags=re.MULTILINE)[1:]
    keys = [re.match(r"\w+\{([^,]+),", entry)[1] for entry in entries]
    assert len(keys) == len(set(keys))
    for entry in entries:
        assert re.search(r"^\s*(?:doi|eprint)\s*=\s*\{\S+\}", entry, re.MULTILINE), entry


def test_text_names_no_machine():
    pages = [*ROOT.glob("*.md"), *ROOT.glob("*.yml"), *(ROOT / "attnphase").glob("*.py")]
    pages += [path for path in (ROOT / "book" / "assignments").glob("*.*") if path.is_file()]
    for page in pages:
        assert not MACHINE_PATH.search(page.read_text(encoding="utf-8")), page
    for path in CHAPTERS + PROBLEM_SETS:
        for cell in notebooks.read(path).cells:
            assert not MACHINE_PATH.search(cell.source), path


def test_continuous_integration_gets_a_browser_and_runs_both_commands():
    lines = (ROOT / ".ci" / "run").read_text(encoding="utf-8").splitlines()
    commands = [line for line in lines if line.startswith("make")]
    assert commands == ["make browser", "make test", "make test-slow"]
