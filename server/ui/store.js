/* store.js - the conversations, in this browser's IndexedDB and nowhere else.
 *
 * What cannot be kept there lasts as long as the page: everything where a browser keeps no data, as some
 * private windows do, and a conversation for which there is no space left.
 * Several tabs may write the same conversation: merge() keeps what each has added, and each tab tells the
 * others what it has changed. */
import {merge} from './tree.js';

const memory = new Map();  /* by id: what the database has not taken */
const removed = new Set(); /* ids; an answer that is still being written does not bring them back */
const others = channel();

/* A browser that keeps no data for this page may refuse its tabs to talk, too. */
function channel() {
  try {
    return new BroadcastChannel('quire.conversations');
  } catch {
    return {postMessage() {}};
  }
}

async function open() {
  const request = indexedDB.open('quire', 1);
  request.onupgradeneeded = () => request.result.createObjectStore('conversations', {keyPath: 'id'});
  const db = await new Promise((resolve, reject) => {
    request.onsuccess = () => resolve(request.result);
    request.onerror = () => reject(request.error);
  });
  db.onclose = () => { /* its data were cleared */
    opened = null;
  };
  return db;
}

let opened = null;
const database = () => opened ??= open().catch(() => null);

export const isKept = async () => Boolean(await database());

/* Resolves to the result of the request that act() returns, once the transaction is complete: a full disk
 * is told at its end. */
async function within(mode, act) {
  const transaction = (await database()).transaction('conversations', mode);
  const request = act(transaction.objectStore('conversations'));
  return new Promise((resolve, reject) => {
    transaction.oncomplete = () => resolve(request.result);
    transaction.onabort = () => reject(transaction.error ?? request.error);
  });
}

/* What a list shows and searches of a conversation. */
const headOf = ({id, title, updated, nodes}) => ({id, title, updated, texts: nodes.map((node) => node.content)});

let heads = null; /* a promise of a Map by id, read once */

async function readHeads(found) {
  if (!await database()) return;
  for (const id of await within('readonly', (store) => store.getAllKeys())) {
    const conversation = await within('readonly', (store) => store.get(id));
    if (conversation) found.set(id, headOf(conversation));
  }
}

/* A database that cannot be read has none. */
const allHeads = () => heads ??= (async () => {
  const found = new Map();
  await readHeads(found).catch(() => {});
  return found;
})();

function mergeAndPut(conversation) {
  return within('readwrite', (store) => {
    const reading = store.get(conversation.id);
    reading.onsuccess = () => {
      if (reading.result) merge(conversation, reading.result);
      store.put(conversation);
    };
    return reading;
  });
}

/* Keeps a conversation, and takes into it what another tab has added.  Throws if there is no space. */
export async function put(conversation) {
  if (removed.has(conversation.id)) return;
  try {
    if (await database()) await mergeAndPut(conversation);
    else memory.set(conversation.id, conversation);
    if (await database()) memory.delete(conversation.id);
  } catch (error) {
    memory.set(conversation.id, conversation);
    throw error;
  } finally {
    (await allHeads()).set(conversation.id, headOf(conversation));
    others.postMessage({id: conversation.id});
  }
}

export async function get(id) {
  if (memory.has(id) || !await database()) return memory.get(id);
  return within('readonly', (store) => store.get(id));
}

async function forget(id) {
  removed.add(id);
  memory.delete(id);
  (await allHeads()).delete(id);
}

export async function remove(id) {
  await forget(id);
  if (await database()) await within('readwrite', (store) => store.delete(id));
  others.postMessage({id, isRemoved: true});
}

export async function all() {
  const list = await Promise.all([...(await allHeads()).keys()].map(get));
  return list.filter(Boolean);
}

/* The newest first, with no more than a list shows.  A text is looked for in titles and messages. */
export async function list(text = '') {
  const wanted = text.trim().toLowerCase();
  const fits = ({title, texts}) => !wanted || title.toLowerCase().includes(wanted)
    || texts.some((each) => each.toLowerCase().includes(wanted));
  return [...(await allHeads()).values()].filter(fits).sort((a, b) => b.updated - a.updated);
}

/* Calls act({id, isRemoved, conversation}) when another tab has changed or removed a conversation. */
export function listen(act) {
  others.onmessage = async ({data: {id, isRemoved}}) => {
    const conversation = isRemoved ? undefined : await get(id).catch(() => undefined);
    if (isRemoved) await forget(id);
    else if (conversation) (await allHeads()).set(id, headOf(conversation));
    act({id, isRemoved, conversation});
  };
}
