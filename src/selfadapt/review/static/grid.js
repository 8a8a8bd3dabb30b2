// The grid. Only the visible cells exist, however many samples there are.

import { $, element, percent } from "./api.js";

const GAP = 10;
const MARGIN = 2; // rows of cells beyond the visible ones

export class Grid {
  constructor(samples, { onMove, onOpen }) {
    this.samples = samples;
    this.list = [];
    this.at = 0;
    this.selected = new Set();
    this.cells = new Map();
    this.scroller = $("grid");
    this.space = $("cells");
    this.scroller.addEventListener("scroll", () => this.schedule(), { passive: true });
    new ResizeObserver(() => this.layout()).observe(this.scroller);
    this.space.addEventListener("click", (event) => {
      const cell = event.target.closest(".cell");
      if (cell) onMove(Number(cell.dataset.place), { range: event.shiftKey, add: event.ctrlKey || event.metaKey });
    });
    this.space.addEventListener("dblclick", (event) => {
      const cell = event.target.closest(".cell");
      if (cell) onOpen(Number(cell.dataset.place));
    });
  }

  show(list, at, selected) {
    if (list !== this.list) {
      this.cells.forEach((cell) => cell.remove());
      this.cells.clear();
    }
    this.list = list;
    this.at = at;
    this.selected = selected;
    this.layout();
  }

  layout() {
    const style = getComputedStyle(this.scroller);
    const width = this.scroller.clientWidth - parseFloat(style.paddingLeft) - parseFloat(style.paddingRight);
    if (width <= 0) return;
    const wanted = width < 620 ? 150 : 190;
    this.columns = Math.max(1, Math.floor((width + GAP) / (wanted + GAP)));
    this.width = Math.floor((width - GAP * (this.columns - 1)) / this.columns);
    this.height = Math.round(this.width * 0.8) + 96;
    const lines = Math.ceil(this.list.length / this.columns);
    this.space.style.height = `${Math.max(0, lines * (this.height + GAP) - GAP)}px`;
    this.cells.forEach((cell, place) => this.place(cell, place));
    this.draw();
  }

  schedule() {
    if (this.scheduled) return;
    this.scheduled = true;
    requestAnimationFrame(() => {
      this.scheduled = false;
      this.draw();
    });
  }

  draw() {
    if (!this.columns) return;
    const line = this.height + GAP;
    const first = Math.max(0, Math.floor(this.scroller.scrollTop / line) - MARGIN) * this.columns;
    const seen = (Math.ceil(this.scroller.clientHeight / line) + 2 * MARGIN + 1) * this.columns;
    const last = Math.min(this.list.length, first + seen);
    for (const [place, cell] of this.cells) {
      if (place < first || place >= last) {
        cell.remove();
        this.cells.delete(place);
      }
    }
    this.samples.want(this.list.slice(first, last));
    for (let place = first; place < last; place++) {
      if (!this.cells.has(place)) {
        const cell = element("div", { class: "cell", role: "option", id: `cell-${place}`, "data-place": place });
        this.fill(cell, place);
        this.place(cell, place);
        this.cells.set(place, cell);
        this.space.append(cell);
      }
    }
    this.mark();
  }

  place(cell, place) {
    const x = (place % this.columns) * (this.width + GAP);
    const y = Math.floor(place / this.columns) * (this.height + GAP);
    cell.style.width = `${this.width}px`;
    cell.style.height = `${this.height}px`;
    cell.style.transform = `translate(${x}px, ${y}px)`;
  }

  fill(cell, place) {
    const row = this.list[place];
    const own = this.samples.known.get(row);
    if (!own) {
      cell.replaceChildren(this.samples.view(row, "small"));
      return;
    }
    const view = cell.querySelector(own.conflict ? ".members" : ".view") ?? this.samples.itemView(own, "small");
    const given = this.samples.className(own.given);
    const suggested = own.suggested === own.given ? "" : `→ ${this.samples.className(own.suggested)}`;
    const badge = this.samples.decisionBadge(own);
    cell.classList.toggle("done", own.decided !== null);
    cell.setAttribute("aria-label", this.samples.description(own));
    cell.replaceChildren(
      view,
      element("p", { title: given }, given),
      element("p", { class: "to", title: suggested }, suggested),
      element("p", { title: "confidence of the suggestion, split" }, badge ?? `${percent(own.confidence)} · ${own.split}`),
      element("p", { class: "id", title: own.id }, own.id),
    );
  }

  refresh(rows) {
    const changed = new Set(rows);
    this.cells.forEach((cell, place) => changed.has(this.list[place]) && this.fill(cell, place));
  }

  mark() {
    for (const [place, cell] of this.cells) {
      cell.classList.toggle("at", place === this.at);
      cell.setAttribute("aria-selected", String(this.selected.has(place)));
      cell.setAttribute("aria-setsize", this.list.length);
      cell.setAttribute("aria-posinset", place + 1);
    }
    if (this.list.length) this.scroller.setAttribute("aria-activedescendant", `cell-${this.at}`);
    else this.scroller.removeAttribute("aria-activedescendant");
  }

  reveal() {
    if (!this.columns) return;
    const top = Math.floor(this.at / this.columns) * (this.height + GAP);
    if (top < this.scroller.scrollTop) this.scroller.scrollTop = top;
    const below = top + this.height + 2 * GAP - this.scroller.clientHeight;
    if (below > this.scroller.scrollTop) this.scroller.scrollTop = below;
    this.draw();
  }
}
