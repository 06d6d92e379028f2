"""Configuration of nbgrader for the four problem sets; README.md beside it is the guide.

A copy of this folder is a complete course directory: `nbgrader` finds this file when it is called
there. What differs from nbgrader's defaults says why.
"""

import re

from nbconvert.preprocessors import CSSHTMLHeaderPreprocessor
from nbgrader.preprocessors import GetGrades, NbGraderPreprocessor
from nbgrader.utils import is_grade, is_locked

BEGIN, END = "### BEGIN HIDDEN TESTS", "### END HIDDEN TESTS"
SHORTEST = 12  # a line of fewer characters, such as a closing bracket, gives nothing away


def hidden_lines(source):
    """Return the lines of a test cell that students do not see, without their indentation."""
    regions = re.findall(f"{BEGIN}(.*?){END}", source, flags=re.DOTALL)
    return [line.strip() for region in regions for line in region.splitlines() if line.strip()]


def quotes(output, secrets):
    """Return whether a cell's output contains one of the lines `secrets`."""
    text = re.sub(r"(\\x1b|\\u001b|\x1b)\[[0-9;]*m", "", str(output))
    plain = text.replace("\\\\", "\\").replace("\\'", "'").replace('\\"', '"')
    return any(line in text or line in plain for line in secrets)


class HideTests(NbGraderPreprocessor):
    """Take the hidden checks out of the feedback, wherever they stand in it.

    nbgrader's own feedback shows them: in the source of the test cells, in tracebacks, and in what
    a submission prints if it looks at the notebook's history. Of an error that quotes a hidden
    line only its message stays; any other output that quotes one is replaced by a remark.
    """

    def preprocess(self, nb, resources):
        tests = [cell for cell in nb.cells if is_grade(cell) and is_locked(cell)]
        hidden = {line for cell in tests for line in hidden_lines(cell.source)}
        for cell in tests:
            cell.source = re.sub(f"{BEGIN}.*?{END}\n?", "", cell.source, flags=re.DOTALL).rstrip()
        shown = {line.strip() for cell in tests for line in cell.source.splitlines()}
        secrets = [line for line in hidden - shown if len(line) >= SHORTEST] + [BEGIN, END]
        for cell in nb.cells:
            if cell.cell_type == "code":
                cell.outputs = [self.cleared(output, secrets) for output in cell.outputs]
        return nb, resources

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


c = get_config()  # noqa: F821 (traitlets defines it where it runs this file)

c.CourseDirectory.course_id = "attnphase"

# What stands in the release where the solution was: a stub that says what to do.
c.ClearSolutions.code_stub = {
    "python": "# Write your answer here, in place of the next line.\n"
    'raise NotImplementedError("this part is not written yet")'
}
c.ClearSolutions.text_stub = "*Your answer here.*"

# The longest honest cell takes a few seconds. A cell that runs longer is interrupted, counts as
# failed, and the cells after it are still run.
c.Execute.timeout = 30
c.Execute.interrupt_on_timeout = True

# How `nbgrader zip_collect` reads the names of collected files: STUDENT_SET.ipynb, where STUDENT
# has no underscore.
c.FileNameCollectorPlugin.named_regexp = r".*/(?P<student_id>[^/_]+)_(?P<file_id>\w+)"

# A check that a student has deleted is put back, and run, like one that was changed.
c.OverwriteCells.add_missing_cells = True

# Where the platform can, talk to the kernel through files and not through open ports.
c.KernelManager.transport_encryption = "auto"

c.GenerateFeedback.preprocessors = [GetGrades, HideTests, CSSHTMLHeaderPreprocessor]
