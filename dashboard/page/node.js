// Page of one node: drawing, owners, waiting claims, and recent events.
import { bar, el, health, history, link, podPath } from "./dom.js";
import { Drawing, legend } from "./drawing.js";

export class NodeView {
  constructor(root) {
    this.head = el("div", { class: "head" });
    this.drawing = new Drawing(true);
    this.rest = el("div");
    root.replaceChildren(this.head, this.drawing.element, this.rest);
  }

  show(view) {
    if (!view) {
      this.drawing.element.hidden = true;
      this.head.replaceChildren(el("h1", {}, "No such node"), el("p", {}, "It may have left the cluster. ", link("/", "All nodes")));
      this.rest.replaceChildren();
      return;
    }
    this.head.replaceChildren(
      el("h1", {}, view.name, " ", health(view.health)),
      el("p", { class: "note" }, view.machine && `${view.machine}; ${view.free} CPUs can still be assigned`),
      ...(view.near ? [el("p", { class: "note" }, view.near)] : []),
      ...(view.notes.length ? [el("ul", { class: "remark" }, view.notes.map((note) => el("li", {}, note)))] : []),
      view.parts.length ? bar(view.parts) : "");
    this.drawing.element.hidden = !view.sockets.length;
    if (view.sockets.length) this.drawing.show(view);
    this.rest.replaceChildren(...[
      view.waiting.length ? waiting(view.waiting) : null,
      view.sockets.length ? legend(view) : null,
      history(view.history, view.since),
    ].filter(Boolean));
  }
}

function waiting(claims) {
  return el("section", { class: "waiting", "aria-label": "Waiting for CPUs" },
    el("h2", {}, "Waiting for CPUs"),
    el("ul", {}, claims.map((claim) => el("li", {},
      link(podPath(claim.namespace, claim.pod), [claim.namespace, claim.pod, claim.container].filter(Boolean).join("/")),
      ` ${claim.reason}: ${claim.message}`))));
}
