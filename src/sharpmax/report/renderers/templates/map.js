// A map of heads: a table of layers by heads. One cell takes the focus, arrow keys move it.
//
// `data` has layers, heads and `exists(row, column)`. `shown()` returns what is mapped now:
// value(row, column), or null for labels, the ends of the colour scale, and whether it is
// logarithmic. `text(row, column)` describes a cell.

function makeMap(box, data, { select, shown, text, readout, labelOf }) {
  const cells = data.layers.map((_, row) => data.heads.map((_, column) => cell(row, column)));
  box.replaceChildren(grid(data, cells));
  let current = data.first;

  function cell(row, column) {
    const made = element("td", { tabIndex: -1 });
    made.setAttribute("role", "gridcell");
    if (!data.exists(row, column)) {
      made.className = "absent";
      made.removeAttribute("tabindex");
      made.setAttribute("aria-label", "no such head");
      return made;
    }
    if (labelOf) made.dataset.label = labelOf(row, column);
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
      if (data.exists(r, c)) line.push([r, c]);
    }
    const target = Math.abs(down + right) > 1 ? line.at(-1) : line[0];
    if (!target) return;
    cells[row][column].tabIndex = -1;
    cells[target[0]][target[1]].tabIndex = 0;
    cells[target[0]][target[1]].focus();
  }

  function read(row, column) {
    const place = `Layer ${data.layers[row].index}, head ${data.heads[column]}`;
    readout.textContent = `${place}: ${text(row, column)}`;
  }

  function draw() {
    const now = shown();
    const along = now.log ? (x) => Math.log(x) : (x) => x;
    const [low, high] = (now.ends ?? [0, 1]).map(along);
    cells.forEach((line, row) => line.forEach((made, column) => {
      if (!data.exists(row, column)) return;
      const value = now.value === null ? null : now.value(row, column);
      made.className = now.value === null ? "label" : value === null ? "unknown" : "";
      const share = high > low ? (along(value) - low) / (high - low) : 0.5;
      made.style.background = value === null ? "" : (now.colour ?? viridis)(share);
      const place = `layer ${data.layers[row].index}, head ${data.heads[column]}`;
      made.setAttribute("aria-label", `${place}: ${text(row, column)}`);
    }));
    read(...current);
  }

  box.addEventListener("mouseleave", () => read(...current));
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
  // With many heads the numbers would touch: show every fourth.
  const every = data.heads.length > 16 ? 4 : 1;
  const numbers = data.heads.map((number, i) =>
    element("th", { scope: "col", textContent: i % every ? "" : String(number) }));
  const rows = data.layers.map((layer, row) => {
    const windowed = (layer.window ?? null) !== null;
    const name = windowed ? `${layer.index} w` : `${layer.index}`;
    const title = windowed ? `${layer.name}, window ${layer.window}` : layer.name ?? "";
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

// The colour scale and its ends.
function rampLegend(box, [low, high], note, colour = viridis) {
  const bar = element("span", { className: "ramp" });
  bar.style.background = ramp((i, steps) => colour(i / (steps - 1)));
  const texts = [low, high, note && `(${note})`].map((text) => element("span", {}, text));
  box.replaceChildren(texts[0], bar, ...texts.slice(1));
}
