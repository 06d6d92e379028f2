"""Exit with one clear sentence unless this Python can make the virtual environment.

Kept to syntax that old interpreters understand, so that they reach the sentence.
"""

import sys


def complaint(version, modules):
    """Return what is wrong with an interpreter, or None.

    `version` is its (major, minor, ...) version, `modules` the names of the modules it can import.
    """
    if tuple(version[:2]) < (3, 11):
        found = ".".join(str(number) for number in version[:2])
        return (
            "attnphase needs Python 3.11 or newer and this one is " + found + ": "
            "name a newer one, for example make PYTHON=python3.12 book"
        )
    missing = [name for name in ("venv", "ensurepip") if name not in modules]
    if missing:
        return (
            "this Python lacks the module " + missing[0] + ", which makes virtual environments: "
            "install it (on Debian and Ubuntu: apt install python3-venv)"
        )
    return None


def available(names):
    """Return those of the module `names` that can be imported."""
    found = []
    for name in names:
        try:
            __import__(name)
        except ImportError:
            continue
        found.append(name)
    return found


if __name__ == "__main__":
    sys.exit(complaint(sys.version_info, available(["venv", "ensurepip"])))
