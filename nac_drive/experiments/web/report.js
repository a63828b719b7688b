"use strict";

// Sort the rows by the first number of a cell, or by its text; cells without a value stay at the end.
const key = (row, i) => {
  const text = row.cells[i].textContent.trim();
  if (text === "-") return null;
  const number = parseFloat(text.replaceAll(",", "").replace("+", ""));
  return i === 0 || Number.isNaN(number) ? text : number;
};
for (const table of document.querySelectorAll("table")) {
  const body = table.tBodies[0], heads = [...table.querySelectorAll("th")];
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
}

// What is wider than the screen shows at its edges that it goes on there.
for (const shade of document.querySelectorAll(".shade")) {
  const scroll = shade.firstElementChild, names = [...shade.querySelectorAll("th.name")];
  const look = () => {
    const left = scroll.scrollLeft, rest = scroll.scrollWidth - scroll.clientWidth - left;
    shade.classList.toggle("before", left > 1);
    shade.classList.toggle("after", rest > 1);
    if (!names.length) return;
    const widths = names.map(name => name.getBoundingClientRect().width);
    shade.style.setProperty("--first", `${widths[0]}px`);
    shade.style.setProperty("--names", `${widths.reduce((sum, width) => sum + width)}px`);
  };
  scroll.addEventListener("scroll", look, { passive: true });
  new ResizeObserver(look).observe(scroll);
  for (const image of shade.querySelectorAll("img")) {
    const size = () => { image.classList.toggle("wide", image.naturalWidth > 1.7 * image.naturalHeight); look(); };
    image.addEventListener("load", size);
    size();
  }
}
