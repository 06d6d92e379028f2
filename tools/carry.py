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
import re
import sys
import time
from pathlib import Path

# Run as a script, Python finds only what lies beside it.
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tools.carry_notebooks import write_notebooks, write_zip
from tools.carry_pdf import print_pdf

ROOT = Path(__file__).resolve().parent.parent
SITE_ZIP = "attnphase-site.zip"


def zip_site(root):
    """Write _build/html/attnphase-site.zip, which holds the site but for itself.

    Where a page offers the zip, the copy in it has plain text. Source maps, which serve only who
    works on the scripts, are left out. Raises FileNotFoundError if the site is not built.
    """
    site = root / "_build" / "html"
    if not (site / "index.html").is_file():
        raise FileNotFoundError(f"no built pages in {site}: run `make html` first")
    link = re.compile(rf'<a [^>]*href="[^"]*{re.escape(SITE_ZIP)}"[^>]*>(.*?)</a>', re.DOTALL)
    members = {}
    for path in site.rglob("*"):
        if not path.is_file() or path.suffix == ".map" or path == site / SITE_ZIP:
            continue
        content = path
        if path.suffix == ".html":
            content = link.sub(r"\1", path.read_text(encoding="utf-8"))
        members[f"attnphase-site/{path.relative_to(site).as_posix()}"] = content
    write_zip(site / SITE_ZIP, members)


def main(arguments=None, root=ROOT):
    """Run the command line; return the exit code."""
    commands = {"notebooks": write_notebooks, "pdf": print_pdf, "zip": zip_site}
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
