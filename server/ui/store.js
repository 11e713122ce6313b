/* store.js - the conversations, in this browser's IndexedDB and nowhere else.
 *
 * Where a browser has none, as some private windows do, they last as long as the page. */

const memory = new Map();
const removed = new Set(); /* ids; an answer that is still being written does not bring them back */

function promised(request) {
  return new Promise((resolve, reject) => {
    request.onsuccess = () => resolve(request.result);
    request.onerror = () => reject(request.error);
  });
}

async function open() {
  const request = indexedDB.open('quire', 1);
  request.onupgradeneeded = () => request.result.createObjectStore('conversations', {keyPath: 'id'});
  return promised(request);
}

let opened = null;
const database = () => opened ??= open().catch(() => null);

export const isKept = async () => Boolean(await database());

async function within(mode, act) {
  const db = await database();
  return promised(act(db.transaction('conversations', mode).objectStore('conversations')));
}

export async function put(conversation) {
  if (removed.has(conversation.id)) return;
  if (!await database()) memory.set(conversation.id, structuredClone(conversation));
  else await within('readwrite', (store) => store.put(conversation));
}

export async function get(id) {
  if (!await database()) return structuredClone(memory.get(id));
  return within('readonly', (store) => store.get(id));
}

export async function remove(id) {
  removed.add(id);
  if (!await database()) memory.delete(id);
  else await within('readwrite', (store) => store.delete(id));
}

async function* each() {
  const db = await database();
  if (!db) {
    yield* memory.values();
    return;
  }
  for (const id of await within('readonly', (store) => store.getAllKeys())) {
    const conversation = await get(id);
    if (conversation) yield conversation;
  }
}

export async function all() {
  const list = [];
  for await (const conversation of each()) list.push(conversation);
  return list;
}

/* The newest first, with no more than a list shows.  A text is looked for in titles and messages. */
export async function list(text = '') {
  const wanted = text.trim().toLowerCase(), found = [];
  for await (const {id, title, updated, nodes} of each()) {
    const fits = !wanted || title.toLowerCase().includes(wanted)
      || nodes.some((node) => node.content.toLowerCase().includes(wanted));
    if (fits) found.push({id, title, updated});
  }
  return found.sort((a, b) => b.updated - a.updated);
}
