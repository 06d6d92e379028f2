"""The problem sets: the grader gives what an answer deserves, and students see no solution."""

import ast
import copy
import csv
import html
import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import nbformat
import numpy as np
import pytest

from tools import course

ROOT = Path(__file__).resolve().parent.parent
SITE = ROOT / "_build" / "html"
TIMEOUT = 20  # seconds for an endless loop; honest cells take less than four
SHORTEST = 30  # characters of a line that tells one solution from other code

each_set = pytest.mark.parametrize("name", course.SETS)


def regions(text, begin, end):
    """Return the lines between the two marks, without indentation and empty lines."""
    found = re.findall(f"### {begin}(.*?)### {end}", text, flags=re.DOTALL)
    return [[line.strip() for line in region.splitlines() if line.strip()] for region in found]


def secrets(name):
    """Return the distinctive lines of the solutions and of the hidden tests of a set.

    A line that a locked cell shows to students anyway is none, and neither is an import.
    """
    solutions, hidden, shown = set(), set(), set()
    for cell in course.source(name).cells:
        for region in regions(cell.source, "BEGIN SOLUTION", "END SOLUTION"):
            longest = max(region, key=len)
            solutions |= {line for line in region if len(line) >= SHORTEST} | {longest}
        for region in regions(cell.source, "BEGIN HIDDEN TESTS", "END HIDDEN TESTS"):
            hidden |= {line for line in region if len(line) >= SHORTEST}
        if cell.metadata.get("nbgrader", {}).get("locked"):
            visible = re.sub("### BEGIN HIDDEN.*?### END HIDDEN", "", cell.source, flags=re.DOTALL)
            shown |= {line.strip() for line in visible.splitlines()}
    shown |= {line for line in hidden if re.match(r"(from|import) ", line)}
    return solutions - shown, hidden - shown


def readable(page):
    """Return the text of an HTML page with neither tags nor entities."""
    return html.unescape(re.sub(r"<[^>]*>", "", page))


def assigned(statement):
    """Return the names that a statement at the top of a cell assigns, imports left out."""
    if isinstance(statement, ast.FunctionDef | ast.ClassDef):
        return {statement.name}
    return {
        node.id
        for node in ast.walk(statement)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
    }


def leaks(text, lines):
    return sorted(line for line in lines if line in text)


# What the sets say about themselves.


@each_set
def test_every_question_states_points_minutes_and_goal(name):
    items = course.questions(name)
    assert [item.number for item in items] == list(range(1, len(items) + 1))
    for item in items:
        assert item.points == sum(item.graded.values()), item.title
        assert item.minutes >= 5 and len(item.goal) > 20
    assert sum(item.points for item in items) == 30
    assert 120 <= sum(item.minutes for item in items) <= 180
    assert 3 <= sum(item.by_hand for item in items) <= 8


@each_set
def test_every_graded_cell_belongs_to_a_question(name):
    listed = course.graded_cells(name)
    cells = {course.identifier(cell): cell for cell in course.source(name).cells}
    graded = [key for key, cell in cells.items() if key and cell.metadata.nbgrader.grade]
    assert sorted(listed) == sorted(graded)
    assert len(graded) == len(set(graded))
    for key in graded:
        if cells[key].cell_type == "code":
            assert cells[key].metadata.nbgrader.locked, key
            assert regions(cells[key].source, "BEGIN HIDDEN TESTS", "END HIDDEN TESTS"), key
            # A name without an underscore could be one of the student's.
            for node in ast.parse(cells[key].source).body:
                for taken in assigned(node):
                    assert taken.startswith("_"), f"{key} assigns {taken}"
            # The value of a last expression would be taken for partial credit.
            last = ast.parse(cells[key].source).body[-1]
            assert not isinstance(last, ast.Expr) or isinstance(last.value, ast.Call), key


@each_set
def test_every_solution_can_be_told_from_the_release(name):
    for cell in course.source(name).cells:
        marks = cell.metadata.get("nbgrader", {})
        if marks.get("solution"):
            assert regions(cell.source, "BEGIN SOLUTION", "END SOLUTION"), marks.grade_id


@each_set
def test_the_known_answers_are_enough(name):
    known = course.answers(name)
    assert len(known["wrong"]) >= 5 and len(known["right"]) >= 2
    names = [entry["name"] for kind in ("wrong", "right") for entry in known[kind]]
    assert len(names) == len(set(names))
    text = json.dumps(known["wrong"])
    assert "while True" in text and "__eq__" in text
    sources = {text.strip() for entry in known["wrong"] for text in entry["cells"].values()}
    assert "pass" in sources


def executed(name, *cells):
    """Return the names that some cells of a set, solutions included, define."""
    sources = {course.identifier(cell): cell.source for cell in course.source(name).cells}
    space = {}
    for cell in cells:
        exec(sources[cell], space)
    return space


def test_the_hats_that_state_evolution_gives_are_those_of_its_solution():
    space = executed("state_evolution", "given-0", "given-2", "q2-pull", "q2-response")
    fields = [space[f"play_{name}"] for name in ("w", "z", "h", "xi")]
    q, m = space["hats_of_pull"](fields[0], fields[1], 14.0, 1.4)
    V, theta = space["hats_of_response"](*fields, 14.0, 0.09, 0.07, 0.25, 1.4)
    assert (q, m, V, theta) == pytest.approx(space["play_hats"], rel=5e-5)


def test_a_bootstrap_of_the_record_finds_a_fifth_less_than_a_jackknife():
    """As question 4 of the experiment says."""
    space = executed("experiment", "given-1", "given-4", "q4-crossing")
    alphas, record = space["ALPHAS"], space["RECORD"]
    means = [np.delete(record, k, axis=1).mean(axis=1) for k in range(record.shape[1])]
    zeros = []
    for mean in means:
        k = np.flatnonzero((mean[:-1] <= 0) & (mean[1:] > 0))[-1]
        zeros.append(np.interp(0, mean[k : k + 2], alphas[k : k + 2]))
    jackknife = np.std(zeros) * np.sqrt(len(zeros) - 1)
    bootstrap = np.mean([space["crossing"](alphas, record, seed)[1] for seed in range(10)])
    assert bootstrap / jackknife == pytest.approx(0.8, abs=0.03)


def test_the_tables_are_those_of_the_sets():
    for page, text in course.documents().items():
        assert page.read_text(encoding="utf-8") == text, "run: python tools/course.py tables"


def test_the_guide_names_every_command_of_the_course():
    guide = (course.ASSIGNMENTS / "README.md").read_text(encoding="utf-8")
    for command in ("generate_assignment", "release_assignment", "collect", "zip_collect"):
        assert f"nbgrader {command}" in guide
    for command in ("autograde", "generate_feedback", "release_feedback", "export"):
        assert f"nbgrader {command}" in guide


# What students get.


@each_set
def test_the_site_offers_the_release(name):
    offered = SITE / "problem_sets" / f"{name}.ipynb"
    assert offered.is_file(), "run: make html"
    page = (SITE / "book" / "assignments" / "problem_sets.html").read_text(encoding="utf-8")
    assert f'href="../../problem_sets/{name}.ipynb"' in page
    released = nbformat.read(offered, as_version=4)
    assert len(released.cells) == len(course.source(name).cells)
    for cell in released.cells:
        assert not cell.get("outputs") and cell.get("execution_count") is None


def test_nothing_of_a_solution_stands_in_the_site():
    assert SITE.is_dir(), "run: make html"
    lines = set().union(*(part for name in course.SETS for part in secrets(name)))
    lines |= {"BEGIN SOLUTION", "BEGIN HIDDEN TESTS"}
    kinds = {".html", ".js", ".json", ".txt", ".md", ".ipynb", ".py", ".css", ".svg", ".inv"}
    pages = [path for path in SITE.rglob("*") if path.suffix in kinds]
    assert len(pages) > 30
    for path in pages:
        text = path.read_text(encoding="utf-8", errors="replace")
        if path.suffix == ".ipynb":
            text = "\n".join(cell.source for cell in nbformat.reads(text, as_version=4).cells)
        elif path.suffix == ".html":
            text = readable(text)
        assert not leaks(text, lines), path


# The whole loop, one class a set so that the sets are graded side by side.


@pytest.fixture(scope="class")
def graded(request):
    """A course directory in which the set of the test class is released."""
    with tempfile.TemporaryDirectory() as folder:
        made = course.Course(folder, timeout=TIMEOUT)
        made.release(request.cls.name)
        yield made


@pytest.fixture(scope="class")
def released(request, graded):
    """What students get of the set of the test class."""
    name = request.cls.name
    return nbformat.read(graded.folder / "release" / name / f"{name}.ipynb", as_version=4)


class Loop:
    name = None

    def results(self, graded, student):
        """Return the graded notebook of `student`: grade_id -> cell."""
        path = graded.folder / "autograded" / student / self.name / f"{self.name}.ipynb"
        cells = nbformat.read(path, as_version=4).cells
        return {course.identifier(cell): cell for cell in cells}

    def assert_no_leak(self, graded, student, solutions_too=False):
        solutions, hidden = secrets(self.name)
        page = readable(graded.feedback(self.name, student))
        assert "Score" in page
        assert not leaks(page, hidden | {"HIDDEN TESTS"})
        if solutions_too:
            assert not leaks(page, solutions)

    def test_gradebook_has_the_points_of_the_guide(self, graded):
        with graded.api.gradebook as gradebook:
            cells = gradebook.find_notebook(self.name, self.name).grade_cells
            points = {cell.name: cell.max_score for cell in cells}
            assert gradebook.find_assignment(self.name).max_score == 30
        assert points == course.graded_cells(self.name)

    def test_the_site_offers_this_release(self, released):
        offered = SITE / "problem_sets" / f"{self.name}.ipynb"
        assert offered.is_file(), "run: make html"
        cells = nbformat.read(offered, as_version=4).cells
        assert [cell.source for cell in cells] == [cell.source for cell in released.cells]

    def test_release_holds_nothing_of_the_solutions(self, released):
        text = "\n".join(cell.source for cell in released.cells)
        assert not leaks(text, set().union(*secrets(self.name)))
        assert "BEGIN SOLUTION" not in text and "HIDDEN TESTS" not in text

    def test_reference_gets_full_marks(self, graded):
        lost, seconds = graded.grade(self.name, "reference", course.source(self.name))
        assert lost == {}
        assert "look at" not in graded.log
        assert seconds < 20
        self.assert_no_leak(graded, "reference")

    def test_untouched_release_gets_nothing_and_says_why(self, graded, released):
        lost, _ = graded.grade(self.name, "untouched", released)
        assert lost == course.graded_cells(self.name)
        for key, cell in self.results(graded, "untouched").items():
            if key in lost and cell.cell_type == "code":
                error = next(o for o in cell.outputs if o.output_type == "error")
                assert error.ename == "AssertionError", key
                assert re.search("not written yet|has no answer yet", error.evalue), error.evalue
        self.assert_no_leak(graded, "untouched", solutions_too=True)

    def known(self, graded, kind):
        """Grade the known answers of a kind; yield the student, the answers and what was lost."""
        for number, group in enumerate(course.combined(course.answers(self.name)[kind])):
            cells = {key: text for entry in group for key, text in entry["cells"].items()}
            answer = course.submission(course.source(self.name), cells)
            student = f"{kind}-{number}"
            lost, _ = graded.grade(self.name, student, answer)
            yield student, group, lost

    def test_other_right_answers_get_full_marks(self, graded):
        for _, group, lost in self.known(graded, "right"):
            assert lost == {}, [entry["name"] for entry in group]
            assert "look at" not in graded.log

    def test_wrong_answers_lose_what_they_should_and_nothing_else(self, graded):
        for student, group, lost in self.known(graded, "wrong"):
            expected = {key for entry in group for key in entry["loses"]}
            assert set(lost) == expected, [entry["name"] for entry in group]
            self.assert_no_leak(graded, student)

    def test_a_submission_that_looks_for_the_checks_cannot_show_them(self, graded):
        """A function prints, and raises, the source of whoever calls it, and the history."""
        reference = course.source(self.name)
        spies = {}
        for cell in reference.cells:
            marks = cell.metadata.get("nbgrader", {})
            if cell.cell_type == "code" and marks.get("solution"):
                found = re.search(r"^def (\w+)", cell.source, flags=re.MULTILINE)
                if found:
                    spies[marks.grade_id] = SPY.format(name=found[1])
        assert len(spies) >= 3
        answer = course.submission(reference, spies)
        lost, _ = graded.grade(self.name, "spy", answer)
        assert lost
        self.assert_no_leak(graded, "spy")

    @pytest.mark.slow
    def test_each_question_can_be_left_out(self, graded, released):
        """An answer that is missing costs its own question only."""
        stubs = {course.identifier(cell): cell.source for cell in released.cells}
        for item in course.questions(self.name):
            prefix = f"q{item.number}-"
            cells = {k: v for k, v in stubs.items() if (k or "").startswith(prefix)}
            answer = course.submission(course.source(self.name), cells)
            lost, _ = graded.grade(self.name, f"without-{item.number}", answer)
            assert lost == item.graded


SPY = """
def {name}(*arguments, **options):
    import linecache
    import sys

    frame, text = sys._getframe(), ""
    while frame is not None:
        text += "".join(linecache.getlines(frame.f_code.co_filename))
        frame = frame.f_back
    print(text)
    print(In)
    raise ValueError(text)


print(In, get_ipython().user_ns["_ih"])
"""


class TestAttentionByHand(Loop):
    name = "attention_by_hand"

    def test_warnings_and_progress_bars_cost_nothing(self, graded):
        noisy = """
def best_matrix(omega, sigmas):
    import sys
    import warnings
    warnings.warn("a step was too small")
    print("50 %", file=sys.stderr)
    rng = np.random.default_rng(1)
    fields = np.array(sigmas)[:, None] * rng.normal(size=(2, 400_000))
    return target_matrices(fields, omega).mean(axis=-1)
"""
        answer = course.submission(course.source(self.name), {"q6-matrix": noisy})
        assert graded.grade(self.name, "noisy", answer)[0] == {}

    @pytest.mark.slow
    def test_a_check_that_was_changed_is_reported_and_others_are_not(self, graded):
        answer = course.submission(course.source(self.name), {"q4-target-test": "pass"})
        assert graded.grade(self.name, "changer", answer)[0] == {}
        assert "changer: q4-target-test was changed, and is put back" in graded.log
        assert graded.log.count("was changed") == 1
        assert "has changed!" not in graded.log

    @pytest.mark.slow
    def test_feedback_tells_messages_without_tracebacks(self, graded):
        cells = {
            "q1-softmax": "def softmax(scores):\n    return scores",
            "q3-weights": "def quietest_weights(m, u):\n    while True:\n        pass",
        }
        answer = course.submission(course.source(self.name), cells)
        graded.grade(self.name, "two-faults", answer)
        page = readable(graded.feedback(self.name, "two-faults"))
        assert re.search(r"AssertionError: `softmax\(scores\)`\[\d, \d\] is", page)
        assert "CellTimeoutError: stopped after" in page
        assert "Traceback (most" not in page and "KeyboardInterrupt" not in page

    @pytest.mark.slow
    def test_answers_whose_cells_lost_their_names_are_graded(self, graded):
        answer = course.submission(course.source(self.name), {})
        for cell in answer.cells:
            cell.metadata = {}
        lost, _ = graded.grade(self.name, "pasted", answer)
        assert set(lost) <= {"q5-derivation"}
        answer = course.submission(course.source(self.name), {})
        by_name = {course.identifier(cell): cell for cell in answer.cells}
        by_name["q3-matrix"].metadata = {}
        by_name["q1-softmax"].metadata["nbgrader"] = None
        by_name["q2-distances"].metadata.nbgrader.grade_id = ["q2-distances"]
        answer.cells.remove(by_name["q3-matrix-test"])
        assert graded.grade(self.name, "rewritten", answer)[0] == {}

    @pytest.mark.slow
    def test_an_untouched_copy_below_an_answer_does_not_count(self, graded, released):
        answer = course.submission(course.source(self.name), {})
        index = [course.identifier(cell) for cell in answer.cells].index("q5-derivation")
        copies = {course.identifier(cell): cell for cell in released.cells}
        double = copy.deepcopy(copies["q5-derivation"])
        double["id"] = "doubled"
        answer.cells.insert(index + 1, double)
        assert graded.grade(self.name, "copied", answer)[0] == {}

    @pytest.mark.slow
    def test_a_patched_comparison_is_pointed_out(self, graded):
        patched = """
from unittest.mock import patch

def best_matrix(omega, sigmas):
    return np.zeros((2, 2))
"""
        answer = course.submission(course.source(self.name), {"q6-matrix": patched})
        graded.grade(self.name, "patched", answer)
        assert "look at unittest.mock" in graded.log

    def test_a_displayed_value_gives_no_points(self, graded):
        shown = """
def best_matrix(omega, sigmas):
    get_ipython().displayhook("full marks, please")
    return np.zeros((2, 2))
"""
        answer = course.submission(course.source(self.name), {"q6-matrix": shown})
        lost, _ = graded.grade(self.name, "shown", answer)
        assert lost == {"q6-equal-test": 2, "q6-unequal-test": 1}
        assert "look at get_ipython" in graded.log

    def test_cells_deleted_doubled_and_relabelled_are_put_back(self, graded):
        answer = course.submission(course.source(self.name), {})
        by_name = {course.identifier(cell): cell for cell in answer.cells}
        gone = ("q3-matrix", "q3-matrix-test", "q1-stable-test", "given-6")
        answer.cells = [c for c in answer.cells if course.identifier(c) not in gone]
        double = copy.deepcopy(by_name["q1-softmax"])
        double["id"] = "doubled"
        answer.cells.insert(3, double)
        by_name["q2-attention-test"].metadata.nbgrader.points = 30
        by_name["q4-target-test"].metadata.nbgrader.grade = False
        lost, _ = graded.grade(self.name, "mangled", answer)
        assert lost == {"q3-matrix-test": 1}
        for key in ("q1-stable-test", "q3-matrix-test", "given-6"):
            assert f"mangled: {key} was missing, and is put back" in graded.log
        assert "was changed" not in graded.log


class TestAttentionToGLM(Loop):
    name = "attention_to_glm"


class TestStateEvolution(Loop):
    name = "state_evolution"


class TestExperiment(Loop):
    name = "experiment"


# The commands of the guide, as an instructor types them.


def nbgrader(folder, *words):
    """Run a command of nbgrader in `folder`; return what it says."""
    environment = {**os.environ, "PATH": f"{sysconfig.get_path('scripts')}{os.pathsep}{os.defpath}"}
    done = subprocess.run(
        [sys.executable, "-m", "nbgrader", *words],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


@pytest.mark.slow
def test_the_commands_of_the_guide_with_an_archive(tmp_path):
    name = "attention_by_hand"
    folder = course.Course(tmp_path).folder
    nbgrader(folder, "generate_assignment", name)
    archive = folder / "downloaded" / name / "archive"
    archive.mkdir(parents=True)
    with zipfile.ZipFile(archive / "all.zip", "w") as collected:
        for student, kind in (("ada", "source"), ("grace", "release")):
            collected.write(folder / kind / name / f"{name}.ipynb", f"{student}_{name}.ipynb")
        # What two learning platforms make of the name.
        released = folder / "release" / name / f"{name}.ipynb"
        collected.write(released, f"Emmy N_12345_assignsubmission_file_/{name}.ipynb")
        collected.write(released, f"__MACOSX/._ada_{name}.ipynb")
        collected.write(released, f"__MACOSX/._grace_{name}.ipynb")
        collected.write(released, f"leeann_LATE_12345_67890_{name}-1.ipynb")
    nbgrader(folder, "zip_collect", name)
    nbgrader(folder, "zip_collect", name, "--force")
    nbgrader(folder, "autograde", name)
    nbgrader(folder, "generate_feedback", name)
    (folder / "students.csv").write_text("id,first_name,last_name,email\nada,,,\ngina,,,\n")
    nbgrader(folder, "db", "student", "import", "students.csv")
    nbgrader(folder, "db", "assignment", "add", name, "--duedate", "2030-05-01 18:00:00 UTC")
    said = subprocess.run(
        [sys.executable, "open_marks.py"], cwd=folder, capture_output=True, text=True, check=True
    ).stdout.splitlines()
    assert said == [
        f"{name}, ada: to be graded by hand: q5-derivation",
        f"{name}, gina: no submission was graded",
    ]
    nbgrader(folder, "export")
    with (folder / "grades.csv").open(newline="", encoding="utf-8") as file:
        marks = {row["student_id"]: row for row in csv.DictReader(file)}
    by_machine = 30 - sum(item.by_hand for item in course.questions(name))
    assert float(marks["ada"]["score"]) == by_machine
    assert marks["ada"]["duedate"].startswith("2030-05-01")
    for student in ("grace", "Emmy N", "leeann"):
        assert float(marks[student]["score"]) == 0
    assert {float(row["max_score"]) for row in marks.values()} == {30}
    for student in set(marks) - {"gina"}:
        page = (folder / "feedback" / student / name / f"{name}.html").read_text(encoding="utf-8")
        assert not leaks(readable(page), secrets(name)[1])


@pytest.mark.slow
def test_two_sets_are_graded_side_by_side(tmp_path):
    names = course.SETS[:2]
    folder = course.Course(tmp_path).folder
    for name in names:
        nbgrader(folder, "generate_assignment", name)
        for student in ("ada", "grace", "emmy"):
            place = folder / "submitted" / student / name
            place.mkdir(parents=True)
            shutil.copy(folder / "source" / name / f"{name}.ipynb", place)
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda name: nbgrader(folder, "autograde", name), names))
    nbgrader(folder, "export")
    with (folder / "grades.csv").open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 6
    for row in rows:
        name = row["assignment"]
        by_hand = sum(item.by_hand for item in course.questions(name))
        assert float(row["score"]) == 30 - by_hand


@pytest.mark.slow
def test_the_commands_of_the_guide_with_an_exchange(tmp_path):
    name = "attention_by_hand"
    folder = course.Course(tmp_path / "course").folder
    exchange, student = tmp_path / "exchange", tmp_path / "student"
    for place, mode in ((exchange, 0o777), (student, 0o755)):
        place.mkdir()
        place.chmod(mode)
    where = [f"--Exchange.root={exchange}", f"--Exchange.cache={tmp_path / 'cache'}"]
    nbgrader(folder, "generate_assignment", name)
    nbgrader(folder, "release_assignment", name, *where)
    nbgrader(student, "fetch_assignment", name, "--course", "attnphase", *where)
    nbgrader(student, "submit", name, "--course", "attnphase", *where)
    nbgrader(folder, "collect", name, *where)
    nbgrader(folder, "autograde", name)
    nbgrader(folder, "generate_feedback", name)
    nbgrader(folder, "release_feedback", name, *where)
    assert list((folder / "feedback").rglob(f"{name}.html"))
    assert list((exchange / "attnphase" / "feedback").rglob("*.html"))


@pytest.mark.slow
def test_a_course_directory_in_use_is_left_alone(tmp_path):
    course.build(tmp_path)
    work = tmp_path / "_build" / "course" / "submitted" / "ada"
    work.mkdir(parents=True)
    course.build(tmp_path)
    assert work.is_dir()
    offered = sorted(path.stem for path in (tmp_path / "_build" / "downloads").rglob("*.ipynb"))
    assert offered == sorted(course.SETS)


def test_tables_need_their_marks():
    with pytest.raises(ValueError, match="tables: begin"):
        course.with_tables("no marks here", "| a |")


def test_an_unreadable_file_of_answers_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr(course, "ASSIGNMENTS", tmp_path)
    (tmp_path / "answers").mkdir()
    (tmp_path / "answers" / "experiment.toml").write_text("[[wrong]", encoding="utf-8")
    with pytest.raises(ValueError, match="experiment.toml"):
        course.answers("experiment")


def test_a_question_without_terms_is_named(monkeypatch):
    notebook = course.source("experiment")
    cell = next(cell for cell in notebook.cells if cell.source.startswith("## Question 2"))
    cell.source = cell.source.replace("Goal:", "Aim:")
    monkeypatch.setattr(course, "source", lambda name: notebook)
    with pytest.raises(ValueError, match="experiment, question 2: no points, minutes and goal"):
        course.questions("experiment")
