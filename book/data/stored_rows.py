"""Long runs whose rows are kept in a JSON file: resumable, parallel, with a progress bar.

A file holds a head (what made it: script, parameters, versions) and lists of rows, by kind; a row
is the task that asked for it, such as a seed, and the results. What the scripts of this folder
have in common; each keeps its own parameters and what it computes.
"""

import json
import multiprocessing
import os
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path

import numpy as np
import scipy
from tqdm import tqdm

import attnphase

RESULTS = ("q", "m", "theta", "train_loss", "test_error", "gradient", "iterations")


def measured(trained: attnphase.Trained) -> dict:
    """What a row tells of a trained layer of rank one."""
    return {name: getattr(trained, name) for name in RESULTS}


def fill(
    path: Path,
    script: str,
    parameters: dict,
    tasks: list[tuple[str, dict]],
    compute: Callable[[str, dict], dict],
    processes: int,
    fresh_process: bool = False,
) -> None:
    """Compute the rows that ``path`` does not have yet, and write it anew after each.

    script: the name of the file that asks. tasks: the kind of a row, and the entries that tell it
    from others of its kind, in the order of the file. compute: from such a task to the results; a
    ConvergenceError becomes the entry "failed" of the row. fresh_process: whether each task gets a
    process of its own.
    A file made with other parameters or versions is left alone, with an error.
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
    kinds = list(dict.fromkeys(kind for kind, _ in tasks))
    order = {_name(kind, task): number for number, (kind, task) in enumerate(tasks)}
    stored = json.loads(path.read_text(encoding="utf-8")) if path.exists() else head
    if any(stored.get(name) != value for name, value in head.items()):
        raise SystemExit(f"{path} was made with other parameters or versions: move it away")
    names = {kind: tuple(task) for kind, task in tasks}
    rows = {
        _name(kind, {name: row[name] for name in names[kind]}): row
        for kind in kinds
        for row in stored.get(kind, [])
    }
    if strangers := rows.keys() - order.keys():
        raise SystemExit(f"{path} has rows that were not asked for: {sorted(strangers)[:3]}")
    missing = [(kind, task) for kind, task in tasks if _name(kind, task) not in rows]
    os.environ["OMP_NUM_THREADS"] = os.environ["OPENBLAS_NUM_THREADS"] = "1"  # of the workers
    # a pool of concurrent.futures notices a process that was killed
    pool = ProcessPoolExecutor(
        processes,
        mp_context=multiprocessing.get_context("spawn"),
        max_tasks_per_child=1 if fresh_process else None,
    )
    with pool, tqdm(total=len(tasks), initial=len(rows), desc=path.name) as bar:
        running = {pool.submit(_row, compute, kind, task): kind for kind, task in missing}
        try:
            for future in as_completed(running):
                kind, row = running[future], future.result()
                rows[_name(kind, {name: row[name] for name in names[kind]})] = row
                _write(path, head, {k: _sorted(rows, k, order) for k in kinds})
                bar.update()
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise


def _name(kind: str, task: dict) -> str:
    return json.dumps([kind, task])


def _row(compute: Callable[[str, dict], dict], kind: str, task: dict) -> dict:
    try:
        return task | compute(kind, task)
    except attnphase.ConvergenceError as error:
        return task | {"failed": str(error)}


def _sorted(rows: dict[str, dict], kind: str, order: dict[str, int]) -> list[dict]:
    mine = [name for name in rows if json.loads(name)[0] == kind]
    return [rows[name] for name in sorted(mine, key=order.__getitem__)]


def _write(path: Path, head: dict, rows: dict[str, list[dict]]) -> None:
    """One line a row; the file is replaced in one step."""
    parts = [json.dumps(head, indent=1)[:-2]]
    for kind, some in rows.items():
        lines = ",\n".join("  " + json.dumps(row) for row in some)
        parts.append(f' "{kind}": [\n{lines}\n ]')
    partial = path.with_suffix(".part")
    partial.write_text(",\n".join(parts) + "\n}\n", encoding="utf-8")
    os.replace(partial, path)
