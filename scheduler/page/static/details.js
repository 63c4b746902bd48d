// The panel beside the cards: one card, one waiting pod, or one move.

import { byId, descriptions, make, setText } from "./dom.js";
import { clock, gib, percent, plural } from "./format.js";
import { heatOf } from "./store.js";

const NUMBERS = new Set(["Memory", "Used", "Compute"]);
const RETRIES = 5;
const RETRY_MS = 1500;

export class Details {
  constructor(store, go) {
    this.store = store;
    this.go = go;
    this.panel = byId("details");
    this.title = byId("details-title");
    this.body = byId("details-body");
    this.shown = "";
    this.drawn = "";
    this.explained = "";
    this.asked = 0;
    byId("close").addEventListener("click", () => go({ card: "", pod: "", move: "" }));
    addEventListener("keydown", (event) => {
      if (event.key === "Escape" && !this.panel.hidden) go({ card: "", pod: "", move: "" });
    });
  }

  /** Show what the address names; the focus goes to the title of something new. */
  show(state) {
    const subject = ["card", "pod", "move"].find((name) => state[name]);
    const key = subject === undefined ? "" : `${subject}=${state[subject]}`;
    const isNew = key !== this.shown;
    if (isNew) {
      this.asked += 1; // an answer about the last one comes too late
      this.explained = "";
    }
    this.shown = key;
    this.panel.hidden = subject === undefined;
    if (subject === undefined) {
      this.drawn = "";
      return;
    }
    if (subject === "card") this.#card(state.card);
    else if (subject === "move") this.#move(state.move);
    else this.#pod(state.pod);
    if (isNew) this.title.focus();
  }

  /** Replace the content unless it was made from the same facts. */
  #draw(title, facts, build) {
    setText(this.title, title);
    const drawn = JSON.stringify([title, facts]);
    if (drawn === this.drawn) return;
    this.drawn = drawn;
    this.body.replaceChildren(...build());
  }

  #card(uuid) {
    const found = this.store.card(uuid);
    if (found === null) {
      this.#draw("Card", uuid, () => [make("p", {}, `No card ${uuid} is known.`)]);
      return;
    }
    const { card, node } = found;
    const heat = heatOf(card, this.store.about);
    const busy =
      heat === "unknown"
        ? "unknown: not reported, or too long ago"
        : `${heat === "hot" ? "hot, " : ""}${percent(card.heat)} busy${node.heatAt ? `, reported at ${clock(node.heatAt)}` : ""}`;
    this.#draw(`Card ${card.index} of ${node.name}`, [card, node.heatAt, node.trouble, busy], () => [
      descriptions([
        ["Model", card.model],
        ["UUID", make("code", {}, card.uuid)],
        ["Heat", busy],
        ["Takes nothing new", (card.closed && card.trouble) || node.trouble],
        ["Open, but", !card.closed && card.trouble],
        ["Kept for", card.keptFor],
        ["Free", `${gib(card.freeMib)} of ${gib(card.mib)} GiB that are shared`],
        ["Held by pods", `${gib((card.heldMib ?? 0) - (card.reservedMib ?? 0))} GiB`],
        ["Reserved for moves", card.reservedMib && `${gib(card.reservedMib)} GiB: ${(card.moves ?? []).join(", ")}`],
        ["Used by others", card.foreignMib && `${gib(card.foreignMib)} GiB by processes of no known pod`],
        ["Possibly held", card.unplacedMib && `${gib(card.unplacedMib)} GiB by pods whose assignment cannot be read`],
        ["Compute", `${card.cores ?? 0} % promised`],
        ["Containers", `${card.usedSlots ?? 0} of ${card.slots}`],
        ["Memory in all", `${gib(card.totalMib)} GiB`],
      ]),
      make("h3", {}, "Slices"),
      slices(card),
    ]);
  }

  #move(name) {
    const move = this.store.moves.get(name);
    if (move === undefined) {
      this.#draw("Move", name, () => [make("p", {}, `No move ${name} is shown.`)]);
      return;
    }
    this.#draw(`Move ${move.name}`, move, () => [
      descriptions([
        ["Pod", move.pod],
        ["From", this.#place(move.source)],
        ["To", this.#place(move.target)],
        ["Share", `${gib(move.mib)} GiB`],
        ["How", move.mode === "Surge" ? "the new pod runs before the old one goes" : "evicted, then replaced"],
        ["Method", move.method],
        ["For", move.beneficiary],
        ["Phase", move.phase],
        ["Result", move.result],
        ["Why", move.reason],
        ["Message", move.message],
        ["Made", move.made && clock(move.made)],
      ]),
      make("h3", {}, "Phases"),
      make(
        "ul",
        {},
        ...(move.phases ?? []).map((each) =>
          make("li", {}, `${clock(each.at)} ${each.phase}${each.message ? `: ${each.message}` : ""}`),
        ),
      ),
    ]);
  }

  #place(place) {
    const button = make("button", { type: "button", class: "link" }, `${place.node}, card ${place.index}`);
    button.addEventListener("click", () => this.go({ card: place.card, pod: "", move: "" }));
    return button;
  }

  #pod(key) {
    const pod = this.store.waiting.get(key);
    if (pod === undefined) {
      this.explained = "";
      const held = this.store.pods().find((each) => each.key === key);
      this.#draw(`Pod ${key}`, held?.cards.map((card) => card.uuid), () => [
        make("p", {}, held ? `It runs on ${held.node}.` : "It neither waits for a card nor holds one."),
        ...(held ? [make("ul", {}, ...held.cards.map((card) => make("li", {}, this.#place({ node: held.node, card: card.uuid, index: card.index }))))] : []),
      ]);
      return;
    }
    if (this.explained === key) return; // what is shown stays until it is asked for again
    this.explained = key;
    const answer = pod.answer;
    const asked = answer && `${clock(answer.at)}, about ${plural(answer.nodes, "node")}: ${answer.fitting} with a card for it`;
    const reasons = make("div", { "aria-live": "polite" });
    const command = `fracgpu explain ${key}`;
    this.#draw(`Pod ${key}`, [pod, Date.now()], () => [
      descriptions([
        ["Asks for", pod.asks],
        ["Waits since", pod.since && clock(pod.since)],
        ["Priority", pod.priority && String(pod.priority)],
        ["Cannot be granted", pod.problem],
        ["Nominated node", pod.nominatedNode],
        ["Claim", pod.claim],
        ["Last asked", pod.claim ? "" : asked || "kube-scheduler has not asked about it: by its own rules no node is left, or the pod is held back"],
        ["Answer", answer?.reason],
      ]),
      reasons,
      make("p", { class: "hint" }, "The same for every node: ", make("code", {}, command)),
    ]);
    this.#explain(key, reasons);
  }

  async #explain(key, into) {
    const asked = this.asked;
    const [namespace, pod] = key.split("/");
    const query = new URLSearchParams({ namespace, pod });
    into.replaceChildren(make("p", {}, "Asking the scheduler …"));
    for (let left = RETRIES; ; left -= 1) {
      let text = "the scheduler does not answer";
      try {
        const answer = await fetch(`explain?${query}`);
        if (asked !== this.asked) return;
        if (answer.ok) {
          const found = await answer.json();
          into.replaceChildren(...help(found.suggestions), ...explanation(found.explanation));
          return;
        }
        text = (await answer.text()).trim();
        if (answer.status !== 503) left = 0;
      } catch {
        // The stream says that the connection is gone; here it is just another failure.
      }
      if (asked !== this.asked) return;
      if (left <= 0) {
        into.replaceChildren(make("p", {}, `No explanation: ${text}.`));
        return;
      }
      await new Promise((resolve) => setTimeout(resolve, RETRY_MS));
    }
  }
}

function slices(card) {
  if (!(card.slices ?? []).length) return make("p", {}, "No pod holds a slice of it.");
  const rows = card.slices.map((slice) =>
    make(
      "tr",
      {},
      make("td", {}, slice.pod),
      make("td", { class: "number" }, `${size(slice.mib)}${atMost(slice)}`),
      make("td", { class: "number" }, usedOf(slice)),
      make("td", { class: "number" }, slice.cores ? `${slice.cores} %` : "shared"),
      make("td", {}, slice.terminating ? "ends" : slice.assumed ? "being bound" : ""),
    ),
  );
  const titles = ["Pod", "Memory", "Used", "Compute", ""].map((title) =>
    make("th", { scope: "col", class: NUMBERS.has(title) && "number" }, title),
  );
  const table = make("table", {}, make("thead", {}, make("tr", {}, ...titles)), make("tbody", {}, ...rows));
  if (card.moreSlices) rows.at(-1).after(make("tr", {}, make("td", {}, `and ${card.moreSlices} smaller ones`)));
  return table;
}

function size(mib) {
  return `${gib(mib)}\u00a0GiB`; // on one line
}

function atMost(slice) {
  return slice.limitMib ? `, at most ${size(slice.limitMib)}` : "";
}

function usedOf(slice) {
  if (slice.usedMib === undefined) return "not known";
  const most = slice.limitMib || slice.mib;
  const over = slice.usedMib > Math.max(most * 1.05, most + 256); // as the node's agent judges
  const borrowed = slice.limitMib && slice.usedMib > slice.mib;
  const how = over ? ", more than its share" : borrowed ? `, ${size(slice.usedMib - slice.mib)} borrowed` : "";
  return `${size(slice.usedMib)}${how}`;
}

function help(suggestions) {
  if (!suggestions.length) return [];
  const lines = suggestions.map((each) => make("li", {}, each.text));
  return [make("h3", {}, "What would help"), make("ul", {}, ...lines)];
}

function explanation(found) {
  const title = make("h3", {}, "Why, on the nodes nearest to a fit");
  const lines = [...found.blockers, ...found.notes].map((text) => make("li", {}, text));
  const parts = [title, ...(lines.length ? [make("ul", {}, ...lines)] : [])];
  for (const node of found.nodes) {
    const reasons = [
      ...node.objections.map((objection) => objection.text),
      ...(node.reason && !node.cards.some((card) => card.reason) ? [node.reason] : []),
      ...node.cards.map((card) => `card ${card.index}, ${card.free_mib} MiB free: ${card.reason || "fits"}`),
    ];
    parts.push(
      make("h4", {}, node.cards_fit && !node.objections.length ? `${node.node}: its cards fit` : node.node),
      make("ul", {}, ...reasons.map((text) => make("li", {}, text))),
    );
  }
  if (parts.length === 1) parts.push(make("p", {}, "Nothing known here keeps it from being placed."));
  return parts;
}
