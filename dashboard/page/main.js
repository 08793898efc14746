// The path selects the page and the query its filter, so that every state of the page has a link.
import { el } from "./dom.js";
import { NodeView } from "./node.js";
import { NodesView } from "./nodes.js";
import { ChangesView, PodView, PodsView } from "./pods.js";
import { Stream } from "./stream.js";

const root = document.getElementById("content");
const form = document.getElementById("filter");
const state = document.getElementById("state");
const troubles = document.getElementById("troubles");
const namespaces = document.getElementById("namespaces");
const FIELDS = ["node", "namespace", "pod", "policy"];
const STATES = { live: "live", connecting: "connecting", interrupted: "no connection, trying again" };
const PAGES = [
  [/^\/nodes\/[^/]+$/, NodeView],
  [/^\/pods\/[^/]+\/[^/]+$/, PodView],
  [/^\/pods$/, PodsView],
  [/^\/changes$/, ChangesView],
  [/^\/$/, NodesView],
];

let page = null;
let shownPath = "";

const stream = new Stream((view, lines) => {
  page.show(view, location.search);
  say(lines);
  suggest(view?.namespaces ?? []);
  document.body.dataset.shown = shownPath;
}, (word) => {
  state.textContent = STATES[word];
  state.className = `state is-${word}`;
});

function say(lines) {
  troubles.hidden = !lines.length;
  const text = `What is shown may be old or incomplete: ${lines.join("; ")}`;
  if (lines.length && troubles.textContent !== text) troubles.textContent = text;
}

function suggest(names) {
  if (names.join() === namespaces.dataset.names) return;
  namespaces.dataset.names = names.join();
  namespaces.replaceChildren(...names.map((value) => el("option", { value })));
}

function route() {
  const path = location.pathname;
  const View = PAGES.find(([pattern]) => pattern.test(path))?.[1] ?? NodesView;
  if (path !== shownPath) {
    page = new View(root);
    shownPath = path;
    delete document.body.dataset.shown;
    document.title = path === "/" ? "corepin" : `${path.slice(1)} | corepin`;
  }
  const asked = new URLSearchParams(location.search);
  for (const field of FIELDS) if (form.elements[field].value !== (asked.get(field) ?? "")) form.elements[field].value = asked.get(field) ?? "";
  form.hidden = View === PodView;
  form.classList.toggle("of-one-node", View === NodeView);
  for (const anchor of document.querySelectorAll("nav a")) {
    const here = anchor.pathname === path || (anchor.pathname === "/" ? path.startsWith("/nodes/") : path.startsWith(`${anchor.pathname}/`));
    if (here) anchor.setAttribute("aria-current", "page");
    else anchor.removeAttribute("aria-current");
  }
  stream.show((path === "/" ? "/api/nodes" : `/api${path}`) + location.search);
}

document.addEventListener("click", (event) => {
  const anchor = event.target.closest("a[data-link]");
  if (!anchor || event.metaKey || event.ctrlKey || event.shiftKey || event.button) return;
  event.preventDefault();
  if (anchor.href === location.href) return;
  history.pushState(null, "", anchor.href);
  route();
  root.focus({ preventScroll: true });
  scrollTo(0, 0);
});
addEventListener("popstate", route);

let waiting = 0;
function filterChanged() {
  const asked = new URLSearchParams();
  for (const field of FIELDS) if (form.elements[field].value) asked.set(field, form.elements[field].value);
  history.replaceState(null, "", location.pathname + (asked.size ? `?${asked}` : ""));
  route();
}
form.addEventListener("input", () => {
  clearTimeout(waiting);
  waiting = setTimeout(filterChanged, 200);
});
form.addEventListener("submit", (event) => event.preventDefault());
form.addEventListener("reset", () => setTimeout(filterChanged));

const THEMES = ["system", "light", "dark"];
const button = document.getElementById("theme");
function theme(name) {
  if (name === "system") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = name;
  button.textContent = `Theme: ${name}`;
  localStorage.setItem("theme", name);
}
button.addEventListener("click", () => theme(THEMES[(THEMES.indexOf(localStorage.getItem("theme")) + 1) % THEMES.length]));
theme(THEMES.includes(localStorage.getItem("theme")) ? localStorage.getItem("theme") : "system");

route();
