"use strict";

// Sort the rows by the first number of a cell, or by its text; cells without a value stay at the end.
const body = document.querySelector("tbody"), heads = [...document.querySelectorAll("th")];
const key = (row, i) => {
  const text = row.cells[i].textContent.trim();
  if (text === "-") return null;
  const number = parseFloat(text.replaceAll(",", "").replace("+", ""));
  return i === 0 || Number.isNaN(number) ? text : number;
};
heads.forEach((head, i) => head.querySelector("button").addEventListener("click", () => {
  const down = head.getAttribute("aria-sort") !== "descending" && i > 0 || head.getAttribute("aria-sort") === "ascending";
  heads.forEach(other => other.removeAttribute("aria-sort"));
  head.setAttribute("aria-sort", down ? "descending" : "ascending");
  const rows = [...body.rows].sort((a, b) => {
    const [x, y] = [key(a, i), key(b, i)];
    if (x === null || y === null) return (x === null) - (y === null);
    const order = typeof x === "string" ? x.localeCompare(y) : x - y;
    return down ? -order : order;
  });
  body.append(...rows);
}));
