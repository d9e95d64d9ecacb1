// Entropy against length, for all layers or for the heads of one layer.

function makeCurves(section, data) {
  const linesBox = part(section, "curves-lines");
  const positionBox = part(section, "curves-position");
  const chart = part(section, "curves-chart");

  function mean(numbers) {
    const there = numbers.filter((value) => value !== null);
    return there.length ? there.reduce((a, b) => a + b, 0) / there.length : null;
  }

  // Each line with its name and number; heads that do not exist have no line.
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
    const shown = lines();
    const uniform = { ...LOOKS.uniform, name: "log(n)", y: data.tokens.map(Math.log) };
    const all = [uniform, ...shown.map((one, place) => ({
      ...one, colour: lineColour(place, shown.length), dash: "solid", marks: 2,
    }))].map((one) => ({ ...one, x: data.tokens }));
    drawChart(chart, {
      title: "Entropy as the input grows",
      lines: all,
      single: true,
      x: {
        scale: "log", ticks: data.tokens, title: "tokens of the input", digits: 0, noun: "tokens",
      },
      y: {
        scale: "linear", low: 0, title: "entropy, nats", digits: 3, unit: "nats",
        high: 1.04 * largest(all.flatMap((one) => one.y).filter((y) => y !== null)),
      },
    });
    sayLegend(shown);
  }

  linesBox.addEventListener("change", draw);
  positionBox.addEventListener("change", draw);
  keepDrawn(chart, draw);
}
