// Each part of the page on its own: a part finds its data beside it.

for (const section of document.querySelectorAll(".scan")) {
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
document.querySelectorAll(".block.plots").forEach(makeCharts);
document.querySelectorAll(".heads").forEach(makeHeads);
document.querySelectorAll(".frames").forEach(makeFrames);
document.querySelectorAll("table.sortable").forEach(makeSortable);
