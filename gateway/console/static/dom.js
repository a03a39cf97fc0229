// Elements, without markup: ids and models come from outside, and are only ever text here.

const SVG = "http://www.w3.org/2000/svg";

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true ? "" : value);
  }
  // What is no element becomes a text node.
  element.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return element;
}

export function h(tag, attributes = {}, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

export function svg(tag, attributes = {}, ...children) {
  return fill(document.createElementNS(SVG, tag), attributes, children);
}

export const byId = (id) => document.getElementById(id);

// Writes only what is new, so that selections and screen readers are left in peace.
export function text(element, words) {
  if (element.textContent !== words) element.textContent = words;
}

export function pill(element, words, kind) {
  text(element, words);
  element.className = `pill ${kind}`;
  element.hidden = !words;
}
