"""Loaded by pytest for the tests and for the notebooks alike."""

pytest_plugins = ["tools.nbval_floats"]
