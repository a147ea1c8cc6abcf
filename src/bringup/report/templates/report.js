// Filters and sorting of the experiments' table; without it the page shows everything in the
// order of the config.
(() => {
  "use strict";
  const table = document.getElementById("experiments-table");
  const body = table.tBodies[0];
  const rows = [...body.rows];
  const form = document.querySelector("form.filters");
  const count = form.querySelector("output");
  const control = (name) => form.elements.namedItem(name);
  const valueOf = (name) => (control(name) ? control(name).value : "");
  const texts = new Map(rows.map((row) => [row, row.textContent.toLowerCase()]));
  let descending = false;

  // Figures of a point that no ranking counts are not among a row's keys, so they sort last.
  function compare(a, b, key) {
    const left = a.dataset[key];
    const right = b.dataset[key];
    if (left === undefined || right === undefined) {
      return (left === undefined) - (right === undefined);
    }
    const order = isNaN(left) || isNaN(right) ? left.localeCompare(right) : left - right;
    return descending ? -order : order;
  }

  function sort() {
    const key = valueOf("sort");
    const sorted = key ? [...rows].sort((a, b) => compare(a, b, key)) : rows;
    body.append(...sorted);
    for (const heading of table.tHead.rows[0].cells) {
      const active = key && heading.dataset.sort === key;
      if (active) heading.setAttribute("aria-sort", descending ? "descending" : "ascending");
      else heading.removeAttribute("aria-sort");
    }
  }

  function filter() {
    const words = valueOf("text").toLowerCase().split(/\s+/).filter(Boolean);
    const study = valueOf("study");
    const status = valueOf("status");
    let shown = 0;
    for (const row of rows) {
      row.hidden = (study && row.dataset.study !== study)
        || (status && row.dataset.status !== status)
        || !words.every((word) => texts.get(row).includes(word));
      shown += !row.hidden;
    }
    count.textContent = `${shown} of ${rows.length}`;
  }

  // More tokens per second is better; less of anything else.
  const bestFirst = (key) => key.startsWith("output");

  for (const heading of table.tHead.rows[0].cells) {
    const button = document.createElement("button");
    button.type = "button";
    button.append(...heading.childNodes);
    heading.append(button);
    button.addEventListener("click", () => {
      const key = heading.dataset.sort;
      descending = control("sort").value === key ? !descending : bestFirst(key);
      control("sort").value = key;
      sort();
    });
  }

  // On a narrow screen rows become cards, whose values need the names of their columns.
  for (const each of document.querySelectorAll("table.cards")) {
    const names = [...each.tHead.rows[0].cells].map((heading) => heading.dataset.label || heading.textContent);
    for (const row of each.tBodies[0].rows) {
      names.forEach((name, index) => { row.cells[index].dataset.label = name; });
    }
  }
  document.documentElement.classList.add("labelled");

  function openTarget() {
    const target = location.hash && document.getElementById(decodeURIComponent(location.hash.slice(1)));
    if (target && target.tagName === "DETAILS") target.open = true;
  }

  form.addEventListener("submit", (event) => event.preventDefault());
  form.addEventListener("input", filter);
  control("sort").addEventListener("change", () => {
    descending = bestFirst(valueOf("sort"));
    sort();
  });
  addEventListener("hashchange", openTarget);
  addEventListener("beforeprint", () => {
    for (const each of document.querySelectorAll("details")) each.open = true;
  });
  form.hidden = false;
  filter();
  openTarget();
})();
