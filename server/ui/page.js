'use strict';
/* The page's script: a playground, what the cache has kept, and a live view of the engine.
 *
 * Text of a model or a server only ever becomes textContent, never markup.  The API key stays in its
 * input.  Nothing is stored, and nothing but this server is asked. */
(() => {
const $ = (id) => document.getElementById(id);
const rootStyle = getComputedStyle(document.documentElement);
const colour = (name) => rootStyle.getPropertyValue(name).trim();

/* A new element: make('li', {className: 'x'}, 'text', child). */
function make(tag, members, ...children) {
  const element = Object.assign(document.createElement(tag), members);
  element.append(...children);
  return element;
}

const number = (x, digits = 0) => x.toLocaleString('en', {maximumFractionDigits: digits});
const duration = (s) => s < 1 ? `${number(1000 * s)} ms` : `${number(s, 2)} s`;
const percent = (p) => p < 0.001 ? '< 0.1 %' : `${number(100 * p, 1)} %`;

/* ---- the server ---- */

class ServerError extends Error {
  constructor(status, error) {
    super(error?.message ?? `the server answers ${status}`);
    this.status = status;
    this.param = error?.param;
  }
}

async function ask(path, body, signal) {
  const headers = {};
  if ($('key').value) headers.Authorization = `Bearer ${$('key').value}`;
  if (body) headers['Content-Type'] = 'application/json';
  const answer = await fetch(path, {method: body ? 'POST' : 'GET', headers, signal,
    body: body && JSON.stringify(body)});
  if (answer.ok) return answer;
  const told = await answer.json().catch(() => null);
  throw new ServerError(answer.status, told?.error);
}

const askJson = async (path, body, signal) => (await ask(path, body, signal)).json();

/* The events of a stream, parsed, up to [DONE]. */
async function* eventsOf(answer) {
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let text = '';
  for (;;) {
    const {value, done} = await reader.read();
    if (done) return;
    text += value;
    const events = text.split('\n\n');
    text = events.pop();
    for (const event of events) {
      if (!event.startsWith('data: ')) continue;
      if (event === 'data: [DONE]') return;
      yield JSON.parse(event.slice(6));
    }
  }
}

/* ---- settings of a request ---- */

const WORDS = {score: ['sum', 'mean', 'decay', 'window'], pooling: ['none', 'max', 'average'],
  prompt: ['chunks', 'whole'], positions: ['cache', 'text'],
  selector: ['last', 'uniform', 'exponential', 'accumulated']};
/* Parameters that only exist beside others, with their defaults. */
const BESIDE = {decay: [0.99, (p) => p.score === 'decay'], window: [64, (p) => p.score === 'window'],
  pooling: ['none', (p) => p.score === 'window'],
  kernel: [7, (p) => p.score === 'window' && p.pooling !== 'none'],
  chunk: [512, (p) => p.prompt === 'chunks']};
const NOTES = {full: 'All tokens of the text.',
  streaming: 'The first tokens (sink) and the newest (recent). Below 1: a share of the prompt.',
  heavy_hitter: 'The first tokens (sink), the newest (recent), and those that received the most attention '
    + '(heavy). Below 1: a share of the prompt.',
  offload: 'All tokens, but most layers see only selected ones and the newest (tail).'};
const PATTERNS = {a_shape: {sink: 1024, recent: 4096}, vertical_slash: {columns: 1000, diagonals: 6096},
  block_sparse: {pages: 100}, filters: {selected: 4096, chunk: 2048}};
let model = null; /* of /v1/models */

function fieldOf(name, value) {
  let input;
  if (WORDS[name]) {
    input = make('select', {}, ...WORDS[name].map((word) => make('option', {value: word}, word)));
    input.value = value;
  } else if (typeof value === 'boolean') {
    input = make('input', {type: 'checkbox', checked: value});
  } else {
    input = make('input', {type: 'number', min: '0', step: 'any', value: String(value)});
  }
  input.dataset.name = name;
  return make('label', {className: typeof value === 'boolean' ? 'check' : ''}, name, input);
}

/* The values of the fields in a part of the form. */
function valuesOf(part) {
  const values = {};
  for (const input of part.querySelectorAll('[data-name]')) {
    if (input.type === 'checkbox') values[input.dataset.name] = input.checked;
    else if (input.type !== 'number') values[input.dataset.name] = input.value;
    else if (input.value !== '') values[input.dataset.name] = Number(input.value);
  }
  return values;
}

function showPolicyFields() {
  const values = valuesOf($('policy-fields'));
  for (const input of $('policy-fields').querySelectorAll('[data-name]')) {
    const beside = BESIDE[input.dataset.name];
    input.parentElement.hidden = Boolean(beside) && !beside[1](values);
  }
}

function choosePolicy(type, values = {}) {
  const policy = model.kv_policies.find((each) => each.type === type);
  $('policy').value = type;
  $('policy-note').textContent = type ? NOTES[type] ?? '' : '';
  const all = {...policy};
  delete all.type;
  delete all.layers;
  if (policy && 'score' in all) for (const [name, [initial]] of Object.entries(BESIDE)) all[name] ??= initial;
  if (policy && 'prompt' in all) all.chunk ??= BESIDE.chunk[0];
  $('policy-fields').replaceChildren(...Object.entries({...all, ...values}).map((each) => fieldOf(...each)));
  showPolicyFields();
}

function policyAsked() {
  if (!$('policy').value) return undefined;
  const values = valuesOf($('policy-fields')), asked = {type: $('policy').value};
  for (const [name, value] of Object.entries(values))
    if (!BESIDE[name] || BESIDE[name][1](values)) asked[name] = value;
  return asked;
}

function showPatternFields() {
  const mode = $('prefill').value, isSparse = mode === 'sparse';
  $('pattern-label').hidden = $('pattern-fields').hidden = !isSparse;
  $('reuse-label').hidden = mode !== 'sparse' && mode !== 'auto';
  $('pattern-fields').replaceChildren(...Object.entries(PATTERNS[$('pattern').value] ?? {})
    .map((each) => fieldOf(...each)));
}

function prefillAsked() {
  const mode = $('prefill').value, pattern = mode === 'sparse' ? $('pattern').value : '';
  const reuse = $('reuse').checked || mode === 'dense';
  if (!mode) return undefined;
  if (!pattern && reuse) return mode;
  return {mode, ...pattern && {pattern: {type: pattern, ...valuesOf($('pattern-fields'))}},
    ...!reuse && {reuse}};
}

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
    return_progress: true, kv_policy: policyAsked(), prefill: prefillAsked()};
  if (withKept) body.return_kept_positions = true;
  if (isChat()) {
    const messages = messagesOf();
    return {path: '/v1/chat/completions', shown: {messages},
      body: {...body, messages, logprobs: true, top_logprobs: alternatives}};
  }
  const prompt = $('prompt').value;
  return {path: '/v1/completions', shown: {prompt}, body: {...body, prompt, logprobs: alternatives}};
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
  choosePolicy(example.policy, example.values);
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

/* A share for each token of the text. */
function sharesOf(kept) {
  const shares = new Float32Array(kept.n_tokens);
  for (const [first, last, share] of kept.ranges) shares.fill(share, first, last + 1);
  return shares;
}

function drawStrip(shares, nPrompt) {
  const {context, width, height} = canvasOf($('kept-strip'));
  const n = shares.length, bottom = height - 3;
  context.fillStyle = colour('--line');
  context.fillRect(0, bottom, width, 1);
  context.fillStyle = colour('--kept');
  for (let x = 0; x < width; x++) {
    const first = Math.floor(x * n / width), end = Math.max(first + 1, Math.floor((x + 1) * n / width));
    const share = shares.subarray(first, end).reduce((sum, each) => sum + each, 0) / (end - first);
    context.fillRect(x, bottom - share * bottom, 1, share * bottom);
  }
  context.fillStyle = colour('--doubt');
  context.fillRect(Math.round(nPrompt * width / n), 0, 2, height);
}

/* One span for each run of tokens that have the same share. */
function drawRuns(texts, shares, nPrompt) {
  const spans = [];
  for (let first = 0, end; first < shares.length; first = end) {
    const share = shares[first], isAnswer = first >= nPrompt;
    for (end = first + 1; end < shares.length && shares[end] === share && end >= nPrompt === isAnswer;) end++;
    const span = make('span', {}, texts.slice(first, end).join(''));
    span.title = `${first === end - 1 ? `token ${first}` : `tokens ${first} to ${end - 1}`}: ${percent(share)} of the heads`;
    span.classList.toggle('gone', share === 0);
    span.classList.toggle('answer', isAnswer);
    span.style.setProperty('--share', String(share));
    spans.push(span);
  }
  $('kept').replaceChildren(...spans);
}

let drawn = null; /* the strip, to draw it again */

async function showKept(seen) {
  drawn = null;
  if (seen.why) {
    $('kept-note').textContent = seen.why;
    $('kept').replaceChildren();
  }
  $('kept-part').hidden = !seen.kept && !seen.why;
  $('kept-strip').hidden = $('kept').hidden = !seen.kept;
  document.querySelector('.kept-legend').hidden = !seen.kept;
  if (!seen.kept) return;
  const told = await askJson('/tokenize', {...seen.shown, return_token_strs: true});
  const shares = sharesOf(seen.kept), nPrompt = told.count;
  const texts = [...told.token_strs, ...tokens.map((token) => token.text)];
  const nSeen = shares.filter((share) => share > 0).length;
  const perHead = shares.reduce((sum, share) => sum + share, 0);
  $('kept-note').textContent = `${number(nSeen)} of ${number(shares.length)} tokens are still there for at least one head; `
    + `a head has ${number(perHead)} on average.`
    + (seen.kept.stride > 1 ? ` The text is told in steps of ${seen.kept.stride} tokens.` : '');
  drawRuns(texts, shares, nPrompt);
  drawn = () => drawStrip(shares, nPrompt);
  drawn();
}

/* ---- the live view ---- */

const HISTORY = 60; /* seconds */
const histories = {running: [], waiting: [], rate: [], ttft: []};
let before = null; /* the last state */

/* Sizes a canvas to what it shows, and clears it. */
function canvasOf(canvas) {
  const scale = window.devicePixelRatio || 1, box = canvas.getBoundingClientRect();
  canvas.width = Math.max(1, Math.round(box.width * scale));
  canvas.height = Math.max(1, Math.round(box.height * scale));
  return {context: canvas.getContext('2d'), width: canvas.width, height: canvas.height};
}

function drawHistory(name) {
  const {context, width, height} = canvasOf($(`chart-${name}`));
  const values = histories[name], most = Math.max(1e-9, ...values);
  const step = width / (HISTORY - 1), left = width - (values.length - 1) * step;
  context.fillStyle = colour('--line');
  context.fillRect(0, height - 1, width, 1);
  context.beginPath();
  values.forEach((value, i) =>
    context.lineTo(left + i * step, height - 2 - (value ?? 0) / most * (height - 6)));
  context.strokeStyle = colour('--accent');
  context.lineWidth = 1.5 * (window.devicePixelRatio || 1);
  context.stroke();
}

function note(name, value, text) {
  histories[name].push(value);
  if (histories[name].length > HISTORY) histories[name].shift();
  $(name).textContent = text;
  drawHistory(name);
}

/* Pages that running sequences share count for each of them, so parts are scaled to what is in use. */
function partsOf(state) {
  const {pages, policies} = state;
  const inUse = pages.total - pages.free - pages.cached;
  const sum = policies.reduce((all, each) => all + each.pages, 0);
  const used = policies.map((each) => [each.policy, sum > 0 ? each.pages * inUse / sum : 0]);
  return [...used, ['cached', pages.cached], ['free', pages.free]];
}

function drawPages(state) {
  const parts = partsOf(state), {context, width, height} = canvasOf($('chart-pages'));
  let x = 0;
  parts.forEach(([name, n], i) => {
    const index = name === 'free' ? 5 : name === 'cached' ? 4 : i % 4;
    const wide = state.pages.total > 0 ? n * width / state.pages.total : 0;
    context.fillStyle = colour(`--p${index}`);
    context.fillRect(x, 0, n > 0 ? Math.max(wide, 2) : 0, height);
    x += wide;
  });
  const shown = parts.filter(([name, n]) => n > 0 || name === 'free' || name === 'cached');
  $('pages-legend').replaceChildren(...shown.map(([name, n]) => {
    const index = name === 'free' ? 5 : name === 'cached' ? 4 : parts.findIndex(([each]) => each === name) % 4;
    return make('li', {}, make('span', {className: `swatch c${index}`}), `${name} ${number(n)}`);
  }));
  $('pages').textContent = `${number(state.pages.total - state.pages.free - state.pages.cached)} of ${number(state.pages.total)} in use`;
}

function showSequences(state) {
  const {sequences, requests} = state;
  $('sequences-n').textContent = sequences.length < requests.running
    ? `${requests.running}, the first ${sequences.length} are shown` : String(requests.running);
  $('sequences-body').replaceChildren(...sequences.map((each) => make('tr', {},
    ...[each.policy + (each.sparse ? ', read sparsely' : ''), number(each.prompt_tokens),
      percent(each.processed_tokens / each.prompt_tokens), number(each.generated_tokens), number(each.pages)]
      .map((text) => make('td', {}, text)))));
}

function showState(state) {
  const seconds = before ? state.time_s - before.time_s : 0;
  const rate = seconds > 0 ? Math.max(0, state.tokens.generated - before.tokens.generated) / seconds : 0;
  const count = before ? state.first_token.count - before.first_token.count : 0;
  const last = histories.ttft.at(-1) ?? null;
  const ttft = count > 0 ? (state.first_token.seconds - before.first_token.seconds) / count : last;
  note('running', state.requests.running, number(state.requests.running));
  note('waiting', state.requests.waiting, number(state.requests.waiting));
  note('rate', rate, number(rate, rate < 10 ? 1 : 0));
  note('ttft', ttft, ttft === null ? '–' : duration(ttft));
  drawPages(state);
  showSequences(state);
  before = state;
}

function showCondition(text, name) {
  if ($('state-text').textContent !== text) $('state-text').textContent = text;
  $('state').className = name;
}

async function poll() {
  try {
    const state = await askJson('/state', null, AbortSignal.timeout(5000));
    if (state.requests) showState(state);
    showCondition(state.state, state.state === 'ready' ? 'ready' : 'bad');
    if (!model && state.requests) await loadModel();
  } catch (error) {
    before = null;
    showCondition(error.status === 401 ? 'needs the API key' : error.status ? error.message : 'no answer', 'bad');
  }
}

/* Asks once a second while the page is seen.  An answer that is late delays the next question. */
async function pollForever() {
  for (;;) {
    if (!document.hidden) await poll();
    await new Promise((resolve) => setTimeout(resolve, 1000));
  }
}

/* ---- the beginning ---- */

const option = (value, text) => make('option', {value}, text);

async function loadModel() {
  const told = await askJson('/v1/models');
  [model] = told.data;
  $('model').textContent = `${model.id}, ${number(model.max_model_len)} tokens of context`;
  $('policy').replaceChildren(option('', `the server's: ${model.kv_policy.type}`),
    ...model.kv_policies.map((each) => option(each.type, each.type)));
  $('prefill').replaceChildren(option('', `the server's: ${model.prefill.mode}`),
    ...model.prefill.modes.map((mode) => option(mode, mode)));
  const allowed = EXAMPLES.map((example, i) => [i, example])
    .filter(([, example]) => model.kv_policies.some((each) => each.type === example.policy));
  $('example').replaceChildren(option('', 'choose …'),
    ...allowed.map(([i, example]) => option(String(i), example.name)));
  choosePolicy('');
  showPatternFields();
}

function listen() {
  $('form').addEventListener('submit', generate);
  $('stop').addEventListener('click', () => running?.abort());
  $('policy').addEventListener('change', () => choosePolicy($('policy').value));
  $('policy-fields').addEventListener('change', showPolicyFields);
  $('prefill').addEventListener('change', showPatternFields);
  $('pattern').addEventListener('change', showPatternFields);
  $('example').addEventListener('change', chooseExample);
  $('key').addEventListener('change', poll);
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
  window.addEventListener('resize', () => drawn?.());
  matchMedia('(prefers-color-scheme: dark)').addEventListener('change', () => drawn?.());
}

$('prompt').value = STORY;
$('controls').open = !matchMedia('(max-width: 60rem)').matches;
listen();
showPatternFields();
pollForever();
})();
