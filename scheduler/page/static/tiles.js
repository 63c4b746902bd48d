// Cards as tiles, grouped by node. One tile is in the tab order; arrow keys go to the others.

import { byId, make, setAttribute, setText } from "./dom.js";
import { cardMatches } from "./filters.js";
import { clock, gib, percent, plural } from "./format.js";
import { heatOf, isClosed } from "./store.js";

const MOST_PARTS = 12; // of one bar; narrower ones could not be seen
const MARKS = { hot: "▲ ", warm: "", cool: "", unknown: "" };
const HEAT_WORDS = { hot: "hot, ", warm: "", cool: "", unknown: "" };
const byName = new Intl.Collator(undefined, { numeric: true });

export class Tiles {
  constructor(store, open) {
    this.store = store;
    this.root = byId("nodes");
    this.sections = new Map();
    this.names = [];
    this.root.addEventListener("keydown", (event) => this.#go(event));
    this.root.addEventListener("click", (event) => {
      const tile = event.target.closest(".tile");
      if (tile !== null) {
        this.#rove(tile);
        open(tile.dataset.uuid);
      }
    });
  }

  clear() {
    this.root.replaceChildren();
    this.sections.clear();
    this.names = [];
  }

  /** Draw one node as it is now in the store. */
  draw(name, state) {
    const node = this.store.nodes.get(name);
    let section = this.sections.get(name);
    if (node === undefined) {
      if (section === undefined) return;
      section.element.remove();
      this.sections.delete(name);
      this.names.splice(this.names.indexOf(name), 1);
      return;
    }
    if (section === undefined) section = this.#add(name);
    setText(section.model, [...new Set(node.cards.map((card) => card.model))].join(", "));
    setText(section.trouble, node.trouble ? `✕ ${node.trouble}` : "");
    const kept = new Set();
    for (const card of node.cards) {
      let tile = section.tiles.get(card.uuid);
      if (tile === undefined) {
        tile = newTile(card.uuid);
        section.tiles.set(card.uuid, tile);
        section.grid.append(tile.element);
      }
      kept.add(card.uuid);
      drawTile(tile, card, node, this.store.about);
    }
    for (const [uuid, tile] of section.tiles) {
      if (!kept.has(uuid)) {
        tile.element.remove();
        section.tiles.delete(uuid);
      }
    }
    this.filterNode(name, state);
  }

  /** Hide what does not match in one node; return how many cards match. */
  filterNode(name, state) {
    const node = this.store.nodes.get(name);
    const section = this.sections.get(name);
    if (node === undefined || section === undefined) return 0;
    let matching = 0;
    for (const card of node.cards) {
      const shown = cardMatches(card, node, state, this.store.about);
      const { element } = section.tiles.get(card.uuid);
      if (element.hidden === shown) element.hidden = !shown;
      setAttribute(element, "aria-current", state.card === card.uuid ? "true" : null);
      if (shown) matching += 1;
    }
    const empty = node.cards.length === 0 && !state.text && !state.model && !state.state && !state.free;
    const shown = matching > 0 || empty;
    if (section.element.hidden === shown) section.element.hidden = !shown;
    section.matching = matching;
    return matching;
  }

  /** Return how many cards match, and see to it that one tile is in the tab order. */
  matching() {
    let count = 0;
    for (const section of this.sections.values()) count += section.matching;
    const current = this.root.querySelector('.tile[tabindex="0"]');
    if (current === null || current.hidden || current.closest(".node").hidden) {
      const first = this.root.querySelector(".node:not([hidden]) .tile:not([hidden])");
      if (first !== null) this.#rove(first);
    }
    return count;
  }

  /** Put the focus on a card's tile; return whether it is shown. */
  focus(uuid) {
    for (const section of this.sections.values()) {
      const tile = section.tiles.get(uuid);
      if (tile !== undefined && !tile.element.hidden) {
        this.#rove(tile.element);
        tile.element.focus();
        return true;
      }
    }
    return false;
  }

  #add(name) {
    const id = `node-${name}`;
    const title = make("h3", { id }, name);
    const model = make("p");
    const trouble = make("p", { class: "trouble" });
    const grid = make("div", { class: "tiles", role: "group", "aria-labelledby": id });
    const element = make(
      "section",
      { class: "node", "aria-labelledby": id },
      make("header", {}, title, model, trouble),
      grid,
    );
    const section = { element, model, trouble, grid, tiles: new Map(), matching: 0 };
    let low = 0;
    let high = this.names.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (byName.compare(this.names[middle], name) < 0) low = middle + 1;
      else high = middle;
    }
    const before = low < this.names.length ? this.sections.get(this.names[low]).element : null;
    this.root.insertBefore(element, before);
    this.names.splice(low, 0, name);
    this.sections.set(name, section);
    return section;
  }

  #rove(tile) {
    const current = this.root.querySelector('.tile[tabindex="0"]');
    if (current !== null) current.tabIndex = -1;
    tile.tabIndex = 0;
  }

  #go(event) {
    const here = event.target.closest(".tile");
    if (here === null || event.ctrlKey || event.altKey || event.metaKey) return;
    const tiles = [...this.root.querySelectorAll(".node:not([hidden]) .tile:not([hidden])")];
    const at = tiles.indexOf(here);
    const next = {
      ArrowRight: () => tiles[at + 1],
      ArrowLeft: () => tiles[at - 1],
      ArrowDown: () => inNextRow(tiles, at, 1),
      ArrowUp: () => inNextRow(tiles, at, -1),
      Home: () => tiles[0],
      End: () => tiles[tiles.length - 1],
    }[event.key]?.();
    if (next !== undefined) {
      event.preventDefault();
      this.#rove(next);
      next.focus();
    }
  }
}

/** Return the tile of the next or previous row that is nearest to this one. */
function inNextRow(tiles, at, step) {
  const here = tiles[at].getBoundingClientRect();
  let row = null;
  let best;
  let distance = Infinity;
  for (let index = at + step; index >= 0 && index < tiles.length; index += step) {
    const there = tiles[index].getBoundingClientRect();
    if (Math.abs(there.top - here.top) < 2) continue;
    row ??= there.top;
    if (Math.abs(there.top - row) > 2) break;
    if (Math.abs(there.left - here.left) < distance) {
      distance = Math.abs(there.left - here.left);
      best = tiles[index];
    }
  }
  return best;
}

function newTile(uuid) {
  const index = make("span");
  const heat = make("span", { class: "heat" });
  const bar = make("span", { class: "bar" });
  const memory = make("span");
  const pods = make("span");
  const note = make("span", { class: "note" });
  const element = make(
    "button",
    { type: "button", class: "tile", tabindex: -1, "data-uuid": uuid },
    make("span", { class: "line" }, index, heat),
    bar,
    make("span", { class: "line" }, memory, pods),
    note,
  );
  return { element, index, heat, bar, memory, pods, note };
}

function drawTile(tile, card, node, about) {
  const heat = heatOf(card, about);
  const slices = (card.slices ?? []).length + (card.moreSlices ?? 0);
  const used = card.mib - card.freeMib;
  setText(tile.index, `card ${card.index}`);
  setText(tile.heat, heat === "unknown" ? "? heat" : `${MARKS[heat]}${percent(card.heat)}`);
  setText(tile.memory, `${gib(used)} / ${gib(card.mib)} GiB`);
  setText(tile.pods, plural(slices, "pod"));
  setText(tile.note, noteOf(card));
  setAttribute(tile.element, "data-heat", heat);
  setAttribute(tile.element, "data-closed", isClosed(card, node) ? "" : null);
  setAttribute(tile.element, "aria-label", describe(card, node, heat, used, slices));
  drawBar(tile.bar, card);
}

/** Return what stands in the way of a new slice, in a word or two. */
function noteOf(card) {
  if (card.unhealthy) return "✕ unhealthy";
  if (card.cordoned) return "✕ cordoned";
  if (card.keptFor) return `✕ kept for ${card.keptFor}`;
  if (card.trouble) return `${card.closed ? "✕" : "!"} ${card.trouble}`;
  return "";
}

/** Return a card in a sentence, for screen readers and as the name of its button. */
function describe(card, node, heat, used, slices) {
  const busy =
    heat === "unknown"
      ? "heat unknown"
      : `${HEAT_WORDS[heat]}${percent(card.heat)} busy${node.heatAt ? `, reported at ${clock(node.heatAt)}` : ""}`;
  const closed =
    (card.closed && card.trouble) || (card.keptFor && `kept for ${card.keptFor}`) || node.trouble;
  return [
    `Card ${card.index} of ${node.name}, ${card.model}`,
    busy,
    `${gib(used)} of ${gib(card.mib)} GiB taken by ${plural(slices, "pod")}`,
    ...(card.reservedMib ? [`${gib(card.reservedMib)} GiB of it reserved for a move`] : []),
    ...(closed ? [`takes nothing new: ${closed}`] : []),
    ...(card.trouble && !card.closed ? [card.trouble] : []),
  ].join("; ");
}

/** Draw who holds how much: the parts are hidden from screen readers, the label counts them. */
function drawBar(bar, card) {
  const parts = (card.slices ?? []).slice(0, MOST_PARTS).map((slice, index) => ({
    kind: slice.terminating ? "leaving" : slice.assumed ? "assumed" : index % 2 ? "used odd" : "used",
    mib: slice.mib,
  }));
  const shown = parts.reduce((sum, part) => sum + part.mib, 0);
  const rest = (card.heldMib ?? 0) - (card.reservedMib ?? 0) - shown;
  if (rest > 0) parts.push({ kind: "used", mib: rest });
  if (card.reservedMib) parts.push({ kind: "reserved", mib: card.reservedMib });
  const others = (card.foreignMib ?? 0) + (card.unplacedMib ?? 0);
  if (others) parts.push({ kind: "foreign", mib: others });
  if (card.freeMib > 0) parts.push({ kind: "free", mib: card.freeMib });
  const drawn = JSON.stringify(parts);
  if (bar.drawn === drawn) return;
  bar.drawn = drawn;
  while (bar.children.length > parts.length) bar.lastChild.remove();
  while (bar.children.length < parts.length) bar.append(make("span"));
  parts.forEach((part, index) => {
    const element = bar.children[index];
    element.className = part.kind;
    element.style.flex = `${part.mib} 0 0`; // by the object model, which the policy allows
  });
}
