// One sample at a time: large, with the training samples of both classes that are most like it.

import { $, element, get, percent } from "./api.js";

export class One {
  constructor(samples) {
    this.samples = samples;
    this.box = $("one");
    this.row = null;
    this.shown = null; // the row that can be seen, which follows `row` in a moment
    this.similar = new Map();
  }

  async show(list, at) {
    const row = list[at];
    if (row === undefined) return;
    const moved = row !== this.row;
    this.row = row;
    await this.samples.want([row]);
    const own = this.samples.known.get(row);
    if (this.row !== row || !own) return;
    if (moved || !this.sheet) this.draw(own);
    this.facts.replaceChildren(...this.factsOf(own, list, at));
    this.shown = row;
    this.box.setAttribute("aria-label", this.samples.words(own));
    this.prefetch(list.slice(at + 1, at + 4));
  }

  draw(own) {
    this.facts = element("p", { class: "facts" });
    const sides = own.suggested === own.given ? ["given"] : ["given", "suggested"];
    this.strips = {};
    const columns = sides.map((side) => {
      const name = this.samples.className(own[side]);
      this.strips[side] = element("div", { class: "strip" });
      const label = element("div", { class: side }, element("h2", {}, side), element("div", { class: "word" }, name));
      return [label, element("div", {}, element("h2", {}, `most like it in ${name}`), this.strips[side])];
    });
    const large = this.samples.itemView(own, "large");
    large.classList.add("large");
    this.sheet = element(
      "div",
      { class: "sheet" },
      element("div", { class: "labels" }, ...columns.map(([label]) => label), this.facts),
      large,
      element("div", { class: "strips" }, ...columns.map(([, strip]) => strip)),
    );
    this.box.replaceChildren(this.sheet);
    this.box.scrollTop = 0;
    this.fillStrips(own);
  }

  factsOf(own, list, at) {
    const words = [`${at + 1} of ${list.length.toLocaleString("en")}`, own.part];
    if (own.suggested !== own.given) words.push(`confidence ${percent(own.confidence)}`);
    if (own.outsider) words.push("far from every class");
    if (own.conflict.length) words.push(`${own.conflict.length} duplicates with different labels, decided together`);
    else if (own.copies) words.push(`one of ${own.copies} duplicates`);
    const badge = this.samples.decisionBadge(own);
    const who = own.decided === null || !own.who ? "" : ` by ${own.who}, ${own.when}`;
    return [words.join(" · "), element("br"), own.id, ...(badge ? [element("br"), badge, who] : [])];
  }

  async fillStrips(own) {
    let found = this.similar.get(own.row);
    if (!found) {
      found = await get(`api/similar/${own.row}`).catch((error) => ({ reason: error.message }));
      if (!found.reason) this.similar.set(own.row, found);
    }
    if (this.row !== own.row) return;
    for (const [side, strip] of Object.entries(this.strips)) {
      const rows = found[side] ?? [];
      const words = element("p", {}, found.reason ?? "there is none to compare with");
      strip.replaceChildren(...(rows.length ? rows.map((row) => this.samples.view(row, "small", "")) : [words]));
    }
    if (found.reason?.includes("a moment")) setTimeout(() => this.row === own.row && this.fillStrips(own), 1500);
  }

  busy(waiting) {
    this.box.setAttribute("aria-busy", String(waiting));
  }

  prefetch(rows) {
    this.samples.want(rows);
    if (this.samples.about.pictures) rows.forEach((row) => (new Image().src = `picture/${row}/large`));
  }

  refresh(rows, list, at) {
    if (rows.includes(this.row)) this.show(list, at);
  }
}
