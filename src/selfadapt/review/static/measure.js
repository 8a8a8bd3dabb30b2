// The panel of the queue Measure: the random sample, its results, and whether the reviewer can stop.

import { $, count, element, get, percent, post } from "./api.js";

const SUGGESTIONS = "suggestions";
const ENOUGH = 50; // checks from which a low precision is taken seriously

export class Measure {
  constructor(about, { onDraw, onError }) {
    this.about = about;
    this.of = SUGGESTIONS;
    this.precision = 0.95;
    this.confidence = 0.95;
    this.box = $("measure");
    this.onDraw = onDraw;
    this.onError = onError;
  }

  names() {
    const splits = Object.keys(this.about.splits).map((split) => [split, `all ${split} labels`]);
    return [[SUGGESTIONS, "undecided suggestions"], ...splits];
  }

  // Fetch the results and show them; returns whether the chosen sample is drawn.
  async refresh() {
    const found = await get("api/measured", { precision: this.precision, confidence: this.confidence });
    this.found = found;
    this.drawn = this.of === SUGGESTIONS ? found.suggestions !== null : found.splits.some((own) => own.part === this.of && own.drawn);
    this.draw();
    return this.drawn;
  }

  draw() {
    const focused = this.box.contains(document.activeElement) ? document.activeElement.id : null;
    const open = (name) => this.box.querySelector(`details.${name}`)?.open ?? false;
    const opened = { depths: open("depths"), splits: open("splits") };
    const select = element("select", { id: "measure-of" });
    this.names().forEach(([of, name]) => select.append(element("option", { value: of, selected: of === this.of }, name)));
    select.addEventListener("change", () => {
      this.of = select.value;
      this.onDraw();
    });
    const choice = element("div", { class: "row" }, element("label", {}, "A random sample of ", select));
    if (!this.drawn) {
      const button = element("button", { type: "button", id: "draw", class: "accept", disabled: this.nothing }, "Draw the sample");
      button.addEventListener("click", () => this.start());
      choice.append(button);
    } else {
      choice.append(this.number("confidence", "confidence", this.confidence, (value) => (this.confidence = value)));
    }
    if (this.drawn && this.of === SUGGESTIONS) {
      choice.append(this.number("precision", "precision", this.precision, (value) => (this.precision = value)));
    }
    const results = this.of === SUGGESTIONS ? this.suggestions(opened.depths) : this.split(this.found.splits.find((own) => own.part === this.of));
    this.box.replaceChildren(choice, ...results, this.table(opened.splits));
    if (focused) $(focused)?.focus();
  }

  async start() {
    try {
      await post("api/draw", { of: this.of });
      await this.onDraw();
    } catch (error) {
      this.onError(error);
    }
  }

  number(id, label, value, take) {
    const input = element("input", { type: "number", id, min: 0.5, max: 0.999, step: 0.01, value });
    input.addEventListener("change", () => {
      if (input.value > 0 && input.value < 1) {
        take(Number(input.value));
        this.refresh().catch(this.onError);
      }
    });
    return element("label", {}, label, " ", input);
  }

  get nothing() {
    return this.of === SUGGESTIONS && this.found.population === 0;
  }

  suggestions(open) {
    const own = this.found.suggestions;
    if (this.nothing) return [element("p", { id: "nothing" }, "Nothing to draw: all suggestions on training labels are decided.")];
    if (!own) {
      const all = count(this.found.population);
      return [
        element("p", {}, `The sample is a fixed random order of the ${all} undecided suggestions on training labels. Decide them one by one: the results then hold for the suggestions that you do not check, and you can stop at any time.`),
      ];
    }
    const share = own.seen ? `, ${count(own.right)} right` : "";
    const checked = element("p", {}, `${count(own.seen)} of ${count(own.population)} checked in random order${share}.`);
    return [checked, element("p", { class: "guarantee", id: "guarantee" }, ...this.guarantee(own)), this.depths(own, open)];
  }

  guarantee(own) {
    const rest = own.depths.at(-1).rest;
    if (rest === 0) return ["All suggestions are decided."];
    if (own.deepest !== null) {
      const depth = own.depths[own.deepest];
      return [
        element("strong", {}, "You can stop."),
        ` Of the ${count(depth.size)} labels that are most likely wrong, ${count(depth.rest)} are undecided. At least ${percent(depth.low)} of their suggestions are right, with a confidence of ${percent(this.confidence)}. To accept them: `,
        element("code", {}, `selfadapt labels RUN --precision ${this.precision} --confidence ${this.confidence}`),
      ];
    }
    if (own.further) return [`A precision of ${percent(this.precision)} is not certain yet. About ${count(own.further)} more checks are needed if the results stay the same.`];
    if (!own.seen) return ["Decide the first sample to start."];
    const found = `${count(own.right)} of ${count(own.seen)} suggestions were right`;
    if (own.right / own.seen >= this.precision) return [`${found}, but too few are left for a guarantee. Decide the last ${count(rest)}.`];
    if (own.seen < ENOUGH) return [`${found}, less than ${percent(this.precision)}. That is too few checks for a conclusion: continue, or lower the precision.`];
    return [`${found}, so a precision of ${percent(this.precision)} is unlikely. Lower the precision, or decide each suggestion.`];
  }

  depths(own, open) {
    const body = element("tbody");
    own.depths.forEach((depth, place) => {
      const cells = [count(depth.size), count(depth.rest), `${depth.right} of ${depth.seen}`, `${percent(depth.low)} to ${percent(depth.high)}`];
      body.append(element("tr", { class: place === own.deepest ? "deepest" : "" }, ...cells.map((text) => element("td", {}, text))));
    });
    const head = element("tr", {}, ...["labels, most likely wrong first", "undecided", "right of checked", "precision of the undecided"].map((text) => element("th", { scope: "col" }, text)));
    return element("details", { open, class: "depths" }, element("summary", {}, "At each depth"), element("div", { class: "scroll" }, element("table", {}, element("thead", {}, head), body)));
  }

  split(own) {
    if (!own.drawn) {
      return [element("p", {}, `The sample is a random order of all ${count(own.labels)} labels. Decide them one by one to estimate how many labels are wrong and how accurate the model is. The intervals hold at all times, so you can stop whenever you like.`)];
    }
    const lines = [element("p", { id: "sampled" }, `${count(own.sampled)} of ${count(own.labels)} checked in random order.`)];
    const say = (name, share) => share && lines.push(element("p", {}, `${name}: ${percent(share.value)}, between ${percent(share.low)} and ${percent(share.high)} with a confidence of ${percent(this.confidence)}.`));
    say("Wrong labels", own.wrong);
    say("True accuracy of the model", own.accuracy_true);
    return lines;
  }

  table(open) {
    const head = ["split", "labels", "decided", "changed", "removed", "accuracy, given labels", "reviewed labels", "true (estimate)"];
    const body = element("tbody");
    for (const own of this.found.splits) {
      const true_ = own.accuracy_true ? `${percent(own.accuracy_true.value)} (${percent(own.accuracy_true.low)} to ${percent(own.accuracy_true.high)})` : "–";
      const cells = [own.part, count(own.labels), count(own.decided), count(own.changed), count(own.removed), percent(own.accuracy_given), percent(own.accuracy_reviewed), true_];
      body.append(element("tr", {}, ...cells.map((text) => element("td", {}, text))));
    }
    const row = element("tr", {}, ...head.map((text) => element("th", { scope: "col" }, text)));
    const table = element("table", {}, element("thead", {}, row), body);
    return element("details", { open, class: "splits" }, element("summary", {}, "Decisions by split"), element("div", { class: "scroll" }, table));
  }
}
