// Elements are created here only, with textContent: no text from the cluster is parsed as HTML.

// Invisible characters that change how others are shown: control and bidirectional characters.
const UNSEEN = /[\u0000-\u0009\u000b-\u001f\u007f-\u009f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]/g;

export const clean = (text) => String(text).replace(UNSEEN, "\ufffd");

export function el(name, attributes = {}, ...children) {
  const element = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (value === undefined || value === null || value === false) continue;
    element.setAttribute(key, value === true ? "" : clean(value));
  }
  for (const child of children.flat(3))
    if (child !== null && child !== undefined && child !== "") element.append(child instanceof Node ? child : clean(child));
  return element;
}

export function link(path, ...children) {
  return el("a", { href: path, "data-link": true }, ...children);
}

export const nodePath = (name) => `/nodes/${encodeURIComponent(name)}`;
export const podPath = (namespace, pod) => `/pods/${encodeURIComponent(namespace)}/${encodeURIComponent(pod)}`;

// Order children, moving only those out of place, so that focus and selection stay.
export function arrange(parent, children) {
  let at = parent.firstChild;
  for (const child of children) {
    if (child === at) at = at.nextSibling;
    else parent.insertBefore(child, at);
  }
  while (at) {
    const next = at.nextSibling;
    at.remove();
    at = next;
  }
}

export function time(iso) {
  const element = el("time", { datetime: iso });
  writeTime(element);
  return element;
}

function writeTime(element) {
  const iso = element.getAttribute("datetime");
  const then = Date.parse(iso);
  element.textContent = Number.isNaN(then) ? iso : `${iso.replace("T", " ").replace("Z", "")} UTC (${ago(then)})`;
}

function ago(then) {
  const seconds = Math.max(0, (Date.now() - then) / 1000);
  const units = [[86400, "d"], [3600, "h"], [60, "min"]];
  for (const [size, unit] of units) if (seconds >= size) return `${Math.floor(seconds / size)} ${unit} ago`;
  return "just now";
}

setInterval(() => document.querySelectorAll("time").forEach(writeTime), 30000);

// A list of CPUs wraps after its commas only.
export const cpuList = (text) => text.split(",").map((range, at) => [at ? [",", el("wbr")] : [], el("span", { class: "range" }, range)]).flat(2);

export function facts(list) {
  return el("dl", { class: list.length > 12 ? "facts many" : "facts" }, list.map((fact) => el("div", {},
    el("dt", {}, fact.term),
    el("dd", {}, fact.isTime ? time(fact.text) : fact.text))));
}

const HEALTH = {
  ok: "as promised",
  pending: "not proven yet",
  trouble: "needs attention",
  waiting: "waiting",
  observes: "observes",
  silent: "no agent",
};

export const health = (word) => el("span", { class: `health is-${word}` }, HEALTH[word] ?? word);

export const USES = {
  exclusive: "exclusive",
  share: "shared by an owner",
  idle: "idle siblings",
  reserved: "reserved",
  pool: "set aside",
  shared: "shared",
  isolated: "isolated, free",
  offline: "offline",
  outside: "not for pods",
};

export function bar(parts) {
  const words = parts.map((part) => `${part.count} ${USES[part.use]}`).join(", ");
  return el("div", { class: "bar", role: "img", "aria-label": words, title: words }, parts.map((part) => {
    const piece = el("span", { class: `use-${part.use}` });
    piece.style.flexGrow = part.count;
    return piece;
  }));
}

export function table(caption, columns, rows) {
  return el("table", {},
    el("caption", {}, caption),
    el("thead", {}, el("tr", {}, columns.map((column) => el("th", { scope: "col" }, column)))),
    el("tbody", {}, rows));
}

export function history(entries, since) {
  const rows = entries.map((entry) => el("li", { class: entry.isWarning ? "is-warning" : undefined },
    time(entry.time),
    el("span", { class: "what" },
      entry.isWarning ? el("strong", {}, "Warning ") : null,
      entry.reason ? el("span", { class: "reason" }, `${entry.reason}${entry.count > 1 ? ` ×${entry.count}` : ""}: `) : null,
      entry.text),
    el("span", { class: "where" },
      entry.pod ? link(podPath(entry.namespace, entry.pod), `${entry.namespace}/${entry.pod}`) : null,
      entry.pod && entry.node ? " on " : null,
      entry.node ? link(nodePath(entry.node), entry.node) : null)));
  return el("section", { class: "history", "aria-label": "What happened last" },
    el("h2", {}, "What happened last"),
    el("p", { class: "note" }, "Events of the agents, as long as the API server keeps them, and changes that this page observed since ", time(since), "."),
    rows.length ? el("ol", {}, rows) : el("p", { class: "empty" }, "Nothing yet."));
}
