// Reading a chart with the mouse or the arrow keys, and a legend whose buttons hide lines.

const MANY = 9; // with so many lines only the nearest point is read

function addHover(box, svg, spec, frame) {
  const tip = element("div", { className: "tip", hidden: true });
  const rule = drawn("line", { class: "rule", y1: frame.top, y2: frame.bottom });
  const dot = drawn("circle", { class: "pointer", r: 4 });
  const points = spec.lines.flatMap((line) => line.x.map((at, i) => ({ line, at, i })))
    .filter(({ line, at, i }) => at !== null && line.y[i] !== null && frame.y.shows(line.y[i]))
    .map((one) => ({
      ...one, left: frame.x.place(one.at), top: frame.y.place(one.line.y[one.i]),
    }));
  if (!points.length) return;
  box.append(tip);
  const places = [...new Set(points.map(({ at }) => at))].sort((a, b) => a - b);
  const single = spec.lines.length >= MANY || spec.single;
  let current = null;

  function near(left, top) {
    const by = single ? ({ left: l, top: t }) => Math.hypot(l - left, t - top)
      : ({ left: l }) => Math.abs(l - left);
    return points.reduce((best, one) => (by(one) < by(best) ? one : best));
  }

  function show(point) {
    current = point.at;
    const here = single ? [point] : points.filter(({ at }) => at === point.at)
      .sort((a, b) => a.top - b.top);
    const rows = here.map((one) => {
      const swatch = element("span", { className: "swatch" });
      swatch.style.color = one.line.colour;
      const name = one.line.labels?.[one.i] ?? one.line.name;
      return element("div", {}, swatch, `${name}: ${say(spec.y, one.line.y[one.i])}${range(one)}`);
    });
    const head = `${say(spec.x, point.at)} ${spec.x.noun ?? ""}`;
    tip.replaceChildren(element("strong", {}, head), ...rows);
    tip.hidden = false;
    const room = box.clientWidth - tip.offsetWidth - 4;
    const beside = point.left + 12 > room ? point.left - 12 - tip.offsetWidth : point.left + 12;
    tip.style.left = `${Math.max(0, Math.min(room, beside))}px`;
    tip.style.top = `${Math.max(0, Math.min(point.top - 20, box.clientHeight - tip.offsetHeight))}px`;
    rule.setAttribute("x1", point.left);
    rule.setAttribute("x2", point.left);
    dot.setAttribute("cx", point.left);
    dot.setAttribute("cy", point.top);
    svg.append(single ? dot : rule);
  }

  function range({ line, i }) {
    if (!line.low || line.low[i] === null || line.spread === "columns") return "";
    return ` (${say(spec.y, line.low[i])} to ${say(spec.y, line.high[i])})`;
  }

  function hide() {
    tip.hidden = true;
    rule.remove();
    dot.remove();
  }

  svg.addEventListener("pointermove", (event) => {
    const bounds = svg.getBoundingClientRect();
    show(near(event.clientX - bounds.left, event.clientY - bounds.top));
  });
  svg.addEventListener("pointerleave", hide);
  svg.addEventListener("blur", hide);
  svg.addEventListener("keydown", (event) => {
    const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!step) return;
    event.preventDefault();
    const next = current === null ? 0 : places.indexOf(current) + step;
    const at = places[Math.max(0, Math.min(places.length - 1, next))];
    show(points.find((one) => one.at === at));
  });
}

// One button per line, which hides it in all charts without moving their axes. Grey lines have no
// button: there are many of them, and the hover text names them.
function makeLegend(box, charts) {
  const lines = charts.flatMap(({ spec }) => spec.lines)
    .filter((line) => line.name && line.colour !== "var(--other)");
  const named = new Map(lines.map(({ name }) => [name, lines.find((line) => line.name === name)]));
  if (named.size < 2) return;
  const hidden = new Set();
  box.replaceChildren(...[...named.values()].map((line) => {
    const swatch = element("span", { className: `swatch ${line.dash}` });
    swatch.style.color = line.colour;
    const made = element("button", { type: "button" }, swatch, line.name);
    made.setAttribute("aria-pressed", "true");
    made.addEventListener("click", () => {
      const seen = hidden.has(line.name);
      hidden[seen ? "delete" : "add"](line.name);
      made.setAttribute("aria-pressed", String(seen));
      for (const { draw } of charts) draw();
    });
    return made;
  }));
  for (const { spec } of charts) spec.hidden = hidden;
}

// Draw the charts of a section, with one legend.
function makeCharts(section) {
  const charts = [...section.querySelectorAll("figure.drawn")].map((figure) => {
    const spec = dataOf(figure);
    const box = figure.querySelector(".chart");
    return { spec, box, draw: () => drawChart(box, spec) };
  });
  makeLegend(part(section, "legend"), charts);
  for (const { box, draw } of charts) keepDrawn(box, draw);
}
