/* code.js - a block of code: its language, a button that copies it, and colours.
 *
 * highlight.js tells colours as HTML.  What it writes is spans around escaped text, and only that is
 * read here: the spans become elements by createElement, and their text textContent.  If the text is
 * not exactly the code, the code stays plain. */
import {button, make} from './dom.js';
import {load} from './load.js';

const MOST = 60000; /* characters; more would stop the page while they are coloured */
const ESCAPED = {amp: '&', lt: '<', gt: '>', quot: '"', '#x27': "'", '#39': "'"};
const PART = /<span class="([\w -]+)">|(<\/span>)|([^<]+)/gy;

const unescape = (text) => text.replace(/&(amp|lt|gt|quot|#x27|#39);/g, (_, name) => ESCAPED[name]);

/* Reads what highlight.js writes; null: it is something else. */
function read(html) {
  const root = document.createDocumentFragment(), open = [root];
  PART.lastIndex = 0;
  while (PART.lastIndex < html.length) {
    const part = PART.exec(html);
    if (!part) return null;
    if (part[1]) {
      const span = make('span', {className: part[1]});
      open.at(-1).append(span);
      open.push(span);
    } else if (part[2]) {
      if (open.length === 1) return null;
      open.pop();
    } else open.at(-1).append(unescape(part[3]));
  }
  return open.length === 1 ? root : null;
}

async function colourIn(element, text, language) {
  if (!language || text.length > MOST) return;
  const library = await load('highlight.js');
  if (!library?.getLanguage(language)) return;
  const coloured = read(library.highlight(language, text, true).value);
  if (coloured?.textContent === text) element.replaceChildren(coloured);
}

/* Copies as a person would: all that a browser allows on a page that came by http from another machine. */
function copyBySelection(text) {
  const focused = document.activeElement;
  const field = make('textarea', {value: text, className: 'hidden', readOnly: true});
  document.body.append(field);
  field.select();
  const isDone = document.execCommand('copy');
  field.remove();
  focused?.focus({preventScroll: true});
  return isDone;
}

async function isCopied(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    return copyBySelection(text);
  }
}

export async function copy(text, one) {
  one.dataset.name ??= one.textContent;
  one.textContent = await isCopied(text) ? 'Copied' : 'Copying is not allowed here';
  setTimeout(() => {
    one.textContent = one.dataset.name;
  }, 1500);
}

/* isWhole: nothing more comes, so it can be coloured. */
export function codeBlock(text, language, isWhole) {
  const name = /^[\w+#.-]{1,30}/.exec(language ?? '')?.[0] ?? '';
  const code = make('code', {}, text);
  const pre = make('pre', {tabIndex: 0, role: 'region', 'aria-label': name ? `Code, ${name}` : 'Code'}, code);
  const one = button('Copy', {className: 'small', 'aria-label': 'Copy code'}, () => copy(text, one));
  if (isWhole) colourIn(code, text, name.toLowerCase()).catch(() => {});
  return make('div', {className: 'code'}, make('div', {className: 'code-head'}, make('span', {}, name), one), pre);
}
