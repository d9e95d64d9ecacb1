// One head: its label and why it has it, and every statistic against the tokens that it sees.

const LOOKS = {
  last: { name: "last position", colour: "var(--last)", dash: "solid", marks: 2.5 },
  mean: { name: "mean", colour: "var(--mean)", dash: "dash", marks: 2.5 },
  uniform: { name: "uniform", colour: "var(--muted)", dash: "dot" },
};

function makeHead(box, data, select) {
  const layerBox = part(box, "head-layer");
  const headBox = part(box, "head-head");
  const facts = part(box, "head-facts");
  const charts = data.statistics.map((one) => {
    const chart = element("div", { className: "chart" });
    const unit = one.unit ? ` (${one.unit})` : "";
    const figure = element("figure", {},
      element("figcaption", { textContent: one.name + unit }), chart);
    part(box, "head-charts").append(figure);
    return { one, chart };
  });
  let current = data.first;

  function chosen() {
    const row = Number(layerBox.value);
    const column = Number(headBox.value);
    const exists = data.labels[row][column] !== null;
    if (exists) select(row, column);
    // Layers may have fewer heads than others: take the nearest that exists.
    else select(row, data.labels[row].findLastIndex((label) => label !== null));
  }
  layerBox.addEventListener("change", chosen);
  headBox.addEventListener("change", chosen);

  function tell(row, column) {
    const layer = data.layers[row];
    const label = data.labels[row][column];
    const mark = element("span", { className: "mark" });
    mark.dataset.label = label;
    const slope = data.slopes[row][column];
    const rate = slope === null ? "not measured" : `${fixed(slope, 2)} nats per nat of log(tokens)`;
    const window = layer.window === null ? "" : `, sliding window of ${whole(layer.window)} tokens`;
    facts.replaceChildren(
      element("p", { className: "head-name" },
        `Layer ${layer.index}, head ${data.heads[column]}: `, mark, label),
      element("p", {}, `Slope ${rate}. `, data.rules[label] ?? ""),
      element("p", { className: "hint" }, element("code", { textContent: layer.name }), window));
  }

  function draw({ one, chart }) {
    const [row, column] = current;
    const seen = data.count.map((level) => level[row][column]);
    // With a sliding window the visible tokens stop growing: then the input's length is the axis.
    const grows = seen.every((count, i) => count !== null && (i === 0 || count > seen[i - 1]));
    const x = grows ? seen : data.tokens;
    const title = grows ? "visible tokens" : "tokens of the input";
    const lines = Object.keys(data.positions).map((where) => ({
      ...LOOKS[where], x, y: valuesOf(data, where, one.key).map((level) => level[row][column]),
    }));
    const uniform = reference(one, seen);
    if (uniform !== null) lines.unshift({ ...LOOKS.uniform, x, y: uniform });
    drawChart(chart, {
      title: `${one.name} of layer ${data.layers[row].index}, head ${data.heads[column]}`,
      lines,
      x: { scale: "log", ticks: x, title, digits: 0, noun: "tokens" },
      y: { scale: "linear", digits: one.digits, ...span(one, lines) },
    });
  }

  // What a uniform head would have.
  function reference(one, seen) {
    if (one.key === "entropy") return seen.map((count) => (count > 0 ? Math.log(count) : null));
    if (one.key === "normalised_entropy") return seen.map(() => 1);
    if (one.key === "max_weight") return seen.map((count) => (count > 0 ? 1 / count : null));
    return null;
  }

  // Shares and entropies have fixed ends, so that heads can be compared by eye.
  function span(one, lines) {
    if (one.scale === "share") return { low: -0.04, high: 1.06, ticks: [0, 0.5, 1] };
    if (one.scale === "entropy") return { low: 0, high: 1.06 * Math.log(longest(data)) };
    const all = lines.flatMap((line) => line.y).filter((y) => y !== null);
    return { low: 0, high: 1.08 * largest([1, ...all]) };
  }

  for (const one of charts) keepDrawn(one.chart, () => draw(one));
  return {
    show(row, column) {
      current = [row, column];
      layerBox.value = String(row);
      headBox.value = String(column);
      tell(row, column);
      charts.forEach(draw);
    },
  };
}

// A second head beside the first, chosen by its own menus: at the start the one that grows least.
function makeSecondHead(section, data) {
  const box = section.querySelector(".head.other");
  const explore = section.querySelector(".explore");
  const button = part(section, "head-compare");
  const places = data.labels.flatMap((row, r) => row.map((label, c) => ({ r, c, label })))
    .filter(({ label }) => label !== null);
  const sharp = places.filter(({ label }) => label === "stays sharp");
  const slope = ({ r, c }) => data.slopes[r][c] ?? Infinity;
  const first = (sharp.length ? sharp : places).reduce((a, b) => (slope(b) < slope(a) ? b : a));
  let head = null;
  button.addEventListener("click", () => {
    box.hidden = !box.hidden;
    explore.classList.toggle("comparing", !box.hidden);
    button.setAttribute("aria-expanded", String(!box.hidden));
    button.textContent = box.hidden ? "Compare with a second head" : "Show one head only";
    if (box.hidden) return;
    head ??= makeHead(box, data, (row, column) => head.show(row, column));
    if (!box.dataset.started) head.show(first.r, first.c);
    box.dataset.started = "yes";
  });
}
