// Drawing of a machine: sockets contain NUMA nodes, caches, and cores with their threads below each other.
import { clean, cpuList, el, facts, health, link, podPath } from "./dom.js";

const DENSE = 160; // CPUs; more are drawn smaller
const ROOMY = 48; // fewer are drawn larger
const HUES = 12;
const STEPS = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };

export class Drawing {
  constructor(hasLegend) {
    this.hasLegend = hasLegend; // whether the page has a legend, whose rows describe the cells
    this.plan = "";
    this.cells = new Map(); // by CPU
    this.view = null;
    this.pinned = null; // the CPU whose details stay open
    this.machine = el("div", { class: "machine", role: "group", "aria-label": "CPUs of the node; arrow keys move between them" });
    this.details = el("aside", { class: "details", "aria-label": "Details of the CPU" });
    this.element = el("div", { class: "drawing" }, this.machine, this.details);
    this.listen();
  }

  listen() {
    const over = (event) => this.look(event.target.closest(".cpu"));
    this.machine.addEventListener("mouseover", over);
    this.machine.addEventListener("focusin", over);
    this.machine.addEventListener("mouseleave", () => this.look(null));
    this.machine.addEventListener("click", (event) => this.pin(event.target.closest(".cpu")));
    this.machine.addEventListener("keydown", (event) => this.move(event));
  }

  show(view) {
    this.view = view;
    const cores = view.sockets.flatMap((socket) => socket.numaNodes).flatMap((node) => node.caches).flatMap((cache) => cache.cores);
    const plan = JSON.stringify([view.name, cores.map((core) => core.map((cell) => cell.cpu))]);
    if (plan !== this.plan) this.build(view, cores.flat().length);
    this.plan = plan;
    this.machine.classList.toggle("with-roles", cores.flat().some((cell) => cell.role));
    for (const cell of cores.flat()) this.draw(this.cells.get(cell.cpu), cell);
    this.look(this.pinned === null ? null : this.cells.get(this.pinned));
  }

  build(view, count) {
    this.cells.clear();
    this.pinned = null;
    this.machine.classList.toggle("dense", count > DENSE);
    this.machine.classList.toggle("roomy", count <= ROOMY);
    this.machine.replaceChildren(...view.sockets.map((socket) => this.socket(socket)));
    const first = this.cells.values().next().value;
    if (first) first.tabIndex = 0;
  }

  socket(socket) {
    return el("section", { class: "socket", "aria-label": socket.title },
      el("h3", {}, socket.title), socket.numaNodes.map((node) => this.numaNode(node)));
  }

  numaNode(node) {
    return el("section", { class: "numa", "aria-label": node.title },
      el("h4", {}, node.title),
      el("div", { class: "caches" }, node.caches.map((cache) =>
        el("section", { class: "cache", "aria-label": cache.title },
          el("h5", {}, cache.title),
          el("div", { class: "cores" }, cache.cores.map((core) => this.core(core)))))));
  }

  core(core) {
    return el("div", { class: "core" }, core.map((cell) => {
      const button = el("button", { type: "button", tabindex: -1, "data-cpu": cell.cpu },
        el("span", { class: "cpu-number" }, cell.cpu), el("span", { class: "cpu-sign" }), el("span", { class: "cpu-role" }));
      this.cells.set(cell.cpu, button);
      return button;
    }));
  }

  draw(button, cell) {
    const hue = cell.owner >= 0 ? ` hue-${cell.owner % HUES}` : "";
    button.cell = cell;
    const alarm = this.view.owners[cell.owner]?.health === "trouble" ? " alarm" : "";
    button.className = `cpu use-${cell.use}${hue}${cell.dim ? " dim" : ""}${alarm}`;
    button.setAttribute("aria-label", clean(cell.text));
    button.setAttribute("aria-pressed", String(this.pinned === cell.cpu));
    for (const [key, value] of Object.entries({ use: cell.use, owner: this.view.owners[cell.owner]?.name ?? "", role: cell.role }))
      if (button.dataset[key] !== value) button.dataset[key] = value;
    const [, sign, role] = button.children;
    if (sign.textContent !== cell.sign) sign.textContent = cell.sign;
    if (role.textContent !== cell.role) role.textContent = cell.role;
    if (cell.owner >= 0 && this.hasLegend) button.setAttribute("aria-describedby", `owner-${cell.owner}`);
    else button.removeAttribute("aria-describedby");
  }

  look(button) {
    const shown = button ?? this.cells.get(this.pinned) ?? (this.machine.contains(document.activeElement) ? document.activeElement.closest(".cpu") : null);
    const owner = shown?.cell?.owner ?? -1;
    for (const other of this.cells.values()) other.classList.toggle("same", owner >= 0 && other.cell.owner === owner);
    this.details.replaceChildren(...(shown?.cell ? this.describe(shown.cell) : this.hint()));
  }

  hint() {
    return [el("h3", {}, "Details"), el("p", { class: "note" }, "Point at a CPU, or reach it with Tab and the arrow keys. Enter keeps its details open, Esc closes them.")];
  }

  describe(cell) {
    const owner = this.view.owners[cell.owner];
    const parts = [el("h3", {}, `CPU ${cell.cpu}`), el("p", {}, cell.text.replace(/^CPU \d+/, "").replace(/^[ :]+/, ""))];
    if (!owner) return parts;
    const path = podPath(owner.namespace, owner.pod);
    return [...parts, facts([{ term: "Pod", text: `${owner.namespace}/${owner.pod}` }, { term: "Container", text: owner.container }, ...owner.facts]),
      owner.health === "trouble" ? el("p", {}, health(owner.health)) : null,
      el("p", {}, link(path, "Why it has these CPUs"))].filter(Boolean);
  }

  pin(button) {
    if (!button) return;
    this.pinned = this.pinned === button.cell.cpu ? null : button.cell.cpu;
    for (const [cpu, other] of this.cells) other.setAttribute("aria-pressed", String(cpu === this.pinned));
    this.look(button);
  }

  move(event) {
    const from = event.target.closest(".cpu");
    if (!from) return;
    if (event.key === "Escape" && this.pinned !== null) this.pin(this.cells.get(this.pinned));
    const cells = [...this.cells.values()];
    const to = { Home: cells[0], End: cells.at(-1) }[event.key] ?? (STEPS[event.key] && nearest(from, cells, STEPS[event.key]));
    if (!to) return;
    event.preventDefault();
    from.tabIndex = -1;
    to.tabIndex = 0;
    to.focus();
  }
}

// The nearest cell in a direction; sideways distance weighs more than distance along it.
function nearest(from, cells, [dx, dy]) {
  const [x, y] = centre(from);
  let best = null;
  let least = Infinity;
  for (const cell of cells) {
    const [cx, cy] = centre(cell);
    const along = (cx - x) * dx + (cy - y) * dy;
    const aside = Math.abs((cx - x) * dy) + Math.abs((cy - y) * dx);
    if (along <= 1) continue;
    const distance = along + 4 * aside;
    if (distance < least) [best, least] = [cell, distance];
  }
  return best;
}

function centre(element) {
  const box = element.getBoundingClientRect();
  return [box.left + box.width / 2, box.top + box.height / 2];
}

export function legend(view) {
  const hue = (at) => `hue-${at % HUES}`;
  const owners = view.owners.map((owner, at) => el("tr", { id: `owner-${at}`, "data-owner": owner.name, class: owner.dim ? "dim" : undefined },
    el("td", {}, el("span", { class: `swatch sign use-${owner.use} ${hue(at)}` }, owner.label)),
    el("th", { scope: "row" }, link(podPath(owner.namespace, owner.pod), owner.name)),
    el("td", {}, fact(owner, "Policy")),
    el("td", { class: "cpus" }, cpuList(owner.cpus), owner.idle ? el("small", {}, cpuList(owner.idle), " idle") : null),
    el("td", {}, owner.health === "trouble" ? [health(owner.health), " "] : null, fact(owner, "Proof"))));
  const signs = view.signs.map((sign) => el("tr", { "data-sign": sign.use },
    el("td", {}, el("span", { class: `swatch sign use-${sign.use}` }, sign.sign)),
    el("th", { scope: "row" }, sign.meaning),
    el("td", {}, `${sign.count} CPU${sign.count === 1 ? "" : "s"}`),
    el("td", { class: "cpus" }, cpuList(sign.cpus)),
    el("td", {})));
  return el("table", { class: "legend" },
    el("caption", {}, "Legend; the letters and signs are those of corepin map, hatched cells are idle siblings"),
    el("thead", {}, el("tr", {}, ["Sign", "Owner or use", "Policy", "CPUs", "Proof"].map((title) => el("th", { scope: "col" }, title)))),
    el("tbody", {}, owners, signs));
}

const fact = (owner, term) => owner.facts.find((one) => one.term === term)?.text ?? "";
