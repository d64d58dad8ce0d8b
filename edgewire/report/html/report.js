"use strict";
(() => {
  // A cell's number is in data-v; a cell with an empty data-v is always last.
  const valueOf = (row, at) => {
    const cell = row.cells[at];
    if (!("v" in cell.dataset)) return cell.textContent.toLowerCase();
    return cell.dataset.v === "" ? null : Number(cell.dataset.v);
  };
  const compare = (a, b, sign) => {
    if (a === null || b === null) return (a === null) - (b === null);
    if (typeof a === typeof b) return sign * (typeof a === "number" ? a - b : a.localeCompare(b));
    return typeof a === "number" ? -1 : 1;
  };
  const sort = (head) => {
    const table = head.closest("table"), body = table.tBodies[0], at = head.cellIndex;
    const down = head.getAttribute("aria-sort") === "ascending";
    for (const other of head.parentNode.cells) other.removeAttribute("aria-sort");
    head.setAttribute("aria-sort", down ? "descending" : "ascending");
    const rows = [...body.rows].map((row) => [valueOf(row, at), row]);
    rows.sort((a, b) => compare(a[0], b[0], down ? -1 : 1));
    body.replaceChildren(...rows.map((pair) => pair[1]));
  };
  const filter = (input) => {
    const box = input.closest(".table"), words = input.value.toLowerCase().split(/\s+/);
    let shown = 0;
    const rows = box.querySelector("tbody").rows;
    for (const row of rows) {
      const text = row.textContent.toLowerCase();
      row.hidden = !words.every((word) => text.includes(word));
      shown += !row.hidden;
    }
    box.querySelector(".count").textContent = `${shown} of ${rows.length} rows`;
  };
  document.addEventListener("click", (event) => {
    const button = event.target.closest("th button");
    if (button) sort(button.closest("th"));
  });
  document.addEventListener("input", (event) => {
    if (event.target.matches("[data-filter]")) filter(event.target);
  });
})();
