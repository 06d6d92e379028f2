"""A pytest plugin: nbval with a tolerance for floating-point numbers, and for nothing else.

nbval compares the stored and the recomputed output of a cell character by character. Between two
machines the last digits of a float may differ. Two texts that differ only in floats equal to a
relative 1e-6, with the same signs, count as equal here; integers, labels, signs, spaces and the
number of outputs must match exactly.
"""

import re
from copy import deepcopy

RELATIVE_TOLERANCE = 1e-6
EXPONENT = r"[eE][-+]?\d+"
NUMBER = re.compile(
    rf"(?<![\w.])([-+]?)(\d+\.\d*(?:{EXPONENT})?|\.\d+(?:{EXPONENT})?|\d+{EXPONENT})"
)
COMPARED_TEXT = ("text/plain", "text/html", "text/latex", "text/markdown")


def same_text(stored, computed):
    """Return whether two texts are equal up to the tolerance on their floats.

    A float is a number with a decimal point or an exponent.
    """
    stored_parts, computed_parts = NUMBER.split(stored), NUMBER.split(computed)
    if len(stored_parts) != len(computed_parts):
        return False
    # NUMBER has two groups, so the parts repeat: text, sign, magnitude, text, sign, magnitude, ...
    for index, (one, other) in enumerate(zip(stored_parts, computed_parts, strict=True)):
        if one == other:
            continue
        if index % 3 != 2:
            return False
        one, other = float(one), float(other)
        if abs(one - other) > RELATIVE_TOLERANCE * max(one, other):
            return False
    return True


def aligned(computed, stored):
    """Return the outputs `computed`, with the stored text where the two texts are equal.

    Both are lists of nbformat outputs, compared in order.
    """
    result = deepcopy(computed)
    for new, old in zip(result, stored, strict=False):
        if new.output_type != old.output_type:
            continue
        if new.output_type == "stream" and same_text(old.text, new.text):
            new.text = old.text
        new_data, old_data = new.get("data", {}), old.get("data", {})
        for kind in COMPARED_TEXT:
            if kind in new_data and kind in old_data and same_text(old_data[kind], new_data[kind]):
                new_data[kind] = old_data[kind]
    return result


def pytest_configure(config):
    """Wrap nbval's comparison, once, when notebooks are to be validated."""
    if not config.option.nbval:
        return
    # Built before the first notebook imports it: see tools/notebooks.py.
    import matplotlib.font_manager  # noqa: F401
    from nbval.plugin import IPyNbCell

    strict = IPyNbCell.compare_outputs
    if hasattr(strict, "tolerates_floats"):
        return

    def compare_outputs(self, test, ref, skip_compare=None):
        return strict(self, aligned(test, ref), ref, skip_compare)

    compare_outputs.tolerates_floats = True
    IPyNbCell.compare_outputs = compare_outputs
