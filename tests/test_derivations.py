"""The derivations' checks bite: a wrong equation in a chapter makes one of its assertions fail.

``tests/mutants/<chapter>.json`` lists wrong variants of a chapter's equations, each an object

    {"equation": label, "wrong": the mistake in words, "old": code, "new": code}

where ``label`` is that of an equation or of a proved statement (a lemma) in the book, and
``old`` occurs exactly once in the chapter's code. The chapter must run as it stands, and must
stop at an AssertionError, and at nothing else, when ``old`` is replaced by ``new``.
"""

import ast
import contextlib
import functools
import json
import os
import re
from collections import Counter
from pathlib import Path

import matplotlib as mpl
import nbformat
import pytest
from matplotlib import pyplot as plt

ROOT = Path(__file__).resolve().parent.parent
BOOK = ROOT / "book"
MUTANTS = ROOT / "tests" / "mutants"
DERIVATIONS = sorted(p for part in ("glm", "state_evolution") for p in BOOK.glob(f"{part}/*.ipynb"))
KEYS = {"equation", "wrong", "old", "new"}
EQUATION = re.compile(r"^[ ]*\$\$[ ]*\(([^)\s]+)\)[ ]*$", re.MULTILINE)
STATEMENT = re.compile(r"^:label:[ ]*((?:lemma|theorem|proposition|corollary)-\S+)", re.MULTILINE)


def read_cells(path, kind):
    """Sources of the cells of one kind of the notebook at ``path``, in order."""
    return [cell.source for cell in nbformat.read(path, 4).cells if cell.cell_type == kind]


@functools.cache
def book_labels():
    """How often the label of each equation or proved statement is defined in the book."""
    pages = [page.read_text(encoding="utf-8") for page in BOOK.rglob("*.md")]
    for path in BOOK.rglob("*.ipynb"):
        pages += read_cells(path, "markdown")
    found = (EQUATION.findall(page) + STATEMENT.findall(page) for page in pages)
    return Counter(label for labels in found for label in labels)


def run(cells, path, start=0, namespace=None, before=None):
    """Execute ``cells`` of the notebook at ``path`` from number ``start`` on, in its folder.

    In the given namespace or a fresh one; figure cells are skipped. ``before(number, namespace)``
    is called before each cell. Returns None, or (number of the cell, exception) of the first error.
    """
    namespace = {"__name__": "__main__"} if namespace is None else namespace
    plt.switch_backend("Agg")
    with contextlib.chdir(path.parent), mpl.rc_context():
        for number, source in enumerate(cells[start:], start):
            if "plt.show()" in source:
                continue
            if before is not None:
                before(number, namespace)
            code = compile(source, f"<{path.name}, code cell {number}>", "exec", dont_inherit=True)
            try:
                exec(code, namespace)
            except Exception as error:
                return number, error
            finally:
                plt.close("all")
    return None


def mutate(cells, mutant):
    """Number of the cell that changes, and the cells with ``old`` replaced by ``new``.

    Raises ValueError unless there is one place, in a cell that is run.
    """
    places = "\n".join(cells).count(mutant["old"])
    holders = [k for k, cell in enumerate(cells) if mutant["old"] in cell]
    if places != 1 or len(holders) != 1:
        raise ValueError(f"{mutant['old']!r} occurs {places} times in the code, not once in a cell")
    if "plt.show()" in cells[holders[0]]:
        raise ValueError(f"{mutant['old']!r} stands in a figure cell, which is not run")
    changed = list(cells)
    changed[holders[0]] = changed[holders[0]].replace(mutant["old"], mutant["new"])
    return holders[0], changed


def judge(stopped, mutant):
    """What is wrong with a mutant whose chapter stopped so; None if an assertion caught it."""
    if stopped is None:
        return f"survives: no assertion notices that {mutant['wrong']}"
    number, error = stopped
    if not isinstance(error, AssertionError):
        return f"cell {number} raises {type(error).__name__} ({error}), not AssertionError"
    return None


def in_a_copy(function):
    """The text or None that ``function`` returns when called in a forked copy of this process."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            answer = json.dumps(function())
        except BaseException as error:
            answer = json.dumps(f"the copy failed: {error!r}")
        os.write(writer, answer.encode())
        os._exit(0)
    os.close(writer)
    with open(reader, "rb") as pipe:
        answer = pipe.read()
    os.waitpid(child, 0)
    return json.loads(answer or b'"the copy died"')


def complaints(path, mutants):
    """First error of the unchanged chapter, or None; and what is wrong with each mutant.

    The chapter is run once. Before a cell that mutants change, a forked copy of the process goes
    on with each of them in turn, so that what precedes the change need not be computed again.
    """
    cells = read_cells(path, "code")
    found, changes = {}, {}
    for index, mutant in enumerate(mutants):
        try:
            number, changed = mutate(cells, mutant)
            changes.setdefault(number, []).append((index, changed))
        except ValueError as error:
            found[index] = str(error)

    def branch_off(number, namespace):
        for index, changed in changes.get(number, ()):
            found[index] = in_a_copy(
                lambda changed=changed, index=index: judge(
                    run(changed, path, number, namespace), mutants[index]
                )
            )

    stopped = run(cells, path, before=branch_off)
    first = stopped and f"code cell {stopped[0]}: {stopped[1]!r}"
    for index in range(len(mutants)):
        found.setdefault(index, f"not reached, as the chapter fails by itself: {first}")
    return first, [found[index] for index in range(len(mutants))]


@functools.cache
def complaints_of(file):
    """`complaints` about the mutants listed in ``file``; each chapter is run once."""
    return complaints(chapter_of(file), json.loads(file.read_text(encoding="utf-8")))


def chapter_of(file):
    """Path of the notebook that the list of mutants ``file`` belongs to."""
    found = list(BOOK.rglob(f"{file.stem}.ipynb"))
    assert len(found) == 1, f"{file.name} belongs to no chapter of the book, or to several"
    return found[0]


def listed_mutants():
    """All mutants as parameters (file, index, mutant) of a test."""
    parameters = []
    for file in sorted(MUTANTS.glob("*.json")):
        for index, mutant in enumerate(json.loads(file.read_text(encoding="utf-8"))):
            words = re.sub(r"[^a-z0-9]+", "-", mutant["wrong"].lower())[:50].strip("-")
            name = f"{file.stem}-{mutant['equation']}-{words}"
            group = pytest.mark.xdist_group(file.stem)  # one process runs all of a chapter
            parameters.append(pytest.param(file, index, mutant, id=name, marks=group))
    return parameters


def asserting_cells(path):
    """Number of cells with an assertion that is about more than the shape of an array."""

    def asserts(source):
        tests = [node.test for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Assert)]
        return any(".shape" not in ast.unparse(test) for test in tests)

    return sum(map(asserts, read_cells(path, "code")))


def test_every_step_of_the_derivation_has_a_chapter():
    steps = {"local_fields", "proximal_operator", "replicas", "saddle_point", "message_passing"}
    assert steps | {"solving"} <= {path.stem for path in DERIVATIONS}


@pytest.mark.parametrize("path", DERIVATIONS, ids=lambda path: path.stem)
def test_derivation_has_assertions_and_mutants(path):
    assert asserting_cells(path) >= 5
    mutants = json.loads((MUTANTS / f"{path.stem}.json").read_text(encoding="utf-8"))
    assert len(mutants) >= 4
    assert len({(mutant["old"], mutant["new"]) for mutant in mutants}) == len(mutants)


@pytest.mark.parametrize(("file", "index", "mutant"), listed_mutants())
def test_mutant_is_well_formed(file, index, mutant):
    assert set(mutant) == KEYS and all(isinstance(text, str) for text in mutant.values())
    assert mutant["wrong"] and mutant["old"] != mutant["new"]
    assert book_labels()[mutant["equation"]] == 1, mutant["equation"]
    mutate(read_cells(chapter_of(file), "code"), mutant)


def test_ten_equations_of_the_book_have_mutants():
    labels = {param.values[2]["equation"] for param in listed_mutants()}
    assert len([label for label in labels if label.startswith("eq-")]) >= 10


@pytest.mark.slow
@pytest.mark.parametrize(
    "file",
    [
        pytest.param(file, id=file.stem, marks=pytest.mark.xdist_group(file.stem))
        for file in sorted(MUTANTS.glob("*.json"))
    ],
)
def test_chapter_with_mutants_runs_as_it_stands(file):
    assert complaints_of(file)[0] is None


@pytest.mark.slow
@pytest.mark.parametrize(("file", "index", "mutant"), listed_mutants())
def test_an_assertion_catches_the_mutant(file, index, mutant):
    problem = complaints_of(file)[1][index]
    assert problem is None, problem


# The machinery itself, on a chapter of three cells.

CELLS = [
    "from pathlib import Path\n\nimport matplotlib.pyplot as plt\n\nPath('note.txt').read_text()",
    "def mean(a, b):\n    return (a + b) / 2\n\nspare = 1",
    "plt.plot([1, 2])\nundefined_name\nplt.show()",
    "assert mean(1, 3) == 2\nprint(mean(1, 3))",
]


@pytest.fixture
def small_chapter(tmp_path):
    (tmp_path / "note.txt").write_text("read from the notebook's own folder", encoding="utf-8")
    cells = [nbformat.v4.new_code_cell(source) for source in CELLS]
    cells.insert(1, nbformat.v4.new_markdown_cell("The mean, spare = 1."))
    path = tmp_path / "small.ipynb"
    nbformat.write(nbformat.v4.new_notebook(cells=cells), path)
    return path


def replacing(old, new):
    return {"equation": "eq-small", "wrong": "the change is wrong", "old": old, "new": new}


def test_machinery_runs_an_unchanged_chapter_in_its_folder_without_figures(small_chapter):
    before = Path.cwd()
    assert complaints(small_chapter, []) == (None, [])
    assert Path.cwd() == before


def test_machinery_accepts_mutants_that_an_assertion_catches(small_chapter):
    mutants = [replacing("/ 2", "/ 3"), replacing("== 2", "== 3"), replacing("a + b", "a - b")]
    assert complaints(small_chapter, mutants) == (None, [None] * 3)


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ("spare = 1", "spare = 2", "survives: no assertion notices that the change is wrong"),
        ("(a + b)", "(a + c)", "cell 3 raises NameError"),
        ("note.txt", "lost.txt", "cell 0 raises FileNotFoundError"),
        ("/ 5", "/ 6", "occurs 0 times"),
        ("mean(1, 3)", "mean(1, 4)", "occurs 2 times"),
        ("undefined_name", "1", "stands in a figure cell"),
    ],
)
def test_machinery_reports_a_mutant_that_no_assertion_catches(small_chapter, old, new, reason):
    first, (problem,) = complaints(small_chapter, [replacing(old, new)])
    assert first is None and reason in problem


def test_machinery_reports_a_chapter_that_fails_by_itself(small_chapter):
    (small_chapter.parent / "note.txt").unlink()
    first, (problem,) = complaints(small_chapter, [replacing("/ 2", "/ 3")])
    assert first.startswith("code cell 0: FileNotFoundError") and "not reached" in problem


def test_machinery_counts_cells_whose_assertions_are_about_more_than_shapes(tmp_path):
    sources = ["assert x.shape == (2,)", "assert x.shape == (2,)\nassert x[0] == 1", "x = 1"]
    cells = [nbformat.v4.new_code_cell(source) for source in sources]
    nbformat.write(nbformat.v4.new_notebook(cells=cells), tmp_path / "a.ipynb")
    assert asserting_cells(tmp_path / "a.ipynb") == 1
