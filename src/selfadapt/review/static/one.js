// One sample at a time: large, with the training samples of both classes that are most like it.

import { $, element, get, percent } from "./api.js";

export class One {
  constructor(samples) {
    this.samples = samples;
    this.box = $("one");
    this.row = null;
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
    this.box.setAttribute("aria-label", this.samples.words(own));
    this.prefetch(list.slice(at + 1, at + 4));
  }

  draw(own) {
    const name = (number) => this.samples.className(number);
    this.facts = element("p", { class: "facts" });
    const differs = own.suggested !== own.given;
    const labels = [element("div", {}, element("h2", {}, "given"), element("div", { class: "word" }, name(own.given)))];
    if (differs) {
      labels.push(element("div", { class: "arrow", "aria-hidden": "true" }, "→"));
      const word = element("div", { class: "word" }, name(own.suggested));
      labels.push(element("div", { class: "suggested" }, element("h2", {}, "suggested"), word));
    }
    const strips = differs ? [own.suggested, own.given] : [own.given];
    this.strips = strips.map(() => element("div", { class: "strip" }));
    const side = element("div", {}, element("div", { class: "labels" }, ...labels), this.facts);
    strips.forEach((label, k) => {
      side.append(element("h2", {}, "most like it among training samples of ", element("strong", {}, name(label))));
      side.append(this.strips[k]);
    });
    const large = this.samples.view(own.row, "large", `the sample ${own.id}`);
    large.classList.add("large");
    this.sheet = element("div", { class: "sheet" }, large, side);
    this.box.replaceChildren(this.sheet);
    this.box.scrollTop = 0;
    this.fillStrips(own, differs);
  }

  factsOf(own, list, at) {
    const words = [`${at + 1} of ${list.length.toLocaleString("en")}`, own.part];
    if (own.suggested !== own.given) words.push(`confidence ${percent(own.confidence)}`);
    if (own.outsider) words.push("far from every class");
    if (own.copies) words.push(`one of ${own.copies} copies`);
    const badge = this.samples.decisionBadge(own);
    const who = own.decided === null || !own.who ? "" : ` by ${own.who}, ${own.when}`;
    return [words.join(" · "), element("br"), own.id, ...(badge ? [element("br"), badge, who] : [])];
  }

  async fillStrips(own, differs) {
    let found = this.similar.get(own.row);
    if (!found) {
      found = await get(`api/similar/${own.row}`).catch((error) => ({ reason: error.message }));
      if (!found.reason) this.similar.set(own.row, found);
    }
    if (this.row !== own.row) return;
    const groups = found.reason ? [] : differs ? [found.suggested, found.given] : [found.given];
    this.strips.forEach((strip, k) => {
      const rows = groups[k] ?? [];
      const words = found.reason ?? "there is none to compare with";
      strip.replaceChildren(...(rows.length ? rows.map((row) => this.neighbour(row)) : [element("p", {}, words)]));
    });
    if (found.reason?.includes("a moment")) setTimeout(() => this.row === own.row && this.fillStrips(own, differs), 1500);
  }

  neighbour(row) {
    return this.samples.view(row, "small", "a similar training sample");
  }

  prefetch(rows) {
    this.samples.want(rows);
    if (this.samples.about.pictures) rows.forEach((row) => (new Image().src = `picture/${row}/large`));
  }

  refresh(rows, list, at) {
    if (rows.includes(this.row)) this.show(list, at);
  }
}
