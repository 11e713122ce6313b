/* stream.js - one answer: what is asked, what comes, how fast, and what went wrong, in words. */
import {ServerError, ask, eventsOf} from './api.js';

/* A device that runs ahead cannot tell what a budget has kept.  It says so; then the same is asked
 * without that. */
async function begin(body, signal, node) {
  try {
    return await ask('v1/chat/completions', body, signal);
  } catch (error) {
    if (error.param !== 'return_kept_positions') throw error;
    node.whyNotKept = error.message;
    const {return_kept_positions: _, ...rest} = body;
    return ask('v1/chat/completions', rest, signal);
  }
}

function takeCalls(calls, node) {
  for (const call of calls)
    node.calls.push({id: call.id, type: 'function',
      function: {name: call.function?.name ?? '', arguments: call.function?.arguments ?? ''}});
}

function takeChoice(choice, node) {
  const delta = choice.delta ?? {}, thought = delta.reasoning_content ?? delta.reasoning ?? '';
  node.reasoning += thought;
  node.content += delta.content ?? '';
  if (delta.tool_calls) takeCalls(delta.tool_calls, node);
  if (choice.finish_reason) node.stats.reason = choice.finish_reason;
  if (choice.kept_positions) node.kept = choice.kept_positions;
  return thought + (delta.content ?? '') + (delta.tool_calls ? '[call]' : '');
}

/* Adds the text of an event with the number of its tokens: what was kept is told by token. */
function addPiece(text, n, node) {
  if (!text && n === 0) return;
  if (n === 0 && node.pieces.length > 0) node.pieces.at(-1)[0] += text;
  else node.pieces.push([text, n]);
}

function clock(stats, times, n) {
  const now = performance.now();
  times.first ??= now;
  times.atFirst ??= n;
  stats.firstToken = (times.first - times.begun) / 1000;
  stats.tokens = n;
  if (n > times.atFirst) stats.speed = 1000 * (n - times.atFirst) / (now - times.first);
}

/* What each event tells: {choices, usage, prompt_progress} or {error}. */
function takeEvent(event, node, times, onProgress) {
  if (event.error) throw new ServerError(500, event.error);
  if (event.prompt_progress) onProgress(event.prompt_progress);
  const texts = (event.choices ?? []).map((choice) => takeChoice(choice, node));
  const n = event.usage?.completion_tokens ?? times.n;
  addPiece(texts.join(''), n - times.n, node);
  if (n > times.n || texts.join('')) clock(node.stats, times, n);
  times.n = n;
  if (event.usage) node.stats.usage = event.usage;
}

/* Fills a node with the answer to a body.  Throws what went wrong; what has come by then stays. */
export async function answer(body, node, {signal, onChange, onProgress}) {
  const times = {begun: performance.now(), n: 0};
  node.stats = {model: body.model};
  node.reasoning ??= '';
  node.calls ??= [];
  node.pieces = [];
  const told = await begin({...body, stream: true, return_progress: true,
    stream_options: {include_usage: true, continuous_usage_stats: true}}, signal, node);
  const events = eventsOf(told);
  for (;;) {
    const {value, done} = await events.next();
    if (done && !value) throw new TypeError('cut off');
    if (done) return;
    takeEvent(value, node, times, onProgress);
    onChange();
  }
}

const STATUS = {
  401: () => 'The server asks for an API key that it knows. Type it, then retry.',
  429: (text, again) => `The server has too much to do: ${text}.${again}`,
  503: (text, again) => `The server is not ready: ${text}.${again}`,
};

/* What went wrong, for people.  hasText: a part of the answer has come. */
export function wordsOf(error, hasText) {
  if (!(error instanceof ServerError))
    return hasText ? 'The connection ended in the middle of the answer. What had come is kept.'
      : 'The server does not answer. It may have been stopped, or the network is down.';
  const text = error.message.replace(/\.$/, '');
  const again = error.retryAfter ? ` Retry in ${error.retryAfter} s.` : ' Retry in a moment.';
  if (STATUS[error.status]) return STATUS[error.status](text, again);
  return error.status >= 500 ? `The server failed: ${text}.` : `The server refuses this: ${text}.`;
}
