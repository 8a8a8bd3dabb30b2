// One sample at a time, beside its duplicates and the most similar training samples of both classes.

import { $, breakable, count, element, get, percent } from "./api.js";

export class One {
  constructor(samples) {
    this.samples = samples;
    this.box = $("one");
    this.row = null;
    this.shown = null; // the row on the screen, which lags behind `row` while facts are fetched
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
    if (moved || !this.sample) this.draw(own);
    this.facts.replaceChildren(...this.factsOf(own, list, at));
    this.shown = row;
    this.box.setAttribute("aria-label", this.samples.description(own));
    this.prefetch(list.slice(at + 1, at + 4));
  }

  draw(own) {
    this.facts = element("p", { class: "facts" });
    const sides = own.suggested === own.given ? ["given"] : ["given", "suggested"];
    this.strips = {};
    const columns = sides.map((side) => {
      const name = this.samples.className(own[side]);
      this.strips[side] = element("div", { class: "strip" });
      const label = element("div", { class: side }, element("h2", {}, side), element("div", { class: "word" }, ...breakable(name)));
      return [label, element("div", {}, element("h2", {}, "most similar in ", ...breakable(name)), this.strips[side])];
    });
    const large = this.samples.itemView(own, "large");
    large.classList.add("large");
    this.sample = element(
      "div",
      { class: "sample" },
      element("div", { class: "labels" }, ...columns.map(([label]) => label), this.facts),
      large,
      element("div", { class: "strips" }, ...columns.map(([, strip]) => strip)),
    );
    this.box.replaceChildren(this.sample);
    this.box.scrollTop = 0;
    this.fillStrips(own);
  }

  factsOf(own, list, at) {
    const facts = [`${at + 1} of ${count(list.length)}`, own.split];
    if (own.suggested !== own.given) facts.push(`confidence ${percent(own.confidence)}`);
    if (own.outlier) facts.push("outlier: no class fits");
    if (own.conflict) facts.push(`${own.duplicates.length} duplicates with different labels, decided together`);
    else if (own.duplicate_count) facts.push(`one of ${count(own.duplicate_count)} duplicates`);
    const badge = this.samples.decisionBadge(own);
    const who = own.decided === null || !own.who ? "" : ` by ${own.who}, ${own.when}`;
    return [facts.join(" · "), element("br"), own.id, ...(badge ? [element("br"), badge, who] : [])];
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
      const reason = element("p", {}, found.reason ?? "no sample to compare with");
      strip.replaceChildren(...(rows.length ? rows.map((row) => this.samples.view(row, "small", "")) : [reason]));
    }
    if (found.reason?.includes("a moment")) setTimeout(() => this.row === own.row && this.fillStrips(own), 1500);
  }

  busy(waiting) {
    this.box.setAttribute("aria-busy", String(waiting));
  }

  prefetch(rows) {
    this.samples.want(rows);
    if (this.samples.about.images) rows.forEach((row) => (new Image().src = `image/${row}/large`));
  }

  refresh(rows, list, at) {
    if (rows.includes(this.row)) this.show(list, at);
  }
}
