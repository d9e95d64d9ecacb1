// The table: rows are in the page already; here they are sorted, filtered and asked for the mean.

function makeTable(section, data) {
  const table = part(section, "table");
  const labelBox = part(section, "table-label");
  const positionBox = part(section, "table-position");
  const body = table.tBodies[0];
  const rows = [...body.rows].map((made) => ({
    made, row: Number(made.dataset.row), column: Number(made.dataset.column),
  }));
  const end = data.tokens.length - 1;

  function value({ row, column }, key) {
    if (key === "layer") return data.layers[row].index;
    if (key === "head") return data.heads[column];
    if (key === "label") return data.labels[row][column];
    if (key === "slope") return data.slopes[row][column];
    if (key === "count") return data.count[end][row][column];
    return valuesOf(data, positionBox.value, key)[end][row][column];
  }

  function compare(one, other, key, sign) {
    const [a, b] = [value(one, key), value(other, key)];
    if (a === b) return one.row - other.row || one.column - other.column;
    if (a === null || b === null) return a === null ? 1 : -1; // what is unknown comes last
    return sign * (a < b ? -1 : 1);
  }

  function sort(header, direction) {
    const key = header.firstElementChild.dataset.sort;
    for (const other of table.tHead.rows[0].cells) other.setAttribute("aria-sort", "none");
    header.setAttribute("aria-sort", direction);
    rows.sort((one, other) => compare(one, other, key, direction === "ascending" ? 1 : -1));
    body.append(...rows.map(({ made }) => made));
  }

  // Names from small to large at first; of measurements one asks for the largest first.
  function clicked(header) {
    const first = ["layer", "head", "label"].includes(header.firstElementChild.dataset.sort)
      ? "ascending" : "descending";
    const opposite = { ascending: "descending", descending: "ascending" };
    sort(header, opposite[header.getAttribute("aria-sort")] ?? first);
  }

  function filter() {
    let count = 0;
    for (const { made, row, column } of rows) {
      made.hidden = labelBox.value !== "" && data.labels[row][column] !== labelBox.value;
      count += made.hidden ? 0 : 1;
    }
    part(section, "table-count").textContent = `${count} of ${rows.length} heads`;
  }

  function position() {
    part(section, "table-where").textContent = data.positions[positionBox.value];
    for (const one of rows) {
      data.statistics.forEach((statistic, i) => {
        one.made.cells[4 + i].textContent = fixed(value(one, statistic.key), statistic.digits);
      });
    }
    const header = [...table.tHead.rows[0].cells]
      .find((cell) => cell.getAttribute("aria-sort") !== "none");
    sort(header, header.getAttribute("aria-sort"));
  }

  for (const header of table.tHead.rows[0].cells) {
    header.firstElementChild.addEventListener("click", () => clicked(header));
  }
  labelBox.addEventListener("change", filter);
  positionBox.addEventListener("change", position);
}
