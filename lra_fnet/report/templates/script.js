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

  // Tabs show one preset at a time; without this script all are below each other.
  const panels = all(".presets > section");
  const show = (panel) => {
    for (const other of panels) {
      const chosen = other === panel;
      other.hidden = !chosen;
      const tab = document.getElementById(`tab-${other.id}`);
      tab.setAttribute("aria-selected", chosen);
      tab.tabIndex = chosen ? 0 : -1;
    }
  };
  if (panels.length > 1) {
    const list = document.createElement("div");
    list.setAttribute("role", "tablist");
    list.setAttribute("aria-label", "Presets");
    for (const panel of panels) {
      const tab = document.createElement("button");
      Object.assign(tab, { id: `tab-${panel.id}`, type: "button", textContent: panel.dataset.title });
      tab.setAttribute("role", "tab");
      tab.setAttribute("aria-controls", panel.id);
      panel.setAttribute("role", "tabpanel");
      panel.setAttribute("aria-labelledby", tab.id);
      tab.addEventListener("click", () => show(panel));
      list.append(tab);
    }
    list.addEventListener("keydown", (event) => {
      const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
      if (!step) return;
      const tabs = [...list.children];
      const next = tabs[(tabs.indexOf(document.activeElement) + step + tabs.length) % tabs.length];
      next.click();
      next.focus();
    });
    panels[0].parentNode.prepend(list);
    show(panels[0]);
  }

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

  // A link into a hidden tab or a closed section opens it.
  const reveal = () => {
    const target = location.hash && document.getElementById(decodeURIComponent(location.hash.slice(1)));
    if (!target) return;
    const panel = target.closest(".presets > section");
    if (panel && panels.length > 1) show(panel);
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

  // In print, every section is open but the configurations, which are not printed.
  let closed = [];
  addEventListener("beforeprint", () => {
    closed = all("details:not([open]):not([id])");
    closed.forEach((details) => { details.open = true; });
  });
  addEventListener("afterprint", () => closed.forEach((details) => { details.open = false; }));
})();
