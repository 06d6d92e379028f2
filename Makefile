# The two commands that matter are `make book` and `make test`; `make help` lists the others.
# All of them need only python3 (3.11 or newer, with venv) and make.

PYTHON = python3
PORT = 8000
EXECUTE = stale
CONSTRAINTS = constraints.txt

BIN = .venv/bin
READY = .venv/ready
# Looked up where it is used, since `make browser` may have installed it.
CHROMIUM = $(shell command -v chromium || command -v chromium-browser || command -v google-chrome)
export PIP_DISABLE_PIP_VERSION_CHECK = 1

.DEFAULT_GOAL := help
.PHONY: help book browser course html site test test-site test-slow serve execute bench clean

help:
	@echo 'make book       execute the notebooks whose stored outputs are stale, and build the book'
	@echo '                (EXECUTE=all executes every notebook)'
	@echo 'make site       the same with the book as a PDF and the site as a zip (needs Chromium)'
	@echo 'make course     build the problem sets: a course directory, and what students download'
	@echo 'make test       lint, build, unit tests, and every notebook against its stored outputs'
	@echo 'make test-site  the tests of the built pages alone, in Chromium where there is one'
	@echo 'make test-slow  the tests that take long'
	@echo 'make serve      build, then serve the book on this machine (PORT=8000)'
	@echo 'make execute    execute every notebook and store its outputs'
	@echo 'make bench      time solver, diagram, training (3.3 GB): tables, and _build/bench.json'
	@echo 'make clean      remove what these commands made: .venv, _build and caches'
	@echo
	@echo 'Each command first sets up .venv if need be; PYTHON=python3.12 chooses the interpreter.'

# The stamp is older than either file only if the environment must be brought up to date.
$(READY): constraints.txt pyproject.toml
	@command -v $(PYTHON) >/dev/null || { echo '$(PYTHON) was not found: install Python 3.11 or newer' >&2; exit 1; }
	@$(PYTHON) tools/check_python.py
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet $(if $(CONSTRAINTS),-c $(CONSTRAINTS)) -e '.[book,test,browser,course]'
	@touch $@

book: $(READY)
	$(BIN)/python tools/notebooks.py execute $(if $(filter all,$(EXECUTE)),--all)
	@$(MAKE) --no-print-directory html
	@echo 'The book is built. Open this page: file://$(CURDIR)/_build/html/index.html'

# The students' versions of the problem sets; the site offers them for download.
course: $(READY)
	@$(BIN)/python tools/course.py build

# --all: a page that gave a warning once would otherwise be skipped, silently, by the next build.
# Then what the site offers for download: each chapter as a notebook, with the numbers that equations
# and figures have on the site, and the package itself.
html: $(READY) course
	@rm -f _build/html/attnphase.pdf _build/html/attnphase-site.zip
	$(BIN)/jupyter-book build . --all -W --keep-going -n
	@$(BIN)/python tools/carry.py notebooks

# The whole site, as it is published: with the PDF and the zip that its page of downloads then offers.
site: export ATTNPHASE_CARRIED = 1
site: $(READY) browser
	@$(MAKE) --no-print-directory html
	$(BIN)/python tools/carry.py pdf
	$(BIN)/python tools/carry.py zip

# Two processes share two cores: one thread each for the linear algebra.
test test-slow: export OMP_NUM_THREADS = 1

test: $(READY)
	$(BIN)/ruff check .
	@$(MAKE) --no-print-directory html
	$(BIN)/python -m pytest -m 'not slow' --nbval --nbval-current-env -n 2 --dist loadscope tests book

test-site: $(READY) html
	$(BIN)/python -m pytest -m 'not slow' -rs -n 2 tests/test_site.py

# The tests of the pages drive a Chromium. Where packages may be installed, as on CI, it is got.
browser:
	@test -n '$(CHROMIUM)' || \
	  { test "$$(id -u)" = 0 && command -v apt-get >/dev/null && apt-get update -qq && \
	    apt-get install -y -qq --no-install-recommends chromium >/dev/null; } || \
	  echo 'no Chromium: the tests in a browser are skipped' >&2

# With a Chromium, of the whole site. pytest ends with code 5 when no test carries the marker.
test-slow: $(READY) browser
	@$(MAKE) --no-print-directory $(if $(CHROMIUM),site,html)
	$(BIN)/python -m pytest -m slow -rs -n 2 --dist loadgroup tests || test $$? -eq 5

serve: book
	@echo 'Serving on http://localhost:$(PORT)/ until interrupted'
	@$(BIN)/python -m http.server $(PORT) --bind 127.0.0.1 --directory _build/html

execute: $(READY)
	$(BIN)/python tools/notebooks.py execute --all

bench: $(READY)
	$(BIN)/python tools/bench.py

clean:
	rm -rf .venv _build .pytest_cache .ruff_cache attnphase.egg-info
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
