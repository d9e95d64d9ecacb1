// Start each part of the page; its data are beside it.

function startAll(page) {
  for (const section of page.querySelectorAll(".scan")) startScan(section);
  page.querySelectorAll(".block.plots").forEach(makeCharts);
  page.querySelectorAll(".heads").forEach(makeHeads);
  page.querySelectorAll(".frames").forEach(makeFrames);
  page.querySelectorAll(".dots").forEach(makeDots);
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

// Inside the explorer: report the height, so that only the outer page scrolls.
function reportHeight() {
  if (window.parent === window) return;
  const tell = () => window.parent.postMessage({ sharpmaxHeight: document.body.scrollHeight }, "*");
  new ResizeObserver(tell).observe(document.body);
}
