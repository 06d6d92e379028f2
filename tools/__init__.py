"""Scripts of this repository, run by the Makefile; not part of the package."""
