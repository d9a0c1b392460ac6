// A picture of the plane or the chart of the viewer, with its axes and colours, as PNG.

const MARGIN = 12;
const TITLE = 26;
const STYLES = ["fill", "fill-opacity", "stroke", "stroke-width", "stroke-dasharray", "stroke-linecap", "stroke-linejoin", "font-family", "font-size", "text-anchor"];

/** Returns a picture of what is shown; null for nodes without one. */
export async function picture(root) {
  const byId = (id) => root.getElementById(id);
  const shown = ["stage", "chart"].map(byId).find((element) => element.getClientRects().length);
  if (!shown) return null;
  const box = shown.getBoundingClientRect();
  const style = getComputedStyle(byId("viewer"));
  const canvas = Object.assign(document.createElement("canvas"), { width: Math.ceil(box.width) + 2 * MARGIN, height: Math.ceil(box.height) + 2 * MARGIN + TITLE });
  const pen = canvas.getContext("2d");
  pen.fillStyle = style.backgroundColor;
  pen.fillRect(0, 0, canvas.width, canvas.height);
  pen.fillStyle = style.color;
  pen.font = `600 15px ${style.fontFamily}`;
  pen.fillText(heading(byId), MARGIN, 24, canvas.width - 2 * MARGIN);
  pen.translate(MARGIN - box.left, MARGIN + TITLE - box.top);
  for (const element of shown.querySelectorAll("canvas, svg, .stripe, i, span, .unit, li")) await drawElement(pen, element);
  return new Promise((done) => canvas.toBlob(done));
}

/** The name of the node, and the positions of the sliders. */
function heading(byId) {
  const labels = [...byId("sliders").querySelectorAll("label")].map((label) => `${label.textContent} ${byId(label.htmlFor).nextElementSibling.textContent}`);
  return [byId("title").textContent, byId("subtitle").textContent.split(" · ")[0], ...(byId("plane").hidden ? [] : labels)].filter(Boolean).join(" · ");
}

async function drawElement(pen, element) {
  const box = element.getBoundingClientRect();
  if (!box.width || !box.height || element.closest("[hidden]")) return;
  const style = getComputedStyle(element);
  if (element.tagName === "CANVAS") pen.drawImage(element, box.left, box.top, box.width, box.height);
  else if (element.tagName === "svg") pen.drawImage(await asImage(element, box), box.left, box.top, box.width, box.height);
  else if (element.className === "stripe" || element.tagName === "I") drawSwatch(pen, element, box, style);
  else {
    pen.font = `${style.fontSize} ${style.fontFamily}`;
    pen.fillStyle = style.color;
    const left = element.querySelector("i")?.getBoundingClientRect().right;
    pen.fillText(element.textContent, left === undefined ? box.left : left + 6, box.top + 0.5 * box.height + 4);
  }
}

/** Draws a colour, or the colours of a gradient from the bottom to the top. */
function drawSwatch(pen, element, box, style) {
  const colours = style.backgroundImage.match(/rgba?\([^)]*\)/g);
  pen.fillStyle = style.backgroundColor;
  if (colours) {
    pen.fillStyle = pen.createLinearGradient(0, box.bottom, 0, box.top);
    colours.forEach((colour, number) => pen.fillStyle.addColorStop(number / (colours.length - 1), colour));
  }
  pen.fillRect(box.left, box.top, box.width, box.height);
}

/** An SVG as an image, which has no style sheets. */
async function asImage(svg, box) {
  const copy = svg.cloneNode(true);
  const copies = [...copy.querySelectorAll("*")];
  [...svg.querySelectorAll("*")].forEach((element, number) => {
    const style = getComputedStyle(element);
    copies[number].setAttribute("style", STYLES.map((name) => `${name}: ${style.getPropertyValue(name)}`).join("; "));
  });
  for (const [name, value] of Object.entries({ width: box.width, height: box.height, xmlns: "http://www.w3.org/2000/svg" })) copy.setAttribute(name, value);
  const image = new Image();
  image.src = `data:image/svg+xml,${encodeURIComponent(new XMLSerializer().serializeToString(copy))}`;
  await image.decode();
  return image;
}
