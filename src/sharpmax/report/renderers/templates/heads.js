// A map of heads whose numbers do not depend on a length: certificates and calibrations. Beside it
// are the numbers of the chosen head and, where its logits have a bound, the weights it allows.

function makeHeads(box) {
  const data = dataOf(box);
  const ui = Object.fromEntries(["statistic", "legend", "box", "readout", "facts", "charts"]
    .map((name) => [name, part(box, `heads-${name}`)]));
  const statistic = () => data.statistics[Number(ui.statistic.value)];
  const valueOf = (one, row, column) => data.values[one.key][row][column];
  data.exists = (row, column) => data.present[row][column];
  const map = makeMap(ui.box, data, { select, shown, text, readout: ui.readout });
  const charts = data.bounds ? [makeBound(ui.charts, data, 12), makeBound(ui.charts, data)] : [];
  part(box, "heads-names").append(...(data.bounds ?? []).map(({ name, colour, dash }) => {
    const swatch = element("span", { className: `swatch ${dash}` });
    swatch.style.color = `var(--${colour})`;
    return element("span", {}, swatch, name);
  }));

  function words(one, row, column) {
    const value = valueOf(one, row, column);
    const known = one.scale === "power" && value !== null ? power(value) : fixed(value, one.digits);
    return known + (one.unit && value !== null ? ` ${one.unit}` : "");
  }

  function shown() {
    const one = statistic();
    const all = everyNumber(data.values[one.key]);
    const log = one.scale === "log";
    const value = (row, column) => valueOf(one, row, column);
    if (one.scale === "signed") {
      const end = largest(all.map(Math.abs));
      return { log, ends: [-end, end], colour: signedColour, value };
    }
    const ends = all.length ? [log ? smallest(all) : Math.min(0, smallest(all)), largest(all)] : [0, 1];
    return { log, ends, colour: viridis, value };
  }

  function text(row, column) {
    const one = statistic();
    const value = valueOf(one, row, column);
    return value === null ? data.without : `${one.name.toLowerCase()} ${words(one, row, column)}`;
  }

  function draw() {
    map.draw();
    const one = statistic();
    const { ends, log, colour } = shown();
    const said = ends.map((end) => (one.scale === "power" ? power(end) : fixed(end, one.digits)));
    rampLegend(ui.legend, said, log ? "logarithmic" : "", colour);
  }

  function select(row, column) {
    tell(row, column);
    announceHead(box, [row, column]);
  }

  function tell(row, column) {
    map.mark(row, column);
    const name = `Layer ${data.layers[row].index}, head ${data.heads[column]}`;
    const known = data.statistics.filter((one) => valueOf(one, row, column) !== null);
    const facts = known.flatMap((one) =>
      [element("dt", {}, one.name), element("dd", {}, words(one, row, column))]);
    ui.facts.replaceChildren(element("p", { className: "head-name" }, name),
      known.length ? element("dl", { className: "tight" }, ...facts) : element("p", {}, data.without));
    for (const chart of charts) chart(row, column);
  }

  ui.statistic.addEventListener("change", draw);
  onHead(box, ([row, column]) => tell(row, column));
  draw();
  tell(...data.first);
}

// The largest weight that a head of that spread can give one of n tokens (Lemma 2.1, tight), over
// the powers of ten of n: near, or as far as the bound holds.
function makeBound(charts, data, farthest) {
  const chart = element("div", { className: "chart" });
  const near = farthest !== undefined;
  const title = near ? "At lengths that exist" : "As far as the certificate allows";
  charts.append(element("figure", {}, element("figcaption", {}, title), chart));
  let current = data.first;

  function draw() {
    const [row, column] = current;
    const known = data.bounds.filter(({ key }) => data.values[key][row][column] !== null);
    const spreads = known.map(({ key }) => data.values[key][row][column]);
    const end = near ? farthest : Math.max(farthest ?? 0, largest(spreads) / Math.LN10 + 4);
    const x = Array.from({ length: 121 }, (_, i) => (i * end) / 120);
    const rules = near && data.context
      ? [{ axis: "x", at: Math.log10(data.context), text: `context ${whole(data.context)}` }] : [];
    drawChart(chart, {
      title,
      rules,
      lines: known.map(({ name, colour, dash }, i) => ({
        name, dash, x, colour: `var(--${colour})`, y: x.map((exponent) => largestWeight(exponent, spreads[i])),
      })),
      x: { scale: "power", title: "tokens", digits: 0, noun: "tokens" },
      y: { scale: "linear", low: 0, high: 105, ticks: [0, 50, 100], title: "largest weight, %",
        digits: 1, unit: "%" },
    });
  }

  function largestWeight(exponent, spread) {
    return 100 / (1 + Math.exp(Math.log(Math.max(1e-12, 10 ** Math.min(exponent, 300) - 1)) +
      Math.max(0, exponent - 300) * Math.LN10 - spread));
  }

  keepDrawn(chart, draw);
  return (row, column) => {
    current = [row, column];
    draw();
  };
}
