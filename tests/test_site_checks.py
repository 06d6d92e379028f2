"""The checks of the built site find the faults that they look for, each planted here."""

import pytest
import site_checks

GOOD = """<html lang="en"><head><title>A page</title>
<meta name="description" content="What this page is for."></head><body><article><h1>One</h1>
<figure id="fig">
<img src="_images/a.png" alt="Two curves cross at one, and the upper one ends there.">
<figcaption><span class="caption-text">The two curves cross only where both of them end.</span>
</figcaption></figure><a href="#fig">here</a> <a href="https://doi.org/10.1/x">there</a>
<a href="other.html#part">other</a></article></body></html>"""


def planted(old, new):
    assert GOOD.count(old) == 1
    return site_checks.parse(GOOD.replace(old, new))


@pytest.fixture
def root(tmp_path):
    for name in ("page.html", "other.html", "_images/a.png"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    return tmp_path


def dead(page, root):
    other = site_checks.parse('<p id="part"></p>')
    return site_checks.dead_links({"page.html": page, "other.html": other}, root)


def test_a_good_page_is_good(root):
    page = site_checks.parse(GOOD)
    for check in ("bad_figures", "bad_frame", "outside_loads", "tex_in_texts"):
        assert getattr(site_checks, check)("page.html", page) == []
    assert dead(page, root) == []
    assert site_checks.outside_links(page) == {"https://doi.org/10.1/x"}


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("#fig", "#gone"),
        ("other.html#part", "other.html#gone"),
        ("other.html#part", "gone.html"),
        ("other.html#part", "/gone/"),
        ("_images/a.png", "_images/b.png"),
        ('src="_images/a.png"', 'srcset="_images/a.png 1x, _images/b.png 2x"'),
    ],
)
def test_dead_links_are_found(root, old, new):
    assert len(dead(planted(old, new), root)) == 1


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('alt="Two curves cross at one, and the upper one ends there."', ""),
        ("Two curves cross at one, and the upper one ends there.", "Two curves."),
        ("upper one ends there.", "upper one ends there"),
        ("The two curves cross only where both of them end.", "Two curves of the model."),
        ('class="caption-text"', ""),
        ("figure id", "div id"),
    ],
)
def test_bad_figures_are_found(old, new):
    assert len(site_checks.bad_figures("page.html", planted(old, new))) == 1


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('lang="en"', ""),
        ("<title>A page</title>", ""),
        ('name="description"', ""),
        ("What this page is for.", ""),
        ("<h1>One</h1>", ""),
        ("<h1>One</h1>", "<h1>One</h1><h1>Two</h1>"),
        ("<h1>One</h1>", '<h1>One</h1><p id="fig"></p>'),
    ],
)
def test_a_bad_frame_is_found(old, new):
    assert len(site_checks.bad_frame("page.html", planted(old, new))) == 1


@pytest.mark.parametrize("new", ["at $x$", r"at \(x\)", r"at \alpha", "at x_{1}"])
def test_tex_is_found(new):
    for old in ("at one", "A page", "this page"):
        assert len(site_checks.tex_in_texts("page.html", planted(old, new))) == 1


def test_loads_from_another_host_are_found():
    for new in ("https://host.example/a.png", "//host.example/a.png"):
        page = planted("_images/a.png", new)
        assert len(site_checks.outside_loads("page.html", page)) == 1


def test_bad_lists_of_addresses_are_found():
    good = ["https://a.example/", "https://b.example/"]
    assert site_checks.badly_listed(good) == []
    assert site_checks.badly_listed([*good, good[1]]) and site_checks.badly_listed(good[::-1])
    for line in ("http://c.example/", "https://c/", "https://c.example/a b", "", "c.example"):
        assert len(site_checks.badly_listed([line])) == 1


def test_bad_references_are_found():
    text = "@book{one,\n  doi = {10.1/x}\n}\n"
    entry = '<div class="citation" id="id1"><a href="https://doi.org/10.1/x">x</a></div>'
    page = '<a href="list.html#id1">1</a>'

    def complaints(text=text, entry=entry, page=page):
        pages = {"list.html": site_checks.parse(entry), "page.html": site_checks.parse(page)}
        return site_checks.bad_references("list.html", text, pages)

    assert complaints() == []
    assert complaints(page="") == ["one: cited by no page"]
    assert complaints(entry=entry.replace("https", "http")) == ["one: no entry with its address"]
    assert complaints(text=f"{text}@book{{two,\n  doi = {{10.1/y}}\n}}\n") == [
        "2 works, 1 in the bibliography",
        "two: no entry with its address",
    ]


def test_weight_is_that_of_the_files(tmp_path):
    (tmp_path / "a.js").write_bytes(b"x" * 1000)
    (tmp_path / "a.woff2").write_bytes(b"x" * 1000)
    raw, packed = site_checks.weight([tmp_path / "a.js", tmp_path / "a.woff2"])
    assert raw == 2000 and 1000 < packed < 1100


# In the browser, on a page of a few lines ---------------------------------------------------------


@pytest.fixture
def sheet(browser):
    page = browser.new_page(viewport={"width": 390, "height": 844})
    yield page
    page.close()


def show(sheet, body):
    sheet.set_content(f'<html style="background: #fff"><body><main>{body}</main></body></html>')


@pytest.mark.parametrize(
    "body",
    [
        "<mjx-merror>x</mjx-merror>",
        '<p data-mjx-error="x">x</p>',
        '<span class="math">x</span>',
        r"<p>at \(x\)</p>",
        "<p>at $$x$$</p>",
        "<p>see {numref}`fig`</p>",
        '<img src="data:image/png;base64,AAAA">',
    ],
)
def test_bad_content_is_found(sheet, body):
    show(sheet, r"<p>Good, and <code>\(x\)</code> is code.</p>")
    assert sheet.evaluate(site_checks.CONTENT) == []
    show(sheet, body)
    assert len(sheet.evaluate(site_checks.CONTENT)) == 1


def test_overflow_is_found(sheet):
    wide = '<p style="width: 600px">wide</p>'
    show(sheet, f'<div style="overflow-x: auto">{wide}</div>')
    assert sheet.evaluate(site_checks.LAYOUT, 390) == []
    show(sheet, wide)
    found = sheet.evaluate(site_checks.LAYOUT, 390)
    assert any("page is" in one for one in found) and any("sticks out" in one for one in found)
    show(sheet, f'<div style="overflow-x: hidden">{wide}</div>')
    assert any(one.startswith("cut") for one in sheet.evaluate(site_checks.LAYOUT, 390))


@pytest.mark.parametrize(
    "style", ["display: none", "visibility: hidden", "opacity: 0", "color: #999"]
)
def test_text_that_nobody_can_read_is_found(sheet, style):
    show(sheet, "<p>good</p>")
    assert sheet.evaluate(site_checks.READABLE) == []
    show(sheet, f'<p>good</p><p style="{style}">bad</p>')
    assert len(sheet.evaluate(site_checks.READABLE)) == 1
    show(sheet, "")
    assert sheet.evaluate(site_checks.READABLE) == ["no text at all"]


def test_controls_without_focus_are_found(sheet):
    body = '<a href="#a">a</a><button>b</button>'
    for more, complaints in (
        ("", []),
        ('<a href="#c" tabindex="-1">c</a>', ["never focused"]),
        ('<a href="#c" style="outline: none">c</a>', ["focus does not show"]),
    ):
        show(sheet, body + more)
        sheet.evaluate(site_checks.WATCH)
        for _ in range(6):
            sheet.keyboard.press("Tab")
        found = sheet.evaluate("reached()")
        assert [one.partition(":")[0] for one in found] == complaints


def test_serious_violations_are_found(sheet):
    from axe_playwright_python.sync_playwright import Axe

    show(sheet, '<h1>Good</h1><p style="color: #999">pale</p><img src="data:,">')
    found = site_checks.worst(Axe().run(sheet).response)
    assert {one.split()[0] for one in found} >= {"color-contrast", "image-alt"}


def test_what_a_page_does_wrong_is_noted(browser, tmp_path):
    from test_site import Visit

    (tmp_path / "bad.html").write_text(
        '<script>console.warn("beware"); lost()</script><img src="http://127.0.0.2:9/a.png">',
        encoding="utf-8",
    )
    with Visit(browser, tmp_path.as_uri() + "/", "bad.html") as reader:
        text = "\n".join(reader.wrong)
    for said in ("console: beware", "script error: lost", "asks another host: http://127.0.0.2:9"):
        assert said in text
