// Each section on its own. The chart library follows this script and takes a second to start, so
// all but the charts works before it; each chart is drawn when it first comes near the screen, and
// again when the scheme changes, for its colours.

function drawnWhenNear(box, draw) {
  let near = false;
  const redraw = () => {
    if (near && window.Plotly) draw();
  };
  const watch = new IntersectionObserver((entries) => {
    if (!entries.some((entry) => entry.isIntersecting)) return;
    watch.disconnect();
    near = true;
    redraw();
  }, { rootMargin: "400px" });
  window.addEventListener("DOMContentLoaded", () => watch.observe(box));
  darkScheme.addEventListener("change", redraw);
  return redraw;
}

for (const section of document.querySelectorAll(".scan")) {
  const data = JSON.parse(part(section, "data").textContent);
  const select = (row, column) => {
    map.mark(row, column);
    head.show(row, column);
  };
  const map = makeMap(section, data, select);
  const head = makeHead(section, data, select);
  makeCurves(section, data);
  makeTable(section, data);
  map.draw();
  select(...data.first);
}
