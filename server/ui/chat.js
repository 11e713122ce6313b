/* chat.js - the page at /: a chat.
 *
 *   chat.js ── conversations.js   the list beside it        store.js   IndexedDB
 *           ── messages.js        what was said             tree.js    a conversation, with its branches
 *           │    markdown.js, code.js, load.js
 *           ── composer.js        the next question         files.js   files given as context
 *           ── settings.js        what else is asked        policies.js
 *           ── stream.js          an answer                 api.js     the server
 *           ── kept.js            what the cache kept
 *
 * Nothing but this server is asked.  Conversations and settings stay in this browser. */
import {askJson} from './api.js';
import {Composer} from './composer.js';
import {Conversations} from './conversations.js';
import {$, button, isTouch, make, number} from './dom.js';
import {KeptView} from './kept.js';
import {ready} from './markdown.js';
import {MessageList, follow} from './messages.js';
import * as settings from './settings.js';
import * as store from './store.js';
import {answer, wordsOf} from './stream.js';
import {add, merge, messagesOf, newConversation, pathOf, pathTo} from './tree.js';

const EXAMPLES = ['Explain how a lighthouse works, in three sentences.', 'Write a short story about a cat on a ship.',
  'Write a function in Python that reverses the words of a text.'];
const BUILT_IN = 'quire-31m';
/* What is told of an answer if its page is closed before it has ended. */
const UNFINISHED = 'This answer was not finished: its page was closed, or another tab is still writing it.';

let conversation = newConversation();
const running = new Map(); /* by id of the conversation: {conversation, node, controller} */

/* Tells readers of screens; isShown: all others, too. */
function say(text, isShown = false) {
  $('said').textContent = text;
  $('notice').textContent = isShown ? text : '';
  $('notice').hidden = !isShown;
}

/* ---- the server ---- */

function showCondition(text, name) {
  if ($('state-text').textContent !== text) $('state-text').textContent = text;
  $('state').className = name;
}

const wait = (ms) => new Promise((resolve) => setTimeout(resolve, ms));
let connecting = null;

async function tryToConnect() {
  try {
    settings.setModels((await askJson('v1/models', null, AbortSignal.timeout(10000))).data);
    showCondition('ready', 'ready');
    showFirst();
    composer.show();
    return true;
  } catch (error) {
    const text = {401: 'needs an API key', 503: 'loading its model'}[error.status];
    showCondition(text ?? 'server not reached', 'bad');
    if (error.status === 401) settings.askForKey();
    return error.status === 401; /* only a key helps, and that asks again */
  }
}

/* Asks until the server has told its models. */
function connect() {
  connecting ??= (async () => {
    while (!await tryToConnect()) await wait(2000);
    connecting = null;
  })();
  return connecting;
}

/* ---- what is shown ---- */

const isRunning = (id) => running.has(id);
const isRunningHere = () => isRunning(conversation.id);

function showFirst() {
  const isEmpty = conversation.nodes.length === 0, model = settings.model();
  $('first').hidden = !isEmpty;
  if (!isEmpty || !model) return;
  $('first-title').textContent = `Ask ${model.id}`;
  const size = `It reads up to ${number(model.max_model_len)} tokens, about ${number(wordsIn(model.max_model_len))} words.`;
  $('first-note').textContent = model.id === BUILT_IN
    ? 'This is the small example model that comes with quire. It shows how the server works, and knows next to nothing: '
      + 'what it says is made up. “quire serve OWNER/NAME” serves a real model.'
    : `${size} Text and PDF files can be part of a question${isTouch() ? '' : ': drop them anywhere on this page'}.`;
}

/* About so many English words are a text of so many tokens. */
const wordsIn = (nTokens) => Number((0.75 * nTokens).toPrecision(1));

/* The focus of a button that is gone, because it was pressed, goes to the message field.  On a touch screen
 * that would open the keyboard. */
function moveFocusFrom(element) {
  if (element.isConnected && !element.hidden) return;
  if (isTouch()) $('view').focus({preventScroll: true});
  else composer.focus();
}

function show() {
  const focused = document.activeElement;
  messages.show(conversation, running.get(conversation.id)?.node ?? null);
  composer.setRunning(isRunningHere());
  composer.show();
  showFirst();
  if (focused) moveFocusFrom(focused);
  /* A page that is loaded again, or a tab that is duplicated, shows the same conversation. */
  const address = conversation.nodes.length > 0 ? `#${conversation.id}` : location.pathname + location.search;
  if (location.hash.slice(1) !== (conversation.nodes.length > 0 ? conversation.id : ''))
    history.replaceState(null, '', address);
}

/* The tokens that the conversation has so far, by its last answer that told. */
function context() {
  const model = settings.model(), told = pathOf(conversation).findLast((node) => node.stats?.usage);
  return {used: told?.stats.usage.total_tokens ?? 0, most: model?.max_model_len ?? 0};
}

/* Keeps a conversation, and says if that is not possible. */
async function keep(one) {
  try {
    await store.put(one);
  } catch (error) {
    const why = error.name === 'QuotaExceededError' ? 'has no space left for' : 'could not keep';
    say(`This browser ${why} this conversation, so it ends with the page. Export it, or delete others.`, true);
  }
  await list.show();
}

async function save() {
  conversation.updated = Date.now();
  await keep(conversation);
}

/* Shows what another tab has changed. */
function takeChange({id, isRemoved, conversation: told}) {
  list.show();
  if (isRemoved) running.get(id)?.controller.abort();
  const mine = running.get(id)?.conversation ?? (conversation.id === id ? conversation : null);
  if (!mine) return;
  if (isRemoved && mine === conversation) {
    change(newConversation());
    say('This conversation was deleted in another tab.', true);
  } else if (told) {
    merge(mine, told);
    mine.title = told.title;
    if (mine === conversation) follow(show);
  }
}

/* ---- an answer ---- */

function showProgress({total, processed}) {
  $('progress').hidden = processed >= total;
  $('progress-bar').max = total;
  $('progress-bar').value = processed;
  $('progress-text').textContent = `reads ${number(processed)} of ${number(total)} tokens`;
}

/* Calls act at most once in so many milliseconds, and once more at the end. */
function throttled(act, ms) {
  let timer = null;
  return () => {
    timer ??= setTimeout(() => {
      timer = null;
      act();
    }, ms);
  };
}

async function fail(node, error) {
  if (error.name === 'AbortError') {
    say(`Stopped. ${number(node.stats.tokens ?? 0)} tokens have come.`);
    node.stats.reason = 'stopped';
    if (!node.content && !node.reasoning) node.error = 'Stopped before the first token.';
    return;
  }
  node.error = wordsOf(error, Boolean(node.content || node.reasoning));
  if (error.code === 'model_not_found') node.error = await otherModel(node.stats.model) ?? node.error;
  else if (error.status === 401) settings.askForKey();
  else if (error.status === undefined || error.status === 503) connect();
  say(node.error);
}

/* Reads the server's models again, because it does not know the one that was asked. */
async function otherModel(name) {
  await tryToConnect();
  const now = settings.model()?.id;
  return now && now !== name ? `The server has no model ${name} now. Retry asks ${now}.` : null;
}

/* Takes what an answer has told that is not kept: the parts that were never told. */
function tidy(node) {
  if (!node.reasoning) delete node.reasoning;
  if (node.calls?.length === 0) delete node.calls;
  if (!node.kept) delete node.pieces;
}

/* Fills a node of the conversation with the server's answer; more: the rest of a body. */
async function run(node, more = {}) {
  const where = conversation, controller = new AbortController();
  const path = pathTo(where, more.continue_final_message ? node : where.nodes.find((each) => each.id === node.parent));
  running.set(where.id, {conversation: where, node, controller});
  const isShown = () => where === conversation;
  const body = {...settings.asked(), ...more};
  delete node.kept;
  delete node.whyNotKept;
  Object.assign(node, {error: UNFINISHED, changed: Date.now(), system: settings.system(),
    tools: body.tools, effort: body.reasoning_effort});
  show();
  $('view').scrollTop = $('view').scrollHeight;
  await save();
  say('The answer begins.');
  const draw = throttled(() => isShown() && isRunning(where.id) && follow(() => messages.update(node, true)), 60);
  const keepPart = throttled(() => {
    node.changed = Date.now();
    store.put(where).catch(() => {}); /* the end of the answer tells */
  }, 2000);
  try {
    await answer({...body, messages: messagesOf(path, node.system)}, node, {signal: controller.signal,
      onProgress: (told) => isShown() && showProgress(told),
      onChange: () => {
        if (isShown() && node.stats.tokens) $('progress').hidden = true;
        draw();
        keepPart();
      }});
    delete node.error;
    say(`The answer is complete: ${number(node.stats.tokens ?? 0)} tokens.`);
  } catch (error) {
    if (error.name === 'AbortError') delete node.error;
    await fail(node, error);
  }
  tidy(node);
  running.delete(where.id);
  if (isShown()) $('progress').hidden = true;
  where.updated = node.changed = Date.now();
  if (isShown()) follow(show);
  await keep(where);
}

function isBusy() {
  if (isRunningHere()) say('An answer is being written. Wait for its end, or stop it.', true);
  else if (!settings.model()) say(`The server cannot be asked yet: ${$('state-text').textContent}.`, true);
  else return false;
  return true;
}

const answerTo = (node) => run(add(conversation, node.id, {role: 'assistant', content: ''}));

const actions = {
  retry(node) {
    if (isBusy()) return;
    /* What failed before its first token is no version to come back to. */
    if (node.error && !node.content && !node.reasoning) run(node);
    else run(add(conversation, node.parent, {role: 'assistant', content: ''}));
  },
  goOn(node) {
    if (!isBusy()) run(node, {continue_final_message: true, add_generation_prompt: false, return_kept_positions: undefined});
  },
  edit(node, content) {
    if (!isBusy()) answerTo(add(conversation, node.parent, {role: 'user', content, files: node.files}));
  },
  sendResults(node, results) {
    if (isBusy()) return;
    let parent = node;
    for (const {call, content} of results) parent = add(conversation, parent.id, {role: 'tool', call, content});
    answerTo(parent);
  },
  showKept,
  changed() {
    show();
    save();
  },
};

function send({content, files}) {
  if (isBusy()) return false;
  say('');
  const last = pathOf(conversation).at(-1);
  answerTo(add(conversation, last?.id ?? '', {role: 'user', content, ...files.length > 0 && {files}}));
  return true;
}

/* ---- what the cache kept ---- */

const keptView = new KeptView({strip: $('kept-strip'), text: $('kept'), note: $('kept-note')});

async function showKept(node) {
  $('kept-note').textContent = node.whyNotKept ?? 'The tokens of the prompt are asked for …';
  $('kept').replaceChildren();
  $('kept-strip').hidden = $('kept').hidden = $('kept-legend').hidden = !node.kept;
  $('kept-dialog').showModal();
  if (!node.kept) return;
  try {
    const path = pathTo(conversation, conversation.nodes.find((each) => each.id === node.parent));
    const told = await askJson('tokenize', {messages: messagesOf(path, node.system), tools: node.tools,
      reasoning_effort: node.effort, return_token_strs: true});
    const texts = node.pieces.flatMap(([text, n]) => [text, ...Array(Math.max(0, n - 1)).fill('')]);
    keptView.show(node.kept, [...told.token_strs, ...texts], told.count);
  } catch (error) {
    $('kept-note').textContent = wordsOf(error, false);
  }
}

/* ---- the beginning ---- */

const messages = new MessageList($('messages'), actions);
const composer = new Composer({contextOf: context, send, say});

async function change(to) {
  conversation = to;
  messages.clear();
  say('');
  $('progress').hidden = true;
  closeSide();
  show();
  $('view').scrollTop = $('view').scrollHeight;
  if (!isTouch()) composer.focus(); /* on a phone it would open the keyboard */
  await list.show();
}

const list = new Conversations({
  current: () => conversation,
  say,
  isRunning,
  keep,
  begin: () => change(newConversation()),
  stop: (id) => running.get(id)?.controller.abort(),
  async open(id) {
    const to = running.get(id)?.conversation ?? await store.get(id);
    if (to) await change(to);
  },
});

const isNarrow = () => matchMedia('(max-width: 52rem)').matches;

/* On a narrow screen the list covers the page, until the focus leaves it. */
function openSide() {
  $('side').classList.add('open');
  $('side-open').setAttribute('aria-expanded', 'true');
  $('new').focus(); /* the field would open a phone's keyboard */
}

function closeSide() {
  $('side').classList.remove('open');
  $('side-open').setAttribute('aria-expanded', 'false');
}

function leaveSide() {
  closeSide();
  $('side-open').focus();
}

const SHORTCUTS = {
  k: () => {
    if (isNarrow()) openSide();
    $('search').focus();
  },
  o: () => $('new').click(),
};

/* Esc closes what is open, or else stops the answer; in an input method it ends a word. */
function escape(event) {
  if (event.isComposing || event.defaultPrevented || document.querySelector('dialog[open]')) return;
  if ($('side').classList.contains('open')) leaveSide();
  else if (isRunningHere()) running.get(conversation.id).controller.abort();
}

function shortcut(event) {
  if (event.key === 'Escape') escape(event);
  if (!event.ctrlKey && !event.metaKey) return;
  const name = event.key.toLowerCase();
  if (name === 'k' && event.shiftKey || name === 'o' && !event.shiftKey || !SHORTCUTS[name]) return;
  event.preventDefault();
  SHORTCUTS[name]();
}

function listen() {
  $('stop').addEventListener('click', () => running.get(conversation.id)?.controller.abort());
  $('side-open').addEventListener('click', openSide);
  $('side-close').addEventListener('click', leaveSide);
  addEventListener('pointerdown', (event) => {
    if ($('side').classList.contains('open') && !$('side').contains(event.target)) leaveSide();
  });
  document.addEventListener('focusin', (event) => $('side').contains(event.target) || closeSide());
  document.addEventListener('visibilitychange', () => document.hidden || connect());
  $('kept-close').addEventListener('click', () => $('kept-dialog').close());
  $('examples').append(...EXAMPLES.map((text) => make('li', {}, button(text, {}, () => composer.write(text)))));
  document.addEventListener('keydown', shortcut);
  addEventListener('resize', () => $('kept-dialog').open && keptView.drawStrip());
  settings.listen(connect, () => {
    showFirst();
    composer.show();
  });
}

/* Shows the conversation that the address names. */
async function begin() {
  const id = location.hash.slice(1), to = id ? await store.get(id).catch(() => null) : null;
  if (to && conversation.nodes.length === 0) await change(to);
}

listen();
composer.restore();
list.show();
connect();
store.listen(takeChange);
Promise.all([ready, begin()]).then(() => {
  messages.clear(); /* what was drawn before Markdown could be read */
  show();
  $('view').scrollTop = $('view').scrollHeight;
});
store.isKept().then((isKept) => isKept || say('This browser keeps no data for this page: conversations end with it.', true));
if (!isTouch()) composer.focus();
