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
import {$, button, make, number} from './dom.js';
import {KeptView} from './kept.js';
import {ready} from './markdown.js';
import {MessageList, follow} from './messages.js';
import * as settings from './settings.js';
import * as store from './store.js';
import {answer, wordsOf} from './stream.js';
import {add, messagesOf, newConversation, pathOf, pathTo} from './tree.js';

const EXAMPLES = ['Explain what a KV cache is, in three sentences.', 'Write a short story about a lighthouse.',
  'Write a function in Python that reverses the words of a text.'];
const BUILT_IN = 'quire-31m';

let conversation = newConversation();
let running = null; /* {conversation, node, controller} */

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
    const text = {401: 'needs the API key', 503: 'loads its model'}[error.status];
    showCondition(text ?? 'no answer', 'bad');
    if (error.status === 401) settings.open('key');
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

const isRunningHere = () => running?.conversation === conversation;

function showFirst() {
  const isEmpty = conversation.nodes.length === 0, model = settings.model();
  $('first').hidden = !isEmpty;
  if (!isEmpty || !model) return;
  $('first-title').textContent = `Ask ${model.id}`;
  $('first-note').textContent = model.id === BUILT_IN
    ? 'This is the small example model that comes with quire. It shows how the server works, and knows next to nothing: '
      + 'what it says is made up. “quire serve OWNER/NAME” serves a real model.'
    : `It reads up to ${number(model.max_model_len)} tokens. A text or PDF file can be dropped anywhere on this page.`;
}

function show() {
  messages.show(conversation, isRunningHere() ? running.node : null);
  composer.setRunning(isRunningHere());
  composer.show();
  showFirst();
}

/* The tokens that the conversation has so far, by its last answer that told. */
function context() {
  const model = settings.model(), told = pathOf(conversation).findLast((node) => node.stats?.usage);
  return {used: told?.stats.usage.total_tokens ?? 0, most: model?.max_model_len ?? 0};
}

async function save() {
  const one = conversation;
  one.updated = Date.now();
  await store.put(one).catch(() => say('This browser could not keep the conversation.', true));
  await list.show();
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

function fail(node, error, where) {
  if (error.name === 'AbortError') {
    say(`Stopped. ${number(node.stats.tokens ?? 0)} tokens have come.`);
    if (!node.content && !node.reasoning) node.error = 'Stopped before the first token.';
    return;
  }
  node.error = wordsOf(error, Boolean(node.content || node.reasoning));
  say(node.error);
  if (error.status === 401 && where === conversation) settings.open('key');
  if (error.status === undefined || error.status === 503) connect();
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
  running = {conversation: where, node, controller};
  delete node.error;
  delete node.kept;
  node.system = settings.system();
  show();
  await save();
  $('view').scrollTop = $('view').scrollHeight;
  say('The answer begins.');
  const draw = throttled(() => where === conversation && running?.node === node
    && follow(() => messages.update(node, true)), 60);
  const keep = throttled(() => store.put(where).catch(() => {}), 2000);
  try {
    const body = {...settings.asked(), ...more, messages: messagesOf(path, node.system)};
    await answer(body, node, {signal: controller.signal, onProgress: showProgress, onChange: () => {
      $('progress').hidden = true;
      draw();
      keep();
    }});
    say(`The answer is complete: ${number(node.stats.tokens ?? 0)} tokens.`);
  } catch (error) {
    fail(node, error, where);
  }
  tidy(node);
  running = null;
  $('progress').hidden = true;
  where.updated = Date.now();
  await store.put(where).catch(() => {});
  if (where === conversation) follow(show);
  await list.show();
}

function isBusy() {
  if (running) say(isRunningHere() ? 'An answer is being written: stop it first.'
    : `An answer is being written in “${running.conversation.title}”: wait for it, or stop it there.`, true);
  else if (!settings.model()) say('The server has not told its model yet.', true);
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
    const told = await askJson('tokenize', {messages: messagesOf(path, node.system), tools: settings.asked().tools,
      return_token_strs: true});
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
  show();
  closeSide();
  if (!isNarrow()) composer.focus(); /* on a phone it would open the keyboard */
  await list.show();
  $('view').scrollTop = $('view').scrollHeight;
}

const list = new Conversations({
  current: () => conversation,
  say,
  async begin() {
    if (isRunningHere()) running.controller.abort();
    await change(newConversation());
  },
  async open(id) {
    const to = running?.conversation.id === id ? running.conversation : await store.get(id);
    if (to) await change(to);
  },
});

const isNarrow = () => matchMedia('(max-width: 52rem)').matches;

function openSide() {
  $('side').classList.add('open');
  $('side-open').setAttribute('aria-expanded', 'true');
  $('search').focus();
}

function closeSide() {
  $('side').classList.remove('open');
  $('side-open').setAttribute('aria-expanded', 'false');
}

const SHORTCUTS = {
  k: () => {
    if (isNarrow()) openSide();
    $('search').focus();
  },
  o: () => $('new').click(),
};

function shortcut(event) {
  if (event.key === 'Escape') {
    if ($('side').classList.contains('open')) {
      closeSide();
      $('side-open').focus();
    } else if (isRunningHere() && !document.querySelector('dialog[open]')) running.controller.abort();
    return;
  }
  if (!event.ctrlKey && !event.metaKey) return;
  const name = event.key.toLowerCase();
  if (name === 'k' && event.shiftKey || name === 'o' && !event.shiftKey || !SHORTCUTS[name]) return;
  event.preventDefault();
  SHORTCUTS[name]();
}

function listen() {
  $('stop').addEventListener('click', () => {
    running?.controller.abort();
    composer.focus();
  });
  $('side-open').addEventListener('click', openSide);
  $('side-close').addEventListener('click', () => {
    closeSide();
    $('side-open').focus();
  });
  $('kept-close').addEventListener('click', () => $('kept-dialog').close());
  $('examples').append(...EXAMPLES.map((text) => make('li', {}, button(text, {}, () => composer.write(text)))));
  document.addEventListener('keydown', shortcut);
  addEventListener('resize', () => $('kept-dialog').open && keptView.drawStrip());
  settings.listen(connect, () => {
    showFirst();
    composer.show();
  });
}

listen();
show();
list.show();
connect();
ready.then(() => {
  messages.clear(); /* what was drawn before Markdown could be read */
  show();
});
store.isKept().then((isKept) => isKept || say('This browser keeps no data for this page: conversations end with it.', true));
if (!isNarrow()) composer.focus();
