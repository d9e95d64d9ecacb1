// A chart of lines: axes, bands, error bars, columns, marks and rules, as SVG.
//
// Drawn in a few milliseconds without a library: a general one would take longer to start than the
// whole page may take to open. Colours are CSS variables, so that a chart follows the colour scheme
// of the page and prints like it.

const LETTER = 6.3; // mean width of a letter in a tick label, in pixels

function drawChart(box, spec) {
  const width = box.clientWidth;
  const height = box.clientHeight;
  if (!width || !height) return;
  const frame = frameOf(spec, width, height);
  const svg = drawn("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", tabindex: "0" });
  svg.setAttribute("aria-label", `${spec.title ?? "Chart"}: ${spec.lines.length} lines`);
  svg.append(...axesOf(spec, frame), ...rulesOf(spec, frame));
  const shown = spec.lines.filter((line) => !spec.hidden?.has(line.name));
  svg.append(inside(frame, shown.map((line) => lineOf(line, frame))));
  box.replaceChildren(svg);
  addHover(box, svg, { ...spec, lines: shown }, frame);
}

// An SVG inside the SVG clips what goes beyond the axes, but not the edge of a mark.
function inside({ left, right, top, bottom }, lines) {
  const [x, y, width, height] = [left - 4, top - 4, right - left + 8, bottom - top + 8];
  return drawn("svg", { x, y, width, height, viewBox: `${x} ${y} ${width} ${height}` }, ...lines);
}

function frameOf(spec, width, height) {
  const lines = spec.lines;
  const xs = lines.flatMap((line) => line.x).filter((x) => x !== null);
  const ys = lines.flatMap((line) => [line.y, line.low ?? [], line.high ?? []].flat())
    .filter((y) => y !== null);
  const bottom = height - (spec.x.title ? 40 : 22);
  const top = spec.y.title ? 24 : 8;
  const y = makeAxis(spec.y, ys, bottom, top, 34);
  const words = y.ticks.map((tick) => say(spec.y, tick, true).length);
  const left = 14 + LETTER * Math.max(2, ...words);
  const longestTick = Math.max(...xs.map((x) => say(spec.x, x, true).length).slice(-50), 2);
  const x = makeAxis(spec.x, xs, left, width - 14, LETTER * longestTick + 18);
  return { x, y, left, top, bottom, right: width - 14 };
}

function axesOf(spec, { x, y, left, top, bottom, right }) {
  const made = [];
  const text = (at, down, words, anchor) =>
    drawn("text", { x: at, y: down, "text-anchor": anchor }, words);
  for (const tick of y.ticks) {
    const down = y.place(tick);
    made.push(drawn("line", { class: "grid", x1: left, x2: right, y1: down, y2: down }));
    made.push(text(left - 6, down + 4, say(spec.y, tick, true), "end"));
  }
  made.push(drawn("line", { class: "base", x1: left, x2: right, y1: bottom, y2: bottom }));
  for (const tick of x.ticks) {
    const at = x.place(tick);
    made.push(drawn("line", { class: "base", x1: at, x2: at, y1: bottom, y2: bottom + 4 }));
    made.push(text(at, bottom + 16, say(spec.x, tick, true), "middle"));
  }
  if (spec.x.title) made.push(text((left + right) / 2, bottom + 34, spec.x.title, "middle"));
  // Above the axis, where it is easier to read than sideways.
  if (spec.y.title) made.push(text(2, top - 11, spec.y.title, "start"));
  return made;
}

// Straight lines across the chart, with their meaning.
function rulesOf(spec, { x, y, left, top, bottom, right }) {
  return (spec.rules ?? []).flatMap((rule) => {
    const across = rule.axis === "y";
    if (!(across ? y : x).inside(rule.at)) return [];
    const at = across ? y.place(rule.at) : x.place(rule.at);
    const ends = across
      ? { x1: left, x2: right, y1: at, y2: at } : { x1: at, x2: at, y1: top, y2: bottom };
    const end = !across && at > (left + right) / 2;
    const place = across ? { x: left + 6, y: at - 4 } : { x: at + (end ? -5 : 5), y: bottom - 8 };
    return [drawn("line", { class: "rule", ...ends }),
      drawn("text", { class: "note", ...place, "text-anchor": end ? "end" : "start" }, rule.text)];
  });
}

function lineOf(line, { x, y }) {
  const group = drawn("g", { class: `series ${line.dash}` });
  group.style.color = line.colour;
  const there = line.x
    .map((at, i) => ({ at, i, value: line.y[i] }))
    .map((one) => ({ ...one, seen: one.at !== null && one.value !== null && y.shows(one.value) }));
  const spot = (at, value) => `${x.place(at).toFixed(1)},${y.place(value).toFixed(1)}`;
  const seen = there.filter((one) => one.seen);
  if (line.low && line.spread === "band") {
    const both = seen.filter(({ i }) => y.shows(line.low[i]));
    const edge = [...both.map(({ at, i }) => spot(at, line.high[i])),
      ...both.reverse().map(({ at, i }) => spot(at, line.low[i]))];
    group.append(drawn("polygon", { class: "band", points: edge.join(" ") }));
  }
  if (line.low && line.spread !== "band") {
    group.append(...seen.filter(({ i }) => line.low[i] !== null).map(({ at, i }) =>
      drawn("path", { class: line.spread, d: `M${spot(at, line.low[i])}L${spot(at, line.high[i])}` })));
  }
  // A missing number leaves a gap in the line.
  const path = there.map((one, i) =>
    one.seen ? `${there[i - 1]?.seen ? "L" : "M"}${spot(one.at, one.value)}` : "").join("");
  if (line.dash !== "none") group.append(drawn("path", { class: "curve", d: path }));
  if (line.marks) {
    group.append(...seen.map(({ at, value }) => drawn("circle",
      { cx: x.place(at).toFixed(1), cy: y.place(value).toFixed(1), r: line.marks })));
  }
  return group;
}

// Draw now, and again whenever the box changes its width.
function keepDrawn(box, draw) {
  let width = null;
  new ResizeObserver(() => {
    if (box.clientWidth === width) return;
    width = box.clientWidth;
    draw();
  }).observe(box);
}
