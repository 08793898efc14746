// Page of one pod, and list of all containers that hold or wait for CPUs.
import { arrange, cpuList, el, facts, health, history, link, nodePath, podPath, time } from "./dom.js";
import { Drawing } from "./drawing.js";

export class PodView {
  constructor(root) {
    this.head = el("div", { class: "head" });
    this.drawing = new Drawing(false);
    this.rest = el("div");
    root.replaceChildren(this.head, this.drawing.element, this.rest);
  }

  show(view) {
    this.drawing.element.hidden = !view?.drawing?.sockets.length;
    if (!view) {
      this.head.replaceChildren(el("h1", {}, "No such pod"),
        el("p", {}, "It was deleted, or it neither requests CPUs by annotation nor holds any. ", link("/pods", "All pods with CPUs")));
      this.rest.replaceChildren();
      return;
    }
    this.head.replaceChildren(
      el("h1", {}, `${view.namespace}/${view.name}`),
      el("p", { class: "note" },
        view.node ? ["on node ", link(`${nodePath(view.node)}?namespace=${encodeURIComponent(view.namespace)}&pod=${encodeURIComponent(view.name)}`, view.node)] : "node not known",
        view.created ? [", created ", time(view.created)] : ""),
      ...view.notes.map((note) => el("p", { class: "remark" }, note)),
      ...view.containers.map(card));
    if (view.drawing?.sockets.length) this.drawing.show(view.drawing);
    this.rest.replaceChildren(...[
      section("Virtual machine", view.machine),
      section("What it asks for", view.asks),
      history(view.history, view.since),
    ].filter(Boolean));
  }
}

function card(container) {
  return el("section", { class: "card", "aria-label": `Container ${container.name}` },
    el("h2", {}, `Container ${container.name} `, health(container.health)),
    el("p", { class: "why" }, container.why),
    container.facts.length ? facts(container.facts) : null);
}

function section(title, list) {
  return list.length ? el("section", {}, el("h2", {}, title), facts(list)) : null;
}

export class PodsView {
  constructor(root) {
    this.rows = new Map();
    this.body = el("tbody");
    this.more = el("p", { class: "note" });
    this.table = el("table", { class: "pods" },
      el("caption", {}, "Containers that hold or wait for CPUs, problems first"),
      el("thead", {}, el("tr", {}, ["Container", "State", "Policy", "CPUs", "Node", "Proof, or why it waits"].map((title) => el("th", { scope: "col" }, title)))),
      this.body);
    root.replaceChildren(el("h1", { class: "sr" }, "Pods"), this.table, this.more);
  }

  show(view, query) {
    const old = this.rows;
    this.rows = new Map(view.rows.map((row) => [row, old.get(row) ?? element(row)]));
    arrange(this.body, [...this.rows.values()]);
    this.table.hidden = view.rows.length === 0;
    this.more.textContent = view.more ? `${view.more} more are not shown: use the filter.` : "";
    if (!view.rows.length) this.more.textContent = query ? "No container matches the filter." : view.troubles.length ? "" : "No container holds CPUs or waits for some.";
  }
}

function element(row) {
  return el("tr", { "data-pod": row.key },
    el("th", { scope: "row" }, link(podPath(row.namespace, row.pod), [row.namespace, row.pod, row.container].filter(Boolean).join("/"))),
    el("td", {}, health(row.health)),
    el("td", {}, row.policy),
    el("td", { class: "cpus" }, cpuList(row.cpus)),
    el("td", {}, row.node ? link(nodePath(row.node), row.node) : "not known"),
    el("td", {}, row.text));
}

export class ChangesView {
  constructor(root) {
    this.root = root;
  }

  show(view) {
    this.root.replaceChildren(el("h1", { class: "sr" }, "Changes"), history(view.history, view.since));
  }
}
