// Elements are made with text only: nothing that comes from the cluster is ever read as HTML.

export const byId = (id) => document.getElementById(id);

/** Return a new element with attributes and children; a child that is no element becomes text. */
export function make(name, attributes = {}, ...children) {
  const element = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (value !== undefined && value !== null && value !== false) {
      element.setAttribute(key, value === true ? "" : String(value));
    }
  }
  element.append(...children);
  return element;
}

/** Set the text of an element if it differs: a write that changes nothing still costs a layout. */
export function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

/** Set an attribute, or remove it for undefined, null and false. */
export function setAttribute(element, name, value) {
  const wanted = value === undefined || value === null || value === false ? null : String(value);
  if (element.getAttribute(name) === wanted) return;
  if (wanted === null) element.removeAttribute(name);
  else element.setAttribute(name, wanted);
}

/** Return a description list of [term, text or element] pairs; pairs without a value are left out. */
export function descriptions(pairs) {
  const list = make("dl");
  for (const [term, value] of pairs) {
    if (value) {
      list.append(make("dt", {}, term), make("dd", {}, value));
    }
  }
  return list;
}

/** A table whose rows are kept by key, so that focus and scrolling survive an update. */
export class KeyedTable {
  constructor(table, columns) {
    this.columns = columns;
    this.rows = new Map();
    const head = make("tr", { role: "row" });
    for (const column of columns) head.append(make("th", { scope: "col", role: "columnheader", class: column.kind }, column.title));
    this.body = make("tbody", { role: "rowgroup" });
    table.setAttribute("role", "table");
    table.replaceChildren(make("thead", { role: "rowgroup" }, head), this.body);
  }

  /** Show items in this order; each has a unique `key`. */
  show(items) {
    const wanted = new Set(items.map((item) => item.key));
    for (const [key, row] of this.rows) {
      if (!wanted.has(key)) {
        row.remove();
        this.rows.delete(key);
      }
    }
    let after = null;
    for (const item of items) {
      let row = this.rows.get(item.key);
      if (row === undefined) {
        row = make("tr", { role: "row" });
        for (const column of this.columns) {
          // On a narrow screen each cell is a line with its title; the roles keep it a table.
          const cell = make("td", { class: column.kind, role: "cell", "data-title": column.title });
          if (column.open) {
            const button = make("button", { type: "button", class: "link" });
            button.addEventListener("click", () => column.open(row.item));
            cell.append(button);
          }
          row.append(cell);
        }
        this.rows.set(item.key, row);
      }
      row.item = item;
      this.columns.forEach((column, index) => {
        const cell = row.children[index];
        setText(column.open ? cell.firstChild : cell, column.text(item));
      });
      const next = after === null ? this.body.firstChild : after.nextSibling;
      if (next !== row) this.body.insertBefore(row, next);
      after = row;
    }
  }
}
