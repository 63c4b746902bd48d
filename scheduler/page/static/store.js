// The documents by key, as the server sends them; what they contain is in documents.py.

export class Store {
  constructor() {
    this.nodes = new Map();
    this.moves = new Map();
    this.waiting = new Map();
    this.about = {};
  }

  clear() {
    this.nodes.clear();
    this.moves.clear();
    this.waiting.clear();
    this.about = {};
  }

  /** Take one document; return its kind and name. */
  take(key, value) {
    const slash = key.indexOf("/");
    const kind = slash < 0 ? key : key.slice(0, slash);
    const name = slash < 0 ? "" : key.slice(slash + 1);
    const documents = { node: this.nodes, move: this.moves, waiting: this.waiting }[kind];
    if (documents === undefined) this.about = value ?? {};
    else if (value === undefined) documents.delete(name);
    else documents.set(name, kind === "node" ? { cards: [], ...value } : value);
    return { kind, name };
  }

  /** Return the card with this UUID and its node, or null. */
  card(uuid) {
    for (const node of this.nodes.values()) {
      const card = node.cards.find((each) => each.uuid === uuid);
      if (card !== undefined) return { card, node };
    }
    return null;
  }

  /** Return what pods hold: one entry for each pod, with its cards and its share (0..1) of each. */
  pods() {
    const found = new Map();
    for (const node of this.nodes.values()) {
      for (const card of node.cards) {
        for (const slice of card.slices ?? []) {
          let pod = found.get(slice.pod);
          if (pod === undefined) {
            pod = { key: slice.pod, node: node.name, cards: [], shares: [], mib: 0, state: "" };
            found.set(slice.pod, pod);
          }
          pod.cards.push(card);
          pod.shares.push(slice.mib / card.mib);
          pod.mib += slice.mib;
          pod.state = slice.terminating ? "ends" : slice.assumed ? "being bound" : "bound";
        }
      }
    }
    return [...found.values()];
  }
}

export const ENDED = new Set(["Done", "Aborted", "Recommended"]);

/** Return "hot", "warm", "cool" or "unknown"; unknown is never cool. */
export function heatOf(card, about) {
  if (card.heat === undefined || card.heat === null) return "unknown";
  const line = about.hotRatio ?? 0.8;
  if (card.heat >= line) return "hot";
  return card.heat >= 0.8 * line ? "warm" : "cool";
}

/** Return whether a card takes nothing new, for whatever reason. */
export function isClosed(card, node) {
  return Boolean(card.closed || card.keptFor || node.trouble);
}
