/* docs.js - the page at /docs: what /openapi.json says, as text.
 *
 * A route is built when it is opened, and a schema within it likewise: schemas may contain
 * themselves. */
import {askJson, setKey} from './api.js';
import {$, make} from './dom.js';

const REF = '#/components/schemas/';
let schemas = {};

/* ---- schemas in words ---- */

const nameOf = (schema) => schema.$ref?.slice(REF.length);
const follow = (schema) => (schema.$ref ? schemas[nameOf(schema)] : schema) ?? {};
const choicesOf = (schema) => schema.anyOf ?? schema.oneOf ?? [schema];

function boundsOf({minimum, maximum}) {
  if (minimum === undefined && maximum === undefined) return '';
  if (maximum === undefined) return `, at least ${minimum}`;
  return minimum === undefined ? `, at most ${maximum}` : `, ${minimum} to ${maximum}`;
}

/* Says in a line what a value may be, such as "string or array of integer". */
function wordsOf(schema) {
  if (schema.$ref) return nameOf(schema);
  if ('const' in schema) return JSON.stringify(schema.const);
  if (schema.enum) return schema.enum.map((each) => JSON.stringify(each)).join(' or ');
  if (schema.anyOf || schema.oneOf) return choicesOf(schema).map(wordsOf).join(' or ');
  if (schema.type === 'array') return `array of ${wordsOf(schema.items ?? {})}`;
  return `${[schema.type ?? 'any value'].flat().join(' or ')}${boundsOf(schema)}`;
}

/* The types by which an object is told from others, such as "message_start". */
function kindOf({type}) {
  const kinds = type?.enum ?? (type && 'const' in type ? [type.const] : []);
  return kinds.length ? `: ${kinds.join(', ')}` : '';
}

/* The objects that a value may be or contain, as pairs of a title and a schema. */
function objectsOf(schema, title) {
  return choicesOf(schema).flatMap((choice) => {
    const name = nameOf(choice) ?? title, inner = follow(choice);
    if (inner.anyOf || inner.oneOf || inner.items) return objectsOf(inner.items ?? inner, name);
    return inner.properties ? [[name + kindOf(inner.properties), inner]] : [];
  });
}

/* ---- schemas as tables ---- */

/* A part that is closed until someone opens it, and is built then. */
function closed(className, head, build) {
  const part = make('details', {className}, make('summary', {}, ...head));
  part.addEventListener('toggle', () => {
    if (part.open && part.childElementCount === 1) part.append(...build());
  });
  return part;
}

/* What a member may be.  That it may be null is left out, as all members may that are not required. */
function valueOf(member, isRequired) {
  if (isRequired) return `${wordsOf(member)} (required)`;
  return choicesOf(member).filter(({type}) => type !== 'null').map(wordsOf).join(' or ') || wordsOf(member);
}

function rowOf(name, member, isRequired) {
  return make('tr', {}, make('th', {scope: 'row'}, name), make('td', {}, valueOf(member, isRequired)),
    make('td', {}, member.description ?? follow(member).description ?? ''));
}

const isRefused = ([, member]) => member.description?.startsWith('Not supported');

/* The members of an object, the required ones first, and below them the objects that these have.  Members
 * that are refused are named in a line. */
function tableOf(schema) {
  const all = Object.entries(schema.properties), required = schema.required ?? [];
  const refused = all.filter(isRefused).map(([name]) => name), members = all.filter((each) => !isRefused(each));
  members.sort(([one], [other]) => required.includes(other) - required.includes(one));
  const head = ['Name', 'Value', 'What it says'].map((text) => make('th', {scope: 'col'}, text));
  const parts = members.flatMap(([name, member]) => objectsOf(member, name));
  return [
    make('div', {className: 'scroll', tabIndex: 0, role: 'group', 'aria-label': 'Members'},
      make('table', {}, make('thead', {}, make('tr', {}, ...head)),
        make('tbody', {}, ...members.map(([name, member]) => rowOf(name, member, required.includes(name)))))),
    ...refused.length ? [make('p', {className: 'hint'}, `Not supported: ${refused.join(', ')}`)] : [],
    ...parts.map(([name, inner]) => closed('part', [name], () => tableOf(inner)))];
}

function schemaOf(schema) {
  const objects = objectsOf(schema, 'object');
  if (objects.length === 1 && !schema.items) return tableOf(objects[0][1]);
  return [make('p', {}, wordsOf(schema)), ...objects.map(([name, inner]) => closed('part', [name], () => tableOf(inner)))];
}

/* ---- routes ---- */

const MEANINGS = {'application/json': 'The answer', 'text/event-stream': 'The data of a stream\'s events'};

function contentsOf(title, content) {
  return Object.entries(content).flatMap(([type, {schema}]) => [
    make('h2', {}, `${title ?? MEANINGS[type] ?? 'The answer'} (${type})`),
    ...schema ? schemaOf(schema) : []]);
}

/* A value for each member that a body must have. */
const SAMPLES = {prompt: 'Once upon a time', messages: [{role: 'user', content: 'Hello'}], input: 'Hello', max_tokens: 60,
  tokens: [5, 6]};

/* A command that asks the route. */
function commandOf(path, method, operation, body) {
  const url = new URL('.', document.baseURI) + path.slice(1);
  const lines = [method === 'post' ? `curl -X POST ${url}` : `curl ${url}`];
  const sample = body && Object.fromEntries(body.required.map((name) => [name, SAMPLES[name]]));
  if ($('key').value && !operation.security) lines.push('-H "Authorization: Bearer $KEY"');
  if (body) lines.push("-H 'Content-Type: application/json'", `-d '${JSON.stringify(sample)}'`);
  return lines.join(' \\\n    ');
}

function insideOf(path, method, operation) {
  const body = operation.requestBody?.content['application/json'].schema, {default: fault, ...answers} = operation.responses;
  return [make('div', {className: 'inside'},
    make('h2', {}, 'Ask it'), make('pre', {tabIndex: 0}, commandOf(path, method, operation, body)),
    make('p', {className: 'hint'}, `Operation ${operation.operationId}`
      + (operation.security ? '. It never asks for the API key.' : '')),
    ...body ? [make('h2', {}, 'The body (application/json)'), ...tableOf(body)] : [],
    ...Object.values(answers).flatMap((answer) => contentsOf(null, answer.content)),
    ...contentsOf('An error', fault.content))];
}

function routeOf(path, method, operation) {
  const head = [make('span', {className: 'method'}, method.toUpperCase()), make('span', {className: 'path'}, path),
    make('span', {className: 'about'}, operation.summary)];
  const route = closed('route', head, () => insideOf(path, method, operation));
  route.id = operation.operationId;
  const fields = Object.keys(operation.requestBody?.content['application/json'].schema.properties ?? {});
  route.dataset.words = [path, operation.summary, ...fields].join(' ').toLowerCase();
  return route;
}

/* Shows the routes of which the path, the summary or a field of the body has the text. */
function find() {
  const text = $('find').value.trim().toLowerCase();
  for (const route of $('routes').children) route.hidden = !route.dataset.words.includes(text);
}

function show(description) {
  schemas = description.components.schemas;
  $('version').textContent = `API of quire ${description.info.version}`;
  const routes = Object.entries(description.paths).flatMap(([path, methods]) =>
    Object.entries(methods).map(([method, operation]) => routeOf(path, method, operation)));
  $('routes').replaceChildren(...routes);
  $('told').textContent = `${routes.length} routes.`;
  const named = document.getElementById(location.hash.slice(1));
  if (named?.matches('.route')) named.open = true;
  find();
}

async function load() {
  let fault = null;
  try {
    show(await askJson('openapi.json'));
  } catch (error) {
    fault = error.status === 401 ? 'The description needs the API key.' : error.message;
    $('told').textContent = fault;
  }
  $('told').className = fault ? 'bad' : '';
}

setKey(() => $('key').value);
$('key').addEventListener('change', load);
$('find').addEventListener('input', find);
load();
