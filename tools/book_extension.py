"""Sphinx extension of this book."""


def setup(app):
    """Register the hooks."""
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
