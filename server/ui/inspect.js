/* inspect.js - the page at /inspect: a playground, what the cache has kept, and a live view of the
 * engine.
 *
 * The API key stays in its input.  Nothing is stored, and nothing but this server is asked. */
import {ServerError, ask, askJson, eventsOf, setKey} from './api.js';
import {$, duration, make, number, option, percent} from './dom.js';
import {KeptView} from './kept.js';
import {drawAgain, poll, pollForever} from './live.js';
import {PolicyForm, PrefillForm} from './policies.js';

setKey(() => $('key').value);
const policies = new PolicyForm({policy: $('policy'), note: $('policy-note'), fields: $('policy-fields')});
const prefills = new PrefillForm({prefill: $('prefill'), pattern: $('pattern'), fields: $('pattern-fields'),
  reuse: $('reuse')});
const keptView = new KeptView({strip: $('kept-strip'), text: $('kept'), note: $('kept-note')});
let model = null; /* of /v1/models */

function samplingAsked() {
  const asked = {};
  for (const name of ['max_tokens', 'temperature', 'top_p', 'top_k', 'min_p', 'seed',
    'repetition_penalty', 'presence_penalty', 'frequency_penalty', 'min_tokens'])
    if ($(name).value !== '') asked[name] = Number($(name).value);
  if ($('ignore_eos').checked) asked.ignore_eos = true;
  if ($('stop-string').value) asked.stop = [$('stop-string').value];
  if ($('cache_salt').value) asked.cache_salt = $('cache_salt').value;
  return asked;
}

/* ---- the prompt ---- */

const isChat = () => document.querySelector('[name=api]:checked').value === 'chat';
let turns = []; /* of the chat, but for the system's */

function showApi() {
  $('chat-part').hidden = !isChat();
  $('completion-part').hidden = isChat();
}

function showTurns() {
  $('turns').replaceChildren(...turns.map((turn) => make('li', {className: turn.role}, turn.content)));
  $('turns').scrollTop = $('turns').scrollHeight;
}

function messagesOf() {
  const system = $('system').value.trim();
  return [...system ? [{role: 'system', content: system}] : [], ...turns];
}

/* What is asked, and the body by which /tokenize shows its prompt. */
function bodyOf(withKept) {
  const alternatives = Math.min(20, Math.max(0, Number($('alternatives').value) || 0));
  const body = {...samplingAsked(), stream: true, stream_options: {include_usage: true},
    return_progress: true, kv_policy: policies.asked(), prefill: prefills.asked()};
  if (withKept) body.return_kept_positions = true;
  if (isChat()) {
    const messages = messagesOf();
    return {path: 'v1/chat/completions', shown: {messages},
      body: {...body, messages, logprobs: true, top_logprobs: alternatives}};
  }
  const prompt = $('prompt').value;
  return {path: 'v1/completions', shown: {prompt}, body: {...body, prompt, logprobs: alternatives}};
}

const STORY = `The lighthouse at Marrow Point had three keepers. Ada counted the ships, Bram cleaned the great lamp, and old Tomas wrote the book. Every evening he wrote the weather, the names of the ships, and what the sea had brought to the rocks.

One night in the ninth winter a storm came from the north. The wind broke two windows, and the lamp went dark. Ada ran up the stairs with a candle under her coat. Bram held the door, and Tomas went on writing, because someone must always write.

Far out on the black water a small boat turned in circles. Its captain was a girl named Ines, and she had a green parrot, a broken compass, and a letter for the keeper of the book. She saw one tiny light, then none, then one again.

"Follow the light that blinks," she told the parrot. "A lamp does not blink. Only a friend does."

Ada moved the candle behind her hand, and back, and behind her hand again. The boat came nearer. In the morning the sea was flat and grey, and there were four people at the table, and a parrot on the shelf. Ines gave the letter to old Tomas. He opened it slowly and read:`;

const EXAMPLES = [
  {name: 'Everything is kept', policy: 'full', prompt: STORY},
  {name: 'First tokens and the newest 60', policy: 'streaming', values: {sink: 4, recent: 60}, prompt: STORY},
  {name: 'Heavy hitters: a quarter of the prompt', policy: 'heavy_hitter',
    values: {sink: 4, recent: 0.1, heavy: 0.15, prompt: 'whole', score: 'window', window: 16}, prompt: STORY},
  {name: 'Layers see 64 selected tokens', policy: 'offload', values: {selected: 64, tail: 64}, prompt: STORY},
];

function chooseExample() {
  const example = EXAMPLES[$('example').value];
  if (!example) return;
  document.querySelector('[name=api][value=completion]').checked = true;
  showApi();
  $('prompt').value = example.prompt;
  policies.choose(example.policy, example.values);
}

/* ---- the answer ---- */

let tokens = []; /* of the answer: {text, logprob, top: [[text, logprob], …]} */
let here = -1;   /* the one that is looked at */
let bytes = new TextDecoder();

/* The text of a token as the API writes it.  One that is part of a character has it only once the
 * character is whole. */
function textOf(written) {
  if (!written.startsWith('bytes:\\x')) return written;
  const parts = [...written.matchAll(/\\x([0-9a-f]{2})/g)].map((match) => parseInt(match[1], 16));
  return bytes.decode(new Uint8Array(parts), {stream: true});
}

const visible = (text) => text.replaceAll('\n', '↵').replaceAll('\t', '⇥') || '∅';

function addToken(written, logprob, top) {
  const token = {text: textOf(written), logprob, top};
  const span = make('span', {className: 'tok'}, token.text);
  const answer = $('answer'), follows = answer.scrollHeight - answer.scrollTop - answer.clientHeight < 40;
  span.style.setProperty('--doubt-share', String(Math.min(1, -(logprob ?? 0) / 5)));
  span.dataset.index = String(tokens.length);
  tokens.push(token);
  answer.append(span);
  if (follows) answer.scrollTop = answer.scrollHeight;
}

function lookAt(index) {
  const spans = $('answer').children;
  spans[here]?.classList.remove('here');
  here = index;
  const token = tokens[index];
  if (!token) return;
  spans[index].classList.add('here');
  spans[index].scrollIntoView({block: 'nearest'});
  const item = ([text, logprob], name) => make('span', {className: name},
    make('code', {}, visible(text)), ` ${percent(Math.exp(logprob))}`);
  const others = token.top.filter(([text]) => text !== token.text);
  $('token').replaceChildren(`Token ${index + 1}:`, item([token.text, token.logprob], 'drawn'),
    ...others.length ? ['instead of', ...others.map((each) => item(each, ''))] : []);
}

function answerKeys(event) {
  const step = {ArrowLeft: -1, ArrowRight: 1, Home: -Infinity, End: Infinity}[event.key];
  if (!step || tokens.length === 0) return;
  event.preventDefault();
  lookAt(Math.min(tokens.length - 1, Math.max(0, here + step)));
}

function clearAnswer() {
  tokens = [];
  here = -1;
  bytes = new TextDecoder();
  $('answer').replaceChildren();
  $('token').replaceChildren();
  $('usage').hidden = $('kept-part').hidden = $('error').hidden = true;
  $('told').textContent = '';
}

function fail(text) {
  $('error').textContent = text;
  $('error').hidden = false;
}

/* Takes the tokens of a stream's event; both APIs have their own shape. */
function takeChoice(choice, seen) {
  const told = choice.logprobs;
  if (told?.content)
    for (const each of told.content)
      addToken(each.token, each.logprob, each.top_logprobs.map((top) => [top.token, top.logprob]));
  else if (told?.tokens)
    told.tokens.forEach((token, i) =>
      addToken(token, told.token_logprobs[i], Object.entries(told.top_logprobs[i] ?? {})));
  seen.content += choice.delta?.content ?? '';
  if (choice.finish_reason) seen.reason = choice.finish_reason;
  if (choice.kept_positions) seen.kept = choice.kept_positions;
}

function takeProgress(progress) {
  $('progress').hidden = progress.processed >= progress.total;
  $('progress').max = progress.total;
  $('progress').value = progress.processed;
}

async function follow(answer, seen) {
  for await (const event of eventsOf(answer)) {
    if (event.error) throw new ServerError(500, event.error);
    if (event.prompt_progress) takeProgress(event.prompt_progress);
    if (event.usage) seen.usage = event.usage;
    const before = tokens.length;
    for (const choice of event.choices) takeChoice(choice, seen);
    if (tokens.length === before) continue;
    seen.last = performance.now();
    seen.first ??= seen.last;
    seen.atFirst ??= tokens.length;
    $('progress').hidden = true;
  }
}

function showUsage(seen) {
  const {usage} = seen, items = [];
  const add = (name, value) => value !== null && value !== undefined && items.push([name, value]);
  const tell = (name, value, digits) => typeof value === 'number' && add(name, number(value, digits));
  if (seen.first) add('First token', duration((seen.first - seen.begun) / 1000));
  if (tokens.length > seen.atFirst)
    add('Speed', `${number(1000 * (tokens.length - seen.atFirst) / (seen.last - seen.first), 1)} tokens/s`);
  add('Ended by', seen.reason);
  if (usage) {
    tell('Prompt tokens', usage.prompt_tokens);
    tell('… of these cached', usage.prompt_tokens_details.cached_tokens);
    tell('Answer tokens', usage.completion_tokens);
    add('Policy', usage.kv.policy);
    tell('Budget', usage.kv.budget_tokens);
    tell('Resident', usage.kv.resident_tokens);
    tell('Evicted', usage.kv.evicted_tokens);
    if (usage.kv.retained_attention !== null) add('Attention retained', percent(usage.kv.retained_attention));
    tell('Offloaded', usage.kv.offloaded_tokens);
    if (usage.kv.hit_rate !== null) add('Selected again', percent(usage.kv.hit_rate));
    tell('Bytes fetched per token', usage.kv.bytes_fetched_per_token);
    add('Prefill', usage.prefill.mode);
    if (usage.prefill.density !== null && usage.prefill.density < 1)
      add('Keys visited', percent(usage.prefill.density));
  } else tell('Answer tokens', tokens.length);
  $('usage').replaceChildren(...items.map(([name, value]) =>
    make('div', {}, make('dt', {}, name), make('dd', {}, String(value)))));
  $('usage').hidden = false;
  $('told').textContent = `${seen.reason ? 'Done' : 'Stopped'}: ${tokens.length} tokens.`;
}

let running = null; /* AbortController of the request */

/* A device that runs ahead cannot tell what a budget has kept.  It says so; then the same is asked
 * without that, and the page says so, too. */
async function begin(signal, seen) {
  const asked = bodyOf(true);
  seen.shown = asked.shown;
  try {
    return await ask(asked.path, asked.body, signal);
  } catch (error) {
    if (error.param !== 'return_kept_positions') throw error;
    seen.why = error.message;
    return ask(asked.path, bodyOf(false).body, signal);
  }
}

/* Adds the message that is written to the chat.  Returns false if there is nothing to ask. */
function takeMessage() {
  const content = $('message').value.trim();
  if (!isChat()) return true;
  if (!content) return false;
  turns.push({role: 'user', content});
  $('message').value = '';
  showTurns();
  return true;
}

function keepAnswer(seen, asChat) {
  if (!asChat) return;
  if (seen.content) turns.push({role: 'assistant', content: seen.content});
  else if (turns.at(-1)?.role === 'user') $('message').value = turns.pop().content;
  showTurns();
}

function setRunning(controller) {
  running = controller;
  $('go').disabled = Boolean(controller);
  $('stop').disabled = !controller;
}

async function generate(event) {
  event?.preventDefault();
  if (running || !takeMessage()) return;
  clearAnswer();
  const seen = {begun: performance.now(), content: ''}, asChat = isChat();
  const controller = new AbortController();
  setRunning(controller);
  try {
    await follow(await begin(controller.signal, seen), seen);
  } catch (error) {
    if (error.name !== 'AbortError') fail(error.message);
  }
  $('progress').hidden = true;
  setRunning(null);
  showUsage(seen);
  keepAnswer(seen, asChat);
  await showKept(seen).catch((error) => fail(error.message));
}

/* ---- what the cache has kept ---- */

async function showKept(seen) {
  if (seen.why) {
    $('kept-note').textContent = seen.why;
    $('kept').replaceChildren();
  }
  $('kept-part').hidden = !seen.kept && !seen.why;
  $('kept-strip').hidden = $('kept').hidden = !seen.kept;
  document.querySelector('.kept-legend').hidden = !seen.kept;
  if (!seen.kept) return;
  const told = await askJson('tokenize', {...seen.shown, return_token_strs: true});
  keptView.show(seen.kept, [...told.token_strs, ...tokens.map((token) => token.text)], told.count);
}

/* ---- the beginning ---- */

async function loadModel() {
  const told = await askJson('v1/models');
  [model] = told.data;
  $('model').textContent = `${model.id}, ${number(model.max_model_len)} tokens of context`;
  policies.setModel(model);
  prefills.setModel(model);
  const allowed = EXAMPLES.map((example, i) => [i, example])
    .filter(([, example]) => model.kv_policies.some((each) => each.type === example.policy));
  $('example').replaceChildren(option('', 'choose …'),
    ...allowed.map(([i, example]) => option(String(i), example.name)));
}

/* The model is asked for once the engine is there. */
const onState = () => model ?? loadModel();

function listen() {
  $('form').addEventListener('submit', generate);
  $('stop').addEventListener('click', () => running?.abort());
  $('example').addEventListener('change', chooseExample);
  $('key').addEventListener('change', () => poll(onState));
  $('clear').addEventListener('click', () => {
    turns = [];
    showTurns();
  });
  $('answer').addEventListener('keydown', answerKeys);
  $('answer').addEventListener('pointerover', (event) => {
    if (event.target.dataset.index) lookAt(Number(event.target.dataset.index));
  });
  for (const radio of document.querySelectorAll('[name=api]')) radio.addEventListener('change', showApi);
  document.addEventListener('keydown', (event) => {
    if (event.key === 'Enter' && (event.ctrlKey || event.metaKey)) generate(event);
    if (event.key === 'Escape') running?.abort();
  });
  window.addEventListener('resize', () => keptView.drawStrip());
  matchMedia('(prefers-color-scheme: dark)').addEventListener('change', () => {
    keptView.drawStrip();
    drawAgain();
  });
}

$('prompt').value = STORY;
$('controls').open = !matchMedia('(max-width: 60rem)').matches;
listen();
prefills.showFields();
pollForever(onState);
