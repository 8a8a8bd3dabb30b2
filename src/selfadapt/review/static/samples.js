// The facts of the samples by row, fetched in batches when they are needed.

import { breakable, element, get, percent, post } from "./api.js";

const BATCH = 400;
const REMOVED = -2;
const TINY = 96; // pixels up to which an image is enlarged

export class Samples {
  constructor(about, onChange) {
    this.about = about;
    this.known = new Map();
    this.decided = new Set(); // rows that are known to be decided
    this.values = new Map();
    this.wanted = new Set();
    this.onChange = onChange;
    this.fetching = null;
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
        const { samples } = await post("api/samples", { rows });
        samples.forEach((own) => this.known.set(own.row, own));
        samples.forEach((own) => this.note(own.row, own.decided));
        this.onChange(rows);
      }
    } finally {
      this.fetching = null;
    }
  }

  // Apply the decisions about these rows, as the server reports them.
  update(rows) {
    const changed = [];
    for (const [row, state] of Object.entries(rows)) {
      changed.push(Number(row));
      this.note(Number(row), state.decided);
      const own = this.known.get(Number(row));
      if (own) this.known.set(Number(row), { ...own, what: undefined, individual: undefined, ...state });
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

  decisionText(own) {
    if (own.decided === null) return "";
    if (own.decided === REMOVED) return "removed";
    const name = this.className(own.decided);
    return own.decided === own.given ? `kept ${name}` : `now ${name}`;
  }

  description(own) {
    const parts = [own.id, `given ${this.className(own.given)}`];
    if (own.suggested !== own.given) parts.push(`suggested ${this.className(own.suggested)}, ${percent(own.confidence)}`);
    const labels = own.duplicates.map((member) => `${this.className(member.given)}${member.disagrees ? " (disagrees)" : ""}`);
    if (own.conflict) parts.push(`duplicates with different labels: ${labels.join(", ")}`);
    parts.push(own.split, this.decisionText(own) || "undecided");
    return parts.join("; ");
  }

  // The image of a row, or its values.
  view(row, size, alt = "") {
    const box = element("div", { class: "view" });
    if (this.about.images) {
      const image = element("img", { src: `image/${row}/${size}`, alt, decoding: "async", draggable: false });
      const isTiny = () => Math.max(image.naturalWidth, image.naturalHeight) <= TINY;
      image.addEventListener("load", () => image.classList.toggle("tiny", isTiny()));
      image.addEventListener("error", () => box.replaceChildren(element("span", { class: "none" }, "cannot be read")));
      box.append(image);
    } else {
      this.showValues(box, row);
    }
    return box;
  }

  // The view of a sample. Large, it is shown beside its duplicates; in the grid, only if their labels differ.
  itemView(own, size) {
    const beside = own.conflict || (size === "large" && own.duplicates.length > 1);
    if (!beside) return this.view(own.row, size, `sample ${own.id}`);
    const members = own.duplicates.map((member) => {
      const given = this.className(member.given);
      const role = own.conflict ? (member.disagrees ? " · disagrees" : "") : member.row === own.row ? " · this sample" : " · duplicate";
      const caption = size === "small" ? [given] : [...breakable(given), ` · ${member.split}${role}`];
      return element(
        "figure",
        { class: member.disagrees ? "disagrees" : "", title: member.id },
        this.view(member.row, size, `sample ${member.id}`),
        element("figcaption", {}, ...caption),
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
    const text = this.decisionText(own);
    return text ? element("span", { class: own.decided === REMOVED ? "removed" : "decided" }, text) : null;
  }
}
