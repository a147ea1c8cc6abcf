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
  const measures = ["output_tok_s", "ttft_ms_p50", "tpot_ms_p50"];
  const keys = new Map(rows.map((row) => [row, keysOf(row)]));
  const texts = new Map(rows.map((row) => [row, row.textContent.toLowerCase()]));
  let descending = false;

  // What a row is sorted by: its texts, the share of right answers, and the figures of its points.
  // Those that no ranking counts are not among them, so they sort last.
  function keysOf(row) {
    const found = {};
    ["name", "status", "format", "backend", "right"].forEach((name, index) => {
      const text = row.cells[index].firstChild.textContent.trim();
      if (text !== "–") found[name] = text;
    });
    if (found.right) found.right = found.right.split("/").reduce((right, asked) => right / asked);
    for (const point of row.dataset.figures.split(" ").filter(Boolean)) {
      const [level, figures] = point.split(":");
      figures.split(",").forEach((figure, index) => {
        if (figure) found[`${measures[index]}-${level}`] = Number(figure);
      });
    }
    return found;
  }

  function compare(a, b, key) {
    const left = keys.get(a)[key];
    const right = keys.get(b)[key];
    if (left === undefined || right === undefined) {
      return (left === undefined) - (right === undefined);
    }
    const order = typeof left === "string" ? left.localeCompare(right) : left - right;
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

  // More tokens per second and more right answers are better; less of anything else.
  const bestFirst = (key) => key.startsWith("output") || key === "right";

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

  const chapters = document.querySelector("nav");
  for (const section of document.querySelectorAll("section[data-chapter]")) {
    const link = document.createElement("a");
    link.href = `#${section.id}`;
    link.textContent = section.dataset.chapter;
    chapters.append(link);
  }
  chapters.hidden = false;

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
