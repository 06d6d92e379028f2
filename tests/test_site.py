"""The built site: its links and texts and, in a browser, what readers get to see.

`make html` builds it. Tests of what a check finds stand in test_site_checks.py.
"""

import functools
import threading
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import site_checks
import yaml

ROOT = Path(__file__).resolve().parent.parent
SITE = ROOT / "_build" / "html"
LIST = ROOT / "tests" / "external_links.txt"
MADE = ("404", "genindex", "prf-prf", "search")
WIDTHS = {1400: 900, 820: 1100, 390: 844}
PHONE = {"viewport": {"width": 390, "height": 844}, "is_mobile": True, "has_touch": True}
SCHEMES = ("light", "dark")
LIMIT = 1_500_000


def listed_pages():
    """Names of the pages that the table of contents and Sphinx make."""
    contents = yaml.safe_load((ROOT / "_toc.yml").read_text(encoding="utf-8"))
    files = [chapter["file"] for part in contents["parts"] for chapter in part["chapters"]]
    return [f"{name}.html" for name in (contents["root"], *files, *MADE)]


PAGES = listed_pages()
each_page = pytest.mark.parametrize("name", PAGES)


@pytest.fixture(scope="module")
def pages():
    if not SITE.is_dir():
        pytest.fail("the site is not built: make html")
    return site_checks.read_pages(SITE)


# Links and texts --------------------------------------------------------------------------------


def test_site_has_the_pages_of_the_contents_and_no_others(pages):
    assert sorted(pages) == sorted(PAGES)


def test_links_lead_somewhere(pages):
    assert site_checks.dead_links(pages, SITE) == []


def test_links_to_other_hosts_are_those_of_the_list(pages):
    lines = LIST.read_text(encoding="utf-8").splitlines()
    assert site_checks.badly_listed(lines) == []
    used = set().union(*map(site_checks.outside_links, pages.values()))
    assert sorted(used) == lines


def test_every_reference_is_cited_and_has_an_address(pages):
    text = (ROOT / "book" / "references.bib").read_text(encoding="utf-8")
    bibliography = "book/appendices/bibliography.html"
    assert site_checks.bad_references(bibliography, text, pages) == []


@pytest.mark.parametrize(
    "check",
    [
        site_checks.bad_figures,
        site_checks.bad_frame,
        site_checks.outside_loads,
        site_checks.tex_in_texts,
    ],
)
def test_pages_hold_what_they_should(pages, check):
    wrong = [complaint for name, page in pages.items() for complaint in check(name, page)]
    assert wrong == []


def test_most_chapters_have_figures(pages):
    assert sum(len(page.find_all("figure")) for page in pages.values()) > 40


# In a browser -----------------------------------------------------------------------------------


class Server(ThreadingHTTPServer):
    def handle_error(self, request, client_address):
        """A browser that closes a connection early is no error."""


class Handler(SimpleHTTPRequestHandler):
    def log_message(self, *args):
        """Print nothing."""


@pytest.fixture(scope="module")
def address():
    """Address at which the built site is served."""
    if not SITE.is_dir():
        pytest.fail("the site is not built: make html")
    server = Server(("127.0.0.1", 0), functools.partial(Handler, directory=SITE))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/"
    server.shutdown()
    server.server_close()


class Visit:
    """A page as one reader has it, what it asked for, and all that went wrong on it."""

    def __init__(self, browser, address, name, **context):
        self.address, self.wrong, self.requested = address, [], []
        self.context = browser.new_context(**context)
        self.page = self.context.new_page()
        self.page.on("pageerror", lambda error: self.wrong.append(f"script error: {error}"))
        self.page.on("console", self._hear)
        self.page.on("request", self._ask)
        self.page.on("requestfailed", lambda one: self.wrong.append(f"failed: {one.url}"))
        self.page.on("response", self._answer)
        self.page.goto(address + name)
        if context.get("java_script_enabled", True):
            self.page.evaluate("async () => { await window.MathJax?.startup?.promise; }")
            self.page.add_style_tag(content="* { transition: none !important; }")

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.context.close()

    def _hear(self, message):
        if message.type in ("error", "warning"):
            self.wrong.append(f"console: {message.text}")

    def _ask(self, request):
        if request.url.startswith(self.address):
            self.requested.append(request.url.removeprefix(self.address).partition("?")[0])
        elif not request.url.startswith(("data:", "blob:")):
            self.wrong.append(f"asks another host: {request.url}")

    def _answer(self, response):
        if response.status >= 400:
            self.wrong.append(f"{response.status}: {response.url}")

    def become(self, scheme, width=None):
        """Change colour scheme and width, and wait until the page has followed."""
        if width:
            self.page.set_viewport_size({"width": width, "height": WIDTHS[width]})
            self.page.wait_for_function("width => innerWidth === width", arg=width)
        self.page.emulate_media(color_scheme=scheme)
        self.page.wait_for_function(
            "scheme => document.documentElement.dataset.theme === scheme", arg=scheme
        )
        self.settle()

    def settle(self):
        """Wait until the page has been drawn anew."""
        self.page.evaluate(
            "() => new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))"
        )

    def look(self, width, scheme):
        """Note what is wrong with the layout."""
        found = self.page.evaluate(site_checks.LAYOUT, width)
        self.wrong += [f"{width} {scheme}: {complaint}" for complaint in found]


@pytest.fixture
def visit(browser, address):
    """Open pages as readers."""
    return functools.partial(Visit, browser, address)


@each_page
def test_page_in_the_browser(visit, name, record_property):
    with visit(name, viewport={"width": 1400, "height": 900}) as reader:
        # What a reader has got who has not scrolled yet, without the chapter's own figures.
        files = {one or "index.html" for one in reader.requested if not one.startswith("_images/")}
        raw, packed = site_checks.weight(SITE / one for one in sorted(files))
        record_property("bytes", raw)
        record_property("bytes_gzip", packed)
        assert packed < LIMIT, f"{name} weighs {packed} bytes, {raw} before compression"
        for width in WIDTHS:
            for scheme in SCHEMES:
                reader.become(scheme, width)
                reader.look(width, scheme)
        reader.wrong += reader.page.evaluate(site_checks.CONTENT)
        assert reader.wrong == []


@each_page
def test_text_can_be_read_before_scripts_run(visit, name):
    with visit(name, java_script_enabled=False, viewport={"width": 1400, "height": 900}) as reader:
        for scheme in SCHEMES:
            reader.page.emulate_media(color_scheme=scheme)
            found = reader.page.evaluate(site_checks.READABLE)
            assert found == [], scheme


# Accessibility ----------------------------------------------------------------------------------


@pytest.mark.slow
@each_page
def test_axe_finds_nothing_serious(visit, name):
    from axe_playwright_python.sync_playwright import Axe

    with visit(name, viewport={"width": 1400, "height": 900}) as reader:
        found = []
        # The contrast of every word takes the time. Width does not change it, and the scheme
        # changes nothing else.
        contrast = ["color-contrast", "link-in-text-block"]
        rest = {rule: {"enabled": False} for rule in contrast}
        for width, scheme, options in (
            (1400, "light", {}),
            (1400, "dark", {"runOnly": contrast}),
            (390, "light", {"rules": rest}),
        ):
            reader.become(scheme, width)
            options = {"resultTypes": ["violations"], **options}
            results = Axe().run(reader.page, options=options).response
            assert results["passes"]
            found += [f"{width} {scheme}: {line}" for line in site_checks.worst(results)]
        assert found == []


KEYED = (
    "index.html",
    "book/transition/alpha_l.html",
    "book/state_evolution/replicas.html",
    "book/transition/explorer.html",
    "book/appendices/glossary.html",
    "book/appendices/downloads.html",
    "search.html",
)
keyed_page = pytest.mark.parametrize("name", KEYED)


@pytest.mark.slow
@pytest.mark.parametrize("width", [1400, 390])
@keyed_page
def test_keyboard_reaches_all_that_can_be_used(visit, name, width):
    with visit(name, viewport={"width": width, "height": WIDTHS[width]}) as reader:
        reader.become("light")
        controls = reader.page.evaluate(site_checks.WATCH)
        assert controls > 5
        for _ in range(controls + 20):
            reader.page.keyboard.press("Tab")
        assert reader.page.evaluate("reached()") == []
        assert reader.wrong == []


@pytest.mark.slow
def test_wide_boxes_are_stops_of_the_keyboard_as_long_as_they_are_wide(visit):
    """A sentence with a formula wider than a phone scrolls, and says so; on a desk it does not."""
    marked = "() => document.querySelectorAll('p[data-scrolls]').length"
    unmarked = """() => [...document.querySelectorAll("article *")].filter(node =>
        node.scrollWidth > node.clientWidth + 1 && node.clientWidth && node.tabIndex !== 0 &&
        !node.closest("mjx-container > *") && node.checkVisibility({visibilityProperty: true}) &&
        ["auto", "scroll"].includes(getComputedStyle(node).overflowX)
    ).map(node => node.outerHTML.slice(0, 200))"""
    name = "book/state_evolution/replicas.html"
    with visit(name, viewport={"width": 390, "height": 844}) as reader:
        reader.become("light", 390)
        assert reader.page.evaluate(marked) > 2
        assert reader.page.evaluate(unmarked) == []
        box = reader.page.locator("[data-scrolls]").first
        assert box.get_attribute("role") == "group" and box.get_attribute("aria-label")
        box.focus()
        before = box.evaluate("node => node.scrollLeft")
        reader.page.keyboard.press("ArrowRight")
        reader.page.wait_for_function(
            "before => document.activeElement.scrollLeft > before", arg=before
        )
        reader.become("light", 1400)
        assert reader.page.evaluate(marked) == 0
        assert reader.page.evaluate(unmarked) == []
        assert reader.page.locator("article p:is([role], [aria-label])").count() == 0


@pytest.mark.slow
def test_solutions_open_by_the_keyboard(visit):
    with visit("book/transition/alpha_l.html", viewport={"width": 1400, "height": 900}) as reader:
        boxes = reader.page.locator(".solution.dropdown")
        assert boxes.count() == 3
        for k in range(boxes.count()):
            text = boxes.nth(k).locator("p:not(.admonition-title)").first
            assert not text.is_visible()
            boxes.nth(k).locator("button, summary").first.focus()
            for shown in (True, False):
                reader.page.keyboard.press("Enter")
                text.wait_for(state="visible" if shown else "hidden", timeout=3000)
        assert reader.wrong == []


@pytest.mark.slow
def test_previews_appear_on_focus(visit):
    with visit("book/transition/alpha_l.html", viewport={"width": 1400, "height": 900}) as reader:
        for link in ("a[href$='#term-sample-complexity']", "a[href$='#symbol-alpha_l']"):
            reader.page.locator("article").locator(link).first.focus()
            reader.page.wait_for_function(
                "() => document.querySelector('.tippy-box[data-state=visible]')"
                "?.innerText.length > 20"
            )
            reader.page.keyboard.press("Tab")
            reader.page.keyboard.press("Shift+Tab")
            reader.page.evaluate("() => document.activeElement.blur()")
            reader.page.wait_for_function(
                "() => !document.querySelector('.tippy-box[data-state=visible]')"
            )
        assert reader.wrong == []


@pytest.mark.slow
@pytest.mark.parametrize("side", ["primary", "secondary"])
def test_sidebars_of_a_phone_open_and_close_by_the_keyboard(visit, side):
    with visit("book/transition/alpha_l.html", **PHONE) as reader:
        sidebar = f"#pst-{side}-sidebar-modal"
        assert not reader.page.is_visible(sidebar)
        reader.page.locator(f".{side}-toggle").locator("visible=true").first.focus()
        reader.page.keyboard.press("Enter")
        reader.page.wait_for_selector(f"{sidebar}[open]", timeout=3000)
        reader.page.keyboard.press("Tab")
        inside = "side => !!document.activeElement.closest(`#pst-${side}-sidebar-modal`)"
        assert reader.page.evaluate(inside, side)
        reader.page.keyboard.press("Escape")
        reader.page.wait_for_selector(f"{sidebar}:not([open])", state="attached", timeout=3000)
        assert reader.wrong == []


@pytest.mark.slow
@pytest.mark.parametrize("width", [1400, 390])
def test_search_opens_answers_and_closes_by_the_keyboard(visit, width):
    with visit("index.html", viewport={"width": width, "height": WIDTHS[width]}) as reader:
        reader.page.locator(".search-button__button").locator("visible=true").first.focus()
        reader.page.keyboard.press("Enter")
        reader.page.wait_for_selector("#pst-search-dialog[open]", timeout=3000)
        reader.page.keyboard.press("Escape")
        closed = "#pst-search-dialog:not([open])"
        reader.page.wait_for_selector(closed, state="attached", timeout=3000)
        reader.page.keyboard.press("Control+k")
        reader.page.wait_for_selector("#pst-search-dialog[open]", timeout=3000)
        reader.page.keyboard.type("semantic")
        reader.page.keyboard.press("Enter")
        reader.page.wait_for_selector("#search-results li a", timeout=10000)
        assert reader.page.locator("#search-results li a").count() > 3
        assert reader.wrong == []
