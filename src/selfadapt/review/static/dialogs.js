// Dialogs: choose a class, and confirm.

import { $, element } from "./api.js";

const SHOWN = 60;

// Ask a yes-or-no question.
export function confirmed(question, yes) {
  const dialog = $("confirm");
  $("confirm-question").textContent = question;
  $("confirm-yes").textContent = yes;
  dialog.showModal();
  $("confirm-yes").focus();
  // Not on "close", which is sent later, perhaps when the next question is open.
  return new Promise((resolve) => {
    dialog.onsubmit = (event) => resolve(event.submitter?.value === "yes");
    dialog.oncancel = () => resolve(false);
  });
}

// The number of the class that the user searches for and selects; null if none.
export function chosenClass(classes) {
  const [dialog, input, list, more] = ["chooser", "class-search", "class-list", "class-more"].map($);
  const lower = classes.map((name) => name.toLowerCase());
  let found = [];
  let at = 0;
  let answer = null;

  const mark = () => {
    [...list.children].forEach((own, place) => own.setAttribute("aria-selected", String(place === at)));
    const active = list.children[at];
    if (active) {
      input.setAttribute("aria-activedescendant", active.id);
      active.scrollIntoView({ block: "nearest" });
    } else input.removeAttribute("aria-activedescendant");
  };
  const search = () => {
    const text = input.value.trim().toLowerCase();
    const rank = (k) => (lower[k] === text ? 0 : lower[k].startsWith(text) ? 1 : 2);
    const all = lower.map((_, k) => k).filter((k) => lower[k].includes(text));
    found = all.sort((a, b) => rank(a) - rank(b) || a - b).slice(0, SHOWN);
    at = 0;
    list.replaceChildren(
      ...found.map((k, place) => element("li", { role: "option", id: `class-${place}`, "data-place": place }, classes[k])),
    );
    more.textContent = all.length ? `${all.length} of ${classes.length} classes` : "no class matches";
    mark();
  };
  const take = (place) => {
    if (found[place] === undefined) return;
    answer = found[place];
    dialog.close();
  };
  const keys = (event) => {
    if (event.key === "ArrowDown" || event.key === "ArrowUp") {
      at = Math.max(0, Math.min(found.length - 1, at + (event.key === "ArrowDown" ? 1 : -1)));
      mark();
    } else if (event.key === "Enter") take(at);
    else return;
    event.preventDefault();
  };
  const click = (event) => {
    const own = event.target.closest("li");
    if (own) take(Number(own.dataset.place));
  };
  input.value = "";
  input.addEventListener("input", search);
  input.addEventListener("keydown", keys);
  list.addEventListener("click", click);
  search();
  dialog.showModal();
  input.focus();
  return new Promise((resolve) => {
    const close = () => {
      input.removeEventListener("input", search);
      input.removeEventListener("keydown", keys);
      list.removeEventListener("click", click);
      resolve(answer);
    };
    dialog.addEventListener("close", close, { once: true });
  });
}
