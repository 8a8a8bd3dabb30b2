// What is known of the samples, by row: fetched in batches when it is needed, kept, and told to whoever listens.

import { element, get, percent, post } from "./api.js";

const BATCH = 400;
const REMOVED = -2;

export class Samples {
  constructor(about, onChange) {
    this.about = about;
    this.known = new Map();
    this.decided = new Set(); // rows of which it is known that they are
    this.values = new Map();
    this.wanted = new Set();
    this.onChange = onChange;
    this.fetching = null;
  }

  // What is known of a row now; if nothing is, it is fetched, and onChange is called.
  peek(row) {
    const found = this.known.get(row);
    if (found === undefined && row !== undefined) this.want([row]);
    return found;
  }

  want(rows) {
    for (const row of rows) if (!this.known.has(row)) this.wanted.add(row);
    if (this.wanted.size && this.fetching === null) this.fetching = Promise.resolve().then(() => this.fetchWanted());
    return this.fetching ?? Promise.resolve();
  }

  async fetchWanted() {
    try {
      while (this.wanted.size) {
        const rows = [...this.wanted].slice(0, BATCH);
        rows.forEach((row) => this.wanted.delete(row));
        const { told } = await post("api/told", { rows });
        told.forEach((own) => this.known.set(own.row, own));
        told.forEach((own) => this.note(own.row, own.decided));
        this.onChange(rows);
      }
    } finally {
      this.fetching = null;
    }
  }

  // Take over what stands for these rows, as decisions and undo report it.
  update(rows) {
    const changed = [];
    for (const [row, state] of Object.entries(rows)) {
      changed.push(Number(row));
      this.note(Number(row), state.decided);
      const own = this.known.get(Number(row));
      if (own) this.known.set(Number(row), { ...own, what: undefined, looked_at: undefined, ...state });
    }
    if (changed.length) this.onChange(changed);
  }

  note(row, decided) {
    if (decided === null) this.decided.delete(row);
    else this.decided.add(row);
  }

  className(number) {
    return this.about.classes[number];
  }

  decisionWords(own) {
    if (own.decided === null) return "";
    if (own.decided === REMOVED) return "removed";
    const name = this.className(own.decided);
    return own.decided === own.given ? `kept ${name}` : `now ${name}`;
  }

  words(own) {
    const parts = [own.id, `given ${this.className(own.given)}`];
    if (own.suggested !== own.given) parts.push(`suggested ${this.className(own.suggested)}, ${percent(own.confidence)}`);
    const labels = own.conflict.map((member) => `${this.className(member.given)}${member.disagrees ? " (disagrees)" : ""}`);
    if (labels.length) parts.push(`duplicates with different labels: ${labels.join(", ")}`);
    parts.push(own.part, this.decisionWords(own) || "undecided");
    return parts.join("; ");
  }

  // The picture of a row, or its values.
  view(row, size, alt = "") {
    const box = element("div", { class: "view" });
    if (this.about.pictures) {
      const image = element("img", { src: `picture/${row}/${size}`, alt, decoding: "async", draggable: false });
      image.addEventListener("load", () => image.classList.toggle("tiny", image.naturalWidth <= 96));
      image.addEventListener("error", () => box.replaceChildren(element("span", { class: "none" }, "cannot be read")));
      box.append(image);
    } else {
      this.showValues(box, row);
    }
    return box;
  }

  // What there is to see of an item: its sample, or duplicates with different labels side by side.
  itemView(own, size) {
    if (!own.conflict.length) return this.view(own.row, size, `the sample ${own.id}`);
    const members = own.conflict.map((member) => {
      const given = this.className(member.given);
      const words = size === "small" ? given : `${given} · ${member.part}${member.disagrees ? " · disagrees" : ""}`;
      return element(
        "figure",
        { class: member.disagrees ? "disagrees" : "", title: member.id },
        this.view(member.row, size, `the sample ${member.id}`),
        element("figcaption", {}, words),
      );
    });
    return element("div", { class: "view members" }, ...members);
  }

  async showValues(box, row) {
    if (!this.values.has(row)) this.values.set(row, get(`api/values/${row}`).catch((error) => ({ error: error.message })));
    const { values, error } = await this.values.get(row);
    if (error) {
      box.replaceChildren(element("span", { class: "none" }, error));
      return;
    }
    const long = values.some(([, value]) => value.length > 60);
    const lines = values.map(([name, value]) => element("div", {}, element("dt", {}, name), element("dd", {}, value)));
    box.replaceChildren(element("dl", { class: long ? "values text" : "values" }, ...lines));
  }

  decisionBadge(own) {
    const words = this.decisionWords(own);
    return words ? element("span", { class: own.decided === REMOVED ? "removed" : "decided" }, words) : null;
  }
}
