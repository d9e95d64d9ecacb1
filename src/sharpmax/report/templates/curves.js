// Entropy against length for all layers, or for the heads of one, below the line of a uniform head.

function makeCurves(section, data) {
  const linesBox = part(section, "curves-lines");
  const positionBox = part(section, "curves-position");
  const chart = part(section, "curves-chart");

  function mean(numbers) {
    const there = numbers.filter((value) => value !== null);
    return there.length ? there.reduce((a, b) => a + b, 0) / there.length : null;
  }

  // Each line by its name and its number; heads that do not exist have none.
  function lines() {
    const levels = valuesOf(data, positionBox.value, "entropy");
    if (linesBox.value === "layers") {
      return data.layers.map((layer, row) => ({
        name: `layer ${layer.index}${layer.window === null ? "" : " (window)"}`,
        number: layer.index,
        y: levels.map((level) => mean(level[row])),
      }));
    }
    const row = Number(linesBox.value);
    return data.heads
      .map((number, column) => ({
        name: `head ${number}: ${data.labels[row][column]}`,
        number,
        y: levels.map((level) => level[row][column]),
        exists: data.labels[row][column] !== null,
      }))
      .filter((one) => one.exists);
  }

  function sayLegend(shown) {
    const kind = linesBox.value === "layers" ? "layer" : "head";
    const bar = element("span", { className: "ramp" });
    bar.style.background = ramp(lineColour);
    const dots = element("span", { className: "line reference" }, "log(n): uniform over n tokens");
    const ends = [`${kind} ${shown[0].number}`, bar, String(shown.at(-1).number)];
    part(section, "curves-legend").replaceChildren(...(shown.length > 1 ? ends : [ends[0]]), dots);
  }

  function draw() {
    const colours = theme();
    const shown = lines();
    const uniform = {
      ...referenceLine(data.tokens, data.tokens.map(Math.log), colours),
      hovertemplate: "log(n) = %{y:.2f}<extra></extra>",
    };
    const traces = shown.map((one, place) => ({
      x: data.tokens,
      y: one.y,
      mode: "lines+markers",
      line: { color: lineColour(place, shown.length), width: 1.6 },
      marker: { size: 4 },
      // The name goes by a number of ours: text of a result is never read as a template.
      hovertemplate: "%{meta}<br>%{x:,d} tokens: %{y:.3f} nats<extra></extra>",
      meta: one.name.replace(/&/g, "&amp;").replace(/</g, "&lt;"),
    }));
    const ticks = chart.clientWidth < 500 ? 5 : 12;
    const all = [uniform, ...traces].flatMap((one) => one.y).filter((y) => y !== null);
    Plotly.react(chart, [uniform, ...traces], layout(colours, {
      hovermode: "closest",
      margin: { l: 48, r: 12, t: 10, b: 44 },
      xaxis: lengthAxis(data.tokens, "tokens of the input", ticks, colours),
      yaxis: {
        ...axis(colours),
        range: [0, 1.04 * Math.max(...all)],
        title: { text: "entropy (nats)", standoff: 6, font: { size: 12 } },
      },
    }), CHART);
    sayLegend(shown);
  }

  const redraw = drawnWhenNear(chart, draw);
  linesBox.addEventListener("change", redraw);
  positionBox.addEventListener("change", redraw);
}
