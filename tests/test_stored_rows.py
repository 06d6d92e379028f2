"""Long runs are resumable and lose nothing; the stored ones are what their scripts ask for."""

import inspect
import json
import os
import re
import runpy
import signal
import subprocess
import sys
import time
from importlib import import_module
from math import isfinite
from pathlib import Path

import pytest

import attnphase

DATA = Path(__file__).parents[1] / "book" / "data"
SCRIPTS = sorted(
    path.stem.removeprefix("make_")
    for path in DATA.glob("make_*.py")
    if "from stored_rows import" in path.read_text(encoding="utf-8")
)

#: A script as those of the book: `fill` needs a function that another process can import.
TOY = """
import os, signal, sys, time
from pathlib import Path

import attnphase
from stored_rows import fill

TASKS = [("first", {"seed": seed, "start": start}) for seed in (0, 1, 2) for start in "ab"]
TASKS += [("second", {"alpha": alpha}) for alpha in (0.1, 1 / 3)]


def compute(kind, task):
    here = Path(__file__).parent
    (here / "log" / f"{time.monotonic_ns()} {os.getpid()}").touch()
    if kind == "second":
        return {"threads": os.environ["OMP_NUM_THREADS"] + os.environ["OPENBLAS_NUM_THREADS"]}
    if task == {"seed": 1, "start": "a"}:
        if (here / "refuse").exists():
            raise attnphase.ConvergenceError("no such point", "a state that is not stored")
        if (here / "break").exists():
            raise ZeroDivisionError("the task is broken")
        if (here / "die").exists():
            os.kill(os.getpid(), signal.SIGKILL)
        if (here / "hang").exists():
            time.sleep(60)
    if task["start"] == "a":
        time.sleep(0.05)  # so that rows come out of order
    return {"value": task["seed"] / 3}


if __name__ == "__main__":
    output, processes, omega, *fresh = sys.argv[1:]
    parameters = {"omega": float(omega), "sizes": (1, 2)}
    script = Path(__file__).name
    fill(Path(output), script, parameters, TASKS, compute, int(processes), bool(fresh))
"""

EXPECTED = """{
 "made_by": "make_toy.py",
 "parameters": {
  "omega": 0.3,
  "sizes": [
   1,
   2
  ]
 },
 "versions": {
  "attnphase": VERSION,
  "numpy": VERSION,
  "scipy": VERSION
 },
 "first": [
  {"seed": 0, "start": "a", "value": 0.0},
  {"seed": 0, "start": "b", "value": 0.0},
  {"seed": 1, "start": "a", "value": 0.3333333333333333},
  {"seed": 1, "start": "b", "value": 0.3333333333333333},
  {"seed": 2, "start": "a", "value": 0.6666666666666666},
  {"seed": 2, "start": "b", "value": 0.6666666666666666}
 ],
 "second": [
  {"alpha": 0.1, "threads": "11"},
  {"alpha": 0.3333333333333333, "threads": "11"}
 ]
}
"""
LINE = '  {"seed": 1, "start": "a", "value": 0.3333333333333333},\n'


class Toy:
    """The script in a folder of its own, with the file it fills."""

    def __init__(self, folder):
        self.folder, self.file = folder, folder / "toy.json"
        (folder / "make_toy.py").write_text(TOY, encoding="utf-8")
        (folder / "log").mkdir()

    def start(self, *arguments):
        paths = [str(DATA), str(DATA.parents[1])]
        if "PYTHONPATH" in os.environ:
            paths.append(os.environ["PYTHONPATH"])
        return subprocess.Popen(
            [sys.executable, str(self.folder / "make_toy.py"), str(self.file), *arguments],
            env=os.environ | {"PYTHONPATH": os.pathsep.join(paths)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def run(self, *arguments):
        """Code and output of the script, once it has ended, and no file of its writing left."""
        process = self.start(*(arguments or ("1", "0.3")))
        output, _ = process.communicate(timeout=60)
        return process.returncode, output

    def computed(self):
        """Number of computations, and the processes that made them."""
        names = [path.name.split() for path in (self.folder / "log").iterdir()]
        for path in (self.folder / "log").iterdir():
            path.unlink()
        return len(names), {int(process) for _, process in names}

    def text(self):
        """The file, without the versions' numbers."""
        return re.sub(r'": "\d+\.\d+[^"]*"', '": VERSION', self.file.read_text(encoding="utf-8"))

    def rows(self):
        stored = json.loads(self.file.read_text(encoding="utf-8"))
        return stored["first"] + stored["second"]

    def flag(self, name, on=True):
        path = self.folder / name
        path.touch() if on else path.unlink()

    def stored(self):
        """A complete file, as a dictionary."""
        stored = json.loads(EXPECTED.replace("VERSION", '"0"'))
        for name in stored["versions"]:
            stored["versions"][name] = import_module(name).__version__
        return stored


@pytest.fixture
def toy(tmp_path):
    return Toy(tmp_path)


@pytest.fixture
def fill_here(toy, monkeypatch):
    """The script's call of `fill` in this process, where no row may be computed."""
    monkeypatch.syspath_prepend(str(DATA))
    stored_rows = import_module("stored_rows")

    def refuse(*arguments, **more):
        pytest.fail("a row is about to be computed")

    monkeypatch.setattr(stored_rows.ProcessPoolExecutor, "submit", refuse)
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        monkeypatch.setenv(name, "1")  # `fill` sets them

    def call(tasks):
        parameters = {"omega": 0.3, "sizes": (1, 2)}
        stored_rows.fill(toy.file, "make_toy.py", parameters, tasks, None, 1)

    return call


TASKS = [("first", {"seed": seed, "start": start}) for seed in (0, 1, 2) for start in "ab"]
TASKS += [("second", {"alpha": alpha}) for alpha in (0.1, 1 / 3)]


def test_rows_are_in_the_order_of_the_tasks_and_the_rest_can_be_filled_in(toy, fill_here):
    code, output = toy.run("2", "0.3")
    assert code == 0, output
    assert toy.text() == EXPECTED
    assert [path.name for path in toy.folder.glob("toy.*")] == ["toy.json"]
    assert toy.computed()[0] == 8
    written = toy.file.read_bytes()
    fill_here(TASKS)  # nothing is computed again
    assert toy.file.read_bytes() == written
    stored = json.loads(written)
    del stored["first"][2:4], stored["second"][0]
    toy.file.write_text(json.dumps(stored), encoding="utf-8")
    assert toy.run()[0] == 0
    assert toy.computed()[0] == 3
    assert toy.file.read_bytes() == written


@pytest.mark.slow
def test_number_of_processes_and_fresh_ones(toy):
    for arguments, processes in ((("1", "0.3"), 1), (("3", "0.3"), 3), (("2", "0.3", "fresh"), 8)):
        toy.file.unlink(missing_ok=True)
        code, output = toy.run(*arguments)
        assert code == 0, output
        assert toy.text() == EXPECTED
        count, seen = toy.computed()
        assert count == 8
        assert len(seen) <= processes
    assert len(seen) == 8


@pytest.mark.parametrize("what", ["parameters", "versions", "made_by", "row", "kind"])
def test_a_file_of_another_making_is_left_alone(toy, fill_here, what):
    stored = toy.stored()
    del stored["first"][0]  # there is something to do
    reason = "was made with other parameters or versions"
    if what == "parameters":
        stored["parameters"]["omega"] = 0.30001
    elif what == "versions":
        stored["versions"]["scipy"] += ".1"
    elif what == "made_by":
        stored["made_by"] = "make_other.py"
    else:
        reason = "has (a row|rows) that (was|were) not asked for"
        kind = {"row": "first", "kind": "third"}[what]
        stored.setdefault(kind, []).append({"seed": 3, "start": "a", "value": 1.0})
    toy.file.write_text(json.dumps(stored), encoding="utf-8")
    written = toy.file.read_bytes()
    with pytest.raises(SystemExit, match=reason) as caught:
        fill_here(TASKS)
    assert str(toy.file) in str(caught.value)
    assert toy.file.read_bytes() == written


def test_a_convergence_error_becomes_an_entry_of_its_row(toy):
    toy.flag("refuse")
    code, output = toy.run()
    assert code == 0, output
    assert toy.text() == EXPECTED.replace(
        LINE, '  {"seed": 1, "start": "a", "failed": "no such point"},\n'
    )


@pytest.mark.parametrize(
    ("flag", "error"),
    [
        ("break", "ZeroDivisionError: the task"),
        pytest.param("die", "BrokenProcessPool", marks=pytest.mark.slow),
    ],
)
def test_another_error_ends_the_run_and_keeps_what_was_done(toy, flag, error):
    toy.flag(flag)
    code, output = toy.run()
    assert code == 1
    assert error in output
    rows = toy.rows()
    assert {json.dumps(row) for row in rows} <= {line.strip(" ,") for line in EXPECTED.split("\n")}
    assert [row["seed"] for row in rows[:2]] == [0, 0]  # one process: they came before
    assert len(rows) < 8
    toy.flag(flag, on=False)
    toy.computed()
    code, output = toy.run()
    assert code == 0, output
    assert toy.text() == EXPECTED
    assert toy.computed()[0] == 8 - len(rows)


def _running(process):
    """Whether a process of that id is there and is not a zombie."""
    try:
        state = Path(f"/proc/{process}/stat").read_text(encoding="utf-8").rpartition(")")[2]
    except OSError:
        return False
    return state.split()[0] != "Z"


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
def test_a_killed_run_leaves_a_valid_file_that_a_second_run_completes(toy):
    toy.flag("hang")
    process = toy.start("1", "0.3")
    try:
        until = time.monotonic() + 30
        while not toy.file.exists() or len(toy.rows()) < 2:
            assert time.monotonic() < until
            time.sleep(0.01)
        time.sleep(0.3)
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
        process.stdout.close()
    _, workers = toy.computed()
    until = time.monotonic() + 10
    while any(_running(worker) for worker in workers):  # one hangs in its task for a minute
        assert time.monotonic() < until
        time.sleep(0.1)
    assert len(toy.rows()) == 2
    toy.flag("hang", on=False)
    # a file half written by the run that was killed does not matter
    toy.file.with_suffix(".part").write_text('{"made_', encoding="utf-8")
    code, output = toy.run("2", "0.3")
    assert code == 0, output
    assert toy.text() == EXPECTED
    assert toy.computed()[0] == 6
    assert not toy.file.with_suffix(".part").exists()


# --- the stored data --------------------------------------------------------------------------


@pytest.fixture(params=SCRIPTS)
def asked(request, monkeypatch):
    """What a script asks `fill` for when it is run without arguments."""
    monkeypatch.syspath_prepend(str(DATA))
    machinery, calls = import_module("stored_rows"), []
    signature = inspect.signature(machinery.fill)
    monkeypatch.setattr(machinery, "fill", lambda *some, **more: calls.append((some, more)))
    monkeypatch.setattr(sys, "argv", [f"make_{request.param}.py"])
    runpy.run_path(str(DATA / f"make_{request.param}.py"), run_name="__main__")
    ((some, more),) = calls
    arguments = signature.bind(*some, **more).arguments
    assert arguments["path"] == DATA / f"{request.param}.json"
    assert arguments["script"] == f"make_{request.param}.py"
    return arguments


def no_number(text):
    raise AssertionError(f"{text} is no number")


def numbers(value):
    """All numbers in nested lists and dictionaries."""
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list):
        return [number for part in value for number in numbers(part)]
    return [] if value is None or isinstance(value, str) else [value]


def test_there_are_scripts():
    assert {"finite_dimension", "finite_size", "random_starts"} <= set(SCRIPTS)


def test_tasks_differ_and_name_their_entries_alike(asked):
    tasks = asked["tasks"]
    assert len({json.dumps(task) for task in tasks}) == len(tasks)
    for kind in {kind for kind, _ in tasks}:
        assert len({tuple(task) for other, task in tasks if other == kind}) == 1
    # another process finds what computes a kind by its name
    compute = asked["compute"]
    module = import_module(asked["script"].removesuffix(".py"))
    for kind in {kind for kind, _ in tasks}:
        assert callable(getattr(module, compute.args[0][kind].__name__))


def test_stored_rows_are_those_that_the_script_asks_for(asked):
    """Fails while the data are being computed."""
    tasks = asked["tasks"]
    text = asked["path"].read_text(encoding="utf-8")
    stored = json.loads(text, parse_constant=no_number)
    assert stored["made_by"] == asked["script"]
    assert stored["parameters"] == json.loads(json.dumps(asked["parameters"]))
    assert stored["versions"]["attnphase"] == attnphase.__version__
    assert set(stored["versions"]) == {"attnphase", "numpy", "scipy"}
    kinds = list(dict.fromkeys(kind for kind, _ in tasks))
    assert list(stored) == ["made_by", "parameters", "versions", *kinds]
    for kind in kinds:
        keys = [task for other, task in tasks if other == kind]
        assert [{entry: row[entry] for entry in keys[0]} for row in stored[kind]] == keys
        # the results have the same names in each row, or the reason why there are none
        assert len({tuple(row) for row in stored[kind] if not {"failed", "reason"} & set(row)}) == 1
        for row in stored[kind]:
            assert all(isfinite(number) for number in numbers(row)), row
            assert row.get("failed", "a reason")
