/* dom.js - elements, and numbers in words, for all pages.
 *
 * Text of a model or a server only ever becomes textContent, never markup. */

export const $ = (id) => document.getElementById(id);

/* A new element: make('li', {className: 'x'}, 'text', child).  Children that are null are left out;
 * a member with a dash in its name is an attribute. */
export function make(tag, members, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(members ?? {})) {
    if (name.includes('-') || name === 'role') element.setAttribute(name, value);
    else if (name === 'dataset') Object.assign(element.dataset, value);
    else element[name] = value;
  }
  element.append(...children.filter((child) => child !== null && child !== undefined));
  return element;
}

export const button = (text, members, onclick) => {
  const one = make('button', {type: 'button', ...members}, text);
  one.addEventListener('click', onclick);
  return one;
};

export const option = (value, text) => make('option', {value}, text);

export const number = (x, digits = 0) => x.toLocaleString('en', {maximumFractionDigits: digits});
export const duration = (s) => s < 1 ? `${number(1000 * s)} ms` : `${number(s, 2)} s`;
export const percent = (p) => p < 0.001 ? '< 0.1 %' : `${number(100 * p, 1)} %`;

/* Tells whether the screen is touched: there a field that has the focus opens a keyboard. */
export const isTouch = () => matchMedia('(pointer: coarse)').matches;

/* The value of a custom property of the style, such as --accent. */
export const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

/* Sizes a canvas to what it shows, and clears it. */
export function canvasOf(canvas) {
  const scale = window.devicePixelRatio || 1, box = canvas.getBoundingClientRect();
  canvas.width = Math.max(1, Math.round(box.width * scale));
  canvas.height = Math.max(1, Math.round(box.height * scale));
  return {context: canvas.getContext('2d'), width: canvas.width, height: canvas.height};
}
