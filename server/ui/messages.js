/* messages.js - draws the messages of a conversation, with what can be done to each. */
import {codeBlock, copy} from './code.js';
import {isComposing} from './composer.js';
import {$, button, duration, isTouch, make, number, percent} from './dom.js';
import {renderInto} from './markdown.js';
import {childrenOf, choose, pathOf} from './tree.js';

const NAMES = {user: 'You', tool: 'Result of a tool'};
const ENDS = {length: 'ended at the longest answer', abort: 'ended by another request', stopped: 'stopped'};

/* What is told under an answer. */
function statsOf(node) {
  const {stats = {}} = node, {usage} = stats, parts = [];
  if (stats.model) parts.push(stats.model);
  if (stats.speed) parts.push(`${number(stats.speed, 1)} tokens/s`);
  if (stats.firstToken !== undefined) parts.push(`first token after ${duration(stats.firstToken)}`);
  if (stats.tokens) parts.push(`${number(stats.tokens)} tokens written`);
  if (ENDS[stats.reason]) parts.push(ENDS[stats.reason]);
  const cached = usage?.prompt_tokens_details?.cached_tokens;
  if (usage) parts.push(`${number(usage.prompt_tokens)} read${cached ? `, ${number(cached)} of them cached` : ''}`);
  if (usage?.kv?.policy && usage.kv.policy !== 'full')
    parts.push(`${usage.kv.policy}: ${number(usage.kv.resident_tokens)} tokens in the cache`
      + (usage.kv.evicted_tokens ? `, ${number(usage.kv.evicted_tokens)} evicted` : ''));
  if (usage?.prefill?.mode === 'sparse')
    parts.push(`sparse prefill${usage.prefill.density < 1 ? `, ${percent(usage.prefill.density)} of the keys` : ''}`);
  return parts.join(' · ');
}

function callBlock(call) {
  let text = call.function.arguments;
  try {
    text = JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    /* It is shown as the model wrote it. */
  }
  return make('details', {className: 'fold', open: true},
    make('summary', {}, `Calls the tool ${call.function.name}`), codeBlock(text, 'json', true));
}

/* Fields for the results of the calls at the end of a conversation. */
function resultForm(node, actions) {
  const fields = node.calls.map((call) => make('textarea', {rows: 2, 'aria-label': `Result of ${call.function.name}`,
    placeholder: `Result of ${call.function.name}`}));
  return make('div', {className: 'results'}, ...fields, button('Send results', {}, () =>
    actions.sendResults(node, fields.map((field, i) => ({call: node.calls[i].id, content: field.value})))));
}

/* A long text costs the page much, so it is there once it is asked for. */
function fileBlock(file) {
  const text = make('pre', {tabIndex: 0, role: 'region', 'aria-label': `Text of ${file.name}`, dir: 'auto'});
  const fold = make('details', {className: 'fold file'},
    make('summary', {}, `${file.name}, ${number(file.tokens)} tokens`), text);
  fold.addEventListener('toggle', () => {
    text.textContent = fold.open ? file.text : '';
  });
  return fold;
}

/* A text that may be higher than what shows it can be scrolled with the keyboard. */
function showPlain(element, {content, role}) {
  element.textContent = content;
  if (content.length < 500 && content.split('\n').length < 12) return;
  element.tabIndex = 0;
  element.setAttribute('role', 'region');
  element.setAttribute('aria-label', role === 'user' ? 'The question' : 'The result');
}

export class MessageList {
  /* actions: retry, goOn, edit, sendResults, showKept (node), changed (): a branch was chosen */
  constructor(root, actions) {
    Object.assign(this, {root, actions});
    this.parts = new Map(); /* by id of the node */
  }

  show(conversation, running) {
    this.conversation = conversation;
    this.running = running;
    this.root.classList.toggle('busy', Boolean(running)); /* hides what asks again */
    const path = pathOf(conversation), ids = new Set(path.map((node) => node.id));
    for (const [id, part] of this.parts) if (!ids.has(id)) this.drop(id, part);
    path.forEach((node, i) => {
      if (!this.parts.has(node.id)) this.parts.set(node.id, this.make(node));
      const {article} = this.parts.get(node.id);
      if (this.root.children[i] !== article) this.root.insertBefore(article, this.root.children[i] ?? null);
      this.update(node, i === path.length - 1);
    });
  }

  drop(id, part) {
    part.article.remove();
    this.parts.delete(id);
  }

  clear() {
    this.parts.forEach((part, id) => this.drop(id, part));
  }

  make(node) {
    const part = {content: make('div', {className: 'content', dir: 'auto'}), extra: make('div', {className: 'extra'}),
      thought: make('div', {className: 'content', dir: 'auto'}), told: make('p', {className: 'stats'}),
      bar: make('div', {className: 'bar'}), error: make('div', {className: 'problem'})};
    part.fold = make('details', {className: 'fold thought', hidden: true}, make('summary', {}, 'Reasoning'), part.thought);
    part.article = make('article', {className: `message ${node.role}`, dataset: {id: node.id}},
      make('h2', {className: 'who'}, NAMES[node.role] ?? 'Answer'),
      ...(node.files ?? []).map(fileBlock), part.fold, part.content, part.extra, part.error, part.told, part.bar);
    return part;
  }

  /* Draws what may have changed of a message: all but its files. */
  update(node, isLast) {
    const part = this.parts.get(node.id), isRunning = this.running === node;
    if (!part) return;
    part.article.classList.toggle('running', isRunning);
    part.article.setAttribute('aria-busy', String(isRunning));
    if (part.isEdited) return; /* what is being written there is not lost */
    this.updateText(node, part, isRunning);
    part.told.textContent = statsOf(node);
    this.updateRest(node, part, isRunning, isLast);
  }

  updateText(node, part, isRunning) {
    const {shown} = part;
    if (shown?.content === node.content && shown.reasoning === node.reasoning && shown.isRunning === isRunning) return;
    part.shown = {content: node.content, reasoning: node.reasoning, isRunning};
    if (node.role === 'assistant') renderInto(part.content, node.content, !isRunning);
    else showPlain(part.content, node);
    part.fold.hidden = !node.reasoning;
    if (node.reasoning) renderInto(part.thought, node.reasoning, !isRunning);
  }

  updateRest(node, part, isRunning, isLast) {
    const {actions} = this, {length: nCalls} = node.calls ?? [];
    const state = `${isRunning} ${isLast} ${nCalls} ${node.error} ${this.siblings(node)}`;
    if (part.drawn === state) return;
    part.drawn = state;
    const awaitsResults = isLast && nCalls > 0 && !isRunning && !node.error;
    part.extra.replaceChildren(...(node.calls ?? []).map(callBlock), ...awaitsResults ? [resultForm(node, actions)] : []);
    part.error.replaceChildren(...node.error && !isRunning
      ? [make('p', {}, node.error), button('Retry', {}, () => actions.retry(node)),
        node.content ? button('Continue this answer', {}, () => actions.goOn(node)) : null].filter(Boolean) : []);
    part.bar.replaceChildren(...isRunning ? [] : this.buttons(node, isLast));
  }

  siblings(node) {
    return childrenOf(this.conversation, node.parent).map((each) => each.id).join();
  }

  buttons(node, isLast) {
    const {actions} = this, isUser = node.role === 'user', all = [];
    const versions = childrenOf(this.conversation, node.parent);
    if (versions.length > 1) all.push(this.switcher(node, versions));
    const one = button('Copy', {className: 'small', 'aria-label': isUser ? 'Copy the question' : 'Copy the answer'},
      () => copy(node.content, one));
    all.push(one);
    if (isUser) all.push(button('Edit', {className: 'small asks'}, () => this.edit(node)));
    if (node.role === 'assistant') {
      if (!node.error) all.push(button('Retry', {className: 'small asks'}, () => actions.retry(node)));
      if (!node.error && isLast && node.content && ['length', 'stopped'].includes(node.stats?.reason))
        all.push(button('Continue', {className: 'small asks'}, () => actions.goOn(node)));
      if (node.kept || node.whyNotKept)
        all.push(button('What the cache kept', {className: 'small'}, () => actions.showKept(node)));
    }
    return all;
  }

  switcher(node, versions) {
    const at = versions.indexOf(node);
    const to = (step, text, name) => button(text, {className: 'small', disabled: !versions[at + step],
      'aria-label': name}, () => {
      choose(this.conversation, versions[at + step]);
      this.actions.changed();
      this.root.querySelector(`[data-id="${versions[at + step].id}"] .versions button:not(:disabled)`)?.focus();
    });
    return make('span', {className: 'versions asks', role: 'group', 'aria-label': 'Versions'},
      to(-1, '‹', 'Earlier version'), make('span', {}, `${at + 1} of ${versions.length}`), to(1, '›', 'Later version'));
  }

  edit(node) {
    const part = this.parts.get(node.id);
    const field = make('textarea', {value: node.content, rows: Math.min(12, node.content.split('\n').length + 1),
      'aria-label': 'The question, edited', dir: 'auto'});
    const end = () => {
      Object.assign(part, {drawn: null, shown: null, isEdited: false});
      this.show(this.conversation, this.running);
      part.bar.querySelector('button')?.focus();
    };
    part.isEdited = true;
    const send = () => {
      end();
      if (field.value.trim() || node.files?.length) this.actions.edit(node, field.value.trim());
    };
    field.addEventListener('keydown', (event) => {
      if (isComposing(event) || event.key !== 'Escape' && event.key !== 'Enter') return;
      if (event.key === 'Enter' && (event.shiftKey || isTouch() && !event.ctrlKey)) return;
      event.preventDefault();
      (event.key === 'Escape' ? end : send)();
    });
    part.content.replaceChildren(field);
    part.bar.replaceChildren(button('Ask again', {className: 'main'}, send), button('Cancel', {}, end));
    field.focus();
  }
}

/* Follows the end of the conversation while it is in sight. */
export function follow(act) {
  const view = $('view'), atEnd = view.scrollHeight - view.scrollTop - view.clientHeight < 80;
  act();
  if (atEnd) view.scrollTop = view.scrollHeight;
}
