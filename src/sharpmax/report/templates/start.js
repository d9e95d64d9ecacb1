// Each part of the page on its own: a part finds its data beside it.

function startAll(page) {
  for (const section of page.querySelectorAll(".scan")) startScan(section);
  page.querySelectorAll(".block.plots").forEach(makeCharts);
  page.querySelectorAll(".heads").forEach(makeHeads);
  page.querySelectorAll(".frames").forEach(makeFrames);
  page.querySelectorAll("table.sortable").forEach(makeSortable);
}

function startScan(section) {
  const data = dataOf(section);
  const select = (row, column) => {
    map.mark(row, column);
    head.show(row, column);
  };
  const map = makeScanMap(section, data, select);
  const head = makeHead(section, data, select);
  makeCurves(section, data);
  makeScanTable(section, data);
  map.draw();
  select(...data.first);
}

// Inside another page, which is told how high this one is, so that only one of them scrolls.
function tellHeight() {
  if (window.parent === window) return;
  const tell = () => window.parent.postMessage({ sharpmaxHeight: document.body.scrollHeight }, "*");
  new ResizeObserver(tell).observe(document.body);
}
