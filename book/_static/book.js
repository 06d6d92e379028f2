/* Boxes that scroll sideways (wide formulas, code, tables, printed results) can be reached by the
   keyboard, and say to screen readers what they are, as long as they are wider than their place. */
(function () {
  "use strict";
  const names = [
    ["div.math, mjx-container", "Formula, scrolls sideways"],
    [".pst-scrollable-table-container", "Table, scrolls sideways"],
    [".cell_output pre, .cell_output > .output", "Printed result, scrolls sideways"],
    ["pre", "Code, scrolls sideways"],
    ["p", "Text with a wide formula, scrolls sideways"],
  ];
  const all = names.map(([selector]) => selector).join(", ");

  function scrolls(box) {
    return box.scrollWidth > box.clientWidth && box.clientWidth > 0 &&
      ["auto", "scroll"].includes(getComputedStyle(box).overflowX);
  }

  function mark(article) {
    const boxes = Array.from(article.querySelectorAll(all), (box) => [box, scrolls(box)]);
    for (const [box, wide] of boxes) {
      if (wide) {
        box.tabIndex = 0;
        box.setAttribute("role", "group");
        box.setAttribute("aria-label", names.find(([selector]) => box.matches(selector))[1]);
        box.dataset.scrolls = "";
      } else if ("scrolls" in box.dataset) {
        for (const name of ["tabindex", "role", "aria-label", "data-scrolls"]) {
          box.removeAttribute(name);
        }
      }
    }
  }

  // Its size changes with the window's, when MathJax has set the formulas, when a solution opens.
  // Fonts that arrive late may change only what is inside.
  for (const article of document.querySelectorAll(".bd-article")) {
    new ResizeObserver(() => mark(article)).observe(article);
    document.fonts.addEventListener("loadingdone", () => mark(article));
  }
})();

/* A notebook is saved, not shown as text. */
for (const link of document.querySelectorAll(".btn-download-notebook-button")) {
  link.setAttribute("download", "");
}
