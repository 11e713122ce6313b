/* markdown.js - Markdown of a model as elements.
 *
 * What a model writes is hostile.  marked only cuts it into tokens here; its renderer is not used.
 * Each kind of token makes an element of this file's own choice, by createElement and textContent.  So
 * no other element or attribute can come of a text: HTML in it is shown as it is written, an image is
 * a link, and a link leads to http, https or mailto. */
import {codeBlock} from './code.js';
import {make} from './dom.js';
import {load} from './load.js';

const DEEPEST = 24;  /* of blocks and marks in one another; what is deeper is shown as it is written */
const MOST = 400000; /* characters; a longer text is plain */
const SCHEMES = ['http:', 'https:', 'mailto:'];
const ENTITIES = {amp: '&', lt: '<', gt: '>', quot: '"', apos: "'", nbsp: '\u00a0', copy: '©', reg: '®',
  trade: '™', hellip: '…', mdash: '—', ndash: '–', lsquo: '‘', rsquo: '’', ldquo: '“', rdquo: '”',
  laquo: '«', raquo: '»', bull: '•', middot: '·', times: '×', divide: '÷', deg: '°', plusmn: '±',
  larr: '←', rarr: '→', uarr: '↑', darr: '↓', le: '≤', ge: '≥', ne: '≠', infin: '∞', euro: '€',
  pound: '£', sect: '§', para: '¶', frac12: '½', sup2: '²', sup3: '³', micro: 'µ', check: '✓'};

let lex = null;
/* Resolves once Markdown can be read, or it is known that it cannot. */
export const ready = load('marked.js').then((marked) => {
  if (!marked) return;
  const options = {...marked.getDefaults(), gfm: true, mangle: false};
  lex = (text) => marked.lexer(text, {...options});
});

function character(code) {
  return code > 0 && code <= 0x10ffff && (code < 0xd800 || code > 0xdfff) ? String.fromCodePoint(code) : '\ufffd';
}

function decode(text) {
  return text.replace(/&(#x[0-9a-f]{1,6}|#\d{1,7}|[a-z]+\d*);/gi, (whole, name) => {
    if (/^#x/i.test(name)) return character(parseInt(name.slice(2), 16));
    if (name[0] === '#') return character(parseInt(name.slice(1), 10));
    return Object.hasOwn(ENTITIES, name) ? ENTITIES[name] : whole;
  });
}

/* The address of a link; null: it leads where no link may. */
function addressOf(href) {
  try {
    const url = new URL(decode(href).trim());
    return SCHEMES.includes(url.protocol) ? url.href : null;
  } catch {
    return null; /* it is relative, or no address */
  }
}

function link(href, children, raw) {
  const address = addressOf(href);
  if (!address) return make('span', {}, raw);
  return make('a', {href: address, target: '_blank', rel: 'noopener noreferrer nofollow', title: address}, ...children);
}

const isBreak = (text) => /^<br\s*\/?>\s*$/i.test(text);
const html = (token) => isBreak(token.raw) ? make('br') : token.raw;

const INLINES = {
  text: (token, depth) => token.tokens ? inlines(token.tokens, depth) : [decode(token.raw)],
  escape: (token) => [token.raw.slice(1)],
  html: (token) => [html(token)],
  br: () => [make('br')],
  codespan: (token) => [make('code', {}, decode(token.text))], /* marked has escaped it once */
  strong: (token, depth) => [make('strong', {}, ...inlines(token.tokens, depth))],
  em: (token, depth) => [make('em', {}, ...inlines(token.tokens, depth))],
  del: (token, depth) => [make('del', {}, ...inlines(token.tokens, depth))],
  link: (token, depth) => [link(token.href, inlines(token.tokens, depth), token.raw)],
  image: (token) => [link(token.href, [`Image: ${decode(token.text) || 'without a description'}`], token.raw)],
};

function inlines(tokens, depth) {
  if (depth > DEEPEST) return tokens.map((token) => token.raw);
  return tokens.flatMap((token) => INLINES[token.type]?.(token, depth + 1) ?? [token.raw]);
}

function item(told, depth) {
  const mark = told.task ? [told.checked ? '☑ ' : '☐ '] : [];
  return make('li', {}, ...mark, ...blocks(told.tokens, depth, true));
}

function list(token, depth) {
  const element = make(token.ordered ? 'ol' : 'ul', {}, ...token.items.map((each) => item(each, depth)));
  if (token.ordered && Number.isSafeInteger(token.start)) element.start = token.start;
  return element;
}

function table(token, depth) {
  const row = (cells, tag) => make('tr', {}, ...cells.map((cell, i) =>
    make(tag, {className: token.align[i] ? `to-${token.align[i]}` : ''}, ...inlines(cell.tokens, depth))));
  return make('div', {className: 'scroll', tabIndex: 0, role: 'region', 'aria-label': 'Table'},
    make('table', {}, make('thead', {}, row(token.header, 'th')),
      make('tbody', {}, ...token.rows.map((cells) => row(cells, 'td')))));
}

const BLOCKS = {
  space: () => null,
  def: () => null,
  hr: () => make('hr'),
  code: (token, depth, isWhole) => codeBlock(token.text, token.lang, isWhole),
  heading: (token, depth) => make(`h${Math.min(6, token.depth + 2)}`, {}, ...inlines(token.tokens, depth)),
  blockquote: (token, depth, isWhole) => make('blockquote', {}, ...blocks(token.tokens, depth, isWhole)),
  list,
  table,
  html: (token) => isBreak(token.raw) ? make('br') : make('p', {className: 'plain'}, token.raw.trimEnd()),
  paragraph: (token, depth) => make('p', {}, ...inlines(token.tokens, depth)),
  text: (token, depth) => make('span', {}, ...inlines(token.tokens ?? [token], depth)),
};

function block(token, depth, isWhole) {
  if (depth > DEEPEST) return make('span', {}, token.raw);
  const element = BLOCKS[token.type]?.(token, depth + 1, isWhole);
  return element === undefined ? make('p', {className: 'plain'}, token.raw) : element;
}

function blocks(tokens, depth, isWhole) {
  return tokens.map((token) => block(token, depth, isWhole)).filter(Boolean);
}

/* The tokens of a text.  One that marked cannot cut is a single token without a kind. */
function tokensOf(text) {
  if (!lex || text.length > MOST) return [{raw: text}];
  try {
    return lex(text);
  } catch {
    return [{raw: text}];
  }
}

const shown = new WeakMap(); /* by element: what it shows, token by token */

/* Shows a text that may grow: what has not changed since the last time stays. */
export function renderInto(element, text, isWhole) {
  const tokens = tokensOf(text), now = [];
  /* The address of a reference changes what stands before it. */
  const isGrown = !isWhole || !tokens.some((token) => token.type === 'def');
  if (!isGrown) element.replaceChildren();
  const before = isGrown ? shown.get(element) ?? [] : [];
  const keyOf = (token, i) => `${token.type} ${isWhole || i < tokens.length - 1} ${token.raw}`;
  let same = 0;
  while (same < tokens.length && before[same]?.key === keyOf(tokens[same], same)) now.push(before[same++]);
  before.slice(same).forEach((each) => each.element?.remove());
  for (let i = same; i < tokens.length; i++) {
    const made = block(tokens[i], 0, isWhole || i < tokens.length - 1);
    if (made) element.append(made);
    now.push({key: keyOf(tokens[i], i), element: made});
  }
  shown.set(element, now);
}
