"""The explorer: its data, what it ships, what its page claims and, in a browser, what it shows."""

import json
import math
import re
import shutil
import subprocess
import sys
from decimal import Decimal
from pathlib import Path

import numpy as np
import pytest

import attnphase
from attnphase import figures

ROOT = Path(__file__).resolve().parent.parent
EXTRA = ROOT / "book" / "_extra"
PAGE = ROOT / "book" / "transition" / "explorer.md"
ASSIGNMENT = "window.attnphaseExplorer = "
BRANCHES = ("positional", "semantic", "uninformed")
OWN = {"positional": ("m",), "semantic": ("theta",), "uninformed": ()}
PLOTLY = "4.1.1"


def read(name):
    return (EXTRA / name).read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def data():
    text = read("explorer/data.js").strip()
    assert text.startswith(ASSIGNMENT) and text.endswith(";")
    return json.loads(text.removeprefix(ASSIGNMENT).removesuffix(";"))


def base_diagram(data):
    (found,) = [
        one for one in data["diagrams"] if (one["sigma"], one["regularization"]) == (0.5, 0.01)
    ]
    return found


def winner(diagram, i, j):
    """The branch with the least train loss, or None where that cannot be called."""
    status = {name: diagram[name]["status"][i][j] for name in BRANCHES}
    losses = {b: diagram[b]["train_loss"][i][j] for b in BRANCHES if status[b] == "f"}
    if not losses:
        return None
    best = min(losses, key=losses.get)
    return None if best == "uninformed" and "u" in status.values() else best


def beats(diagram, i, j):
    best = winner(diagram, i, j)
    return best is not None and diagram[best]["test_error"][i][j] < diagram["baseline"][i]


def test_data_are_small():
    assert (EXTRA / "explorer" / "data.js").stat().st_size < 1_000_000


def test_data_have_the_shapes_that_they_promise(data):
    alphas, omegas = data["alphas"], data["omegas"]
    for grid in (alphas, omegas, data["sigmas"], data["regularizations"]):
        assert all(a < b for a, b in zip(grid, grid[1:], strict=False))
    assert {"log2_points", "replicates", "seed"} <= set(data["parameters"])
    pairs = {(s, r) for s in data["sigmas"] for r in data["regularizations"]}
    assert {(one["sigma"], one["regularization"]) for one in data["diagrams"]} == pairs
    assert len(data["diagrams"]) == len(pairs)
    for one in data["diagrams"]:
        assert len(one["baseline"]) == len(omegas)
        for name in BRANCHES:
            assert set(one[name]) == {"status", "q", *OWN[name], "train_loss", "test_error"}
            status = one[name]["status"]
            assert len(status) == len(omegas)
            assert all(re.fullmatch(f"[fau]{{{len(alphas)}}}", row) for row in status)
            for key in set(one[name]) - {"status"}:
                values = one[name][key]
                assert [len(row) for row in values] == [len(alphas)] * len(omegas)
                for letters, row in zip(status, values, strict=True):
                    found = [letter == "f" for letter in letters]
                    assert found == [value is not None for value in row]


def test_baseline_is_the_package_s(data):
    for one in data["diagrams"]:
        for omega, level in zip(data["omegas"], one["baseline"], strict=True):
            model = attnphase.Model(omega, one["sigma"], one["regularization"])
            assert level == pytest.approx(attnphase.linear_baseline(model).test_error, rel=1e-3)


def test_page_names_only_files_that_are_shipped():
    text = PAGE.read_text(encoding="utf-8")
    named = re.findall(r'(?:src|href)="([^"#][^"]*)"', text)
    assert len(named) == 4
    for name in named:
        assert name.startswith("../../"), name
        assert name.endswith("data.js") or (EXTRA / name.removeprefix("../../")).is_file(), name


@pytest.mark.parametrize("name", ["explorer.js", "explorer.css", "data.js"])
def test_explorer_asks_nobody(name):
    text = read(f"explorer/{name}")
    assert not re.search(r"https?:|[\"'(]//", text)
    assert not re.search(r"fetch\(|XMLHttpRequest|import\(|@import|url\(", text)


def test_plotly_is_shipped_with_its_licence():
    assert read("plotly/plotly-cartesian.min.js")[:80].count(f"v{PLOTLY}") == 1
    assert read("plotly/LICENSE.txt").startswith("MIT License")


def test_signs_are_those_of_the_figures():
    style, script = read("explorer/explorer.css"), read("explorer/explorer.js")
    symbols = {"o": "circle", "s": "square", "^": "triangle-up", "D": "diamond"}
    dashes = {"-": "solid", "--": "dash", ":": "dot", "-.": "dashdot"}
    light = style.partition('html[data-theme="dark"]')[0]
    for name in (*BRANCHES, "baseline"):
        assert f"--explorer-{name}: {figures.COLORS[name].lower()};" in light
        symbol, dash = symbols[figures.MARKERS[name]], dashes[figures.LINES[name]]
        assert f'{name}: {{ symbol: "{symbol}", dash: "{dash}"' in script


def test_links_of_the_page_lie_on_the_grid(data):
    links = re.findall(r'href="#alpha=([\d.]+)&amp;omega=([\d.]+)"', PAGE.read_text("utf-8"))
    assert len(links) >= 5
    for alpha, omega in links:
        assert float(alpha) in data["alphas"] and float(omega) in data["omegas"]


def test_what_to_look_for_is_there(data):
    one, alphas, omegas = base_diagram(data), data["alphas"], data["omegas"]

    def at(alpha, omega):
        return omegas.index(omega), alphas.index(alpha)

    # the switch, and the winner that is not worth its trouble
    before, after = at(1.2, 0.3), at(1.4, 0.3)
    assert winner(one, *before) == "positional" and winner(one, *after) == "semantic"
    for name, key in (("positional", "m"), ("semantic", "theta")):
        low, high = (one[name][key][i][j] for i, j in (before, after))
        assert abs(high / low - 1) < 0.15
    assert not beats(one, *after) and beats(one, *at(2.0, 0.3))
    cells = [(i, j) for i in range(len(omegas)) for j in range(len(alphas))]
    assert not any(beats(one, i, j) for i, j in cells if winner(one, i, j) == "positional")
    strips = []
    for omega in (0.1, 0.2, 0.3, 0.4):
        i = omegas.index(omega)
        strip = [
            alpha
            for j, alpha in enumerate(alphas)
            if winner(one, i, j) == "semantic" and not beats(one, i, j)
        ]
        strips.append(round(max(strip) - min(strip), 6))
    assert strips == sorted(strips) and strips[-1] > 2 * strips[0]
    assert one["baseline"] == sorted(one["baseline"], reverse=True)
    # the branch that ends
    (i, j), (_, k) = at(0.7, 0.1), at(2.0, 0.1)
    m = [value for value in one["positional"]["m"][i][j : k + 1] if value is not None]
    assert m == sorted(m, reverse=True) and m[-1] < 0.8 * m[0]
    assert one["positional"]["status"][i][k] == "a"
    assert one["positional"]["status"][omegas.index(0.3)][k] == "f"


def test_wider_tokens_and_a_weaker_ridge_leave_less_to_position(data):
    counts = {}
    for one in data["diagrams"]:
        cells = [(i, j) for i in range(len(data["omegas"])) for j in range(len(data["alphas"]))]
        won = [(i, j) for i, j in cells if winner(one, i, j) == "positional"]
        counts[one["sigma"], one["regularization"]] = len(won)
    for ridge in data["regularizations"]:
        along = [counts[sigma, ridge] for sigma in data["sigmas"]]
        assert along == sorted(along, reverse=True) and along[-1] < 0.3 * along[0]
    for sigma in data["sigmas"]:
        along = [counts[sigma, ridge] for ridge in data["regularizations"]]
        assert along == sorted(along) and along[0] < along[-1]


# In a browser ---------------------------------------------------------------------------------

ROWS = {"q": 0, "m": 1, "theta": 2, "train_loss": 3, "test_error": 4}


def in_browser(test):
    """Mark a test that builds the book and opens the page, to share one process."""
    return pytest.mark.slow(pytest.mark.xdist_group("explorer")(test))


@pytest.fixture(scope="module")
def address(tmp_path_factory):
    """File address of the page, in a copy of the repository that is built here."""
    copy = tmp_path_factory.mktemp("book") / "copy"
    skipped = shutil.ignore_patterns(".*", "_build", "*.egg-info", "__pycache__")
    shutil.copytree(ROOT, copy, ignore=skipped)
    tool = Path(sys.executable).with_name("jupyter-book")
    built = subprocess.run([tool, "build", copy], capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stderr
    return (copy / "_build" / "html" / "book" / "transition" / "explorer.html").as_uri()


class Opened:
    """The page as one reader has it, with all that went wrong on it."""

    def __init__(self, browser, address, **context):
        self.context = browser.new_context(**context)
        self.page = self.context.new_page()
        self.wrong = []
        self.page.on("pageerror", lambda error: self.wrong.append(str(error)))
        self.page.on("requestfailed", lambda request: self.wrong.append(request.url))
        self.page.on("console", self._hear)
        self.page.on("request", self._check)
        self.page.goto(address)
        self.page.wait_for_selector("#explorer-curves .main-svg")

    def _hear(self, message):
        if message.type in ("error", "warning"):
            self.wrong.append(message.text)

    def _check(self, request):
        if not request.url.startswith(("file:", "data:", "blob:")):
            self.wrong.append(request.url)

    def value(self, name):
        return float(self.page.inner_text(f"#explorer-{name}-value"))

    def readout(self):
        return self.page.inner_text("#explorer-readout")

    def number(self, key, branch):
        """What the table prints."""
        row = self.page.locator("#explorer-numbers tr").nth(1 + ROWS[key])
        return row.locator("td").nth(BRANCHES.index(branch)).inner_text()

    def press(self, control, key, times=1):
        self.page.focus(f"#explorer-{control}")
        for _ in range(times):
            self.page.keyboard.press(key)


@pytest.fixture
def opened(browser, address):
    """Open pages, and find after the test that nothing went wrong on any."""
    pages = []

    def open_page(hash="", **context):
        context = {"viewport": {"width": 1400, "height": 900}, **context}
        pages.append(Opened(browser, address + hash, **context))
        return pages[-1]

    yield open_page
    for one in pages:
        one.context.close()
        assert not one.wrong


def check_against_solve(shown, data, model, alpha, branch):
    settings = {key: data["parameters"][key] for key in ("log2_points", "replicates", "seed")}
    same = attnphase.solve(model, alpha, branch, **settings)
    fine = attnphase.solve(model, alpha, branch, log2_points=14)
    for key in ("q", *OWN[branch], "train_loss", "test_error"):
        printed = Decimal(shown.number(key, branch))
        scale = 1000 if key in ("train_loss", "test_error") else 1
        half_a_unit = float(Decimal(5).scaleb(printed.as_tuple().exponent - 1))
        allowed = max(half_a_unit * 1.01, 3 * scale * fine.standard_error[key])
        expected = scale * abs(getattr(same, key))
        assert abs(float(printed) - expected) <= allowed, (branch, key, printed, expected)


@in_browser
def test_keyboard_moves_to_what_solve_gives(opened, data):
    shown = opened()
    model = attnphase.Model(omega=0.3)
    assert shown.value("omega") == 0.3
    before, start = shown.readout(), data["alphas"].index(shown.value("alpha"))
    shown.press("alpha", "ArrowRight", times=2)
    alpha = shown.value("alpha")
    assert alpha == data["alphas"][start + 2]
    assert shown.readout() != before and f"α = {alpha:g} " in shown.readout()
    for branch in BRANCHES:
        check_against_solve(shown, data, model, alpha, branch)
    shown.press("omega", "ArrowLeft", times=4)
    omega = shown.value("omega")
    assert omega == data["omegas"][data["omegas"].index(0.3) - 4]
    model = attnphase.Model(omega=omega)
    check_against_solve(shown, data, model, alpha, "semantic")
    assert f"alpha={alpha:g}&omega={omega:g}" in shown.page.url
    # the other two, by the keyboard as well
    sigmas, ridges = data["sigmas"], data["regularizations"]
    for name, values, own in (("sigma", sigmas, 0.5), ("lambda", ridges, 0.01)):
        down = values.index(own) + 1 < len(values)
        shown.press(name, "ArrowDown" if down else "ArrowUp")
        chosen = values[values.index(own) + (1 if down else -1)] if len(values) > 1 else own
        assert f"{name}={chosen:g}" in shown.page.url


@in_browser
def test_focus_can_be_seen_and_each_control_has_a_name(opened):
    shown = opened()
    controls = shown.page.locator("#explorer-widget :is(input, select)")
    assert controls.count() == 7
    for k in range(controls.count()):
        control = controls.nth(k)
        assert control.evaluate("node => node.labels.length") == 1
        control.focus()
        shown.page.keyboard.press("Shift+Tab")
        shown.page.keyboard.press("Tab")
        assert control.evaluate("node => parseFloat(getComputedStyle(node).outlineWidth)") >= 2


@in_browser
def test_click_on_the_diagram_moves_the_sliders(opened, data):
    shown = opened("#alpha=1.3&omega=0.3")
    alpha, omega = data["alphas"][-3], data["omegas"][2]
    x, y = shown.page.evaluate(
        """([alpha, omega]) => {
            const chart = document.getElementById("explorer-diagram");
            chart.scrollIntoView({block: "center"});
            const box = chart.getBoundingClientRect();
            const {xaxis, yaxis} = chart._fullLayout;
            const x = box.x + xaxis._offset + xaxis.d2p(alpha);
            return [x, box.y + yaxis._offset + yaxis.d2p(omega)];
        }""",
        [alpha, omega],
    )
    shown.page.mouse.move(x, y)
    shown.page.mouse.click(x, y)
    shown.page.wait_for_function(
        "alpha => document.getElementById('explorer-alpha-value').textContent == alpha",
        arg=str(alpha),
    )
    assert (shown.value("alpha"), shown.value("omega")) == (alpha, omega)


@in_browser
def test_address_is_snapped_to_the_grid(opened, data):
    shown = opened("#alpha=1.234&omega=0.307&sigma=0.49")
    for name, value in (("alpha", 1.234), ("omega", 0.307)):
        nearest = min(data[f"{name}s"], key=lambda entry: abs(entry - value))
        assert shown.value(name) == nearest
    shown = opened("#alpha=nonsense&omega=1e9")
    assert shown.value("omega") == data["omegas"][-1]


@in_browser
def test_links_of_the_text_set_the_sliders(opened):
    shown = opened()
    shown.page.click('a[href="#alpha=0.7&omega=0.1"]')
    shown.page.wait_for_function(
        "() => document.getElementById('explorer-alpha-value').textContent == '0.7'"
    )
    assert (shown.value("alpha"), shown.value("omega")) == (0.7, 0.1)


@in_browser
def test_pure_functions_are_those_of_the_package(opened, data):
    shown = opened()
    pure = "attnphaseExplorer.pure"
    one, (i, j) = base_diagram(data), (data["omegas"].index(0.3), data["alphas"].index(2.0))
    sigma, model = 0.5, attnphase.Model(omega=0.3)
    for name in BRANCHES:
        q, *own = (one[name][key][i][j] for key in ("q", *OWN[name]))
        overlaps = {"q": q, "m": 0, "theta": 0} | dict(zip(OWN[name], own, strict=True))
        call = f"o => {pure}.SENTENCES.map(s => {pure}.studentFields(s, {sigma}, o))"
        fields = np.array(shown.page.evaluate(call, overlaps))
        sentences = shown.page.evaluate(f"() => {pure}.SENTENCES")
        u, v = (np.array([sentence[key] for sentence in sentences]) for key in "uv")
        noise = math.sqrt(q - (overlaps["theta"] / sigma) ** 2)
        expected = overlaps["m"] * np.array([1, -1]) + overlaps["theta"] / sigma * u + noise * v
        np.testing.assert_allclose(fields, expected, rtol=1e-12)
        for row in fields:
            S = np.array(shown.page.evaluate(f"w => {pure}.attention(w)", row.tolist()))
            np.testing.assert_allclose(S, model.attention(row[:, None, None])[..., 0], rtol=1e-12)
    call = f"() => {pure}.SENTENCES.map(s => {pure}.targetAttention(s, {sigma}, 0.3))"
    targets = np.array(shown.page.evaluate(call))
    expected = model.target(sigma * u.T[:, None, :])
    np.testing.assert_allclose(np.moveaxis(targets, 0, -1), expected, rtol=1e-12)


@in_browser
def test_matrices_do_what_the_page_says(opened):
    shown = opened("#alpha=2&omega=0.3")
    shown.page.check("#explorer-noise")
    matrices = []
    for k in range(4):
        shown.page.select_option("#explorer-sentence", str(k))
        cells = shown.page.locator("#explorer-matrices td[style]").all_inner_texts()
        matrices.append(np.array(cells, dtype=float).reshape(4, 2, 2))
    titles = shown.page.locator(".explorer-matrix > p:first-child").all_inner_texts()
    assert [re.sub(r"\W+", " ", title).strip() for title in titles] == [
        "target T",
        "semantic S wins",
        "positional S",
        "uninformed S",
    ]
    target, semantic, positional, _ = np.moveaxis(matrices, 1, 0)
    assert (positional == positional[0]).all()
    for each in (target, semantic):
        np.testing.assert_array_equal(each[1], each[0][::-1, ::-1])
    assert np.ptp(semantic[:, 0, 0]) > 0.2
    shown.page.uncheck("#explorer-noise")
    cells = shown.page.locator("#explorer-matrices td[style]").all_inner_texts()
    assert (np.array(cells, dtype=float).reshape(4, 2, 2)[2] != positional[0]).any()


@in_browser
def test_winners_of_all_cells_are_those_of_the_data(opened, data):
    shown = opened()
    grid = [[i, j] for i in range(len(data["omegas"])) for j in range(len(data["alphas"]))]
    call = """([k, grid]) => grid.map(([i, j]) => {
        const {pure, diagrams} = attnphaseExplorer;
        return [pure.winner(diagrams[k], i, j), pure.beatsBaseline(diagrams[k], i, j)];
    })"""
    for k, one in enumerate(data["diagrams"]):
        expected = [[winner(one, i, j), beats(one, i, j)] for i, j in grid]
        assert shown.page.evaluate(call, [k, grid]) == expected


@in_browser
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_phone_has_no_overflow(opened, scheme):
    shown = opened(
        viewport={"width": 390, "height": 844}, is_mobile=True, has_touch=True, color_scheme=scheme
    )
    assert shown.page.evaluate("() => document.documentElement.scrollWidth") <= 390
    for part in shown.page.locator(".explorer-wide, .explorer-chart, .explorer-matrices").all():
        box = part.bounding_box()
        assert box["x"] >= 0 and box["x"] + box["width"] <= 390
    for part in shown.page.locator(".explorer-chart, .explorer-matrices").all():
        assert part.evaluate("node => node.scrollWidth - node.clientWidth") <= 0


@in_browser
def test_dark_mode_changes_the_colours_of_the_charts(opened):
    shown = opened(color_scheme="light")
    look = """() => ["diagram", "curves"].flatMap(name => {
        const chart = document.getElementById("explorer-" + name);
        const {font, paper_bgcolor, xaxis} = chart._fullLayout;
        return [font.color, paper_bgcolor, xaxis.linecolor, chart.data[0].line?.color ?? ""];
    })"""

    def colors(theme):
        shown.page.evaluate("theme => { document.documentElement.dataset.theme = theme; }", theme)
        # two frames: the charts are drawn in the next one
        shown.page.evaluate(
            "() => new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))"
        )
        return shown.page.evaluate(look)

    light, dark = colors("light"), colors("dark")
    assert all(a != b for a, b in zip(light, dark, strict=True) if a or b)
    assert colors("light") == light
    shown.page.emulate_media(color_scheme="dark")
    assert colors("auto") == dark


@in_browser
def test_page_says_when_its_data_are_missing(browser, address):
    context = browser.new_context()
    page = context.new_page()
    page.route("**/data.js", lambda route: route.abort())
    page.goto(address)
    assert "did not load" in page.inner_text("#explorer-readout")
    assert page.is_visible("#explorer-readout") and not page.is_visible("#explorer-diagram")
    context.close()
