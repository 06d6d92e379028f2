"""Say which marks of a course are still open: answers to grade by hand, and missing submissions.

usage, in the course directory: python open_marks.py
"""

from nbgrader.api import Gradebook


def open_marks(address):
    """Return lines of text, one for each student and set of the gradebook with an open mark."""
    lines = []
    with Gradebook(address) as gradebook:
        for assignment in gradebook.assignments:
            submitted = {item.student.id: item for item in assignment.submissions}
            for student in gradebook.students:
                place = f"{assignment.name}, {student.id}"
                if student.id not in submitted:
                    lines.append(f"{place}: no submission was graded")
                    continue
                grades = [g for book in submitted[student.id].notebooks for g in book.grades]
                waiting = [grade.name for grade in grades if grade.needs_manual_grade]
                if waiting:
                    lines.append(f"{place}: to be graded by hand: {', '.join(sorted(waiting))}")
    return lines


if __name__ == "__main__":
    print("\n".join(open_marks("sqlite:///gradebook.db")) or "no mark is open")
