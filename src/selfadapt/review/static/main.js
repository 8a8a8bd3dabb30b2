// The page: which samples are shown, which one is current, and what keys and buttons do.

import { $, count, element, get, post } from "./api.js";
import { chosenClass, confirmed } from "./dialogs.js";
import { Grid } from "./grid.js";
import { Measure } from "./measure.js";
import { One } from "./one.js";
import { Samples } from "./samples.js";

const INTERVAL = 1000; // milliseconds between requests for decisions of other tabs
const AHEAD = 400; // rows to fetch at once while the next undecided one is searched
const FILTERS = ["show", "state", "split", "sort"];

const state = { queue: "work", view: "grid", list: [], at: 0, anchor: 0, selected: new Set(), line: 0, reviewed: 0, finished: false };
let about, samples, grid, one, measure;
let deciding = 0; // decisions that are not confirmed yet
let turn = Promise.resolve(); // actions run one after the other, each on the result of the last one

function say(text, alarm = false) {
  $("status").textContent = text;
  $("status").classList.toggle("alarm", alarm);
}

const fail = (error) => say(error.message, true);

function inTurn(action) {
  turn = turn.then(action).catch(fail);
  return turn;
}

async function start() {
  about = await get("api/about");
  state.line = about.line;
  document.title = `Review ${about.run} · selfadapt`;
  $("run").textContent = `${about.run} · ${about.data}`;
  for (const [split, size] of Object.entries(about.splits)) $("split").append(element("option", { value: split }, `${split} (${count(size)})`));
  for (const [given, suggested, size] of about.pairs) {
    const pair = `${about.classes[given]} → ${about.classes[suggested]} (${count(size)})`;
    $("pair").append(element("option", { value: `${given},${suggested}` }, pair));
  }
  for (const kind of ["duplicates", "outliers"]) if (!about[kind]) $("show").querySelector(`[value=${kind}]`).disabled = true;
  samples = new Samples(about, (rows) => {
    grid.refresh(rows);
    one.refresh(rows, state.list, state.at);
  });
  grid = new Grid(samples, { onMove: move, onOpen: (place) => { move(place); setView("one"); } });
  one = new One(samples);
  measure = new Measure(about, { onDraw: () => inTurn(load), onError: fail });
  progress(about);
  listen();
  await inTurn(load);
  showFigures().catch(fail);
  setTimeout(poll, INTERVAL);
}

function progress(counts) {
  $("progress").textContent = `${count(counts.errors_decided)} of ${count(about.errors)} likely errors decided; ${count(counts.decided)} decisions on ${count(about.labels)} labels`;
}

// The figures of the labels that `selfadapt audit` and report.html show as well.
async function showFigures() {
  const { sentences, columns, rows } = await get("api/figures");
  const cells = (tag, texts) => element("tr", {}, ...texts.map((text) => element(tag, tag === "th" ? { scope: "col" } : {}, text)));
  const table = element("table", {}, element("thead", {}, cells("th", columns)), element("tbody", {}, ...rows.map((row) => cells("td", row))));
  $("figures").querySelector("summary").textContent = sentences.join(" ");
  $("figures").querySelector("div").replaceChildren(table);
}

async function load() {
  let rows;
  $("measure").hidden = state.queue !== "measure";
  $("filters").hidden = state.queue === "measure";
  if (state.queue === "measure") {
    const drawn = await measure.refresh();
    const found = drawn ? await post("api/draw", { of: measure.of }) : { rows: [], reviewed: 0 };
    rows = found.rows;
    state.reviewed = found.reviewed;
  } else {
    const [given, suggested] = $("pair").value.split(",");
    const filters = Object.fromEntries(FILTERS.map((name) => [name, $(name).value]));
    const found = await get("api/rows", { ...filters, given, suggested, search: $("search").value.trim() });
    rows = found.rows;
    found.decided.forEach((row) => samples.decided.add(row));
  }
  state.list = rows;
  state.finished = state.queue === "measure" && rows.length > 0 && state.reviewed === rows.length;
  go(state.queue === "measure" ? Math.min(state.reviewed, Math.max(0, rows.length - 1)) : 0);
  $("grid").scrollTop = 0;
  if (state.queue === "measure" && rows.length) setView("one"); // each is decided individually
  else show();
}

function show() {
  const none = state.list.length === 0;
  const gridShown = state.view === "grid";
  let shown = Promise.resolve();
  $("grid").hidden = !gridShown;
  $("one").hidden = gridShown || none;
  $("empty").hidden = !none;
  $("empty").textContent = state.queue === "measure" ? (measure.nothing ? "Nothing to draw." : "Draw the sample to start.") : "No labels match. Change the filters above.";
  $("select-all").textContent = `Select all ${count(state.list.length)}`;
  $("skip").disabled = state.queue === "measure";
  for (const id of ["accept", "keep", "choose", "remove"]) $(id).disabled = none;
  if (gridShown) {
    grid.show(state.list, state.at, state.selected);
    grid.reveal();
  } else shown = one.show(state.list, state.at);
  if (state.selected.size > 1) say(`${count(state.selected.size)} selected.`);
  return shown;
}

function go(place) {
  state.at = Math.max(0, Math.min(state.list.length - 1, place));
  state.anchor = state.at;
  state.selected = new Set(state.list.length ? [state.at] : []);
}

function move(place, { range = false, add = false } = {}) {
  if (!state.list.length) return;
  state.finished = false;
  const at = Math.max(0, Math.min(state.list.length - 1, place));
  if (range && state.queue === "work") {
    state.at = at;
    const [low, high] = [Math.min(state.anchor, at), Math.max(state.anchor, at)];
    state.selected = new Set(Array.from({ length: high - low + 1 }, (_, k) => low + k));
  } else if (add && state.queue === "work") {
    state.at = state.anchor = at;
    state.selected = new Set(state.selected);
    if (!state.selected.delete(at)) state.selected.add(at);
  } else go(at);
  if (state.selected.size <= 1) say("");
  show();
}

function selectAll() {
  if (state.queue === "measure" || !state.list.length) return;
  state.selected = new Set(state.list.keys());
  setView("grid");
}

function setView(view) {
  state.view = view;
  for (const own of ["grid", "one"]) $(`view-${own}`).setAttribute("aria-pressed", String(own === view));
  if (view === "one") go(state.at);
  show();
  $(view).focus({ preventScroll: true });
}

function setQueue(queue) {
  state.queue = queue;
  for (const own of ["work", "measure"]) $(`queue-${own}`).setAttribute("aria-pressed", String(own === queue));
  say("");
  inTurn(load);
}

const QUESTIONS = {
  accept: (size) => `Accept the suggestion for ${size} labels?`,
  keep: (size) => `Keep ${size} labels as given?`,
  choose: (size, name) => `Change the label of ${size} samples to ${name}?`,
  remove: (size) => `Remove ${size} samples?`,
};

// Dialogs open at once, so that they get the next keys; decisions wait for the ones before them.
async function act(what) {
  if (state.view === "one" && (deciding || one.shown !== state.list[state.at])) return; // the next one is not on the screen yet
  if (state.finished && state.selected.size <= 1) return inTurn(next); // reports that, or finds what another tab has undone
  const label = what === "choose" ? await chosenClass(about.classes) : null;
  if (what === "choose" && label === null) return;
  const several = state.selected.size > 1 ? [...state.selected].sort((a, b) => a - b) : null;
  if (several) {
    const open = several.filter((place) => !samples.decided.has(state.list[place])); // the others are left as they are
    if (!open.length) return say("All of these are decided already. Undo that, or decide about one by itself.");
    const size = count(open.length);
    const question = QUESTIONS[what](size, label === null ? "" : about.classes[label]);
    if (!(await confirmed(question, `Yes, all ${size}`))) return;
  }
  deciding++;
  one.busy(true);
  await inTurn(() => decide(what, label, several ?? [state.at]));
  deciding--;
  one.busy(deciding > 0);
}

async function decide(what, label, places) {
  const rows = places.map((place) => state.list[place]).filter((row) => row !== undefined);
  if (!rows.length) return;
  if (state.finished && rows.length === 1) return next();
  const result = await post("api/decide", { what, rows, label, queue: state.queue });
  samples.update(result.rows);
  progress(result);
  const own = samples.known.get(rows[0]);
  say(rows.length > 1 ? `${count(Object.keys(result.rows).length)} decided.` : own ? `${own.id}: ${samples.decisionText(own)}.` : "Decided.");
  if (rows.length > 1) go(places.at(-1));
  await next();
}

// Go to the next undecided sample or, in a random sample, to the first that was not reviewed.
async function next() {
  if (state.queue === "measure") {
    await measure.refresh();
    while (state.reviewed < state.list.length && (await isReviewed(state.reviewed))) state.reviewed++;
    state.finished = state.reviewed === state.list.length;
    if (state.finished) say("All samples are reviewed.");
    go(Math.min(state.reviewed, state.list.length - 1));
  } else {
    // Skipped samples come after the last one.
    const size = state.list.length;
    let step = 1;
    while (step <= size && samples.decided.has(state.list[(state.at + step) % size])) step++;
    state.finished = step > size;
    if (state.finished) say("All of these are decided. Undo, or change the filters above.");
    go(state.finished ? state.at : (state.at + step) % size);
  }
  await show();
}

async function known(place) {
  if (!samples.known.has(state.list[place])) await samples.want(state.list.slice(place, place + AHEAD));
  return samples.known.get(state.list[place]);
}

async function isReviewed(place) {
  const own = await known(place);
  return own.decided !== null && own.individual;
}

async function undo() {
  const result = await post("api/undo");
  samples.update(result.rows);
  progress(result);
  const rows = Object.keys(result.rows).map(Number);
  const names = { accept: "accepted", keep: "kept", choose: "another class", remove: "removed", import: "by hand" };
  say(result.undone ? `Undone: ${names[result.undone.what]}, ${count(rows.length)} ${rows.length === 1 ? "label" : "labels"}, by ${result.undone.who}.` : "There is nothing to undo.");
  const place = state.list.indexOf(rows[0]);
  state.finished = false;
  if (state.queue === "measure") {
    await measure.refresh();
    if (place >= 0) state.reviewed = Math.min(state.reviewed, place);
  }
  if (place >= 0) go(place);
  show();
}

function poll() {
  const done = document.hidden ? Promise.resolve() : inTurn(fetchChanges);
  done.then(() => setTimeout(poll, INTERVAL));
}

async function fetchChanges() {
  const found = await get("api/changes", { after: state.line });
  if (found.line === state.line) return;
  state.line = found.line;
  samples.update(found.rows);
  progress(found);
  showFigures().catch(fail);
  if (state.queue === "measure") await measure.refresh();
}

const KEYS = {
  a: () => act("accept"),
  k: () => act("keep"),
  c: () => act("choose"),
  x: () => act("remove"),
  s: () => state.queue === "work" && inTurn(next),
  u: () => inTurn(undo),
  g: () => setView("grid"),
  o: () => setView("one"),
  "?": () => $("keys").showModal(),
  "/": () => $("search").focus(),
  Escape: () => move(state.at),
  Home: (range) => move(0, { range }),
  End: (range) => move(state.list.length - 1, { range }),
  ArrowLeft: (range) => move(state.at - 1, { range }),
  ArrowRight: (range) => move(state.at + 1, { range }),
  ArrowUp: (range) => move(state.at - (state.view === "grid" ? grid.columns : 1), { range }),
  ArrowDown: (range) => move(state.at + (state.view === "grid" ? grid.columns : 1), { range }),
};

function onKey(event) {
  if (event.defaultPrevented || document.querySelector("dialog[open]") || event.altKey) return;
  const typing = event.target.closest("input, select, textarea");
  if (typing) {
    if (event.key === "Escape") $(state.view).focus();
    return;
  }
  if (event.ctrlKey || event.metaKey) {
    if (event.key === "z") inTurn(undo);
    else if (event.key === "a") selectAll();
    else return;
    event.preventDefault();
    return;
  }
  const onButton = event.target.closest("button, summary");
  if (event.key === "Enter" && !onButton) setView("one");
  const key = event.key.length === 1 ? event.key.toLowerCase() : event.key;
  if (!KEYS[key]) return;
  event.preventDefault();
  KEYS[key](event.shiftKey && state.view === "grid");
}

function listen() {
  document.addEventListener("keydown", onKey);
  for (const what of ["accept", "keep", "choose", "remove"]) $(what).addEventListener("click", () => act(what));
  $("skip").addEventListener("click", () => inTurn(next));
  $("undo").addEventListener("click", () => inTurn(undo));
  $("help").addEventListener("click", () => $("keys").showModal());
  $("select-all").addEventListener("click", selectAll);
  for (const queue of ["work", "measure"]) $(`queue-${queue}`).addEventListener("click", () => setQueue(queue));
  for (const view of ["grid", "one"]) $(`view-${view}`).addEventListener("click", () => setView(view));
  for (const id of [...FILTERS, "pair"]) $(id).addEventListener("change", () => inTurn(load));
  let waiting;
  $("search").addEventListener("input", () => {
    clearTimeout(waiting);
    waiting = setTimeout(() => inTurn(load), 200);
  });
  $("filters").addEventListener("submit", (event) => event.preventDefault());
}

start().catch(fail);
