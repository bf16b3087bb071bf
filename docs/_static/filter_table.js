"use strict";
// A search box above every table with the class "filtered", or with more than fifteen rows: only rows with all words of
// the box stay visible.
document.addEventListener("DOMContentLoaded", () => {
  for (const table of document.querySelectorAll("article table")) {
    const rows = [...table.querySelectorAll("tbody tr")];
    if (rows.length < 15) continue;
    const box = document.createElement("input");
    box.type = "search";
    box.className = "table-filter";
    box.placeholder = `Search these ${rows.length} rows`;
    box.setAttribute("aria-label", "Search the rows of this table");
    const count = document.createElement("p");
    count.className = "table-filter-count";
    count.setAttribute("aria-live", "polite");
    const wrapper = table.closest(".table-wrapper") || table;
    wrapper.before(box, count);
    box.addEventListener("input", () => {
      const words = box.value.toLowerCase().split(/\s+/).filter(Boolean);
      let shown = 0;
      for (const row of rows) {
        const text = row.textContent.toLowerCase();
        row.hidden = !words.every((word) => text.includes(word));
        shown += row.hidden ? 0 : 1;
      }
      count.textContent = words.length ? `${shown} of ${rows.length} rows` : "";
    });
  }
});
