"""Long runs whose rows are kept in a JSON file: resumable, parallel, with a progress bar.

A file holds a head (what made it: script, parameters, versions) and lists of rows, by kind; a row
is the task that asked for it, such as a seed, and the results. What the scripts of this folder
have in common; each keeps its own parameters and what it computes.
"""

import argparse
import json
import multiprocessing
import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from functools import partial
from itertools import islice
from pathlib import Path

import numpy as np
import scipy
from tqdm import tqdm

import attnphase

#: Seconds between two writings of the file.
WRITE_EVERY = 1.0
POINT = ("q", "m", "V", "theta", "train_loss", "test_error")
RESULTS = ("q", "m", "theta", "train_loss", "test_error", "gradient", "iterations")


def measured(trained: attnphase.Trained) -> dict:
    """What a row tells of a trained layer of rank one."""
    return {name: getattr(trained, name) for name in RESULTS}


def fixed_point(point: attnphase.FixedPoint) -> dict:
    """What a row tells of a fixed point of state evolution."""
    errors = {name: point.standard_error[name] for name in POINT}
    return {name: getattr(point, name) for name in POINT} | {"standard_error": errors}


def main(
    script: str,
    about: str,
    parameters: dict,
    tasks: list[tuple[str, dict]],
    kinds: dict[str, Callable[..., dict]],
    processes: int = 2,
    fresh_process: bool = False,
) -> None:
    """Run a script, ``__file__`` with its docstring: fill its file, or the one that is asked for.

    kinds: for each kind of rows, the function from the entries of a task to its results.
    """
    path = Path(script)
    default = path.with_name(path.stem.removeprefix("make_") + ".json")
    parser = argparse.ArgumentParser(description=about.split("\n")[0])
    parser.add_argument("--output", type=Path, default=default)
    parser.add_argument("--processes", type=int, default=processes)
    options = parser.parse_args()
    compute = partial(_dispatch, kinds)
    fill(options.output, path.name, parameters, tasks, compute, options.processes, fresh_process)


def _dispatch(kinds: dict[str, Callable[..., dict]], kind: str, task: dict) -> dict:
    return kinds[kind](**task)


def fill(
    path: Path,
    script: str,
    parameters: dict,
    tasks: list[tuple[str, dict]],
    compute: Callable[[str, dict], dict],
    processes: int,
    fresh_process: bool = False,
) -> None:
    """Compute the rows that ``path`` does not have yet, and write it anew as they come.

    script: the name of the file that asks. tasks: the kind of a row, and the entries that tell it
    from others of its kind, in the order of the file. compute: from such a task to the results; a
    ConvergenceError becomes the entry "failed" of the row. fresh_process: whether each task gets a
    process of its own. A failed row is not tried again. A file made with other parameters or
    versions is left alone, with an error.
    """
    head = {
        "made_by": script,
        "parameters": parameters,
        "versions": {
            "attnphase": attnphase.__version__,
            "numpy": np.__version__,
            "scipy": scipy.__version__,
        },
    }
    head = json.loads(json.dumps(head))  # tuples compare equal to what the file holds
    wanted = {_name(kind, task): (kind, task) for kind, task in tasks}
    kinds = {kind: tuple(task) for kind, task in tasks}
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        stored = json.loads(path.read_text(encoding="utf-8")) if path.exists() else head
    except json.JSONDecodeError as error:
        raise SystemExit(f"{path} is not a JSON file, move it away: {error}") from error
    if any(stored.get(name) != value for name, value in head.items()):
        raise SystemExit(f"{path} was made with other parameters or versions: move it away")
    if strangers := stored.keys() - head.keys() - kinds.keys():
        raise SystemExit(f"{path} has rows that were not asked for: {sorted(strangers)}")
    rows = {}
    for kind, entries in kinds.items():
        for row in stored.get(kind, []):
            name = _name(kind, {entry: row[entry] for entry in entries})
            if name not in wanted:
                raise SystemExit(f"{path} has a row that was not asked for: {name}")
            rows[name] = row
    missing = [name for name in wanted if name not in rows]
    os.environ["OMP_NUM_THREADS"] = os.environ["OPENBLAS_NUM_THREADS"] = "1"  # of the workers
    # a pool of concurrent.futures notices a process that was killed
    pool = ProcessPoolExecutor(
        processes,
        mp_context=multiprocessing.get_context("spawn"),
        initializer=_end_with_parent,
        max_tasks_per_child=1 if fresh_process else None,
    )

    def write() -> None:
        order = [name for name in wanted if name in rows]
        some = {kind: [rows[n] for n in order if wanted[n][0] == kind] for kind in kinds}
        _write(path, head, some)

    with pool, tqdm(total=len(wanted), initial=len(rows), desc=path.name) as bar:
        ahead, running, written, stale = iter(missing), {}, time.monotonic(), False
        try:
            while True:
                for name in islice(ahead, 4 * processes - len(running)):
                    running[pool.submit(_row, compute, *wanted[name])] = name
                if not running:
                    break
                done = wait(running, WRITE_EVERY, FIRST_COMPLETED).done
                for future in sorted(done, key=_failed):
                    rows[running[future]] = future.result()
                    del running[future]
                    bar.update()
                    stale = True
                if stale and time.monotonic() > written + WRITE_EVERY:
                    write()
                    written, stale = time.monotonic(), False
        except BaseException:
            pool.shutdown(cancel_futures=True)  # waits for the tasks that have begun
            done = [future for future in running if not _failed(future)]
            rows |= {running[future]: future.result() for future in done}
            stale |= bool(done)
            raise
        finally:
            if stale:
                write()


def _failed(future: Future) -> bool:
    return future.cancelled() or not future.done() or future.exception() is not None


def _end_with_parent() -> None:
    """In a worker: end it when the process that asked for it has been killed."""
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1.0)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def _name(kind: str, task: dict) -> str:
    return json.dumps([kind, task])


def _row(compute: Callable[[str, dict], dict], kind: str, task: dict) -> dict:
    try:
        return task | compute(kind, task)
    except attnphase.ConvergenceError as error:
        return task | {"failed": str(error)}


def _write(path: Path, head: dict, rows: dict[str, list[dict]]) -> None:
    """One line a row; the file is replaced in one step."""
    parts = [json.dumps(head, indent=1)[:-2]]
    for kind, some in rows.items():
        lines = ",\n".join("  " + json.dumps(row, allow_nan=False) for row in some)
        parts.append(f' "{kind}": [\n{lines}\n ]')
    partial = path.with_suffix(".part")
    partial.write_text(",\n".join(parts) + "\n}\n", encoding="utf-8")
    os.replace(partial, path)
