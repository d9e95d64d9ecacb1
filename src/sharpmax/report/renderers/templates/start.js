// Start each part of the page; its data are beside it.

function startAll(page) {
  for (const section of page.querySelectorAll(".scan")) startScan(section);
  page.querySelectorAll(".block.plots").forEach(makeCharts);
  page.querySelectorAll(".heads").forEach(makeHeads);
  page.querySelectorAll(".frames").forEach(makeFrames);
  page.querySelectorAll(".dots").forEach(makeDots);
  page.querySelectorAll(".tokens").forEach(makeTokens);
  page.querySelectorAll(".contents").forEach(makeContents);
  page.querySelectorAll("table.sortable").forEach(makeSortable);
}

function startScan(section) {
  const data = dataOf(section);
  const show = (row, column) => {
    map.mark(row, column);
    head.show(row, column);
  };
  const select = (row, column) => {
    show(row, column);
    announceHead(section, [row, column]);
  };
  const map = makeScanMap(section, data, select);
  const head = makeHead(section.querySelector(".head"), data, select);
  makeSecondHead(section, data);
  makeCurves(section, data);
  makeScanTable(section, data);
  map.draw();
  show(...data.first);
  onHead(section, ([row, column]) => show(row, column));
}

// Inside the explorer: report the height, so that only the outer page scrolls.
function reportHeight() {
  if (window.parent === window) return;
  const tell = () => window.parent.postMessage({ sharpmaxHeight: document.body.scrollHeight }, "*");
  new ResizeObserver(tell).observe(document.body);
}

// The contents stay beside the text where there is room, and are folded above it elsewhere. A report
// inside the explorer has none: only the outer page scrolls.
function makeContents(nav) {
  if (window.parent !== window) {
    nav.remove();
    return;
  }
  const details = nav.querySelector("details");
  const narrow = window.matchMedia("(max-width: 74.99rem)");
  const fold = () => { details.open = !narrow.matches; };
  narrow.addEventListener("change", fold);
  nav.addEventListener("click", ({ target }) => {
    if (narrow.matches && target.closest("a")) details.open = false;
  });
  fold();
}
