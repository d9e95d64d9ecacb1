// Dots in rows that are labelled directly, in panels side by side: intervals, or the seeds behind a
// mean. A narrow page has one panel below the other.

const ROW = 20; // pixels
const LABELS = 150; // width of the names, in pixels

function makeDots(box) {
  const data = dataOf(box);
  const lines = data.rows.flatMap((row) =>
    [...(row.heading ? [{ text: row.heading, heading: true }] : []), { text: row.name, row }]);
  const panels = [...box.querySelectorAll(".dot-panel")];
  const readout = part(box, "dots-readout");
  panels.forEach((panel, place) => {
    panel.style.height = `${ROW * lines.length + 46}px`;
    keepDrawn(panel, () => drawDots(panel, data, lines, place, readout));
  });
}

function drawDots(panel, data, lines, place, readout) {
  const width = panel.clientWidth;
  const bottom = ROW * lines.length + 6;
  const axis = { ...data.panels[place], title: "" };
  const numbers = data.rows.flatMap(({ marks }) => marks[place]
    ? [marks[place].value, marks[place].low, marks[place].high, ...marks[place].points] : [])
    .filter((value) => value !== null);
  if (data.rule !== null) numbers.push(data.rule);
  const x = makeAxis(axis, numbers, LABELS, width - 14, 56);
  const svg = drawn("svg", { viewBox: `0 0 ${width} ${bottom + 40}`, role: "img" });
  svg.setAttribute("aria-label", `${data.title}: ${data.panels[place].title}`);
  for (const tick of x.ticks) {
    const at = x.place(tick);
    svg.append(drawn("line", { class: "grid", x1: at, x2: at, y1: 2, y2: bottom }),
      drawn("text", { x: at, y: bottom + 16, "text-anchor": "middle" }, say(axis, tick, true)));
  }
  if (data.rule !== null) {
    const at = x.place(data.rule);
    svg.append(drawn("line", { class: "rule", x1: at, x2: at, y1: 2, y2: bottom }));
  }
  svg.append(drawn("text",
    { x: (LABELS + width) / 2, y: bottom + 34, "text-anchor": "middle" }, data.panels[place].title));
  lines.forEach((line, index) => svg.append(...dotLine(line, place, 14 + ROW * index, x, readout, axis)));
  panel.replaceChildren(svg);
}

function dotLine({ text, heading, row }, place, down, x, readout, axis) {
  const name = drawn("text", { class: heading ? "dot-heading" : "dot-name", x: heading ? 2 : 12, y: down + 4 }, text);
  const mark = row?.marks[place];
  if (!mark) return [name];
  const group = drawn("g", { class: "dot" });
  group.style.color = row.colour;
  if (mark.low !== null) {
    group.append(drawn("line", { x1: x.place(mark.low), x2: x.place(mark.high), y1: down, y2: down }));
  }
  for (const point of mark.points) {
    group.append(drawn("circle", { class: "seed", cx: x.place(point), cy: down, r: 3 }));
  }
  const at = x.place(mark.value);
  group.append(mark.points.length
    ? drawn("line", { class: "mean", x1: at, x2: at, y1: down - 7, y2: down + 7 })
    : drawn("circle", { cx: at, cy: down, r: 4.5 }));
  const range = mark.low === null ? "" : ` (${say(axis, mark.low)} to ${say(axis, mark.high)})`;
  const seeds = mark.points.length ? ` (seeds: ${mark.points.map((one) => say(axis, one)).join(", ")})` : "";
  const words = `${text}: ${say(axis, mark.value)}${range}${seeds}`;
  group.append(drawn("title", {}, words));
  group.addEventListener("pointerenter", () => { readout.textContent = words; });
  return [name, group];
}
