"""What the course's problem sets check answers with: strict types, clear messages, forbidden parts.

An answer is first turned into plain floats, and only from the plain types of Python and numpy, so
that an object which claims to be equal to everything is refused, and then compared. Each function
raises AssertionError with a message for the student: which answer, its value, and what is wrong
with it. In a hidden check, ``reveal=False`` keeps the right value out of the message.

An assignment to one of the module's names raises, so that none is replaced by accident.
"""

import inspect
import math
import sys
import threading
import types
from contextlib import contextmanager
from copy import deepcopy
from importlib import import_module

import numpy as np

_NUMBERS = (int, float, *(np.dtype(code).type for code in np.typecodes["AllInteger"] + "efd"))
_SHOWN = 60
_set_profile = sys.setprofile


def _show(value):
    """Return a short representation of `value`, whatever its __repr__ does."""
    try:
        text = repr(value)
    except Exception:
        text = f"<{type(value).__name__}>"
    text = " ".join(text.split())
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."


def _fail(message, hint):
    raise AssertionError(f"{message}. {hint}" if hint else message)


def call(function, *arguments, **options):
    """Return ``function(*arguments, **options)``, the answer of a student's function.

    The function gets copies, so that it cannot change what the check compares with. Raises
    AssertionError if it is not a function, is not written yet (NotImplementedError), returns
    None, or changes an array that it was given. Other exceptions pass: they tell the student more.
    """
    if not callable(function):
        _fail(f"a function is expected here, not {_show(function)}", "")
    name = getattr(function, "__name__", "")
    name = name if type(name) is str and name else _show(function)
    given = deepcopy((arguments, options))
    try:
        answer = function(*given[0], **given[1])
    except NotImplementedError:
        answer = NotImplementedError
    # Raised here, not above: a traceback of two exceptions would hide the message.
    if answer is NotImplementedError:
        message = f"`{name}` is not written yet"
        _fail(message, "Fill in its cell, run that cell, then run this one again")
    if answer is None:
        _fail(f"`{name}` returned None", "Does it end with `return`?")
    before = [*arguments, *options.values()]
    after = [*given[0], *given[1].values()]
    for old, new in zip(before, after, strict=True):
        if type(old) is np.ndarray and not np.array_equal(old, new, equal_nan=True):
            _fail(f"`{name}` changes the array it is given", "Work on a copy")
    return answer


def number(name, value, hint=""):
    """Return the answer `value`, called `name`, as a finite float.

    Accepted are Python's and numpy's own real numbers and numpy arrays without axes; anything
    else, bools and subclasses among them, raises AssertionError. A `hint` is added to the message
    where the number is not finite.
    """
    if value is None:
        _fail(f"`{name}` is None: it has no answer yet", "")
    if type(value) is np.ndarray and value.shape == () and value.dtype.kind in "fi":
        value = value[()]
    if type(value) not in _NUMBERS:
        _fail(f"`{name}` must be one real number, not {_show(value)} ({type(value).__name__})", "")
    if not math.isfinite(value):
        _fail(f"`{name}` must be finite, not {_show(value)}", hint)
    return float(value)


def array(name, value, shape, hint=""):
    """Return the answer `value`, called `name`, as a new array of floats of the given shape.

    Accepted are numpy arrays of real numbers, and lists and tuples of what `number` accepts.
    Raises AssertionError for other types, another shape, and entries that are not finite; in the
    last two cases a `hint` is added to the message.
    """
    if value is None:
        _fail(f"`{name}` is None: it has no answer yet", "")
    if type(value) in (list, tuple):
        value = _nested(name, value, hint)
    elif type(value) in _NUMBERS:
        value = np.array(value)
    if type(value) is not np.ndarray or value.dtype.kind not in "fi":
        kind = type(value).__name__
        _fail(f"`{name}` must be an array of real numbers, not {_show(value)} ({kind})", "")
    if value.shape != tuple(shape):
        _fail(f"`{name}` must have shape {tuple(shape)}, not {value.shape}", hint)
    if not np.isfinite(value).all():
        _fail(f"`{name}` must be finite, but {np.sum(~np.isfinite(value))} entries are not", hint)
    return value.astype(float)


def _nested(name, value, hint):
    """Return nested lists or tuples of plain numbers and arrays as one array."""
    for entry in value:
        if type(entry) in (list, tuple):
            _nested(name, entry, hint)
        elif type(entry) is not np.ndarray:
            number(name, entry, hint)
    try:
        return np.array(value)
    except ValueError:
        _fail(f"the rows of `{name}` have different lengths", "")


def close(name, value, expected, tolerance, hint="", reveal=True, up_to_sign=False):
    """Raise AssertionError unless `value`, a number or an array, is `expected` within `tolerance`.

    Parameters
    ----------
    name : str
        What the message calls the answer.
    value : number or array
        The answer; an array must have the shape of `expected`.
    expected : number or array
        The right value. An array is compared entry by entry.
    tolerance : float
        Largest absolute deviation, the same for all entries.
    hint : str
        A sentence for the student, added to the message.
    reveal : bool
        Whether the message tells the right value and that of the answer; False in hidden checks.
    up_to_sign : bool
        Whether ``-value`` is as good as `value` (a whole array changes its sign together).
    """
    target = np.array(expected, dtype=float)
    if target.shape:
        answer = array(name, value, target.shape, hint)
    else:
        answer = np.array(number(name, value, hint))
    signs = (1, -1) if up_to_sign else (1,)
    deviations = min((np.abs(sign * answer - target) for sign in signs), key=np.max)
    if np.max(deviations) <= tolerance:
        return
    if not reveal:
        message = f"`{name}` is wrong for other parameters than those above (a hidden check)"
    else:
        worst = np.unravel_index(np.argmax(deviations), target.shape)
        place = f"[{', '.join(map(str, worst))}]" if worst else ""
        sign = " up to its sign" if up_to_sign else ""
        message = f"`{name}`{place} is {answer[worst]:.6g}, not {target[worst]:.6g}{sign}"
        message += f" within {tolerance:.3g}"
    _fail(message, hint)


def estimate(name, value, error, expected, expected_error, largest_error, hint="", reveal=True):
    """Check the estimate `value` with the standard error `error` that the student states for it.

    The stated error must be positive and at most `largest_error`, which the question asks for.
    The estimate may deviate from `expected` by three standard errors: of `expected_error` and of
    the error that was asked for, added in squares. It is not held to a smaller error of its own,
    since an error estimated from few runs is uncertain itself.
    """
    error = number(f"the standard error of {name}", error)
    if not 0 < error <= largest_error:
        message = f"the standard error of `{name}` is {error:.2g}"
        _fail(message, f"It must be positive and at most {largest_error:.2g}")
    tolerance = 3 * math.hypot(largest_error, expected_error)
    close(name, value, expected, tolerance, hint, reveal)


def _code(name):
    """Return (file of a module or None, code of a function or None) for a dotted name."""
    try:
        return import_module(name).__file__, None
    except ModuleNotFoundError:
        module, _, attribute = name.rpartition(".")
        owner = import_module(module) if module in sys.modules else _resolve(module)
        return None, inspect.unwrap(getattr(owner, attribute)).__code__


def _resolve(name):
    """Return the object, such as a class, that a dotted name stands for."""
    module, _, attribute = name.rpartition(".")
    return getattr(import_module(module), attribute)


@contextmanager
def forbid(*names):
    """Raise AssertionError if code of one of `names` runs inside the ``with`` block.

    A name is that of a module (``"attnphase.proximal"``), of a function
    (``"attnphase.solver.solve"``) or of a method (``"attnphase.model.Model.attention"``). It does
    not matter under which name, in which thread, or through which other function the code is
    reached; an answer that catches the exception fails at the end of the block. Code that runs in
    another process, and a copy of its source, are not noticed. Python's profiler is used for it:
    it must be free, and an answer in pure Python runs a few times slower.
    """
    files, codes = {}, {}
    for name in names:
        file, code = _code(name)
        if file is not None:
            files[file] = name
        else:
            codes[code.co_name] = (code, name)
    used, finished = [], False

    def watch(frame, event, called):
        if event == "call":
            code = frame.f_code
            name = files.get(code.co_filename)
            if name is None and code.co_name in codes and codes[code.co_name][0] == code:
                name = codes[code.co_name][1]
            if name is not None:
                used.append(f"this question is to be solved without `{name}`, which was used")
                raise AssertionError(used[-1])
        elif event == "c_call" and called is _set_profile and not finished:
            used.append("an answer must leave Python's profiler alone")

    before, before_in_threads = sys.getprofile(), threading.getprofile()
    threading.setprofile(watch)
    _set_profile(watch)
    try:
        yield
    finally:
        finished = True
        _set_profile(before)
        threading.setprofile(before_in_threads)
    if used:
        raise AssertionError(used[0])


class _Fixed(types.ModuleType):
    """A module whose names cannot be assigned to."""

    def __setattr__(self, name, *_):
        raise AttributeError(f"attnphase.checks cannot be changed ({name!r})")

    __delattr__ = __setattr__


sys.modules[__name__].__class__ = _Fixed
