// One head: what it is called and why, and every statistic against the tokens that it sees.

function makeHead(section, data, select) {
  const layerBox = part(section, "head-layer");
  const headBox = part(section, "head-head");
  const facts = part(section, "head-facts");
  const charts = data.statistics.map((one) => {
    const chart = element("div", { className: "chart" });
    const unit = one.unit ? ` (${one.unit})` : "";
    const figure = element("figure", {},
      element("figcaption", { textContent: one.name + unit }), chart);
    part(section, "head-charts").append(figure);
    return { one, chart };
  });
  let current = data.first;

  function chosen() {
    const row = Number(layerBox.value);
    const column = Number(headBox.value);
    const exists = data.labels[row][column] !== null;
    if (exists) select(row, column);
    // Layers may have fewer heads than others: the nearest that this one has.
    else select(row, data.labels[row].findLastIndex((label) => label !== null));
  }
  layerBox.addEventListener("change", chosen);
  headBox.addEventListener("change", chosen);

  function say(row, column) {
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

  function draw() {
    const [row, column] = current;
    const colours = theme();
    const seen = data.count.map((level) => level[row][column]);
    // Behind a sliding window more input is not more to see: then the input's length is the axis.
    const grows = seen.every((count, i) => count !== null && (i === 0 || count > seen[i - 1]));
    const x = grows ? seen : data.tokens;
    const title = grows ? "visible tokens" : "tokens of the input";
    for (const { one, chart } of charts) {
      const traces = Object.keys(data.positions).map((where) => {
        const y = valuesOf(data, where, one.key).map((level) => level[row][column]);
        return line(x, y, where, colours, one);
      });
      const uniform = reference(one, seen);
      if (uniform !== null) traces.unshift(referenceLine(x, uniform, colours));
      Plotly.react(chart, traces, layout(colours, {
        hovermode: "x unified",
        margin: { l: 36, r: 8, t: 6, b: 32 },
        xaxis: lengthAxis(x, title, 4, colours),
        yaxis: { ...axis(colours), ...span(one, traces), nticks: 4 },
      }), CHART);
    }
  }

  // What a uniform head would have.
  function reference(one, seen) {
    if (one.key === "entropy") return seen.map((count) => (count > 0 ? Math.log(count) : null));
    if (one.key === "normalised_entropy") return seen.map(() => 1);
    if (one.key === "max_weight") return seen.map((count) => (count > 0 ? 1 / count : null));
    return null;
  }

  // Shares and entropies have ends of their own, so that heads can be compared by eye.
  function span(one, traces) {
    if (one.scale === "share") return { range: [-0.04, 1.06], tickvals: [0, 0.5, 1] };
    if (one.scale === "entropy") return { range: [0, 1.06 * Math.log(longest(data))] };
    const top = Math.max(1, ...traces.flatMap((trace) => trace.y).filter((y) => y !== null));
    return { range: [0, 1.08 * top] };
  }

  const redraw = drawnWhenNear(part(section, "head-charts"), draw);
  return {
    show(row, column) {
      current = [row, column];
      layerBox.value = String(row);
      headBox.value = String(column);
      say(row, column);
      redraw();
    },
  };
}

function line(x, y, where, colours, one) {
  return {
    x, y,
    name: where === "last" ? "last position" : "mean",
    mode: "lines+markers",
    line: { color: colours[where], width: 2, dash: where === "last" ? "solid" : "dash" },
    marker: { size: 4, color: colours[where] },
    hovertemplate: `%{y:.${one.digits}f}`,
  };
}

function referenceLine(x, y, colours) {
  return {
    x, y,
    name: "uniform",
    mode: "lines",
    line: { color: colours.muted, width: 1.5, dash: "dot" },
    hovertemplate: "%{y:.3~f}",
  };
}
