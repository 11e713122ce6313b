/* live.js - the live view of the engine on /inspect, by GET /state once a second. */
import {askJson} from './api.js';
import {$, canvasOf, colour, duration, make, number, percent} from './dom.js';

const HISTORY = 60; /* seconds */
const histories = {running: [], waiting: [], rate: [], ttft: []};
let before = null; /* the last state */

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

/* Asks for the state once, and calls onState if there is an engine. */
export async function poll(onState) {
  try {
    const state = await askJson('state', null, AbortSignal.timeout(5000));
    if (state.requests) showState(state);
    showCondition(state.state, state.state === 'ready' ? 'ready' : 'bad');
    if (state.requests) await onState();
  } catch (error) {
    before = null;
    showCondition(error.status === 401 ? 'needs the API key' : error.status ? error.message : 'no answer', 'bad');
  }
}

/* Asks once a second while the page is seen.  An answer that is late delays the next question. */
export async function pollForever(onState) {
  for (;;) {
    if (!document.hidden) await poll(onState);
    await new Promise((resolve) => setTimeout(resolve, 1000));
  }
}

/* Draws the histories in the colours of now. */
export function drawAgain() {
  Object.keys(histories).forEach(drawHistory);
}
