"use strict";
// What the tables of this site need beyond HTML. On pages that people search, one box filters the rows of all tables: a
// row stays visible if it, or the heading above its table, has all words of the box. So methods and data sets can both be
// searched for. Cells with numbers keep to one line, long texts get a column of some width, and tables that are wider than
// the page scroll, with the first column in place.
const SEARCHED = ["methods", "results", "bdc-study"];
const SHORT_TEXT = 32;
const LONG_TEXT = 90;

function shapeColumns(table) {
  const rows = [...table.rows];
  for (let column = 0; column < (rows[0]?.cells.length ?? 0); column++) {
    const cells = rows.map((row) => row.cells[column]).filter(Boolean);
    const bodyLengths = cells.filter((cell) => cell.tagName === "TD").map((cell) => cell.textContent.trim().length);
    const longest = Math.max(0, ...bodyLengths);
    const kind = longest <= SHORT_TEXT ? "short" : longest > LONG_TEXT ? "long" : "middle";
    cells.filter((cell) => cell.tagName === "TD").forEach((cell) => cell.classList.add(kind));
  }
}

function markWide(table) {
  const wrapper = table.closest(".table-wrapper");
  if (wrapper) wrapper.classList.toggle("wide", wrapper.scrollWidth > wrapper.clientWidth + 1);
}

function searchBox(tables) {
  const entries = tables.flatMap((table) => {
    const heading = table.closest("section")?.querySelector("h2, h3")?.textContent ?? "";
    return [...table.querySelectorAll("tbody tr")].map((row) => ({
      row, table, text: `${heading} ${row.textContent}`.toLowerCase(),
    }));
  });
  const box = document.createElement("input");
  box.type = "search";
  box.className = "table-filter";
  box.placeholder = `Search ${entries.length} rows`;
  box.setAttribute("aria-label", "Search the rows of the tables on this page");
  const count = document.createElement("p");
  count.className = "table-filter-count";
  count.setAttribute("aria-live", "polite");
  box.addEventListener("input", () => {
    const words = box.value.toLowerCase().split(/\s+/).filter(Boolean);
    for (const entry of entries) entry.row.hidden = !words.every((word) => entry.text.includes(word));
    const shown = entries.filter((entry) => !entry.row.hidden).length;
    for (const table of tables) {
      const empty = !entries.some((entry) => entry.table === table && !entry.row.hidden);
      (table.closest(".table-wrapper") || table).hidden = empty;
    }
    count.textContent = words.length ? `${shown} of ${entries.length} rows` : "";
  });
  return [box, count];
}

document.addEventListener("DOMContentLoaded", () => {
  const tables = [...document.querySelectorAll("article table")].filter((table) => !table.matches(".indextable"));
  tables.forEach(shapeColumns);
  tables.forEach(markWide);
  addEventListener("resize", () => tables.forEach(markWide));
  const name = location.pathname.split("/").pop().replace(/\.html$/, "");
  if (tables.length && SEARCHED.includes(name)) {
    const section = tables[0].closest("section");
    const table = tables[0].closest(".table-wrapper") || tables[0];
    const place = tables.length > 1 && section?.querySelector(":scope > h2") ? section : table;
    place.before(...searchBox(tables));
  }
  for (const picture of document.querySelectorAll("article img")) {
    if (picture.closest("a")) continue;
    const link = document.createElement("a"); // small on a phone: a tap opens the picture by itself
    link.href = picture.src;
    link.className = "picture";
    picture.replaceWith(link);
    link.append(picture);
  }
});
