// Puts the parts together: the stream fills the store, and what changed is drawn frame by frame.

import { Details } from "./details.js";
import { byId, KeyedTable, make, setAttribute, setText } from "./dom.js";
import { connectForm, offerModels, readAddress, showForm, VIEWS, writeAddress } from "./filters.js";
import { age, clock, gib, percent, plural, setServerTime } from "./format.js";
import { follow } from "./stream.js";
import { ENDED, heatOf, Store } from "./store.js";
import { Tiles } from "./tiles.js";

const FRAME_MS = 10; // of drawing in one frame, so that the page stays usable while it fills
const MOST_PODS = 300;
const ANNOUNCE_MS = 3000;
const MOST_ANNOUNCED = 3;

const store = new Store();
const open = (what) => writeAddress({ card: "", pod: "", move: "", ...what });
const tiles = new Tiles(store, (uuid) => open({ card: uuid }));
const details = new Details(store, open);
const tables = {
  pods: new KeyedTable(byId("pods"), [
    { title: "Pod", text: (pod) => pod.key, open: (pod) => open({ pod: pod.key }) },
    { title: "Node", text: (pod) => pod.node },
    { title: "Cards", kind: "number", text: (pod) => pod.cards.map((card) => card.index).join(", ") },
    { title: "Memory", kind: "number", text: (pod) => `${gib(pod.mib)} GiB` },
    { title: "Of each card", kind: "number", text: (pod) => pod.shares.map(percent).join(", ") },
    { title: "Card busy", kind: "number", text: (pod) => pod.cards.map(busyOf).join(", ") },
    { title: "State", text: (pod) => pod.state },
  ]),
  moves: new KeyedTable(byId("moves"), [
    { title: "Move", text: (move) => move.key, open: (move) => open({ move: move.key }) },
    { title: "Pod", text: (move) => move.pod },
    { title: "From", text: (move) => `${move.source.node}, card ${move.source.index}` },
    { title: "To", text: (move) => `${move.target.node}, card ${move.target.index}` },
    { title: "Phase", kind: "word", text: (move) => (move.result ? `${move.phase}: ${move.result}` : move.phase) },
    { title: "Made", kind: "time", text: (move) => (move.made ? clock(move.made) : "") },
    { title: "Why", text: (move) => move.reason ?? "" },
  ]),
  waiting: new KeyedTable(byId("waiting"), [
    { title: "Pod", text: (pod) => pod.key, open: (pod) => open({ pod: pod.key }) },
    { title: "Asks for", text: (pod) => pod.asks ?? "" },
    { title: "Waits", kind: "time", text: (pod) => (pod.since ? age(pod.since) : "") },
    { title: "Why", text: (pod) => pod.problem || pod.claim || pod.answer?.reason || whyNotAsked(pod) },
  ]),
};

let state = readAddress();
let synced = false;
let opened = ""; // the card whose tile gets the focus back
const dirtyNodes = new Set();
const dirty = { tables: true, totals: true, filter: true };
const announcements = [];
let frame = 0;

function whyNotAsked(pod) {
  if (pod.answer) return `${plural(pod.answer.fitting, "node")} with a card for it; it is being placed`;
  return "kube-scheduler has not asked about it: by its own rules no node is left, or it has not tried yet";
}

function later() {
  if (!frame) frame = requestAnimationFrame(draw);
}

function draw() {
  frame = 0;
  const began = performance.now();
  for (const name of dirtyNodes) {
    tiles.draw(name, state);
    dirtyNodes.delete(name);
    if (performance.now() - began > FRAME_MS) break;
  }
  if (dirtyNodes.size) {
    later();
    return;
  }
  drawRest();
}

function drawRest() {
  if (dirty.filter) {
    for (const name of tiles.names) tiles.filterNode(name, state);
  }
  if (dirty.totals || dirty.filter) {
    drawTotals();
    const count = tiles.matching();
    const total = [...store.nodes.values()].reduce((sum, node) => sum + node.cards.length, 0);
    setText(byId("matching"), synced ? `${count} of ${plural(total, "card")} shown` : "loading");
    byId("no-cards").hidden = count > 0 || !synced;
  }
  if (dirty.tables || dirty.filter) drawTables();
  details.show(state);
  dirty.tables = dirty.totals = dirty.filter = false;
}

function drawTotals() {
  const cards = [...store.nodes.values()].flatMap((node) => node.cards);
  const sum = (read) => cards.reduce((all, card) => all + (read(card) ?? 0), 0);
  const shared = sum((card) => card.mib);
  const held = sum((card) => card.heldMib);
  const heats = { hot: 0, warm: 0, cool: 0, unknown: 0 };
  for (const card of cards) heats[heatOf(card, store.about)] += 1;
  const underWay = [...store.moves.values()].filter((move) => !ENDED.has(move.phase)).length;
  const counted = (count, one, many) => [count === 1 ? one : many, String(count)];
  const facts = [
    counted(cards.length, "card", "cards"),
    counted(store.nodes.size, "node", "nodes"),
    ["of memory held", shared ? `${percent(held / shared)} of ${gib(shared)} GiB` : "0 %"],
    counted(heats.hot, "hot card", "hot cards"),
    ["of unknown heat", String(heats.unknown)],
    counted(store.about.waiting ?? 0, "pod waiting", "pods waiting"),
    counted(underWay, "move under way", "moves under way"),
  ];
  const list = byId("totals");
  facts.forEach(([term, text], index) => {
    const pair = list.children[index] ?? list.appendChild(make("div", {}, make("dt"), make("dd")));
    setText(pair.children[0], term);
    setText(pair.children[1], text);
  });
  offerModels(new Set(cards.map((card) => card.model)));
}

const busyOf = (card) => (heatOf(card, store.about) === "unknown" ? "?" : percent(card.heat));
const contains = (text) => !state.text || text.toLowerCase().includes(state.text.toLowerCase());
const noteOf = (shown, all, what) => (shown < all ? `${shown} of ${plural(all, what)} shown` : plural(all, what));

function drawTables() {
  if (state.view === "pods") {
    const pods = store.pods().filter((pod) => contains(`${pod.key} ${pod.node}`));
    pods.sort((one, other) => (one.key < other.key ? -1 : 1));
    tables.pods.show(pods.slice(0, MOST_PODS));
    setText(byId("pods-note"), noteOf(Math.min(pods.length, MOST_PODS), pods.length, "pod"));
  } else if (state.view === "moves") {
    const moves = [...store.moves.values()]
      .filter((move) => contains(`${move.pod} ${move.source.node} ${move.target.node}`))
      .map((move) => ({ ...move, key: move.name }));
    moves.sort((one, other) => (one.made === other.made ? (one.key < other.key ? -1 : 1) : one.made > other.made ? -1 : 1));
    tables.moves.show(moves);
    const served = store.about.movesServed === false ? "This cluster has no Moves: the rebalancer's definition is not installed." : "";
    setText(byId("moves-note"), served || noteOf(moves.length, store.about.moves ?? moves.length, "move"));
  } else if (state.view === "waiting") {
    const pods = [...store.waiting.values()].filter((pod) => contains(pod.pod)).map((pod) => ({ ...pod, key: pod.pod }));
    pods.sort((one, other) => ((one.since ?? "") < (other.since ?? "") ? -1 : 1));
    tables.waiting.show(pods);
    setText(byId("waiting-note"), noteOf(pods.length, store.about.waiting ?? pods.length, "pod"));
  }
}

function readState() {
  const before = state;
  state = readAddress();
  showForm(state);
  for (const view of VIEWS) byId(`view-${view}`).hidden = view !== state.view;
  for (const link of byId("views").children) {
    setAttribute(link, "aria-current", link.dataset.view === state.view ? "page" : null);
  }
  document.title = `FracGPU: ${state.view}`;
  document.body.dataset.view = state.view;
  if (before.card && !state.card) opened = before.card;
  dirty.filter = true;
  drawRest();
  if (opened && !state.card && !state.pod && !state.move) tiles.focus(opened);
  opened = "";
}

/** Announce moves to screen readers: a few at a time, and only what happens from now on. */
function announce(move, before) {
  if (!synced || (before && before.phase === move.phase)) return;
  const from = `${move.source.node} card ${move.source.index}`;
  const to = `${move.target.node} card ${move.target.index}`;
  announcements.push(`Move of ${move.pod} from ${from} to ${to}: ${move.phase}`);
}

setInterval(() => {
  if (!announcements.length) return;
  const shown = announcements.splice(0, MOST_ANNOUNCED);
  const more = announcements.splice(0).length;
  setText(byId("announcer"), `${shown.join(". ")}${more ? `, and ${more} more changes of moves` : ""}.`);
}, ANNOUNCE_MS);

byId("skip").addEventListener("click", () => byId("main").focus());
addEventListener("hashchange", readState);
connectForm();
readState();

follow({
  reset() {
    store.clear();
    tiles.clear();
    dirtyNodes.clear();
    synced = false;
    later();
  },
  piece(key, value) {
    const before = key.startsWith("move/") ? store.moves.get(key.slice(5)) : undefined;
    const line = store.about.hotRatio;
    const { kind, name } = store.take(key, value);
    if (kind === "node") dirtyNodes.add(name);
    if (kind === "move" && value !== undefined) announce(value, before);
    if (store.about.hotRatio !== line) for (const each of store.nodes.keys()) dirtyNodes.add(each);
    dirty.tables = dirty.totals = true;
    later();
  },
  synced(now) {
    synced = true;
    setServerTime(now);
    document.body.dataset.synced = "";
    later();
  },
  beat(now) {
    setServerTime(now);
    dirty.tables = true;
    later();
  },
  live() {
    document.body.classList.remove("stale");
    setText(byId("connection"), `Live, from ${store.about.leader ?? "the scheduler"}`);
  },
  stale(since, why) {
    document.body.classList.add("stale");
    setText(byId("connection"), `Stale since ${clock(since)}: ${why}; trying again`);
  },
});
