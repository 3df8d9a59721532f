// Keys for the pages: / to the search, j and k through the rows, ? for help. Enter opens a row,
// because its link has the focus. No key is taken from somebody who types, or who holds a modifier;
// none at all if they are switched off, which the browser remembers.
"use strict";
(() => {
  const dialog = document.getElementById("keys");
  const help = document.getElementById("show-keys");
  if (!dialog || !help) return;

  function search() {
    const field = document.querySelector("main input[type=search], main form:not([method]) input");
    if (!field) return location.assign("schedules");
    field.focus();
    field.select();
  }

  // A row is shown if it is not in something folded.
  function links() {
    const rows = document.querySelectorAll("main tbody tr, main .row");
    return [...rows]
      .filter((row) => row.getClientRects().length)
      .map((row) => row.querySelector("a[href]"))
      .filter(Boolean);
  }

  function move(by) {
    const all = links();
    const row = document.activeElement?.closest("tr, .row");
    const at = row ? all.indexOf(row.querySelector("a[href]")) : -1;
    const to = at < 0 && by < 0 ? all.length - 1 : at + by;
    const link = all[Math.min(all.length - 1, Math.max(0, to))];
    link?.focus();
    link?.scrollIntoView({ block: "nearest" });
  }

  // Whoever speaks to the computer can switch the keys off: each spoken letter could be one.
  const choice = document.getElementById("use-keys");
  try {
    choice.checked = localStorage.getItem("psched-keys") !== "off";
  } catch {} // the browser keeps nothing: the keys are on until the page is left

  function name() {
    help.textContent = choice.checked ? "Keys: ?" : "Keys: off";
  }

  function choose() {
    name();
    try {
      localStorage.setItem("psched-keys", choice.checked ? "on" : "off");
    } catch {}
  }

  const show = () => dialog.showModal(); // Escape closes it, and the focus returns
  const does = { "/": search, j: () => move(1), k: () => move(-1), "?": show };

  document.addEventListener("keydown", (event) => {
    const { key, target } = event;
    if (event.ctrlKey || event.altKey || event.metaKey || event.isComposing) return;
    if (!choice.checked || event.defaultPrevented || dialog.open || target.isContentEditable) return;
    if (target.closest?.("input, textarea, select") || !Object.hasOwn(does, key)) return;
    event.preventDefault();
    does[key]();
  });
  choice.addEventListener("change", choose);
  help.addEventListener("click", show);
  name();
  help.hidden = false;
})();
