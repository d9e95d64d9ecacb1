// The map of a scan: any statistic at any length, the slopes, or the labels.

function makeScanMap(section, data, select) {
  const ui = Object.fromEntries(
    ["statistic", "position", "length", "caption", "legend", "box", "readout"]
      .map((name) => [name, part(section, `map-${name}`)]));
  data.exists = (row, column) => data.labels[row][column] !== null;
  const labelOf = (row, column) => data.labels[row][column];
  const map = makeMap(ui.box, data, { select, shown, text, labelOf, readout: ui.readout });

  function text(row, column) {
    const { name, unit, value, digits } = shown();
    const number = value === null ? "" :
      `${name.toLowerCase()} ${fixed(value(row, column), digits)}${unit ? ` ${unit}` : ""}, `;
    const rate = data.slopes[row][column];
    const slope = name === "Slope" || rate === null ? "" : `, slope ${fixed(rate, 2)}`;
    return `${number}${labelOf(row, column)}${slope}`;
  }

  // What the menus ask for: name, values and ends of the colour scale.
  function shown() {
    const chosen = ui.statistic.value;
    if (chosen === "label") return { name: "Label", value: null };
    if (chosen === "slope") {
      const all = [0, 1, ...everyNumber(data.slopes)];
      const ends = [smallest(all), largest(all)];
      return { name: "Slope", unit: "", digits: 2, ends, value: (r, c) => data.slopes[r][c] };
    }
    const one = data.statistics.find((statistic) => statistic.key === chosen);
    const level = valuesOf(data, ui.position.value, chosen)[Number(ui.length.value)];
    return { ...one, ends: ends(one), log: one.scale === "count", value: (r, c) => level[r][c] };
  }

  // The same ends for every length and position, so that colours can be compared.
  function ends(one) {
    if (one.scale === "share") return [0, 1];
    if (one.scale === "entropy") return [0, Math.log(longest(data))];
    if (one.scale === "count") return [1, longest(data)];
    const all = Object.keys(data.positions).flatMap((w) => everyNumber(valuesOf(data, w, one.key)));
    return [0, Math.max(0, largest(all))];
  }

  function draw() {
    const now = shown();
    ui.position.disabled = ui.length.disabled = ui.statistic.value in { slope: 1, label: 1 };
    map.draw();
    legend(now);
    ui.caption.textContent = caption(now);
  }

  function legend(now) {
    if (now.value !== null) {
      const ends = now.ends.map((end) => (Number.isInteger(end) ? whole(end) : fixed(end, 2)));
      const notes = [now.log ? "logarithmic" : "", now.key ? "the same for every length" : ""];
      rampLegend(ui.legend, ends, notes.filter((one) => one).join(", "));
      return;
    }
    ui.legend.replaceChildren(...data.order.map((label) => {
      const mark = element("span", { className: "mark" });
      mark.dataset.label = label;
      return element("span", {}, mark, label);
    }));
  }

  function caption({ key, name, unit }) {
    if (name === "Slope") return "Slope: nats of entropy for each nat of log(visible tokens)";
    if (!key) return name;
    const tokens = whole(data.tokens[Number(ui.length.value)]);
    const where = data.positions[ui.position.value];
    return `${name}${unit ? ` (${unit})` : ""} ${where}, ${tokens} tokens`;
  }

  for (const box of [ui.statistic, ui.position, ui.length]) box.addEventListener("change", draw);
  return { ...map, draw };
}
