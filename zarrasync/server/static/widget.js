// A widget for anywidget that shows the viewer. FILES, which the kernel puts before this code, are the files of the viewer by name.

const SILENT = 4000; // milliseconds after which a kernel that does not answer is missing

/** Links the modules to each other by URLs of their text. Each view has its own, because modules keep what is shown. */
function linked(name, urls) {
  if (!urls.has(name)) {
    const text = FILES[name === "host.js" ? "cell.js" : name].replace(/from "\.\/([\w.]+)"/g, (_, other) => `from "${linked(other, urls)}"`);
    urls.set(name, URL.createObjectURL(new Blob([text], { type: "text/javascript" })));
  }
  return urls.get(name);
}

/** Whether the notebook is dark: JupyterLab and VS Code tell it, or else the colour behind the cell. */
function isDark() {
  const { jpThemeLight, vscodeThemeKind } = document.body.dataset;
  if (jpThemeLight) return jpThemeLight === "false";
  if (vscodeThemeKind) return !vscodeThemeKind.endsWith("light");
  const [red, green, blue, opacity = 1] = (getComputedStyle(document.body).backgroundColor.match(/[\d.]+/g) ?? []).map(Number);
  return red + green + blue < 382 && opacity > 0;
}

/** The elements of the page. The notebook has a main part of its own. */
function markup() {
  return /<body>([^]*)<\/body>/.exec(FILES["viewer.html"])[1].replace(/<(\/?)main\b/g, "<$1section");
}

async function render({ model, el }) {
  const element = document.createElement("div");
  // Keys are for the viewer, except those of menus, such as to save. JupyterLab reads the attribute as keys arrive at the document.
  const suppress = (event) => element.toggleAttribute("data-lm-suppress-shortcuts", !event.ctrlKey && !event.metaKey);
  window.addEventListener("keydown", suppress, true);
  element.style.colorScheme = isDark() ? "dark" : "light";
  el.append(element);
  const shadow = element.attachShadow({ mode: "open" });
  shadow.innerHTML = `<style>${FILES["viewer.css"]}</style>${markup()}`;
  shadow.getElementById("viewer").classList.add("cell");
  // The picture for readers without a kernel is not needed beside the viewer, and the viewer is of no use without a kernel.
  const hides = document.createElement("style");
  hides.textContent = `.${model.get("picture_name")} { display: none }`;
  const alone = setTimeout(() => (element.hidden = true), SILENT);
  element.addEventListener("answered", () => {
    clearTimeout(alone);
    element.hidden = false;
    el.append(hides);
  });
  const urls = new Map();
  const cell = await import(linked("host.js", urls));
  cell.connect(shadow, model);
  await import(linked("viewer.js", urls));
  for (const url of urls.values()) URL.revokeObjectURL(url);
  return () => {
    clearTimeout(alone);
    window.removeEventListener("keydown", suppress, true);
    cell.disconnect();
  };
}

export default { render };
