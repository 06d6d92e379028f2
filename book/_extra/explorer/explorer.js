// The page "Explorer" of the book. It only looks values up in data.js, which defines the global
// attnphaseExplorer, and draws them. What needs no page is in `pure` below, and is left for tests
// in attnphaseExplorer.pure; nothing else is global.
(() => {
  "use strict";

  const BRANCHES = ["positional", "semantic", "uninformed"];
  // The markers and lines of attnphase/figures.py, in Plotly's words; colours are in explorer.css.
  const LOOK = {
    positional: { symbol: "circle", dash: "solid", sign: "●" },
    semantic: { symbol: "square", dash: "dash", sign: "■" },
    uninformed: { symbol: "triangle-up", dash: "dot", sign: "▲" },
    baseline: { symbol: "diamond", dash: "dashdot", sign: "◆" },
  };
  const A = [[0.6, 0.4], [0.4, 0.6]];
  const PLACES = [1, -1];
  // u: meaning of the two tokens; v: noise of the student's fields. Standard normal draws.
  const SENTENCES = [
    { label: "1: opposite meanings", u: [2.04, -2.56], v: [0.42, -0.57] },
    { label: "2: the first, tokens exchanged", u: [-2.56, 2.04], v: [-0.57, 0.42] },
    { label: "3: like meanings", u: [-1.74, -1.34], v: [-1.36, -0.35] },
    { label: "4: weak meanings", u: [0.35, 0.82], v: [0.33, -1.3] },
  ];

  /** Index of the entry of `grid` that is nearest to `value`; the first one if it is no number. */
  function nearest(grid, value) {
    let best = 0;
    grid.forEach((entry, k) => {
      if (Math.abs(entry - value) < Math.abs(grid[best] - value)) best = k;
    });
    return best;
  }

  function softmaxRows(matrix) {
    return matrix.map((row) => {
      const weights = row.map((entry) => Math.exp(entry - Math.max(...row)));
      const total = weights.reduce((sum, weight) => sum + weight, 0);
      return weights.map((weight) => weight / total);
    });
  }

  /** Row-softmax of the products of all pairs of fields. */
  function attention(fields) {
    return softmaxRows(fields.map((row) => fields.map((column) => row * column)));
  }

  function targetFields(sentence, sigma) {
    return sentence.u.map((u) => sigma * u);
  }

  function targetAttention(sentence, sigma, omega) {
    const semantic = attention(targetFields(sentence, sigma));
    return semantic.map((row, i) => row.map((s, j) => (1 - omega) * s + omega * A[i][j]));
  }

  /** Fields of a layer with overlaps {q, m, theta}; see the equation on the page. */
  function studentFields(sentence, sigma, { q, m, theta }) {
    const noise = Math.sqrt(Math.max(q - (theta / sigma) ** 2, 0));
    return targetFields(sentence, sigma).map(
      (h, l) => PLACES[l] * m + (theta / sigma ** 2) * h + noise * sentence.v[l],
    );
  }

  /** One branch at omega number i and alpha number j. What is not found is null. */
  function branchAt(diagram, name, i, j) {
    const rows = diagram[name];
    const status = { f: "found", a: "absent", u: "unresolved" }[rows.status[i][j]];
    const point = { status, q: null, m: null, theta: null, train_loss: null, test_error: null };
    if (status !== "found") return point;
    for (const key of ["q", "m", "theta", "train_loss", "test_error"]) {
      point[key] = rows[key] ? rows[key][i][j] : 0;
    }
    return point;
  }

  /**
   * Name of the branch with the least train loss of those found, or null: where the uninformed
   * one has it while another one is unresolved, that other one may be lower by a little.
   */
  function winner(diagram, i, j) {
    const points = BRANCHES.map((name) => ({ name, ...branchAt(diagram, name, i, j) }));
    const found = points.filter((point) => point.status === "found");
    if (!found.length) return null;
    const best = found.reduce((a, b) => (b.train_loss < a.train_loss ? b : a)).name;
    const open = points.some((point) => point.status === "unresolved");
    return best === "uninformed" && open ? null : best;
  }

  /** Whether the winner has a lower test error than the linear baseline; false without one. */
  function beatsBaseline(diagram, i, j) {
    const best = winner(diagram, i, j);
    return best !== null && diagram[best].test_error[i][j] < diagram.baseline[i];
  }

  const digits = (value, count) => (value === 0 ? "0" : value.toPrecision(count));
  const thousandths = (value, count) => digits(1000 * value, count);

  /** The sentence that is read out after each change. */
  function readout(data, diagram, i, j) {
    const place = `At α = ${data.alphas[j]} and ω = ${data.omegas[i]}`;
    const best = winner(diagram, i, j);
    if (best === null) return `${place}: too close to an onset to call a winner.`;
    const side = beatsBaseline(diagram, i, j) ? "below" : "not below";
    const error = thousandths(diagram[best].test_error[i][j], 3);
    const level = thousandths(diagram.baseline[i], 3);
    return (
      `${place} the ${best} solution wins: its train loss is the lowest of the three. ` +
      `Its test error, ${error}\u00a0×\u00a010⁻³, is ${side} the linear baseline’s ${level}\u00a0×\u00a010⁻³.`
    );
  }

  const pure = {
    nearest, attention, targetAttention, studentFields, branchAt, winner,
    beatsBaseline, readout, SENTENCES, LOOK,
  };

  const root = document.getElementById("explorer-widget");
  const data = window.attnphaseExplorer;
  const part = (name) => document.getElementById(`explorer-${name}`);
  root.hidden = false;
  if (!data || !window.Plotly) {
    root.classList.add("explorer-empty");
    part("readout").textContent = "The explorer’s data or Plotly did not load.";
    return;
  }
  data.pure = pure;

  // What the reader has chosen, always on the grid: indices of omega (i) and alpha (j).
  const chosen = { i: 0, j: 0, sigma: 0, lambda: 0, sentence: 0, noise: true, curve: "test_error" };
  const diagram = () =>
    data.diagrams.find(
      (one) =>
        one.sigma === data.sigmas[chosen.sigma] &&
        one.regularization === data.regularizations[chosen.lambda],
    );

  /** Colours of the present theme, by their names in explorer.css. */
  function colors() {
    const style = getComputedStyle(root);
    const names = ["ink", "paper", "grid", "open", ...Object.keys(LOOK)];
    return Object.fromEntries(
      names.map((name) => [name, style.getPropertyValue(`--explorer-${name}`).trim()]),
    );
  }

  function layout(ink, changes) {
    const axis = {
      fixedrange: true, gridcolor: ink.grid, linecolor: ink.ink, zeroline: false,
      showline: true, ticks: "outside", tickcolor: ink.ink, automargin: true,
    };
    return {
      autosize: true, dragmode: false, hovermode: "closest",
      paper_bgcolor: ink.paper, plot_bgcolor: ink.paper,
      font: { family: getComputedStyle(root).fontFamily, size: 13, color: ink.ink },
      margin: { l: 48, r: 12, t: 8, b: 44 },
      ...changes,
      xaxis: { ...axis, ...changes.xaxis },
      yaxis: { ...axis, ...changes.yaxis },
    };
  }

  const CONFIG = { displayModeBar: false, responsive: true, doubleClick: false };

  function drawDiagram(ink) {
    const one = diagram();
    const all = data.omegas.map((_, i) => data.alphas.map((_, j) => [i, j]));
    const cells = all.flat();
    const signs = cells.filter(([i, j]) => winner(one, i, j));
    const codes = all.map((row) =>
      row.map(([i, j]) => (BRANCHES.indexOf(winner(one, i, j)) + 4) % 4),
    );
    const scale = [...BRANCHES.map((name) => ink[name]), ink.open];
    const words = all.map((row) => row.map(([i, j]) =>
      `α = ${data.alphas[j]}, ω = ${data.omegas[i]}<br>${winner(one, i, j) || "too close to call"}` +
      (beatsBaseline(one, i, j) ? "<br>beats the baseline" : ""),
    ));
    const edge = { xref: "x", yref: "y", type: "line", line: { color: ink.ink, width: 1, dash: "dot" } };
    const [x, y] = [data.alphas[chosen.j], data.omegas[chosen.i]];
    const traces = [
      {
        type: "heatmap", x: data.alphas, y: data.omegas, z: codes, zmin: 0, zmax: 4,
        colorscale: scale.flatMap((color, k) => [[k / 4, color], [(k + 1) / 4, color]]),
        showscale: false, text: words, hovertemplate: "%{text}<extra></extra>",
      },
      {
        type: "scatter", mode: "markers", hoverinfo: "skip",
        x: signs.map(([, j]) => data.alphas[j]),
        y: signs.map(([i]) => data.omegas[i]),
        marker: {
          color: ink.paper, size: 5,
          symbol: signs.map(([i, j]) =>
            LOOK[winner(one, i, j)].symbol + (beatsBaseline(one, i, j) ? "" : "-open")),
        },
      },
      {
        type: "scatter", mode: "markers", hoverinfo: "skip", x: [x], y: [y],
        marker: { symbol: "x", size: 14, color: "#FFFFFF", line: { color: "#000000", width: 2 } },
      },
    ];
    Plotly.react(part("diagram"), traces, layout(ink, {
      showlegend: false,
      shapes: [
        { ...edge, x0: x, x1: x, y0: 0, y1: 1, yref: "paper" },
        { ...edge, x0: 0, x1: 1, y0: y, y1: y, xref: "paper" },
      ],
      xaxis: { title: { text: "sample complexity α", standoff: 6 }, showgrid: false },
      yaxis: { title: { text: "positional share ω", standoff: 6 }, showgrid: false },
    }), CONFIG);
  }

  function drawCurves(ink) {
    const one = diagram();
    const perSentence = chosen.curve === "train_loss";
    const scaled = (value, j) =>
      value === null ? null : (1000 * value) / (perSentence ? data.alphas[j] : 1);
    const curve = (name, values) => ({
      type: "scatter", mode: "lines+markers", name, x: data.alphas, y: values,
      line: { color: ink[name], dash: LOOK[name].dash, width: 2 },
      marker: { color: ink[name], symbol: LOOK[name].symbol, size: 6 },
      hovertemplate: "α = %{x}: %{y:.4g}",
    });
    const traces = BRANCHES.map((name) =>
      curve(name, one[name][chosen.curve][chosen.i].map(scaled)));
    traces.push(curve("baseline", data.alphas.map(() => 1000 * one.baseline[chosen.i])));
    const x = data.alphas[chosen.j];
    const label = perSentence ? "train loss, 10³ ε<sub>t</sub> / α" : "test error, 10³ ε<sub>g</sub>";
    Plotly.react(part("curves"), traces, layout(ink, {
      showlegend: true,
      legend: {
        orientation: "h", x: 0, xanchor: "left", y: 1.02, yanchor: "bottom",
        itemclick: false, itemdoubleclick: false,
      },
      shapes: [{
        type: "line", xref: "x", yref: "paper", x0: x, x1: x, y0: 0, y1: 1,
        line: { color: ink.ink, width: 1, dash: "dot" },
      }],
      xaxis: { title: { text: "sample complexity α", standoff: 6 } },
      yaxis: { title: { text: label, standoff: 6 }, rangemode: "tozero" },
    }), CONFIG);
    part("curves").setAttribute(
      "aria-label",
      `${perSentence ? "Train loss per sentence" : "Test error"} of the three solutions and of ` +
        `the linear baseline along alpha, at omega = ${data.omegas[chosen.i]}.`,
    );
  }

  /** An element with this text, in which the character after "_" is set as a subscript. */
  function element(tag, text, className = "") {
    const made = document.createElement(tag);
    const [plain, ...parts] = text.split("_");
    made.textContent = plain;
    for (const [index, ...rest] of parts) {
      const subscript = document.createElement("sub");
      subscript.textContent = index;
      made.append(subscript, rest.join(""));
    }
    if (className) made.className = className;
    return made;
  }

  function head(text, scope, name = "") {
    const made = element("th", text);
    made.scope = scope;
    if (name) made.prepend(element("span", LOOK[name].sign, `explorer-${name}`), " ");
    return made;
  }

  function fillNumbers(points, best, level) {
    const absent = { absent: "none", unresolved: "onset" };
    const value = (print) => (point) =>
      point.status === "found" ? print(point) : absent[point.status];
    const rows = [
      ["q", value((p) => digits(p.q, 3)), "–"],
      ["|m|", value((p) => digits(p.m, 3)), "–"],
      ["|θ|", value((p) => digits(p.theta, 3)), "–"],
      ["train loss, 10³ ε_t", value((p) => thousandths(p.train_loss, 4)),
        thousandths(data.alphas[chosen.j] * level, 4)],
      ["test error, 10³ ε_g", value((p) => thousandths(p.test_error, 3)), thousandths(level, 3)],
      ["test error, × baseline’s", value((p) => (p.test_error / level).toFixed(2)), "1"],
    ];
    const top = element("tr", "");
    top.append(element("td", ""), ...BRANCHES.map((name) => head(name, "col", name)),
      head("baseline", "col", "baseline"));
    const body = rows.map(([label, print, last]) => {
      const row = element("tr", "");
      row.append(head(label, "row"));
      for (const name of BRANCHES) {
        row.append(element("td", print(points[name]), name === best ? "explorer-best" : ""));
      }
      row.append(element("td", last));
      return row;
    });
    const wins = element("tr", "");
    wins.append(head("lowest train loss", "row"));
    for (const name of BRANCHES) wins.append(element("td", name === best ? "✓ wins" : ""));
    wins.append(element("td", ""));
    part("numbers").replaceChildren(top, ...body, wins);
  }

  function matrix(title, name, values, note) {
    const box = element("div", "", "explorer-matrix");
    const caption = element("p", title);
    if (name) caption.prepend(element("span", LOOK[name].sign, `explorer-${name}`), " ");
    box.append(caption);
    if (!values) {
      box.append(element("p", note, "explorer-none"));
      return box;
    }
    const table = element("table", "");
    table.setAttribute("aria-label", title);
    const top = element("tr", "");
    top.append(element("td", ""), head("to 1", "col"), head("to 2", "col"));
    table.append(top);
    values.forEach((row, i) => {
      const line = element("tr", "");
      line.append(head(`token ${i + 1}`, "row"));
      for (const entry of row) {
        const cell = element("td", entry.toFixed(2));
        cell.style.setProperty("--share", entry.toFixed(3));
        line.append(cell);
      }
      table.append(line);
    });
    box.append(table);
    return box;
  }

  function fillMatrices(points, best) {
    const [sigma, omega] = [data.sigmas[chosen.sigma], data.omegas[chosen.i]];
    const drawn = SENTENCES[chosen.sentence];
    const sentence = chosen.noise ? drawn : { ...drawn, v: [0, 0] };
    const list = (values) => `(${values.join(", ").replaceAll("-", "−")})`;
    part("drawn").textContent = `u = ${list(sentence.u)}, v = ${list(sentence.v)}`;
    const boxes = [matrix("target T", "", targetAttention(sentence, sigma, omega))];
    const order = [...BRANCHES].sort((a, b) => (b === best) - (a === best));
    for (const name of order) {
      const point = points[name];
      const values = point.status === "found" && attention(studentFields(sentence, sigma, point));
      const note = point.status === "absent" ? "no such solution found" : "too close to its onset";
      boxes.push(matrix(`${name} S${name === best ? ", wins" : ""}`, name, values, note));
    }
    part("matrices").replaceChildren(...boxes);
  }

  // Charts are drawn once a frame at most, however fast a slider moves.
  let waiting = 0;
  function drawCharts() {
    waiting = 0;
    const ink = colors();
    drawDiagram(ink);
    drawCurves(ink);
  }

  function draw() {
    const one = diagram();
    const { i, j } = chosen;
    const alpha = String(data.alphas[j]);
    const omega = String(data.omegas[i]);
    for (const [name, index, text] of [["alpha", j, alpha], ["omega", i, omega]]) {
      part(name).value = index;
      part(name).setAttribute("aria-valuetext", text);
      part(`${name}-value`).textContent = text;
    }
    part("sigma").value = chosen.sigma;
    part("lambda").value = chosen.lambda;
    root.classList.toggle("explorer-empty", !one);
    if (!one) {
      part("readout").textContent = "No diagram was computed for this pair of σ and λ.";
      return;
    }
    const points = Object.fromEntries(BRANCHES.map((name) => [name, branchAt(one, name, i, j)]));
    const best = winner(one, i, j);
    const text = readout(data, one, i, j);
    if (part("readout").textContent !== text) part("readout").textContent = text;
    fillNumbers(points, best, one.baseline[i]);
    fillMatrices(points, best);
    waiting ||= requestAnimationFrame(drawCharts);
  }

  // The address keeps the choice: #alpha=1.3&omega=0.3&sigma=0.5&lambda=0.01
  function readAddress() {
    const given = new URLSearchParams(location.hash.slice(1));
    const read = (name, key, grid) => {
      const value = parseFloat(given.get(name));
      if (Number.isFinite(value)) chosen[key] = nearest(grid, value);
    };
    read("alpha", "j", data.alphas);
    read("omega", "i", data.omegas);
    read("sigma", "sigma", data.sigmas);
    read("lambda", "lambda", data.regularizations);
    return given.has("alpha") || given.has("omega") || given.has("sigma") || given.has("lambda");
  }

  function writeAddress() {
    const address = new URLSearchParams({
      alpha: data.alphas[chosen.j], omega: data.omegas[chosen.i],
      sigma: data.sigmas[chosen.sigma], lambda: data.regularizations[chosen.lambda],
    });
    history.replaceState(null, "", `#${address}`);
  }

  function fillSelect(name, labels) {
    part(name).replaceChildren(...labels.map((label, k) => new Option(label, k)));
  }

  function listen(name, kind, change) {
    part(name).addEventListener(kind, (event) => {
      change(event.target);
      draw();
    });
  }

  function start() {
    Object.assign(chosen, {
      i: nearest(data.omegas, 0.3), j: nearest(data.alphas, 1.3),
      sigma: nearest(data.sigmas, 0.5), lambda: nearest(data.regularizations, 0.01),
    });
    readAddress();
    part("alpha").max = data.alphas.length - 1;
    part("omega").max = data.omegas.length - 1;
    fillSelect("sigma", data.sigmas);
    fillSelect("lambda", data.regularizations);
    fillSelect("sentence", SENTENCES.map((sentence) => sentence.label));
    listen("alpha", "input", (control) => { chosen.j = Number(control.value); });
    listen("omega", "input", (control) => { chosen.i = Number(control.value); });
    listen("sigma", "change", (control) => { chosen.sigma = Number(control.value); });
    listen("lambda", "change", (control) => { chosen.lambda = Number(control.value); });
    listen("sentence", "change", (control) => { chosen.sentence = Number(control.value); });
    listen("noise", "change", (control) => { chosen.noise = !control.checked; });
    listen("curve", "change", (control) => { chosen.curve = control.value; });
    for (const name of ["alpha", "omega", "sigma", "lambda"]) {
      part(name).addEventListener("change", writeAddress);
    }
    draw();
    drawCharts();
    part("diagram").on("plotly_click", ({ points: [point] }) => {
      chosen.j = nearest(data.alphas, point.x);
      chosen.i = nearest(data.omegas, point.y);
      writeAddress();
      draw();
    });
    part("curves").on("plotly_click", ({ points: [point] }) => {
      chosen.j = nearest(data.alphas, point.x);
      writeAddress();
      draw();
    });
    addEventListener("hashchange", () => {
      if (!readAddress()) return;
      draw();
      root.scrollIntoView();
    });
    new MutationObserver(draw).observe(document.documentElement, { attributeFilter: ["data-theme"] });
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
  }

  start();
})();
