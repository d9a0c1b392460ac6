// The hierarchy. Members of a group are requested when it is opened. Keys work as in other tree widgets.

export class Tree {
  constructor(list, { load, pick }) {
    this.list = list;
    this.load = load;
    this.pick = pick;
    list.addEventListener("click", (event) => this.#clicked(event));
    list.addEventListener("keydown", (event) => this.#pressed(event));
  }

  /** Shows the nodes below the root, or the root itself if it is an array. */
  show(root) {
    const nodes = root.kind === "group" ? root.members ?? [] : [root];
    this.list.replaceChildren(...nodes.map((node) => this.#item(node)));
    this.#items()[0]?.setAttribute("tabindex", "0");
  }

  /** Opens all groups above a path, and selects the node. */
  async reveal(path) {
    const names = path.split("/");
    for (let count = 1; count < names.length; count++) {
      const item = this.#find(names.slice(0, count).join("/"));
      if (item) await this.#open(item);
    }
    this.#mark(this.#find(path));
  }

  #item(node) {
    const item = document.createElement("li");
    item.setAttribute("role", "treeitem");
    item.setAttribute("aria-selected", "false");
    item.tabIndex = -1;
    item.dataset.path = node.path;
    item.dataset.kind = node.kind;
    const row = document.createElement("div");
    row.className = "row";
    const name = document.createElement("span");
    name.textContent = node.name || "/";
    const note = document.createElement("small");
    note.textContent = {
      array: () => `${node.shape.join(" × ")} ${node.dtype}`,
      group: () => (node.pyramid ? "pyramid" : ""),
      broken: () => "cannot be read",
    }[node.kind]();
    row.append(name, note);
    item.append(row);
    if (node.kind === "group") item.setAttribute("aria-expanded", "false");
    return item;
  }

  async #open(item) {
    if (item.dataset.kind !== "group" || item.getAttribute("aria-expanded") === "true") return;
    if (!item.querySelector(":scope > [role=group]")) {
      const node = await this.load(item.dataset.path);
      const group = document.createElement("ul");
      group.setAttribute("role", "group");
      group.append(...(node?.members ?? []).map((member) => this.#item(member)));
      item.append(group);
    }
    item.setAttribute("aria-expanded", "true");
  }

  #close(item) {
    if (item.dataset.kind === "group") item.setAttribute("aria-expanded", "false");
  }

  async #clicked(event) {
    const item = event.target.closest("[role=treeitem]");
    if (!item) return;
    await this.#choose(item);
  }

  async #choose(item) {
    this.#mark(item);
    item.focus();
    if (item.getAttribute("aria-expanded") === "true") this.#close(item);
    else await this.#open(item);
    this.pick(item.dataset.path);
  }

  async #pressed(event) {
    const item = event.target.closest("[role=treeitem]");
    if (!item) return;
    const all = this.#items();
    const at = all.indexOf(item);
    const expanded = item.getAttribute("aria-expanded");
    const moves = { ArrowDown: all[at + 1], ArrowUp: all[at - 1], Home: all[0], End: all[all.length - 1] };
    if (event.key in moves) this.#focus(moves[event.key]);
    else if (event.key === "ArrowRight" && expanded === "false") await this.#open(item);
    else if (event.key === "ArrowRight" && expanded === "true") this.#focus(all[at + 1]);
    else if (event.key === "ArrowLeft" && expanded === "true") this.#close(item);
    else if (event.key === "ArrowLeft") this.#focus(item.parentElement.closest("[role=treeitem]"));
    else if (event.key === "Enter" || event.key === " ") await this.#choose(item);
    else return;
    event.preventDefault();
  }

  #focus(item) {
    if (!item) return;
    for (const other of this.list.querySelectorAll("[role=treeitem]")) other.tabIndex = -1;
    item.tabIndex = 0;
    item.focus();
  }

  #mark(item) {
    if (!item) return;
    for (const other of this.list.querySelectorAll("[aria-selected=true]")) other.setAttribute("aria-selected", "false");
    for (const other of this.list.querySelectorAll("[role=treeitem]")) other.tabIndex = -1;
    item.setAttribute("aria-selected", "true");
    item.tabIndex = 0;
  }

  #find(path) {
    return [...this.list.querySelectorAll("[role=treeitem]")].find((item) => item.dataset.path === path);
  }

  /** The visible items, from top to bottom. */
  #items() {
    return [...this.list.querySelectorAll("[role=treeitem]")].filter((item) => item.offsetParent !== null);
  }
}
