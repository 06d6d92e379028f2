"""The tools of the repository: staleness, execution, comparison of outputs, set-up check."""

import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

from tools import check_python, nbval_floats, notebooks

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture
def repository(tmp_path):
    """A small repository with one notebook, which reads one data file."""
    (tmp_path / "attnphase").mkdir()
    (tmp_path / "attnphase" / "model.py").write_text("ONE = 1\n")
    (tmp_path / "book" / "data").mkdir(parents=True)
    (tmp_path / "book" / "data" / "table.csv").write_text("1,2\n")
    (tmp_path / "pyproject.toml").write_text('[project]\ndependencies = ["numpy>=2"]\n')
    (tmp_path / "constraints.txt").write_text("numpy==2.1\nsphinx==7.4.7\n")
    write(tmp_path, ["print(1 + 1)", "print(open('../data/table.csv').read())"])
    return tmp_path


def chapter(root):
    return root / "book" / "part" / "chapter.ipynb"


def write(root, sources, prose="Text."):
    """Write the notebook of `root` with these code cells, keeping its stored digest."""
    path = chapter(root)
    path.parent.mkdir(exist_ok=True)
    stored = notebooks.read(path).metadata["attnphase"] if path.exists() else {}
    notebook = new_notebook(cells=[new_markdown_cell(prose), *map(new_code_cell, sources)])
    notebook.metadata["attnphase"] = {**stored, "data": ["../data/table.csv"]}
    nbformat.write(notebook, path)


SOURCES = ["print(1 + 1)", "print(open('../data/table.csv').read())"]


@pytest.fixture
def executed(repository):
    """The same repository, its notebook executed."""
    notebooks.execute(chapter(repository), repository)
    return repository


def test_never_executed_is_stale(repository):
    assert not notebooks.is_fresh(chapter(repository), repository)


def test_execution_stores_outputs_and_freshness(executed):
    first, second = notebooks.read(chapter(executed)).cells[1:]
    assert notebooks.is_fresh(chapter(executed), executed)
    assert (first.execution_count, first.outputs[0].text) == (1, "2\n")
    assert second.outputs[0].text == "1,2\n\n"
    assert not [path for path in chapter(executed).parent.iterdir() if path.suffix != ".ipynb"]


def test_prose_and_a_linter_do_not_make_it_stale(executed):
    write(executed, SOURCES, prose="Better text.")
    (executed / "constraints.txt").write_text("numpy==2.1\nsphinx==8.0\n")
    assert notebooks.is_fresh(chapter(executed), executed)


@pytest.mark.parametrize(
    "sources",
    [
        ["print(1 + 2)", SOURCES[1]],
        SOURCES[::-1],
        SOURCES[:1],
        ["\n".join(SOURCES)],
    ],
    ids=["changed", "reordered", "removed", "merged"],
)
def test_code_makes_it_stale(executed, sources):
    write(executed, sources)
    assert not notebooks.is_fresh(chapter(executed), executed)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("attnphase/model.py", "ONE = 2\n"),
        ("attnphase/added.py", ""),
        ("book/data/table.csv", "1,3\n"),
        ("constraints.txt", "numpy==2.2\nsphinx==7.4.7\n"),
    ],
)
def test_what_the_outputs_depend_on_makes_it_stale(executed, name, content):
    (executed / name).write_text(content)
    assert not notebooks.is_fresh(chapter(executed), executed)


def test_dates_do_not_matter(executed):
    for path in executed.rglob("*"):
        path.touch()
    assert notebooks.is_fresh(chapter(executed), executed)


def test_missing_data_file_is_named(executed):
    (executed / "book" / "data" / "table.csv").unlink()
    with pytest.raises(FileNotFoundError, match="table.csv"):
        notebooks.is_fresh(chapter(executed), executed)


def test_unpinned_dependency_is_named(executed):
    (executed / "constraints.txt").write_text("sphinx==7.4.7\n")
    with pytest.raises(ValueError, match="numpy"):
        notebooks.is_fresh(chapter(executed), executed)


def test_execution_is_reproducible(executed):
    before = chapter(executed).read_bytes()
    notebooks.execute(chapter(executed), executed)
    assert chapter(executed).read_bytes() == before


def test_kernel_is_the_running_interpreter(repository):
    write(repository, ["import sys\nprint(sys.executable)"])
    notebooks.execute(chapter(repository), repository)
    assert notebooks.read(chapter(repository)).cells[1].outputs[0].text == f"{sys.executable}\n"


def test_raising_notebook_fails_and_is_left_as_it_was(executed, capsys):
    write(executed, ["print(1)", "raise ValueError('on purpose')"])
    before = chapter(executed).read_bytes()
    with pytest.raises(RuntimeError, match="on purpose"):
        notebooks.execute(chapter(executed), executed)
    assert chapter(executed).read_bytes() == before


def test_command_line(repository, capsys):
    assert notebooks.main(["status"], repository) == 1
    assert notebooks.main(["execute"], repository) == 0
    assert notebooks.main(["status"], repository) == 0
    assert "fresh book/part/chapter.ipynb" in capsys.readouterr().out
    assert notebooks.main(["execute"], repository) == 0
    assert "notebooks to execute: 0 of 1" in capsys.readouterr().out
    write(repository, ["raise ValueError('on purpose')"])
    assert notebooks.main(["execute"], repository) == 1
    printed = capsys.readouterr().out
    assert "on purpose" in printed and "failed: book/part/chapter.ipynb" in printed


def test_tidy_gives_identifiers_and_drops_timings():
    cells = [new_code_cell("1", metadata={"execution": {}, "tags": ["a"]}) for _ in range(2)]
    notebook = new_notebook(cells=cells)
    notebook.metadata["language_info"] = {"name": "python", "version": "3.11.7"}
    cells[0]["id"] = cells[1]["id"] = "same"
    notebooks.tidy(notebook)
    assert [cell.metadata for cell in notebook.cells] == [{"tags": ["a"]}] * 2
    assert notebook.cells[0]["id"] == "same" != notebook.cells[1]["id"]
    assert notebook.metadata.language_info == {"name": "python"}
    nbformat.validate(notebook)


@pytest.mark.parametrize(
    ("stored", "computed"),
    [
        ("q = 0.25\n", "q = 0.25\n"),
        ("q = 0.3333333333", "q = 0.3333333334"),
        ("[-1.00000001e-12  2.5]", "[-1.00000002e-12  2.5]"),
        ("9.9999999e-01", "1.0000000e+00"),
        ("0.0 +- .5", "0.0 +- .5"),
        ("alpha=1.2300000001, L=2", "alpha=1.2300000002, L=2"),
    ],
)
def test_equal_up_to_rounding(stored, computed):
    assert nbval_floats.same_text(stored, computed)
    assert nbval_floats.same_text(computed, stored)


@pytest.mark.parametrize(
    ("stored", "computed"),
    [
        ("0.333333", "0.333334"),
        ("-0.5", "0.5"),
        ("0.0", "-0.0"),
        ("1e-20", "2e-20"),
        ("1000000000", "1000000001"),
        ("1.0", "1"),
        ("q = 0.5", "m = 0.5"),
        ("0.5", "0.5 0.5"),
        ("0.5\n", "0.5"),
        ("0.5  1.0", "0.5 1.0"),
        ("nan", "0.5"),
        ("Q_1.5", "Q_1.50000000001"),
    ],
)
def test_different(stored, computed):
    assert not nbval_floats.same_text(stored, computed)
    assert not nbval_floats.same_text(computed, stored)


def test_alignment_keeps_what_differs():
    stored = [new_output("stream", text="0.5000000001"), new_output("stream", text="label 1")]
    computed = [new_output("stream", text="0.5000000002"), new_output("stream", text="label 2")]
    assert nbval_floats.aligned(computed, stored) == [stored[0], computed[1]]
    assert computed[0].text == "0.5000000002"


@pytest.mark.parametrize(
    ("stored", "passes"),
    [("0.3333333334\n", True), ("0.3333344444\n", False), ("-0.3333333333\n", False)],
)
def test_nbval_uses_the_tolerance(tmp_path, stored, passes):
    cell = new_code_cell("print(round(1 / 3, 10))", execution_count=1)
    cell.outputs = [new_output("stream", text=stored)]
    nbformat.write(new_notebook(cells=[cell]), tmp_path / "one.ipynb")
    arguments = ["-p", "tools.nbval_floats", "--nbval", "--nbval-current-env", "-q"]
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-c", "/dev/null", "--rootdir", tmp_path, *arguments,
         tmp_path / "one.ipynb"],
        cwd=ROOT, capture_output=True, text=True,
    )
    assert run.returncode == (0 if passes else 1), run.stdout + run.stderr


def test_set_up_names_what_is_wrong_with_python():
    assert check_python.complaint((3, 11, 0), ["venv", "ensurepip"]) is None
    assert "Python 3.11 or newer and this one is 3.10" in check_python.complaint((3, 10, 9), [])
    assert "lacks the module venv" in check_python.complaint((3, 12, 0), ["ensurepip"])
    assert "apt install python3-venv" in check_python.complaint((3, 13, 0), ["venv"])
    assert check_python.available(["sys", "no_such_module"]) == ["sys"]
