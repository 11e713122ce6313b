/* api.js - asks the server, and tells what went wrong. */

export class ServerError extends Error {
  constructor(status, error, retryAfter) {
    super(error?.message ?? `the server answers ${status}`);
    this.status = status;
    this.param = error?.param;
    this.code = error?.code;
    this.retryAfter = retryAfter;
  }
}

let keyOf = () => '';
/* Says where the API key comes from, for each request anew. */
export const setKey = (key) => {
  keyOf = key;
};

export async function ask(path, body, signal) {
  const headers = {};
  if (keyOf()) headers.Authorization = `Bearer ${keyOf()}`;
  if (body) headers['Content-Type'] = 'application/json';
  const answer = await fetch(path, {method: body ? 'POST' : 'GET', headers, signal,
    body: body && JSON.stringify(body)});
  if (answer.ok) return answer;
  const told = await answer.json().catch(() => null);
  throw new ServerError(answer.status, told?.error, Number(answer.headers.get('Retry-After')) || 0);
}

export const askJson = async (path, body, signal) => (await ask(path, body, signal)).json();

/* The events of a stream, parsed, up to [DONE].  Returns true if [DONE] came, so a stream that was cut
 * off can be told from one that has ended. */
export async function* eventsOf(answer) {
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let text = '';
  for (;;) {
    const {value, done} = await reader.read();
    if (done) return false;
    text += value;
    const events = text.split('\n\n');
    text = events.pop();
    for (const event of events) {
      if (!event.startsWith('data: ')) continue;
      if (event === 'data: [DONE]') return true;
      yield JSON.parse(event.slice(6));
    }
  }
}
