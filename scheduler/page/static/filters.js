// What is shown is in the address after "#", so that a view can be bookmarked and sent on.

import { byId, make } from "./dom.js";
import { heatOf, isClosed } from "./store.js";

const FIELDS = ["text", "model", "state", "free"];
export const VIEWS = ["cards", "pods", "moves", "waiting"];

/** Return the state that the address describes. */
export function readAddress() {
  const found = new URLSearchParams(location.hash.slice(1));
  const state = { view: VIEWS.includes(found.get("view")) ? found.get("view") : "cards" };
  for (const name of [...FIELDS, "card", "pod", "move"]) state[name] = found.get(name) ?? "";
  return state;
}

/** Write a changed state into the address; `push` makes an entry for the browser's Back. */
export function writeAddress(changes, { push = true } = {}) {
  const wanted = new URLSearchParams();
  for (const [name, value] of Object.entries({ ...readAddress(), ...changes })) {
    if (value !== "") wanted.set(name, value);
  }
  const hash = `#${wanted}`;
  if (push) location.hash = hash;
  else {
    history.replaceState(null, "", hash);
    dispatchEvent(new HashChangeEvent("hashchange"));
  }
}

/** Connect the form with the address. */
export function connectForm() {
  const form = byId("filters");
  form.addEventListener("submit", (event) => event.preventDefault());
  form.addEventListener("input", () => {
    const changes = {};
    for (const name of FIELDS) changes[name] = form.elements[name].value.trim();
    writeAddress(changes, { push: false });
  });
  form.addEventListener("reset", () => {
    writeAddress(Object.fromEntries(FIELDS.map((name) => [name, ""])), { push: false });
  });
}

/** Show the state of the address in the form. */
export function showForm(state) {
  const form = byId("filters");
  for (const name of FIELDS) {
    const field = form.elements[name];
    if (name === "model" && state.model && ![...field.options].some((each) => each.value === state.model)) {
      field.append(make("option", { value: state.model }, state.model));
    }
    if (document.activeElement !== field && field.value !== state[name]) field.value = state[name];
  }
}

/** Offer the models that there are. */
export function offerModels(models) {
  const field = byId("filters").elements.model;
  const offered = new Set([...field.options].map((each) => each.value));
  for (const model of [...models].sort()) {
    if (!offered.has(model)) field.append(make("option", { value: model }, model));
  }
}

/** Return whether a card is shown. */
export function cardMatches(card, node, state, about) {
  const text = state.text.toLowerCase();
  const named =
    !text ||
    node.name.toLowerCase().includes(text) ||
    card.uuid.toLowerCase().includes(text) ||
    (card.slices ?? []).some((slice) => slice.pod.toLowerCase().includes(text));
  const inState = {
    "": () => true,
    hot: () => heatOf(card, about) === "hot",
    unknown: () => heatOf(card, about) === "unknown",
    closed: () => isClosed(card, node),
    empty: () => (card.slices ?? []).length === 0,
  }[state.state];
  return (
    named &&
    (!state.model || card.model === state.model) &&
    (!state.free || card.freeMib >= 1024 * Number(state.free)) &&
    (inState === undefined || inState())
  );
}
