"""Which notebooks of the book have stale outputs, and how they are executed.

A notebook is stale when its stored outputs may not be what its code prints today. That is decided
by content alone: a SHA-256 digest, kept in the notebook's own metadata, over

* the sources of its code cells, in order (prose and cell metadata do not count),
* every ``attnphase/*.py``,
* the data files it reads, declared in its metadata as
  ``{"attnphase": {"data": ["../data/example.csv"]}}``, relative to the notebook's folder,
* the pinned versions of the package's run-time dependencies (numpy, scipy, matplotlib).

The last item is a part of ``constraints.txt`` rather than the whole of it: a new numpy can change
printed figures and a new matplotlib changes every picture (which nbval does not compare), whereas
a new linter or a new Sphinx changes no output and should not cost an hour of computing.

When a notebook was executed, and how long that took, goes into book/executions.json together with
the digest, and not into the notebook, where it would be a change although no output has changed.
The site's page on the state of the notebooks is made from it.

usage: python tools/notebooks.py status [NOTEBOOK ...]           exit code 1 if one is stale
       python tools/notebooks.py execute [--all] [NOTEBOOK ...]  exit code 1 if one raises
"""

import argparse
import datetime
import hashlib
import json
import multiprocessing
import os
import re
import sys
import time
import tomllib
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path

import nbformat
from jupyter_client.kernelspec import KernelSpecManager
from jupyter_client.manager import AsyncKernelManager
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError, CellTimeoutError, DeadKernelError

ROOT = Path(__file__).resolve().parent.parent
CELL_SECONDS = 900
WORKERS = 2
KERNEL = {"display_name": "Python 3", "language": "python", "name": "python3"}
TIMING_KEYS = ("execution", "ExecuteTime")


def chapters(root=ROOT):
    """Return the paths of the book's chapters below `root`, sorted."""
    found = (root / "book").rglob("*.ipynb")
    skipped = {".ipynb_checkpoints", "assignments"}
    return sorted(path for path in found if not skipped & set(path.relative_to(root).parts))


def problem_sets(root=ROOT):
    """Return the paths of the course's source notebooks, solutions included, sorted."""
    return sorted((root / "book" / "assignments" / "source").glob("*/*.ipynb"))


def read(path):
    """Return the notebook at `path` (nbformat 4), validated."""
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    return notebook


def data_files(path, notebook):
    """Return the data files that the notebook at `path` declares.

    Raises FileNotFoundError, naming both, if a declared file does not exist.
    """
    names = notebook.metadata.get("attnphase", {}).get("data", [])
    files = [(path.parent / name).resolve() for name in names]
    for name, file in zip(names, files, strict=True):
        if not file.is_file():
            raise FileNotFoundError(f"{path} declares the data file {name!r}, which does not exist")
    return files


def runtime_pins(root=ROOT):
    """Return the lines of constraints.txt that pin the run-time dependencies of pyproject.toml.

    Raises ValueError if one of them is not pinned.
    """
    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    names = [re.match(r"[\w.-]+", line)[0].lower() for line in project["dependencies"]]
    lines = (root / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pins = {line.partition("==")[0].strip().lower(): line.strip() for line in lines}
    missing = [name for name in names if name not in pins]
    if missing:
        raise ValueError(f"constraints.txt does not pin {', '.join(missing)}")
    return [pins[name] for name in sorted(names)]


def digest(path, notebook, root=ROOT):
    """Return the hexadecimal SHA-256 digest of all that the notebook's outputs depend on."""
    parts = [cell.source for cell in notebook.cells if cell.cell_type == "code"]
    for file in sorted((root / "attnphase").glob("*.py")):
        parts += [file.name, file.read_bytes()]
    for file in sorted(data_files(path, notebook)):
        parts += [file.name, file.read_bytes()]
    parts += runtime_pins(root)
    total = hashlib.sha256()
    for part in parts:
        content = part.encode() if isinstance(part, str) else part
        # Each part goes in by its own digest: text moved between two cells changes the total.
        total.update(hashlib.sha256(content).digest())
    return total.hexdigest()


def is_fresh(path, root=ROOT):
    """Return whether the stored digest of the notebook at `path` equals the one computed now."""
    notebook = read(path)
    stored = notebook.metadata.get("attnphase", {}).get("digest")
    return stored == digest(path, notebook, root)


def executions(root=ROOT):
    """Return the records of the last executions: path below `root` -> date, seconds, digest."""
    file = root / "book" / "executions.json"
    return json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}


def record(path, seconds, root=ROOT):
    """Store that the notebook at `path` was executed today and took `seconds`.

    The records of notebooks that do not exist any more are dropped.
    """
    kept = {name: entry for name, entry in executions(root).items() if (root / name).exists()}
    kept[path.relative_to(root).as_posix()] = {
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "seconds": round(seconds, 1),
        "digest": read(path).metadata.attnphase.digest,
    }
    file = root / "book" / "executions.json"
    unfinished = file.with_name(f".{file.name}.{os.getpid()}")
    unfinished.write_text(json.dumps(kept, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    os.replace(unfinished, file)


def merge_streams(outputs):
    """Return `outputs` with neighbours that went to the same stream joined into one."""
    merged = []
    for output in outputs:
        same = merged and output.output_type == merged[-1].output_type == "stream"
        if same and output.name == merged[-1].name:
            merged[-1].text += output.text
        else:
            merged.append(output)
    return merged


def tidy(notebook):
    """Remove from `notebook`, in place, what would change from one machine or run to the next.

    Kernel and language versions, timings and cell identifiers of chance; a cell that has an
    identifier keeps it. What a cell prints is one output, not cut where the kernel happened to
    flush it.
    """
    notebook.nbformat, notebook.nbformat_minor = 4, 5
    notebook.metadata["kernelspec"] = dict(KERNEL)
    notebook.metadata["language_info"] = {"name": "python"}
    seen = set()
    for index, cell in enumerate(notebook.cells):
        for key in TIMING_KEYS:
            cell.metadata.pop(key, None)
        if cell.cell_type == "code":
            cell.outputs = merge_streams(cell.outputs)
        if cell.get("id") in seen or "id" not in cell:
            cell["id"] = hashlib.sha256(f"{index}\n{cell.source}".encode()).hexdigest()[:8]
        seen.add(cell["id"])


def execute(path, root=ROOT):
    """Execute the notebook at `path` from the top and store its outputs and its digest.

    The kernel is the running interpreter's, whatever kernels the user has installed; the working
    directory is the notebook's folder. The file is replaced in one step, and only when every cell
    succeeded. Returns the seconds it took. Raises RuntimeError, with the traceback of the cell, if
    a cell raises, takes longer than CELL_SECONDS or kills the kernel, and if somebody edited the
    notebook meanwhile.
    """
    begin = time.perf_counter()
    before = path.read_bytes()
    notebook = read(path)
    current = digest(path, notebook, root)
    own_kernel = KernelSpecManager(kernel_dirs=[])
    client = NotebookClient(
        notebook,
        km=AsyncKernelManager(
            kernel_name=KERNEL["name"], kernel_spec_manager=own_kernel, transport_encryption="auto"
        ),
        timeout=CELL_SECONDS,
        record_timing=False,
        resources={"metadata": {"path": str(path.parent)}},
    )
    try:
        client.execute(cleanup_kc=True)
    except (CellExecutionError, CellTimeoutError, DeadKernelError) as error:
        raise RuntimeError(re.sub(r"\x1b\[[0-9;]*m", "", str(error))) from None
    tidy(notebook)
    notebook.metadata.setdefault("attnphase", {})["digest"] = current
    if path.read_bytes() != before:
        raise RuntimeError("the notebook was edited while it was executed; nothing was stored")
    unfinished = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        nbformat.write(notebook, unfinished)
        os.replace(unfinished, path)
    finally:
        unfinished.unlink(missing_ok=True)
    return time.perf_counter() - begin


def execute_all(paths, root=ROOT):
    """Execute the notebooks at `paths`, two at a time, with a line of progress for each.

    Returns the list of those that failed; the others are stored, and recorded where they lie in
    the book.
    """
    failed = []
    # Built here and not by the first cell that imports it: matplotlib announces on stderr that it
    # builds its font cache, and that line would become an output of the notebook.
    import matplotlib.font_manager  # noqa: F401

    context = multiprocessing.get_context("spawn")
    # Two notebooks share two cores: one thread each for the linear algebra, or they get in each
    # other's way and take several times as long.
    with ProcessPoolExecutor(WORKERS, context, initializer=use_one_thread) as pool:
        running = {pool.submit(execute, path, root): path for path in paths}
        for done in as_completed(running):
            path = running[done]
            try:
                seconds = done.result()
                if path.is_relative_to(root):
                    record(path, seconds, root)
                print(f"  {shown(path, root)}  {seconds:.1f} s", flush=True)
            except Exception as error:  # one bad notebook must not hide the results of the others
                failed.append(path)
                print(f"  {shown(path, root)}  FAILED\n{error}", flush=True)
    return failed


def use_one_thread():
    """Have the kernels of this process use one thread for linear algebra, unless told otherwise."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")


def shown(path, root=ROOT):
    """Return `path` as a reader would type it: relative to `root` where it lies below it."""
    return path.relative_to(root) if path.is_relative_to(root) else path


def main(arguments=None, root=ROOT):
    """Run the command line; return the exit code."""
    parser = argparse.ArgumentParser(description="Staleness and execution of the book's notebooks.")
    commands = parser.add_subparsers(dest="command", required=True)
    status = commands.add_parser("status", help="say which notebooks are stale")
    run = commands.add_parser("execute", help="execute the stale notebooks and store their outputs")
    run.add_argument("--all", action="store_true", help="execute the fresh ones too")
    for command in (status, run):
        command.add_argument("notebooks", nargs="*", type=Path, help="default: all of the book")
    options = parser.parse_args(arguments)

    paths = [path.resolve() for path in options.notebooks] or chapters(root) + problem_sets(root)
    stale = [path for path in paths if not is_fresh(path, root)]
    if options.command == "status":
        for path in paths:
            print("stale" if path in stale else "fresh", shown(path, root))
        return 1 if stale else 0

    todo = paths if options.all else stale
    print(f"notebooks to execute: {len(todo)} of {len(paths)}", flush=True)
    failed = execute_all(todo, root) if todo else []
    if failed:
        print("failed:", *(shown(path, root) for path in failed))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
