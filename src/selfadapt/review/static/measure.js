// The panel of the queue that measures: what was drawn, what it says, and whether one may stop looking.

import { $, count, element, get, percent, post } from "./api.js";

const SUGGESTIONS = "suggestions";

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
    const parts = Object.keys(this.about.parts).map((part) => [part, `all ${part} labels`]);
    return [[SUGGESTIONS, "suggestions that nobody decided about"], ...parts];
  }

  // Fetch what was measured and show it; returns whether the chosen sample is drawn.
  async refresh() {
    const found = await get("api/measured", { precision: this.precision, confidence: this.confidence });
    this.found = found;
    this.drawn = this.of === SUGGESTIONS ? found.suggestions !== null : found.parts.some((own) => own.part === this.of && own.drawn);
    this.draw();
    return this.drawn;
  }

  draw() {
    const focused = this.box.contains(document.activeElement) ? document.activeElement.id : null;
    const open = (name) => this.box.querySelector(`details.${name}`)?.open ?? false;
    const opened = { depths: open("depths"), decided: open("decided") };
    const select = element("select", { id: "measure-of" });
    this.names().forEach(([of, words]) => select.append(element("option", { value: of, selected: of === this.of }, words)));
    select.addEventListener("change", () => {
      this.of = select.value;
      this.onDraw();
    });
    const choice = element("div", { class: "row" }, element("label", {}, "A random sample of ", select));
    if (!this.drawn) {
      const button = element("button", { type: "button", id: "draw", class: "accept", disabled: this.nothing }, "Draw it");
      button.addEventListener("click", () => this.begin());
      choice.append(button);
    } else {
      choice.append(this.number("confidence", "confidence", this.confidence, (value) => (this.confidence = value)));
    }
    if (this.drawn && this.of === SUGGESTIONS) {
      choice.append(this.number("precision", "precision", this.precision, (value) => (this.precision = value)));
    }
    const words = this.of === SUGGESTIONS ? this.suggestions(opened.depths) : this.part(this.found.parts.find((own) => own.part === this.of));
    this.box.replaceChildren(choice, ...words, this.table(opened.decided));
    if (focused) $(focused)?.focus();
  }

  async begin() {
    try {
      await post("api/draw", { of: this.of });
      await this.onDraw();
    } catch (error) {
      this.onError(error);
    }
  }

  number(id, words, value, take) {
    const input = element("input", { type: "number", id, min: 0.5, max: 0.999, step: 0.01, value });
    input.addEventListener("change", () => {
      if (input.value > 0 && input.value < 1) {
        take(Number(input.value));
        this.refresh().catch(this.onError);
      }
    });
    return element("label", {}, words, " ", input);
  }

  // Whether there is nothing to draw from.
  get nothing() {
    return this.of === SUGGESTIONS && this.found.population === 0;
  }

  suggestions(open) {
    const own = this.found.suggestions;
    if (this.nothing) return [element("p", { id: "nothing" }, "Nothing to draw: all suggestions on training labels are decided; nothing is left to take unseen.")];
    if (!own) {
      const all = count(this.found.population);
      return [
        element("p", {}, `The draw fixes which suggestions are meant, the ${all} on training labels that are undecided now, and a random order. Decide about them one by one in that order: what you see speaks for what you do not see, however often you look.`),
      ];
    }
    const share = own.seen ? `, ${own.right} of them right` : "";
    const lines = [element("p", {}, `${count(own.seen)} of ${count(own.population)} looked at in order${share}.`)];
    const promise = element("p", { class: "promise", id: "promise" });
    if (own.depths.at(-1).rest === 0) {
      promise.append("All are decided; nothing is left to take unseen.");
    } else if (own.holds !== null) {
      const depth = own.depths[own.holds];
      promise.append(
        element("strong", {}, "You may stop looking."),
        ` Of the ${count(depth.size)} most suspicious, ${count(depth.rest)} are undecided, and at least ${percent(depth.low)} of their suggestions are right. To accept them unseen: `,
        element("code", {}, `selfadapt labels RUN --precision ${this.precision} --confidence ${this.confidence}`),
      );
    } else if (own.further) {
      promise.append(`No depth is as precise for certain yet. About ${count(own.further)} more looks, if they go on as they did.`);
    } else if (!own.seen) {
      promise.append("Begin: nothing is known yet.");
    } else if (own.right / own.seen >= this.precision) {
      promise.append(`So few are left that nothing can be promised about them; decide about the last ${count(own.depths.at(-1).rest)}.`);
    } else {
      promise.append("No depth seems precise enough, and more looks will hardly change that. Ask for less, or decide about each.");
    }
    return [...lines, promise, this.depths(own, open)];
  }

  depths(own, open) {
    const body = element("tbody");
    own.depths.forEach((depth, place) => {
      const cells = [count(depth.size), count(depth.rest), `${depth.right} of ${depth.seen}`, `${percent(depth.low)} to ${percent(depth.high)}`];
      body.append(element("tr", { class: place === own.holds ? "holds" : "" }, ...cells.map((text) => element("td", {}, text))));
    });
    const head = element("tr", {}, ...["most suspicious", "undecided", "right of looked at", "precision of the undecided"].map((text) => element("th", { scope: "col" }, text)));
    return element("details", { open, class: "depths" }, element("summary", {}, "At each depth"), element("div", { class: "scroll" }, element("table", {}, element("thead", {}, head), body)));
  }

  part(own) {
    if (!own.drawn) {
      return [element("p", {}, `A random order of all ${count(own.labels)} labels. Decide about them one by one in that order: how many labels are wrong, and how often the model is right by labels that are, with intervals that hold however often you look.`)];
    }
    const lines = [element("p", { id: "sampled" }, `${count(own.sampled)} of ${count(own.labels)} looked at in order.`)];
    const say = (words, share) => share && lines.push(element("p", {}, `${words}: ${percent(share.value)}, between ${percent(share.low)} and ${percent(share.high)} with a confidence of ${percent(this.confidence)}.`));
    say("Labels that are wrong", own.wrong);
    say("True accuracy of the model", own.accuracy_true);
    return lines;
  }

  table(open) {
    const head = ["part", "labels", "decided", "changed", "removed", "accuracy as given", "as reviewed", "true, by sample"];
    const body = element("tbody");
    for (const own of this.found.parts) {
      const true_ = own.accuracy_true ? `${percent(own.accuracy_true.value)} (${percent(own.accuracy_true.low)} to ${percent(own.accuracy_true.high)})` : "–";
      const cells = [own.part, count(own.labels), count(own.decided), count(own.changed), count(own.removed), percent(own.accuracy_given), percent(own.accuracy_reviewed), true_];
      body.append(element("tr", {}, ...cells.map((text) => element("td", {}, text))));
    }
    const row = element("tr", {}, ...head.map((text) => element("th", { scope: "col" }, text)));
    const table = element("table", {}, element("thead", {}, row), body);
    return element("details", { open, class: "decided" }, element("summary", {}, "What was decided"), element("div", { class: "scroll" }, table));
  }
}
