"""Configuration of nbgrader for the four problem sets; README.md beside it is the guide.

A copy of this folder is a complete course directory: `nbgrader` finds this file when it is called
there. What differs from nbgrader's defaults says why.
"""

import ast
import re

from nbconvert.preprocessors import ClearMetadataPreprocessor, CSSHTMLHeaderPreprocessor
from nbgrader.api import Gradebook
from nbgrader.preprocessors import (
    AssignLatePenalties,
    CheckCellMetadata,
    ClearOutput,
    Execute,
    GetGrades,
    IgnorePattern,
    LimitOutput,
    NbGraderPreprocessor,
    OverwriteCells,
    OverwriteKernelspec,
    SaveAutoGrades,
)
from nbgrader.utils import is_grade, is_locked

BEGIN, END = "### BEGIN HIDDEN TESTS", "### END HIDDEN TESTS"
SECONDS = 30  # after which a cell is stopped; the longest honest one takes a few
SHORTEST = 12  # a line of fewer characters, such as a closing bracket, gives nothing away

# Names with which a submission can reach its own grading, or files.
MEDDLING = {
    *("checks", "get_ipython", "builtins", "sys", "ctypes", "gc", "inspect", "importlib"),
    *("subprocess", "threading", "multiprocessing", "exec", "eval", "compile", "setattr"),
    *("globals", "vars", "setprofile", "reload", "open", "os", "pathlib", "shutil"),
    *("unittest", "mock", "delattr", "operator", "marshal", "pickle"),
}
HARMLESS = re.compile(r"^\s*%%?(time|timeit|matplotlib|config)\b.*$", flags=re.MULTILINE)


def hidden_lines(source):
    """Return the lines of a test cell that students do not see, without their indentation."""
    regions = re.findall(f"{BEGIN}(.*?){END}", source, flags=re.DOTALL)
    return [line.strip() for region in regions for line in region.splitlines() if line.strip()]


def shown_part(source):
    """Return the source of a test cell as students see it."""
    return re.sub(f"{BEGIN}.*?{END}\n?", "", source, flags=re.DOTALL).rstrip()


def quotes(output, secrets):
    """Return whether a cell's output contains one of the lines `secrets`."""
    text = re.sub(r"(\\x1b|\\u001b|\x1b)\[[0-9;]*m", "", str(output))
    plain = text.replace("\\\\", "\\").replace("\\'", "'").replace('\\"', '"')
    return any(line in text or line in plain for line in secrets)


class HideTests(NbGraderPreprocessor):
    """Take the hidden checks out of the feedback, wherever they stand in it.

    nbgrader's own feedback shows them: in the source of the test cells, in tracebacks, and in what
    a submission prints if it looks at the notebook's history. Of a check that fails only the
    message stays, and of another error that quotes a hidden line; any other output that quotes one
    is replaced by a remark. What an answer prints while it is checked is left out too: it may tell
    with what it was called.
    """

    def preprocess(self, nb, resources):
        tests = [cell for cell in nb.cells if is_grade(cell) and is_locked(cell)]
        hidden = {line for cell in tests for line in hidden_lines(cell.source)}
        for cell in tests:
            if cell.cell_type == "code":
                cell.outputs = self.messages(cell.outputs)
            cell.source = shown_part(cell.source)
        shown = {line.strip() for cell in tests for line in cell.source.splitlines()}
        secrets = [line for line in hidden - shown if len(line) >= SHORTEST] + [BEGIN, END]
        for cell in nb.cells:
            if cell.cell_type == "code":
                cell.outputs = [self.cleared(output, secrets) for output in cell.outputs]
        return nb, resources

    @staticmethod
    def messages(outputs):
        """Return the errors among the outputs of a check, as a student is to read them."""
        errors = [output for output in outputs if output.output_type == "error"]
        late = [error for error in errors if error.ename == "CellTimeoutError"]
        for error in late:
            error.evalue = f"stopped after {SECONDS} seconds"
        for error in errors:
            if error.ename in ("AssertionError", "CellTimeoutError"):
                error.traceback = [f"{error.ename}: {error.evalue}"]
        return late or errors

    @staticmethod
    def cleared(output, secrets):
        if not quotes(output, secrets):
            return output
        if output.output_type == "error":
            output.traceback = [f"{output.ename}: {output.evalue}"]
            if not quotes(output, secrets):
                return output
        output.clear()
        output.update(
            output_type="stream", name="stderr", text="(not shown: it quotes a hidden check)\n"
        )
        return output


class PutBack(OverwriteCells):
    """Put back what a submission has changed of its graded cells, whatever that is.

    nbgrader's own step gives up, and the submission gets no mark, if a cell was duplicated, if a
    check was deleted together with its answer, or if a cell's entries for nbgrader were changed.
    """

    def preprocess(self, nb, resources):
        names = resources["nbgrader"]
        with Gradebook(names["db_url"]) as gradebook:
            notebook = gradebook.find_notebook(names["notebook"], names["assignment"])
            locked = {cell.name: cell.locked for cell in notebook.source_cells}
            sources = {cell.name: cell.source for cell in notebook.source_cells}
            self.points = points = {cell.name: cell.max_score for cell in notebook.grade_cells}
            self.solved = solved = {cell.name for cell in notebook.solution_cells}
        found = set()
        for cell in reversed(nb.cells):  # of a cell that was doubled, the last copy counts
            marks = cell.metadata.pop("nbgrader", None)
            key = marks.get("grade_id") if isinstance(marks, dict) else None
            if not isinstance(key, str) or key not in locked or key in found:
                continue
            if not locked[key] and self.has_written_copy(nb, cell, key, sources[key]):
                continue
            found.add(key)
            marks = {"grade_id": key, "grade": key in points, "solution": key in solved}
            marks |= {"locked": locked[key], "task": False, "schema_version": 3}
            marks |= {"points": points[key]} if key in points else {}
            cell.metadata["nbgrader"] = marks
            released = (sources[key], shown_part(sources[key])) if locked[key] else ()
            if released and cell.source.rstrip() not in released:
                self.log.warning("%s: %s was changed, and is put back", names["student"], key)
        return super().preprocess(nb, resources)

    @staticmethod
    def has_written_copy(nb, cell, key, stub):
        """Return whether `cell`, an answer left as it was released, has a copy that was written."""
        others = [
            other.source.strip()
            for other in nb.cells
            if other is not cell
            and isinstance(other.metadata.get("nbgrader"), dict)
            and other.metadata["nbgrader"].get("grade_id") == key
        ]
        return cell.source.strip() == stub.strip() and any(text != stub.strip() for text in others)

    def add_missing_grade_cells(self, nb, resources):
        """Insert what is missing: a given cell as early, and a check as late, as its order allows.

        An answer whose cell has lost its name may stand anywhere between the cells beside it.
        """
        notebook = self.gradebook.find_notebook(self.notebook_id, self.assignment_id)
        names = [cell.name for cell in notebook.source_cells]
        points, solved, last = self.points, self.solved, -1
        for number, cell in enumerate(notebook.source_cells):
            keys = [other.metadata.get("nbgrader", {}).get("grade_id") for other in nb.cells]
            if cell.name in keys:
                last = keys.index(cell.name)
            elif cell.name in points or cell.locked:
                last += 1
                if cell.name in points:
                    later = [keys.index(name) for name in names[number:] if name in keys]
                    last = min((place for place in later if place >= last), default=len(keys))
                student = resources["nbgrader"]["student"]
                self.log.warning("%s: %s was missing, and is put back", student, cell.name)
                worth = points.get(cell.name, 0)
                back = self.missing_cell_transform(cell, worth, cell.name in solved)
                if cell.name not in points:
                    back["metadata"]["nbgrader"] |= {"grade": False}
                    del back["metadata"]["nbgrader"]["points"]
                if (nb.nbformat, nb.nbformat_minor) >= (4, 5):
                    back["id"] = f"{cell.name}-back"
                nb.cells.insert(last, back)
        return nb, resources

    def add_missing_task_cells(self, nb, resources):
        return nb, resources

    def report_change(self, name, attr, old, new):
        """Report what was changed, but no checksums: those of checks with hidden parts differ."""
        if attr != "checksum":
            super().report_change(name, attr, old, new)


class OnlyErrorsCount(NbGraderPreprocessor):
    """Let nothing but an error cost, or give, the points of a check.

    nbgrader gives none if the check's cell wrote to stderr, as every warning of numpy and every
    progress bar does, and takes a value that is displayed for partial credit.
    """

    def preprocess_cell(self, cell, resources, index):
        if cell.cell_type == "code" and is_grade(cell):
            kept = [output for output in cell.outputs if output.output_type != "execute_result"]
            for output in kept:
                if output.output_type == "stream":
                    output.name = "stdout"
            cell.outputs = kept
        return cell, resources


class PointOut(NbGraderPreprocessor):
    """Warn of code in a submission that could meddle with its own grading. It costs no points."""

    def preprocess_cell(self, cell, resources, index):
        if cell.cell_type == "code" and not is_locked(cell):
            try:
                tree = ast.parse(HARMLESS.sub("", cell.source))
                found = {self.suspect(node) for node in ast.walk(tree)} - {None}
            except SyntaxError:
                found = {"a magic command or a syntax error"}
            if found:
                student, names = resources["nbgrader"]["student"], ", ".join(sorted(found))
                self.log.warning("%s, cell %d: look at %s", student, index + 1, names)
        return cell, resources

    @staticmethod
    def suspect(node):
        name = getattr(node, "id", None) or getattr(node, "attr", None)
        if isinstance(node, ast.alias):
            name = node.name
        if isinstance(node, ast.ImportFrom):
            name = node.module
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            own = isinstance(node.value, ast.Name) and node.value.id == "self"
            return None if own else f"an assignment to .{name}"
        if name and (name.split(".")[0] in MEDDLING or name.startswith("__")):
            return name
        return None


c = get_config()  # noqa: F821 (traitlets defines it where it runs this file)

c.CourseDirectory.course_id = "attnphase"

# What stands in the release where the solution was: a stub that says what to do.
c.ClearSolutions.code_stub = {
    "python": "# Write your answer here, in place of the next line.\n"
    'raise NotImplementedError("this part is not written yet")'
}
c.ClearSolutions.text_stub = "*Your answer here.*"

# A cell that runs longer is interrupted, counts as failed, and the cells after it are still run.
c.Execute.timeout = SECONDS
c.Execute.interrupt_on_timeout = True

# How `nbgrader zip_collect` reads the names of collected files: STUDENT_SET.ipynb, or what learning
# platforms make of it. What stands before the first underscore is the student, and what follows
# the name of the set is dropped.
c.FileNameCollectorPlugin.named_regexp = (
    r".*/(?P<student_id>[^/_.][^/_]*)_(?:[^/]*[/_])?"
    r"(?P<file_id>attention_by_hand|attention_to_glm|state_evolution|experiment)[^/]*$"
)

# The usual steps, with PutBack in place of DeduplicateIds and OverwriteCells. A check that was
# deleted is put back, and run, like one that was changed.
c.Autograde.sanitize_preprocessors = [
    ClearOutput,
    OverwriteKernelspec,
    PutBack,
    CheckCellMetadata,
]
c.PutBack.add_missing_cells = True

# The usual steps, with PointOut before and OnlyErrorsCount after a submission is run.
c.Autograde.autograde_preprocessors = [
    PointOut,
    Execute,
    OnlyErrorsCount,
    IgnorePattern,
    ClearMetadataPreprocessor,
    LimitOutput,
    SaveAutoGrades,
    AssignLatePenalties,
    CheckCellMetadata,
]

# Where the platform can, what is said to the kernel is encrypted.
c.KernelManager.transport_encryption = "auto"

c.GenerateFeedback.preprocessors = [GetGrades, HideTests, CSSHTMLHeaderPreprocessor]
