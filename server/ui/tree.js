/* tree.js - a conversation: messages as a tree, of which one path is shown.
 *
 *   {id, title, created, updated, nodes: [node, …], chosen: {parent: child}}
 *   node: {id, parent, role, content, …}      parent of the first messages: ''
 *
 * An edited question or a repeated answer is a sibling, so no version is lost. */

export const newId = () => crypto.randomUUID?.()
  ?? [...crypto.getRandomValues(new Uint8Array(16))].map((each) => each.toString(16).padStart(2, '0')).join('');

export function newConversation() {
  const now = Date.now();
  return {id: newId(), title: '', created: now, updated: now, nodes: [], chosen: {}};
}

export const childrenOf = (conversation, parent) => conversation.nodes.filter((each) => each.parent === parent);

/* The messages that are shown: from each one to the chosen next one, or else to the newest. */
export function pathOf(conversation) {
  const path = [];
  for (let parent = ''; ;) {
    const children = childrenOf(conversation, parent);
    if (children.length === 0) return path;
    const node = children.find((each) => each.id === conversation.chosen[parent]) ?? children.at(-1);
    path.push(node);
    parent = node.id;
  }
}

/* The messages up to a node, with it. */
export function pathTo(conversation, node) {
  const path = [];
  for (let at = node; at; at = conversation.nodes.find((each) => each.id === at.parent)) path.unshift(at);
  return path;
}

export function choose(conversation, node) {
  conversation.chosen[node.parent] = node.id;
}

export function add(conversation, parent, members) {
  const node = {id: newId(), parent, time: Date.now(), ...members};
  conversation.nodes.push(node);
  choose(conversation, node);
  if (!conversation.title && node.role === 'user') conversation.title = titleOf(node);
  return node;
}

/* Takes into a conversation what another tab has made of it: messages that it lacks, and later states of
 * those that it has.  What is chosen here stays. */
export function merge(conversation, other) {
  const known = new Map(conversation.nodes.map((node) => [node.id, node]));
  for (const node of other.nodes) {
    const own = known.get(node.id);
    if (!own) conversation.nodes.push(node);
    else if ((node.changed ?? 0) > (own.changed ?? 0)) become(own, node);
  }
  conversation.chosen = {...other.chosen, ...conversation.chosen};
}

function become(node, other) {
  for (const name of Object.keys(node)) delete node[name];
  Object.assign(node, other);
}

function titleOf(node) {
  const text = (node.content || node.files?.[0]?.name || '').trim().replace(/\s+/g, ' ');
  return text.length > 60 ? `${text.slice(0, 59)}…` : text;
}

/* What is said to the model of a file: its text between marks, before the question, so that the next
 * turn finds it in the prefix cache. */
const fileText = (file) => `<document name="${file.name.replace(/["<>\n]/g, '_')}">\n${file.text}\n</document>\n\n`;

function messageOf(node) {
  if (node.role === 'user') return {role: 'user', content: (node.files ?? []).map(fileText).join('') + node.content};
  if (node.role === 'tool') return {role: 'tool', tool_call_id: node.call, content: node.content};
  const message = {role: 'assistant', content: node.content};
  if (node.calls?.length) message.tool_calls = node.calls;
  return message;
}

/* The messages of a request. */
export function messagesOf(path, system) {
  return [...system ? [{role: 'system', content: system}] : [], ...path.map(messageOf)];
}

/* The conversation as a text, for people. */
export function markdownOf(conversation) {
  const names = {user: 'You', tool: 'Result of a tool'};
  const parts = pathOf(conversation).map((node) => {
    const files = (node.files ?? []).map((file) => `*File: ${file.name}*\n\n`).join('');
    const calls = (node.calls ?? []).map((call) =>
      `\n\nCalls \`${call.function.name}\`:\n\n\`\`\`json\n${call.function.arguments}\n\`\`\``).join('');
    return `## ${names[node.role] ?? node.stats?.model ?? 'Answer'}\n\n${files}${node.content}${calls}`;
  });
  return `# ${conversation.title || 'Conversation'}\n\n${parts.join('\n\n')}\n`;
}

const isText = (value) => typeof value === 'string';
const textsOf = (list, names) => (Array.isArray(list) ? list : [])
  .filter((each) => each && names.every((name) => isText(each[name])));

function readNode(told) {
  if (!isText(told?.id) || !isText(told.parent) || !isText(told.content)) return null;
  if (!['user', 'assistant', 'tool'].includes(told.role)) return null;
  const node = {id: told.id, parent: told.parent, role: told.role, content: told.content,
    time: Number(told.time) || Date.now()};
  for (const name of ['reasoning', 'system', 'call', 'error']) if (isText(told[name])) node[name] = told[name];
  node.files = textsOf(told.files, ['name', 'text']).map(({name, text, tokens}) =>
    ({name, text, tokens: Number(tokens) || 0}));
  node.calls = (Array.isArray(told.calls) ? told.calls : [])
    .filter((call) => isText(call?.id) && isText(call.function?.name) && isText(call.function?.arguments))
    .map((call) => ({id: call.id, type: 'function',
      function: {name: call.function.name, arguments: call.function.arguments}}));
  if (isText(told.stats?.model)) node.stats = {model: told.stats.model};
  return node;
}

/* Takes what is known of a conversation in an imported file; null: it is none. */
export function readConversation(told) {
  if (!told || !Array.isArray(told.nodes)) return null;
  const nodes = told.nodes.map(readNode).filter(Boolean);
  const ids = new Set(nodes.map((node) => node.id));
  if (nodes.length === 0 || ids.size < nodes.length) return null;
  /* A parent stands before its children, so nothing is its own ancestor. */
  const seen = new Set(['']);
  for (const node of nodes) {
    if (!seen.has(node.parent)) return null;
    seen.add(node.id);
  }
  const chosen = {};
  for (const [parent, child] of Object.entries(told.chosen ?? {}))
    if (seen.has(parent) && ids.has(child)) chosen[parent] = child;
  const now = Date.now();
  return {id: newId(), title: isText(told.title) ? told.title.slice(0, 200) : '', nodes, chosen,
    created: Number(told.created) || now, updated: Number(told.updated) || now};
}
