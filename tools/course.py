"""The problem sets: build what students get, and try the grader on known answers.

The four sets lie in book/assignments: `source` holds one notebook a set, with stubs, solutions and
hidden tests (nbgrader's format), `answers` the wrong and the unusual right answers that the grader
is tried on, `nbgrader_config.py` the configuration.

usage: python tools/course.py build          make _build/course and _build/downloads
       python tools/course.py try SET ...    grade the answers of book/assignments/answers/SET.toml
       python tools/course.py tables         write the tables of README.md and problem_sets.md anew
"""

import argparse
import copy
import os
import re
import shutil
import sys
import sysconfig
import tempfile
import time
import tomllib
from dataclasses import dataclass
from pathlib import Path

import nbformat
from nbgrader.apps import NbGraderAPI
from traitlets.config import PyFileConfigLoader

ROOT = Path(__file__).resolve().parent.parent
ASSIGNMENTS = ROOT / "book" / "assignments"
SETS = ("attention_by_hand", "attention_to_glm", "state_evolution", "experiment")
HEADING = re.compile(r"## Question (\d+): (.+)")
IN_USE = ("submitted", "downloaded", "autograded", "feedback")
MARKS = ("<!-- tables: begin -->", "<!-- tables: end -->")
TERMS = re.compile(r"\*(\d+) points?, (\d+) minutes\. Goal: (.+?)\*", flags=re.DOTALL)


@dataclass(frozen=True)
class Question:
    """A question: its terms as the student reads them, and the points of its graded cells."""

    number: int
    title: str
    points: int
    minutes: int
    goal: str
    by_hand: int  # how many of the points are given by hand: those of its cells of text
    graded: dict  # grade_id -> points


def source(name):
    """Return the source notebook of the set `name`."""
    path = ASSIGNMENTS / "source" / name / f"{name}.ipynb"
    return nbformat.read(path, as_version=4)


def identifier(cell):
    """Return nbgrader's identifier of `cell`, or None if it is an ordinary cell."""
    return cell.metadata.get("nbgrader", {}).get("grade_id")


def questions(name):
    """Return the questions of the set `name` in order.

    Raises ValueError if a question does not state its points, its minutes and its goal.
    """
    notebook = source(name)
    found = []
    for cell in notebook.cells:
        heading = cell.cell_type == "markdown" and HEADING.match(cell.source)
        if not heading:
            continue
        terms = TERMS.search(cell.source)
        if not terms:
            raise ValueError(f"{name}, question {heading[1]}: no points, minutes and goal")
        cells = [
            other
            for other in notebook.cells
            if (identifier(other) or "").startswith(f"q{heading[1]}-")
            and other.metadata.nbgrader.grade
        ]
        graded = {identifier(other): other.metadata.nbgrader.points for other in cells}
        question = Question(
            number=int(heading[1]),
            title=heading[2],
            points=int(terms[1]),
            minutes=int(terms[2]),
            goal=" ".join(terms[3].split()),
            by_hand=sum(graded[identifier(o)] for o in cells if o.cell_type == "markdown"),
            graded=graded,
        )
        found.append(question)
    return tuple(found)


def graded_cells(name):
    """Return the points of every graded cell of the set `name`: grade_id -> points."""
    return {key: points for item in questions(name) for key, points in item.graded.items()}


def answers(name):
    """Return the known answers to the set `name`: a dict with the lists "wrong" and "right"."""
    path = ASSIGNMENTS / "answers" / f"{name}.toml"
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except tomllib.TOMLDecodeError as error:
        raise ValueError(f"{path}: {error}") from None


def title(name):
    """Return the title of the set `name`."""
    return source(name).cells[0].source.splitlines()[0].removeprefix("# ")


def table(head, rows):
    """Return a table in Markdown."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(str(entry) for entry in line) + " |" for line in lines)


def guide_tables(name):
    """Return the part of the instructor's guide on the set `name`, made from its sources."""
    items = questions(name)
    rows = [
        [f"{item.number}. {item.title}", item.points, item.by_hand, item.minutes, item.goal]
        for item in items
    ]
    total = [sum(getattr(item, key) for item in items) for key in ("points", "by_hand", "minutes")]
    head = ["Question", "Points", "by hand", "Minutes", "Goal"]
    entries = answers(name)["wrong"]
    honest = [entry for entry in entries if not entry.get("trick")]
    tricks = ", ".join(f"`{entry['name']}`" for entry in entries if entry.get("trick"))
    wrong = [
        [entry["mistake"], entry["reveals"], ", ".join(f"`{key}`" for key in entry["loses"])]
        for entry in honest
    ]
    return "\n\n".join(
        [
            f"### {title(name)} (`{name}`)",
            table(head, [*rows, ["**Total**", *total, ""]]),
            table(["Typical wrong answer", "What it reveals", "Loses"], wrong),
            f"Tricks that gain nothing, and a loop without end: {tricks}.",
        ]
    )


def mark_schemes():
    """Return a page with the model answers and mark schemes of what is graded by hand."""
    parts = ["# Mark schemes of what is graded by hand"]
    for name in SETS:
        parts.append(f"## {title(name)} (`{name}`)")
        for cell in source(name).cells:
            if cell.cell_type == "markdown" and identifier(cell):
                points = cell.metadata.nbgrader.points
                text = re.sub(r"### (BEGIN|END) SOLUTION\n?", "", cell.source).strip()
                parts.append(f"### `{identifier(cell)}`, {points} points\n\n{text}")
    return "\n\n".join(parts) + "\n"


def page_table():
    """Return the table of the students' page, with the links to the notebooks."""
    rows = []
    for number, name in enumerate(SETS, start=1):
        items = questions(name)
        link = f'<a href="../../problem_sets/{name}.ipynb" download>{number}. {title(name)}</a>'
        points, minutes = (sum(getattr(i, key) for i in items) for key in ("points", "minutes"))
        rows.append([link, len(items), points, minutes])
    return table(["Notebook", "Questions", "Points", "Minutes"], rows)


def with_tables(text, content):
    """Return `text` with `content` between its two marks.

    Raises ValueError if the marks are not there.
    """
    if not all(text.count(mark) == 1 for mark in MARKS):
        raise ValueError(f"a page with tables needs one {MARKS[0]} and one {MARKS[1]}")
    begin, rest = text.split(MARKS[0])
    _, end = rest.split(MARKS[1])
    return f"{begin}{MARKS[0]}\n\n{content}\n\n{MARKS[1]}{end}"


def documents():
    """Return a dict from each page that has tables to its text with the tables of today."""
    contents = {
        "README.md": "\n\n".join(guide_tables(name) for name in SETS),
        "problem_sets.md": page_table(),
    }
    return {
        ASSIGNMENTS / page: with_tables((ASSIGNMENTS / page).read_text(encoding="utf-8"), content)
        for page, content in contents.items()
    }


def combined(entries):
    """Return `entries` in groups, each for one submission: different cells, different losses."""

    def touched(entry):
        return entry["cells"].keys() | set(entry.get("loses", ()))

    groups = []
    for entry in entries:
        for group in groups:
            if not any(touched(entry) & touched(other) for other in group):
                group.append(entry)
                break
        else:
            groups.append([entry])
    return groups


def submission(notebook, cells):
    """Return a copy of `notebook` in which the cells named in `cells` have new sources.

    Raises KeyError if the notebook has no cell of such a name.
    """
    changed = copy.deepcopy(notebook)
    by_name = {identifier(cell): cell for cell in changed.cells}
    for name, text in cells.items():
        by_name[name].source = text.strip("\n")
    return changed


class Course:
    """A course directory in `folder`, made from book/assignments, with its releases."""

    def __init__(self, folder, timeout=None):
        self.folder = Path(folder)
        self.folder.mkdir(parents=True, exist_ok=True)
        for file in ("nbgrader_config.py", "README.md", "open_marks.py"):
            shutil.copy(ASSIGNMENTS / file, self.folder)
        shutil.copytree(ASSIGNMENTS / "source", self.folder / "source", dirs_exist_ok=True)
        # nbgrader calls `alembic` by its name: the scripts of this interpreter must be found.
        scripts = sysconfig.get_path("scripts")
        path = os.environ.get("PATH", os.defpath)
        if scripts not in path.split(os.pathsep):
            os.environ["PATH"] = os.pathsep.join([scripts, path])
        loader = PyFileConfigLoader("nbgrader_config.py", path=str(self.folder))
        config = loader.load_config()
        config.CourseDirectory.root = str(self.folder)
        if timeout is not None:
            config.Execute.timeout = timeout
        self.api = NbGraderAPI(config=config)
        self.log = ""

    def _done(self, result):
        if not result["success"]:
            raise RuntimeError(result["log"] or result["error"])

    def release(self, name):
        """Make the release of the set `name`; return the path of the students' notebook."""
        self._done(self.api.generate_assignment(name, force=True, create=True))
        return self.folder / "release" / name / f"{name}.ipynb"

    def grade(self, name, student, notebook):
        """Grade `notebook` as the submission of `student`.

        Returns the points lost in each graded cell that lost any, and the seconds it took. Cells
        graded by hand lose nothing unless they were left as they were released. What nbgrader said
        is kept in ``log``.
        """
        place = self.folder / "submitted" / student / name / f"{name}.ipynb"
        place.parent.mkdir(parents=True, exist_ok=True)
        nbformat.write(notebook, place)
        begin = time.perf_counter()
        result = self.api.autograde(name, student, force=True, create=True)
        seconds = time.perf_counter() - begin
        self._done(result)
        self.log = result["log"]
        with self.api.gradebook as gradebook:
            grades = gradebook.find_submission_notebook(name, name, student).grades
            lost = {
                grade.name: grade.max_score - grade.score
                for grade in grades
                if not grade.needs_manual_grade and grade.score != grade.max_score
            }
        return lost, seconds

    def feedback(self, name, student):
        """Generate the feedback of `student` on the set `name`; return its HTML."""
        self._done(self.api.generate_feedback(name, student, force=True))
        page = self.folder / "feedback" / student / name / f"{name}.html"
        return page.read_text(encoding="utf-8")


def build(root=ROOT):
    """Make the students' notebooks for the site, and a course directory, below `root`/_build.

    A course directory in which somebody has collected submissions stays as it is.
    """
    target = root / "_build"
    target.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target) as folder:
        course = Course(folder)
        for name in SETS:
            questions(name)
            course.release(name)
        downloads = target / "downloads" / "problem_sets"
        shutil.rmtree(downloads, ignore_errors=True)
        downloads.mkdir(parents=True)
        for name in SETS:
            shutil.copy(course.folder / "release" / name / f"{name}.ipynb", downloads)
        print(f"notebooks for students: {downloads.relative_to(root)}")
        place = target / "course"
        if any((place / kind).exists() for kind in IN_USE):
            print(f"course directory: {place.relative_to(root)} is in use, and stays as it is")
            return
        shutil.rmtree(place, ignore_errors=True)
        shutil.copytree(course.folder, place)
        (place / "mark_schemes.md").write_text(mark_schemes(), encoding="utf-8")
        print(f"course directory: {place.relative_to(root)}")


def attempt(name):
    """Grade the reference, the untouched release and the known answers; print what each lost.

    Returns whether each lost what it should.
    """
    known, reference, good = answers(name), source(name), True
    with tempfile.TemporaryDirectory() as folder:
        course = Course(folder)
        released = nbformat.read(course.release(name), as_version=4)
        tries = [("reference", reference, set()), ("untouched", released, set(graded_cells(name)))]
        for kind in ("right", "wrong"):
            for entry in known[kind]:
                changed = submission(reference, entry["cells"])
                tries.append((entry["name"], changed, set(entry.get("loses", ()))))
        for student, notebook, expected in tries:
            lost, seconds = course.grade(name, student, notebook)
            verdict = "as expected" if set(lost) == expected else f"NOT {sorted(expected)}"
            print(f"{student:24} {seconds:5.1f} s  lost {lost}: {verdict}", flush=True)
            good &= set(lost) == expected
    return good


def main(arguments=None):
    """Run the command line; return the exit code."""
    parser = argparse.ArgumentParser(description="Build and try the problem sets.")
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("build", help="make _build/course and _build/downloads")
    commands.add_parser("tables", help="write the tables of the guide and of the students' page")
    tried = commands.add_parser("try", help="grade the known answers of a set")
    tried.add_argument("sets", nargs="+", choices=SETS)
    options = parser.parse_args(arguments)
    if options.command == "build":
        build()
        return 0
    if options.command == "tables":
        for page, text in documents().items():
            page.write_text(text, encoding="utf-8")
        return 0
    good = [attempt(name) for name in options.sets]
    return 0 if all(good) else 1


if __name__ == "__main__":
    sys.exit(main())
