"""What a reader can carry away: the chapters as notebooks, a PDF, a zip of the site.

All three are made from the built site, which they are added to.

usage: python tools/carry.py notebooks   write _build/html/notebooks (and _build/launch)
       python tools/carry.py pdf         print the book to _build/html/attnphase.pdf (Chromium)
       python tools/carry.py zip         pack the site into _build/html/attnphase-site.zip

Two environment variables, each of which may be left out, change the notebooks:

ATTNPHASE_SITE        https address at which the site is published: links to its pages
ATTNPHASE_REPOSITORY  https address of the repository, on GitHub: _build/launch is written, the tree
                      for its branch `launch`, which the launch buttons lead to
"""

import argparse
import sys
import time
from pathlib import Path

# Run as a script, Python finds only what lies beside it.
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tools.carry_notebooks import write_notebooks
from tools.carry_pdf import print_pdf

ROOT = Path(__file__).resolve().parent.parent


def main(arguments=None, root=ROOT):
    """Run the command line; return the exit code."""
    commands = {"notebooks": write_notebooks, "pdf": print_pdf}
    parser = argparse.ArgumentParser(description="What a reader can carry away.")
    parser.add_argument("what", choices=commands)
    what = parser.parse_args(arguments).what
    begin = time.perf_counter()
    try:
        commands[what](root)
    except (FileNotFoundError, RuntimeError, ValueError) as error:
        print(f"{what}: {error}", file=sys.stderr)
        return 1
    print(f"{what}: made in {time.perf_counter() - begin:.1f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
