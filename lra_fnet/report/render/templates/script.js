"use strict";
(() => {
  // Sorting: a click on a column's head, largest number or first word first.
  const value = (row, column) => {
    const text = row.cells[column].textContent.trim();
    const number = parseFloat(text.replace(/,/g, ""));
    return Number.isNaN(number) ? text : number;
  };
  for (const head of document.querySelectorAll("thead th")) {
    head.addEventListener("click", () => {
      const body = head.closest("table").tBodies[0];
      const column = head.cellIndex;
      const down = head.getAttribute("aria-sort") !== "descending";
      for (const other of head.parentElement.cells) other.removeAttribute("aria-sort");
      head.setAttribute("aria-sort", down ? "descending" : "ascending");
      const rows = [...body.rows].sort((one, other) => {
        const [a, b] = [value(one, column), value(other, column)];
        if (typeof a !== typeof b) return typeof a === "number" ? -1 : 1;
        const order = typeof a === "number" ? b - a : a.localeCompare(b, "en");
        return down ? order : -order;
      });
      body.append(...rows);
    });
  }

  // The filter hides rows that lack any of its words.
  const filter = document.getElementById("filter");
  const rows = [...document.querySelectorAll("tbody tr")].map((row) => [row, row.textContent.toLowerCase()]);
  filter.addEventListener("input", () => {
    const words = filter.value.toLowerCase().split(/\s+/);
    for (const [row, text] of rows) row.hidden = !words.every((word) => text.includes(word));
  });
})();
