/* settings.js - what is asked of the server beside the messages, kept in this browser.
 *
 * A field that is empty sends nothing, so the model's own value counts, and an answer ends by itself. */
import {setKey} from './api.js';
import {$, isTouch, option} from './dom.js';
import {PolicyForm, PrefillForm} from './policies.js';

const NUMBERS = ['temperature', 'top_p', 'max_tokens', 'seed'];
const TEXTS = ['system', 'key', 'tools', 'reasoning_effort'];

function readKept() {
  try {
    return JSON.parse(localStorage.getItem('quire.settings')) ?? {};
  } catch {
    return {}; /* There are none, or this browser keeps nothing. */
  }
}

let kept = readKept();

const policies = new PolicyForm({policy: $('policy'), note: $('policy-note'), fields: $('policy-fields')});
const prefills = new PrefillForm({prefill: $('prefill'), pattern: $('pattern'), fields: $('pattern-fields'),
  reuse: $('reuse')});
let models = []; /* of /v1/models */

setKey(() => $('key').value);

export const model = () => models.find((each) => each.id === $('model').value) ?? models[0];
/* The text that goes before each conversation. */
export const system = () => $('system').value.trim();

/* The KV policy that a request has: the one chosen, or else the server's own. */
export const policyType = () => $('policy').value || model()?.kv_policy.type;

function keep() {
  kept = {model: $('model').value, kv_policy: policies.asked(), prefill: prefills.asked()};
  for (const name of [...NUMBERS, ...TEXTS]) kept[name] = $(name).value;
  try {
    localStorage.setItem('quire.settings', JSON.stringify(kept));
  } catch {
    /* They last as long as the page. */
  }
}

function checkTools() {
  try {
    toolsOf();
    $('tools').setCustomValidity('');
    $('tools-note').textContent = '';
  } catch {
    $('tools-note').textContent = 'This is not a JSON array of tools, so none are sent.';
  }
}

function toolsOf() {
  const text = $('tools').value.trim();
  if (!text) return undefined;
  const tools = JSON.parse(text);
  if (!Array.isArray(tools)) throw new TypeError('tools must be an array');
  return tools.length > 0 ? tools : undefined;
}

function toolsAsked() {
  try {
    return toolsOf();
  } catch {
    return undefined;
  }
}

/* What is marked beside the button: the settings that differ from the server's own. */
function showSummary() {
  const parts = [];
  if ($('policy').value) parts.push(`keeps: ${$('policy').value}`);
  if ($('prefill').value) parts.push(`prefill: ${$('prefill').value}`);
  if (system()) parts.push('system prompt');
  $('settings-summary').textContent = parts.join(' · ');
}

/* Takes the models that the server tells, and shows what was chosen the last time. */
export function setModels(told) {
  if (JSON.stringify(told) === JSON.stringify(models)) return; /* a field may be written in */
  const chosen = $('model').value || kept.model;
  models = told;
  $('model').replaceChildren(...told.map((each) => option(each.id, each.id)));
  $('model').value = told.some((each) => each.id === chosen) ? chosen : told[0].id;
  showModel();
}

function showModel() {
  const {type, ...values} = kept.kv_policy ?? {};
  policies.setModel(model());
  policies.choose(type ?? '', values);
  prefills.setModel(model());
  prefills.choose(kept.prefill);
  showSummary();
}

/* The members of a request's body, but for its messages. */
export function asked() {
  const body = {model: model()?.id, kv_policy: policies.asked(), prefill: prefills.asked(), tools: toolsAsked()};
  for (const name of NUMBERS) if ($(name).value !== '') body[name] = Number($(name).value);
  if ($('reasoning_effort').value) body.reasoning_effort = $('reasoning_effort').value;
  if (policyType() !== 'full') body.return_kept_positions = true;
  return body;
}

/* On a touch screen a field that has the focus opens a keyboard. */
function open() {
  $('settings').showModal();
  $(isTouch() ? 'settings-close' : 'system').focus();
}

/* Asks for the API key that the server wants, or for another one. */
export function askForKey() {
  if ($('key-ask').open) return;
  $('settings').close();
  $('key-wrong').hidden = !$('key').value;
  $('key-ask').showModal();
  $('key-typed').value = '';
  $('key-typed').focus();
}

function takeKey() {
  const typed = $('key-typed').value.trim();
  if (!typed) return;
  $('key-ask').close();
  $('key').value = typed;
  $('key').dispatchEvent(new Event('change', {bubbles: true}));
}

/* A click beside a dialog closes it. */
function closeBeside(dialog) {
  dialog.addEventListener('pointerdown', (event) => {
    if (event.target !== dialog) return;
    const box = dialog.getBoundingClientRect();
    const isInside = event.clientX >= box.left && event.clientX <= box.right && event.clientY >= box.top && event.clientY <= box.bottom;
    if (!isInside) dialog.close();
  });
}

/* onKey: called when another API key has been typed. */
export function listen(onKey, onModel) {
  for (const name of [...NUMBERS, ...TEXTS]) $(name).value = kept[name] ?? '';
  checkTools();
  showSummary();
  $('settings').addEventListener('change', () => {
    checkTools();
    keep();
    showSummary();
  });
  $('model').addEventListener('change', () => {
    keep();
    showModel();
    onModel();
  });
  $('key').addEventListener('change', onKey);
  $('key-form').addEventListener('submit', (event) => {
    event.preventDefault();
    takeKey();
  });
  $('key-cancel').addEventListener('click', () => $('key-ask').close());
  /* Another tab's key is of the same server. */
  addEventListener('storage', (event) => {
    if (event.key !== 'quire.settings') return;
    const {key} = readKept();
    if (!key || key === $('key').value) return;
    $('key').value = kept.key = key;
    $('key-ask').close();
    onKey();
  });
  document.querySelectorAll('dialog').forEach(closeBeside);
  $('settings-open').addEventListener('click', open);
  $('settings-close').addEventListener('click', () => $('settings').close());
  $('settings-reset').addEventListener('click', () => {
    const key = $('key').value;
    for (const name of [...NUMBERS, ...TEXTS]) $(name).value = '';
    $('key').value = key;
    kept = {key};
    if (model()) showModel();
    checkTools();
    keep();
    showSummary();
  });
}
