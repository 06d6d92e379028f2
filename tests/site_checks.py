"""What is looked for in the built pages. Each check returns complaints: a list, empty if none."""

import gzip
import re
from pathlib import Path
from urllib.parse import unquote, urljoin, urlsplit

from bs4 import BeautifulSoup

HERE = "https://site.invalid/"
# The explorer reads its state from what follows the hash: no anchor (see test_explorer.py).
STATE = re.compile(r"(alpha|omega|sigma|lambda)=[\d.]+(&(alpha|omega|sigma|lambda)=[\d.]+)*")
SENTENCE = re.compile(r"(?:^|(?<=[.!?] ))[A-Z0-9].*?[.!?](?=\s|$)", re.DOTALL)
TEX = re.compile(r"\$|\\[a-zA-Z(\[{]|[_^]\{")
TEXT_TYPES = {".html", ".css", ".js", ".svg", ".json", ".txt", ".xml"}


def read_pages(root):
    """Return the pages below `root`, name -> parsed page; the theme's own templates are none."""
    paths = [path for path in sorted(root.rglob("*.html")) if "_static" not in path.parts]
    return {
        path.relative_to(root).as_posix(): parse(path.read_text(encoding="utf-8"))
        for path in paths
    }


def parse(text):
    """Return HTML as BeautifulSoup has it."""
    return BeautifulSoup(text, "html.parser")


# Links ----------------------------------------------------------------------------------------


def addresses(page):
    """Return all addresses that a page leads to or loads, each with the name of its element."""
    found = []
    for attribute in ("href", "src", "action", "data", "poster"):
        found += [(tag.name, tag[attribute]) for tag in page.find_all(**{attribute: True})]
    for tag in page.find_all(srcset=True):
        found += [(tag.name, part.split()[0]) for part in tag["srcset"].split(",")]
    return found


def is_outside(address):
    """Return whether an address names a scheme or a host."""
    parts = urlsplit(address)
    return bool(parts.scheme or parts.netloc)


def dead_links(pages, root):
    """Complain of addresses that lead to no file or anchor of the site below `root`."""
    anchors = {
        name: {tag["id"] for tag in page.find_all(id=True)} for name, page in pages.items()
    }
    return [
        complaint
        for name, page in pages.items()
        for complaint in dead_links_of(name, page, anchors, root)
    ]


def dead_links_of(name, page, anchors, root):
    """Complain of the dead links of one page; `anchors` holds the identifiers of each page."""
    wrong = []
    for tag, address in addresses(page):
        if is_outside(address):
            continue
        parts = urlsplit(urljoin(HERE + name, address))
        target = unquote(parts.path).lstrip("/")
        if target == "" or target.endswith("/"):
            target += "index.html"
        fragment = unquote(parts.fragment)
        if not (root / target).is_file():
            wrong.append(f"{name}: <{tag}> leads to no file: {address}")
        elif target.endswith("/explorer.html") and STATE.fullmatch(fragment):
            continue
        elif fragment and fragment not in anchors.get(target, ()):
            wrong.append(f"{name}: <{tag}> leads to no anchor: {address}")
    return wrong


def outside_links(page):
    """Return the addresses on other hosts that a reader may follow."""
    return {address for tag, address in addresses(page) if tag == "a" and is_outside(address)}


def outside_loads(name, page):
    """Complain of what a page would load from another host."""
    return [
        f"{name}: <{tag}> loads {address}"
        for tag, address in addresses(page)
        if tag != "a" and is_outside(address) and not address.startswith("data:")
    ]


def badly_listed(lines):
    """Complain of lines of the list of outside addresses."""
    wrong = [f"twice: {line}" for line in sorted({x for x in lines if lines.count(x) > 1})]
    if list(lines) != sorted(lines):
        wrong.append("the list is not sorted")
    for line in lines:
        parts = urlsplit(line)
        host = re.fullmatch(r"([a-z0-9-]+\.)+[a-z]{2,}", parts.netloc)
        if parts.scheme != "https" or not host or re.search(r"[^!-~]|[<>\"\\]", line):
            wrong.append(f"no well-formed https address: {line!r}")
    return wrong


# Texts ----------------------------------------------------------------------------------------


def sentences(text):
    """Return the sentences of a text: each begins with a capital or a digit, and ends."""
    return SENTENCE.findall(" ".join(text.split()))


def bad_figures(name, page):
    """Complain of pictures without a figure, an alternative text or a caption that says something.

    The alternative text holds a sentence of eight words, and so does the caption, beside formulas.
    Whether it states a conclusion is for readers to judge; a bare noun phrase is mostly shorter.
    """
    wrong = []
    for image in (page.find("main") or page).find_all("img"):
        where = f"{name}: {Path(image.get('src', '')).name[:12]}"
        figure = image.find_parent("figure")
        if figure is None:
            wrong.append(f"{where}: a picture outside of a figure")
            continue
        where = f"{name}: {figure.get('id')}"
        alt = " ".join(image.get("alt", "").split())
        if not says_something(alt):
            wrong.append(f"{where}: alternative text without a sentence: {alt!r}")
        caption = figure.find(class_="caption-text")
        text = plain_text(caption) if caption else ""
        if not says_something(text):
            wrong.append(f"{where}: caption without a sentence: {text!r}")
    return wrong


def says_something(text):
    """Return whether one sentence of a text has eight words, and the text ends with a period."""
    enough = any(len(re.findall(r"[^\W_]+", one)) >= 8 for one in sentences(text))
    return enough and text.rstrip().endswith(".")


def plain_text(node):
    """Return the text of an element, with one word in the place of each formula."""
    copy = parse(str(node))
    for formula in copy.find_all(class_="math"):
        formula.replace_with("Formula")
    return " ".join(copy.get_text().split())


def tex_in_texts(name, page):
    """Complain of TeX where nothing typesets it: alternative texts, title, descriptions."""
    texts = [("alt", image["alt"]) for image in page.find_all("img", alt=True)]
    texts += [("title", page.title.get_text())] if page.title else []
    for meta in page.find_all("meta", content=True):
        if meta.get("name") == "description" or meta.get("property", "").startswith("og:"):
            texts.append((meta.get("name") or meta["property"], meta["content"]))
    return [f"{name}: TeX in {what}: {text!r}" for what, text in texts if TEX.search(text)]


def bad_frame(name, page):
    """Complain of a page without language, title, description or with other than one heading.

    The theme repeats the heading for print; on a screen it is not there.
    """
    wrong = []
    if not page.html or not page.html.get("lang"):
        wrong.append("no language")
    if not page.title or not page.title.get_text(strip=True):
        wrong.append("no title")
    described = page.find_all("meta", attrs={"name": "description"})
    if len(described) != 1 or len(sentences(described[0].get("content", ""))) < 1:
        wrong.append("not one description that is a sentence")
    headings = [one for one in page.find_all("h1") if not one.find_parent(class_="onlyprint")]
    if len(headings) != 1 or not headings[0].get_text(strip=True):
        wrong.append(f"{len(headings)} headings h1")
    ids = [tag["id"] for tag in page.find_all(id=True)]
    for one in sorted({one for one in ids if ids.count(one) > 1}):
        wrong.append(f"id used twice: {one}")
    return [f"{name}: {what}" for what in wrong]


def bad_references(bibliography, text, pages):
    """Complain of entries of the BibTeX `text` that are not cited, not listed or without address.

    `bibliography` is the name of the page that lists them.
    """
    wrong = []
    entries = pages[bibliography].find_all(class_="citation")
    listed = {
        link["href"]: entry["id"] for entry in entries for link in entry.find_all("a", href=True)
    }
    cited = {
        urlsplit(address).fragment
        for name, page in pages.items()
        if name != bibliography
        for _, address in addresses(page)
        if urljoin(HERE + name, address).startswith(f"{HERE}{bibliography}#")
    }
    keys = re.findall(r"^@\w+\{([^,]+),", text, re.MULTILINE)
    if len(keys) != len(entries):
        wrong.append(f"{len(keys)} works, {len(entries)} in the bibliography")
    for key, entry in zip(keys, re.split(r"^@", text, flags=re.MULTILINE)[1:], strict=True):
        doi = re.search(r"^\s*doi\s*=\s*\{(\S+)\}", entry, re.MULTILINE)
        eprint = re.search(r"^\s*eprint\s*=\s*\{(\S+)\}", entry, re.MULTILINE)
        ways = [f"https://doi.org/{doi[1]}"] if doi else []
        ways += [f"https://arxiv.org/abs/{eprint[1]}"] if eprint else []
        found = [listed[way] for way in ways if way in listed]
        if not found:
            wrong.append(f"{key}: no entry with its address")
        elif found[0] not in cited:
            wrong.append(f"{key}: cited by no page")
    return wrong


# Weight ---------------------------------------------------------------------------------------


def weight(paths):
    """Return the bytes of files as they lie there, and as a host sends them: texts in gzip."""
    raw = packed = 0
    for path in paths:
        content = path.read_bytes()
        raw += len(content)
        text = path.suffix in TEXT_TYPES
        packed += len(gzip.compress(content, 6)) if text else len(content)
    return raw, packed


# In the browser -------------------------------------------------------------------------------

# What does not depend on the window: formulas in error, text that was not translated, pictures
# that do not load.
CONTENT = r"""async () => {
  const wrong = [];
  for (const node of document.querySelectorAll("mjx-merror, [data-mjx-error]"))
    wrong.push("formula in error: " + node.textContent.slice(0, 80));
  for (const node of document.querySelectorAll("main .math"))
    if (!node.querySelector("mjx-container"))
      wrong.push("not typeset: " + node.textContent.slice(0, 80));
  const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (texts.nextNode()) {
    const node = texts.currentNode;
    const text = node.data.trim();
    if (node.parentElement.closest("pre, code, script, style, mjx-container")) continue;
    if (/\\[()[\]]|\$\$|\\[a-zA-Z]{2,}/.test(text))
      wrong.push("TeX left: " + text.slice(0, 80));
    if (/`|\{[a-z:]+\}|\]\(|\*\*/.test(text))
      wrong.push("Markdown left: " + text.slice(0, 80));
  }
  for (const image of document.images) {
    image.loading = "eager";
    try { await image.decode(); } catch { wrong.push("picture does not load: " + image.src); }
  }
  return wrong;
}"""

# What the width changes: nothing sticks out unless its box scrolls, and no box cuts its text.
LAYOUT = r"""width => {
  const wrong = [], page = document.documentElement;
  if (page.scrollWidth > width) wrong.push(`the page is ${page.scrollWidth} wide`);
  const called = node => node.tagName.toLowerCase() + (node.id && "#" + node.id) +
    [...node.classList].map(name => "." + name).join("") + " " +
    node.textContent.trim().slice(0, 40);
  const overflow = node => getComputedStyle(node).overflowX;
  const scrolls = node => {
    for (let box = node.parentElement; box !== document.body; box = box.parentElement)
      if (["auto", "scroll"].includes(overflow(box))) return true;
    return false;
  };
  for (const node of document.querySelectorAll("main *")) {
    if (node.closest("mjx-container > *, svg *, .visually-hidden, .sr-only")) continue;
    if (!node.checkVisibility({visibilityProperty: true})) continue;
    const box = node.getBoundingClientRect();
    if (!box.width || !box.height) continue;
    if ((box.right > width + 1 || box.left < -1) && !scrolls(node))
      wrong.push(`sticks out, to ${Math.round(box.right)}: ${called(node)}`);
    if (node.scrollWidth > node.clientWidth + 1 && node.clientWidth &&
        ["hidden", "clip"].includes(overflow(node))) {
      const most = Math.max(...[...node.querySelectorAll("*")].map(inner =>
        inner.closest("mjx-math > *, mjx-assistive-mml, .visually-hidden, .sr-only") ||
        !inner.textContent.trim() ? 0 : inner.getBoundingClientRect().right));
      if (most > box.right + 2)
        wrong.push(`cut, ${Math.round(most - box.right)} px: ${called(node)}`);
    }
  }
  return wrong;
}"""

# Headings and paragraphs that nobody can see, or hardly: contrast against the nearest background.
READABLE = r"""() => {
  const wrong = [];
  const context = new OffscreenCanvas(1, 1).getContext("2d", {willReadFrequently: true});
  const rgba = color => {
    context.clearRect(0, 0, 1, 1);
    context.fillStyle = color;
    context.fillRect(0, 0, 1, 1);
    return [...context.getImageData(0, 0, 1, 1).data];
  };
  const light = ([r, g, b]) => [r, g, b].map(v => v / 255)
    .map(v => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
    .reduce((sum, v, k) => sum + v * [0.2126, 0.7152, 0.0722][k], 0);
  const behind = node => {
    for (; node; node = node.parentElement) {
      const color = rgba(getComputedStyle(node).backgroundColor);
      if (color[3] > 250) return color;
    }
    return [255, 255, 255, 255];
  };
  let seen = 0;
  for (const node of document.querySelectorAll("main :is(h1, h2, h3, p)")) {
    // For print; folded, which opens without a script; the explorer, which is one.
    if (node.closest(".onlyprint, details:not([open]), #explorer-widget")) continue;
    if (!node.textContent.trim()) continue;
    const box = node.getBoundingClientRect();
    const said = node.textContent.trim().slice(0, 60);
    const drawn = node.checkVisibility({visibilityProperty: true, opacityProperty: true});
    if (!box.width || !box.height || !drawn) {
      wrong.push("hidden: " + said);
      continue;
    }
    const [a, b] = [light(rgba(getComputedStyle(node).color)), light(behind(node))];
    const contrast = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    if (contrast < 4.5) wrong.push(`contrast ${contrast.toFixed(2)}: ${said}`);
    seen += 1;
  }
  if (!seen) wrong.push("no text at all");
  return wrong;
}"""

# Watches what gets the focus, and whether one sees that it has it. Returns the number of controls
# that can be seen; `reached()` tells those that were not focused or did not show it.
WATCH = r"""() => {
  const look = node => [node, node.parentElement].map(one => {
    const style = getComputedStyle(one);
    return [style.outlineStyle === "none" ? "none" : style.outlineWidth + style.outlineColor,
      style.boxShadow, style.borderColor, style.borderWidth, style.backgroundColor,
      style.textDecorationLine + style.textDecorationThickness].join("|");
  }).join("||");
  const called = node => node.outerHTML.replace(/\s+/g, " ").slice(0, 140);
  const sheet = document.createElement("style");
  sheet.textContent = "* { transition: none !important; animation: none !important }";
  document.head.append(sheet);
  const all = "a[href], button, input, select, textarea, summary, [tabindex='0']";
  const controls = [...document.querySelectorAll(all)].filter(node => {
    const box = node.getBoundingClientRect();
    return node.checkVisibility({visibilityProperty: true}) && box.width && box.height &&
      !node.disabled && node.type !== "hidden" && !(node.type === "radio" && !node.checked);
  });
  const before = new Map(controls.map(node => [node, look(node)]));
  const focused = new Set(), unseen = new Set();
  document.addEventListener("focusin", event => {
    const node = event.target;
    focused.add(node);
    if (before.has(node) && look(node) === before.get(node)) unseen.add(node);
    const box = node.getBoundingClientRect();
    if (!box.width || !box.height) unseen.add(node);
  });
  window.reached = () => [
    ...controls
      .filter(node => !focused.has(node) && node.checkVisibility({visibilityProperty: true}))
      .map(node => "never focused: " + called(node)),
    ...[...unseen].map(node => "focus does not show: " + called(node))];
  return controls.length;
}"""


def worst(results):
    """Return the serious and critical violations among what axe-core found, a line an element."""
    return [
        f"{one['id']} ({one['impact']}): {' '.join(map(str, node['target']))}: "
        f"{' '.join(node['html'].split())[:160]} -- {summary(node)}"
        for one in results["violations"]
        for node in one["nodes"]
        if one["impact"] in ("serious", "critical")
    ]


def summary(node):
    """Return in one line what axe-core says of an element."""
    return " ".join((node.get("failureSummary") or "").split())[:200]
