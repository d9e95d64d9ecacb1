// The map: a table of layers by heads, one cell in the order of tabbing, arrows to move about.

function makeMap(section, data, select) {
  const ui = Object.fromEntries(
    ["statistic", "position", "length", "caption", "legend", "box", "readout"]
      .map((name) => [name, part(section, `map-${name}`)]));
  const cells = data.layers.map((_, row) => data.heads.map((_, column) => cell(row, column)));
  ui.box.replaceChildren(grid(data, cells));
  let current = data.first;

  function cell(row, column) {
    const made = element("td", { tabIndex: -1 });
    made.setAttribute("role", "gridcell");
    if (data.labels[row][column] === null) {
      made.className = "absent";
      made.removeAttribute("tabindex");
      made.setAttribute("aria-label", "no such head");
      return made;
    }
    made.dataset.label = data.labels[row][column];
    made.addEventListener("click", () => select(row, column));
    made.addEventListener("mouseenter", () => read(row, column));
    made.addEventListener("focus", () => read(row, column));
    made.addEventListener("keydown", (event) => key(event, row, column));
    return made;
  }

  function key(event, row, column) {
    const steps = {
      ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1],
      Home: [0, -data.heads.length], End: [0, data.heads.length],
    };
    if (event.key === "Enter" || event.key === " ") select(row, column);
    else if (event.key in steps) move(row, column, ...steps[event.key]);
    else return;
    event.preventDefault();
  }

  // One step, over any gap; from the edge, or for Home and End, as far as there are heads.
  function move(row, column, down, right) {
    const line = [];
    for (let r = row + Math.sign(down), c = column + Math.sign(right);
      cells[r]?.[c]; r += Math.sign(down), c += Math.sign(right)) {
      if (data.labels[r][c] !== null) line.push([r, c]);
    }
    const target = Math.abs(down + right) > 1 ? line.at(-1) : line[0];
    if (!target) return;
    cells[row][column].tabIndex = -1;
    cells[target[0]][target[1]].tabIndex = 0;
    cells[target[0]][target[1]].focus();
  }

  function text(row, column) {
    const { name, unit, value, digits } = shown();
    const number = value === null ? "" :
      `${name.toLowerCase()} ${fixed(value(row, column), digits)}${unit ? ` ${unit}` : ""}, `;
    const rate = data.slopes[row][column];
    const slope = name === "Slope" || rate === null ? "" : `, slope ${fixed(rate, 2)}`;
    const place = `layer ${data.layers[row].index}, head ${data.heads[column]}`;
    return `${place}: ${number}${data.labels[row][column]}${slope}`;
  }

  function read(row, column) {
    ui.readout.textContent = text(row, column).replace(/^l/, "L");
  }

  // What the boxes ask for: its name, its values and the ends of its colours.
  function shown() {
    const chosen = ui.statistic.value;
    if (chosen === "label") return { name: "Label", value: null };
    if (chosen === "slope") {
      const all = [0, 1, ...everyNumber(data.slopes)];
      const ends = [Math.min(...all), Math.max(...all)];
      return { name: "Slope", unit: "", digits: 2, ends, value: (r, c) => data.slopes[r][c] };
    }
    const one = data.statistics.find((statistic) => statistic.key === chosen);
    const level = valuesOf(data, ui.position.value, chosen)[Number(ui.length.value)];
    return { ...one, ends: ends(one), log: one.scale === "count", value: (r, c) => level[r][c] };
  }

  // The same for every length and position, so that colours can be compared between them.
  function ends(one) {
    if (one.scale === "share") return [0, 1];
    if (one.scale === "entropy") return [0, Math.log(longest(data))];
    if (one.scale === "count") return [1, longest(data)];
    const all = Object.keys(data.positions).flatMap((w) => everyNumber(valuesOf(data, w, one.key)));
    return [0, all.reduce((a, b) => Math.max(a, b), 0)];
  }

  function draw() {
    const now = shown();
    const along = now.log ? (x) => Math.log(x) : (x) => x;
    ui.position.disabled = ui.length.disabled = ui.statistic.value in { slope: 1, label: 1 };
    cells.forEach((line, row) => line.forEach((made, column) => {
      if (data.labels[row][column] === null) return;
      const value = now.value === null ? null : now.value(row, column);
      const [low, high] = (now.ends ?? [0, 1]).map(along);
      made.className = now.value === null ? "label" : value === null ? "unknown" : "";
      made.style.background = value === null ? "" : viridis((along(value) - low) / (high - low));
      made.setAttribute("aria-label", text(row, column));
    }));
    legend(ui.legend, now, data.order);
    ui.caption.textContent = caption(now);
    read(...current);
  }

  function caption({ key, name, unit }) {
    if (name === "Slope") return "Slope: nats of entropy for each nat of log(visible tokens)";
    if (!key) return name;
    const tokens = whole(data.tokens[Number(ui.length.value)]);
    const where = data.positions[ui.position.value];
    return `${name}${unit ? ` (${unit})` : ""} ${where}, ${tokens} tokens`;
  }

  ui.box.addEventListener("mouseleave", () => read(...current));
  for (const box of [ui.statistic, ui.position, ui.length]) box.addEventListener("change", draw);
  return {
    draw,
    mark(row, column) {
      for (const made of cells.flat().filter((one) => one.className !== "absent")) {
        made.tabIndex = -1;
        made.setAttribute("aria-selected", "false");
      }
      cells[row][column].tabIndex = 0;
      cells[row][column].setAttribute("aria-selected", "true");
      current = [row, column];
      read(row, column);
    },
  };
}

function grid(data, cells) {
  const corner = element("th", { className: "side", textContent: "layer" });
  // Many heads: their numbers would touch, so every fourth.
  const every = data.heads.length > 16 ? 4 : 1;
  const numbers = data.heads.map((number, i) =>
    element("th", { scope: "col", textContent: i % every ? "" : String(number) }));
  const rows = data.layers.map((layer, row) => {
    const name = layer.window === null ? `${layer.index}` : `${layer.index} w`;
    const title = layer.window === null ? layer.name : `${layer.name}, window ${layer.window}`;
    const side = element("th", { scope: "row", textContent: name, title });
    return element("tr", {}, side, ...cells[row]);
  });
  const made = element("table", { className: "cells" },
    element("thead", {}, element("tr", {}, corner, ...numbers)), element("tbody", {}, ...rows));
  made.setAttribute("role", "grid");
  made.setAttribute("aria-label", "Map of heads: a row for each layer, a column for each head");
  made.style.minWidth = `${3.4 + 0.9 * data.heads.length}rem`;
  made.style.maxWidth = `${3.4 + 3.2 * data.heads.length}rem`;
  return made;
}

function legend(box, now, labels) {
  if (now.value === null) {
    box.replaceChildren(...labels.map((label) => {
      const mark = element("span", { className: "mark" });
      mark.dataset.label = label;
      return element("span", {}, mark, label);
    }));
    return;
  }
  const bar = element("span", { className: "ramp" });
  bar.style.background = ramp((i, steps) => viridis(i / (steps - 1)));
  const [low, high] = now.ends.map((end) => (Number.isInteger(end) ? whole(end) : fixed(end, 2)));
  const notes = [now.log ? "logarithmic" : "", now.key ? "the same for every length" : ""];
  const note = notes.filter((one) => one).join(", ");
  const texts = [low, high, note && `(${note})`].map((text) => element("span", {}, text));
  box.replaceChildren(texts[0], bar, ...texts.slice(1));
}
