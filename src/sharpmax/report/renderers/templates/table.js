// Sort tables by a click on a heading.
//
// A cell's number is its `data-value`, or its text without one; unknown numbers come last.

function makeSortable(table) {
  const body = table.tBodies[0];
  const headers = [...table.tHead.rows[0].cells];
  const rows = [...body.rows];
  rows.forEach((row, i) => { row.dataset.order = i; });

  function value(row, column) {
    const cell = row.cells[column];
    if (cell.dataset.value === undefined) return cell.textContent.trim();
    return cell.dataset.value === "" ? null : Number(cell.dataset.value);
  }

  function compare(one, other, column, sign) {
    const [a, b] = [value(one, column), value(other, column)];
    if (a === b) return one.dataset.order - other.dataset.order;
    if (a === null || b === null) return a === null ? 1 : -1;
    return sign * (a < b ? -1 : 1);
  }

  function sort(header, direction) {
    for (const other of headers) other.setAttribute("aria-sort", "none");
    header.setAttribute("aria-sort", direction);
    const sign = direction === "ascending" ? 1 : -1;
    rows.sort((one, other) => compare(one, other, headers.indexOf(header), sign));
    body.append(...rows);
  }

  // The first click sorts names upwards and measurements downwards.
  function clicked(header) {
    const first = header.dataset.first ?? "descending";
    const opposite = { ascending: "descending", descending: "ascending" };
    sort(header, opposite[header.getAttribute("aria-sort")] ?? first);
  }

  for (const header of headers) {
    header.firstElementChild.addEventListener("click", () => clicked(header));
  }
  return {
    rows,
    again() {
      const header = headers.find((one) => one.getAttribute("aria-sort") !== "none");
      if (header) sort(header, header.getAttribute("aria-sort"));
    },
  };
}

// The table of a scan can also be filtered by label, and show the mean over positions.
function makeScanTable(section, data) {
  const table = makeSortable(part(section, "table"));
  const labelBox = part(section, "table-label");
  const positionBox = part(section, "table-position");
  const end = data.tokens.length - 1;

  function filter() {
    for (const row of table.rows) {
      const label = data.labels[row.dataset.row][row.dataset.column];
      row.hidden = labelBox.value !== "" && label !== labelBox.value;
    }
    const count = table.rows.filter((row) => !row.hidden).length;
    part(section, "table-count").textContent = `${count} of ${table.rows.length} heads`;
  }

  function position() {
    part(section, "table-where").textContent = data.positions[positionBox.value];
    for (const row of table.rows) {
      data.statistics.forEach((statistic, i) => {
        const level = valuesOf(data, positionBox.value, statistic.key)[end];
        const value = level[row.dataset.row][row.dataset.column];
        row.cells[4 + i].textContent = fixed(value, statistic.digits);
        row.cells[4 + i].dataset.value = value ?? "";
      });
    }
    table.again();
  }

  labelBox.addEventListener("change", filter);
  positionBox.addEventListener("change", position);
}
