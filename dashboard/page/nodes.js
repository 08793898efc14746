// Page of all nodes: sums, and a row per node.
import { USES, arrange, bar, el, health, link, nodePath } from "./dom.js";

export class NodesView {
  constructor(root) {
    this.rows = new Map(); // elements by row object: an unchanged row keeps its element
    this.totals = el("section", { class: "totals", "aria-label": "Sums of all nodes" });
    this.body = el("tbody");
    this.more = el("p", { class: "note" });
    this.table = el("table", { class: "nodes" },
      el("caption", {}, "Nodes, problems first"),
      el("thead", {}, el("tr", {},
        ["Node", "State", "What its CPUs are used for", "CPUs", "Free", "Owners", "Waiting"].map((title, at) =>
          el("th", { scope: "col", class: at > 2 ? "number" : undefined }, title)))),
      this.body);
    root.replaceChildren(el("h1", { class: "sr" }, "Nodes"), this.totals, this.table, this.more);
  }

  show(view, query) {
    const { totals } = view;
    this.totals.replaceChildren(
      figure(totals.nodes, "node", totals.nodes === totals.reporting ? "" : `${totals.reporting} report`),
      figure(totals.cpus, "CPU"),
      figure(totals.free, "CPU", "can still be assigned"),
      figure(totals.owners, "container", "with CPUs"),
      figure(totals.waiting, "pod", "waiting", totals.waiting ? "waiting" : ""),
      figure(totals.troubled, "container", "with problems", totals.troubled ? "trouble" : ""),
      el("div", { class: "wide" }, bar(totals.parts), legend(totals.parts)));
    const old = this.rows;
    this.rows = new Map(view.rows.map((row) => [row, (this.query === query && old.get(row)) || element(row, query)]));
    this.query = query;
    arrange(this.body, [...this.rows.values()]);
    this.more.textContent = view.more ? `${view.more} more nodes are not shown: filter by name.` : "";
    this.table.hidden = view.rows.length === 0;
    if (!view.rows.length) this.more.textContent = query ? "No node matches the filter." : view.troubles.length ? "" : "The cluster has no nodes.";
  }
}

function figure(count, words, more = "", state = "") {
  return el("div", { class: `figure ${state ? `is-${state}` : ""}` },
    el("strong", {}, count.toLocaleString("en")), ` ${words}${count === 1 ? "" : "s"}`, more ? el("small", {}, more) : null);
}

function legend(parts) {
  return el("ul", { class: "keys" }, parts.map((part) =>
    el("li", {}, el("span", { class: `swatch use-${part.use}` }), `${part.count.toLocaleString("en")} ${USES[part.use]}`)));
}

function element(row, query) {
  const matches = row.matches ? el("small", {}, `${row.matches} found`) : null;
  return el("tr", { "data-node": row.name },
    el("th", { scope: "row" }, link(nodePath(row.name) + query, row.name), matches),
    el("td", {}, health(row.health), row.notes.length ? el("small", {}, row.notes.join("; ")) : null),
    el("td", { class: "fill" }, row.cpus ? bar(row.parts) : null),
    ...[row.cpus, row.free, row.owners, row.waiting].map((count) =>
      el("td", { class: "number" }, row.cpus || count ? count : "–")));
}
