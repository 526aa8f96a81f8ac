"use strict";
(() => {
  const all = (selector, root = document) => [...root.querySelectorAll(selector)];

  // Sorting: a click on a column's head, largest number or first word first; a third click restores the order.
  const value = (cell) => {
    const text = (cell?.querySelector(".v") ?? cell)?.textContent.trim() ?? "";
    const number = parseFloat(text.replace(/,/g, ""));
    return text === "" || text === "-" ? null : Number.isNaN(number) ? text : number;
  };
  const compare = (a, b) =>
    typeof a === "number" && typeof b === "number" ? a - b
      : typeof a === typeof b ? String(a).localeCompare(String(b), "en")
        : typeof a === "number" ? 1 : -1;
  for (const table of all("table.sortable")) {
    const grouped = table.tBodies.length > 1;
    const items = grouped ? [...table.tBodies] : [...(table.tBodies[0]?.rows ?? [])];
    const place = grouped ? table : table.tBodies[0];
    all("thead th", table).forEach((head, column) => {
      const button = document.createElement("button");
      button.type = "button";
      button.append(...head.childNodes);
      head.append(button);
      button.addEventListener("click", () => {
        const words = items.every((item) => typeof value((item.rows?.[0] ?? item).cells[column]) !== "number");
        const order = words ? ["ascending", "descending"] : ["descending", "ascending"];
        const next = order[order.indexOf(head.getAttribute("aria-sort")) + 1];
        all("th[aria-sort]", table).forEach((other) => other.removeAttribute("aria-sort"));
        if (next) head.setAttribute("aria-sort", next);
        const keyed = items.map((item) => [value((item.rows?.[0] ?? item).cells[column]), item]);
        if (next) {
          keyed.sort(([a], [b]) => a === null || b === null ? (a === null) - (b === null)
            : next === "ascending" ? compare(a, b) : compare(b, a));
        }
        const end = grouped ? table.tFoot : null;
        for (const [, item] of keyed) place.insertBefore(item, end);
      });
    });
  }

  // The filter hides rows by model, rows, columns and figures by task, rows and blocks by preset.
  const form = document.getElementById("filter");
  const chosen = (name) => form.elements[name].value.trim();
  const plain = (words) => words.toLowerCase().replace(/_/g, " ");
  const titles = [...form.elements.task.options].map((option) => option.value).filter(Boolean);
  const heads = new Map(all("main table").map((table) => [table, all("thead th", table).map((head) => head.textContent.trim())]));
  const places = (words, names) => words.flatMap((word, place) => (names.includes(word.toLowerCase()) ? [place] : []));
  const filter = () => {
    const [model, task, preset] = [plain(chosen("model")), chosen("task"), chosen("preset")];
    const out = (element, hidden) => element.classList.toggle("out", Boolean(hidden));
    for (const block of all("[data-preset]")) out(block, preset && block.dataset.preset !== preset);
    for (const figure of all("[data-task]")) out(figure, task && figure.dataset.task !== task);
    for (const [table, words] of heads) {
      const named = places(words, ["model", "against", "sublayer"]);
      const other = (row, name, wanted) => wanted && places(words, [name]).some((place) => row.cells[place].textContent.trim() !== wanted);
      for (const item of table.tBodies.length > 1 ? table.tBodies : table.tBodies[0]?.rows ?? []) {
        const row = item.rows?.[0] ?? item;
        const absent = model && named.length && !named.some((place) => plain(row.cells[place].textContent).includes(model));
        out(item, absent || other(row, "task", task) || other(row, "preset", preset));
      }
      words.forEach((word, place) => {
        const title = titles.find((name) => word === name || word.startsWith(`${name} `));
        if (title) for (const row of table.rows) out(row.cells[place], task && title !== task);
      });
    }
  };
  form.hidden = false;
  form.addEventListener("input", filter);
  form.addEventListener("submit", (event) => event.preventDefault());
  form.addEventListener("reset", () => setTimeout(filter));

  // A table that is wider than the page says so.
  const widths = new ResizeObserver((entries) => {
    for (const { target } of entries) target.classList.toggle("wider", target.scrollWidth > target.clientWidth + 1);
  });
  all(".scroll, figure > div").forEach((region) => widths.observe(region));

  // The table of contents marks the section that is read.
  const links = new Map(all("nav a").map((link) => [link.hash.slice(1), link]));
  const seen = new IntersectionObserver((entries) => {
    for (const { target, isIntersecting } of entries) {
      if (!isIntersecting) continue;
      for (const [id, link] of links) link.toggleAttribute("aria-current", id === target.id);
    }
  }, { rootMargin: "-20% 0px -75% 0px" });
  all("main > section").forEach((section) => seen.observe(section));

  // Tips appear on hover and focus; a click or Enter keeps one open, Escape closes it.
  const tip = document.getElementById("tip");
  let owner = null;
  let kept = false;
  let leaving = 0;
  const close = () => {
    owner?.setAttribute("aria-expanded", "false");
    owner?.removeAttribute("aria-describedby");
    tip.hidden = true;
    owner = null;
    kept = false;
  };
  const open = (target) => {
    clearTimeout(leaving);
    if (owner === target) return;
    if (owner) close();
    const source = document.getElementById(target.dataset.tip);
    tip.replaceChildren(source.content.cloneNode(true));
    owner = target;
    tip.hidden = false;
    target.setAttribute("aria-describedby", "tip");
    target.setAttribute("aria-expanded", "true");
    const box = target.getBoundingClientRect();
    const wide = document.documentElement.clientWidth;
    const left = Math.max(8, Math.min(box.left, wide - tip.offsetWidth - 8));
    const below = box.bottom + tip.offsetHeight + 12 < innerHeight || box.top < tip.offsetHeight + 12;
    tip.style.left = `${left + scrollX}px`;
    tip.style.top = `${(below ? box.bottom + 6 : box.top - tip.offsetHeight - 6) + scrollY}px`;
  };
  const leave = () => {
    clearTimeout(leaving);
    leaving = setTimeout(() => { if (!kept) close(); }, 200);
  };
  for (const target of all("[data-tip]")) {
    target.addEventListener("mouseenter", () => { if (!kept) open(target); });
    target.addEventListener("mouseleave", leave);
    target.addEventListener("focus", () => open(target));
    target.addEventListener("blur", (event) => { if (!tip.contains(event.relatedTarget)) leave(); });
    target.addEventListener("click", () => {
      const again = owner === target && kept;
      open(target);
      kept = !again;
      if (again) close();
    });
    target.addEventListener("keydown", (event) => {
      if (event.key === "Tab" && !event.shiftKey && kept && owner === target) {
        const link = tip.querySelector("a");
        if (link) { event.preventDefault(); link.focus(); }
      }
    });
  }
  tip.addEventListener("mouseenter", () => clearTimeout(leaving));
  tip.addEventListener("mouseleave", leave);
  tip.addEventListener("keydown", (event) => {
    if (event.key !== "Tab") return;
    const links = all("a", tip);
    const leaves = event.shiftKey ? links[0] : links[links.length - 1];
    if (document.activeElement === leaves) {
      const back = owner;
      if (event.shiftKey) event.preventDefault();
      back.focus();
      if (!event.shiftKey) close();
    }
  });
  document.addEventListener("keydown", (event) => {
    if (event.key !== "Escape" || !owner) return;
    const back = tip.contains(document.activeElement) ? owner : null;
    close();
    if (back) { back.focus(); close(); }
  });
  document.addEventListener("click", (event) => {
    if (owner && !tip.contains(event.target) && !event.target.closest("[data-tip]")) close();
  });

  // A link into a closed or filtered part opens it.
  const reveal = () => {
    const target = location.hash && document.getElementById(decodeURIComponent(location.hash.slice(1)));
    if (!target) return;
    if (target.closest(".out")) {
      form.reset();
      filter();
    }
    for (let node = target; node; node = node.parentElement) if (node.tagName === "DETAILS") node.open = true;
    target.scrollIntoView();
    close();
  };
  addEventListener("hashchange", reveal);
  document.addEventListener("click", (event) => {
    const link = event.target.closest('a[href^="#"]');
    if (link && link.getAttribute("href") === location.hash) reveal();
  });
  reveal();
})();
