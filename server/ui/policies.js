/* policies.js - the fields of a KV policy and of a prefill, as the server tells its policies.
 *
 *   const form = new PolicyForm({policy, note, fields}, onchange);
 *   form.setModel(model);        of GET /v1/models
 *   form.choose('streaming', {recent: 60});
 *   form.asked()                 what a request sends as kv_policy; undefined: the server's own */
import {make, option} from './dom.js';

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

function fieldOf(name, value) {
  let input;
  if (WORDS[name]) {
    input = make('select', {}, ...WORDS[name].map((word) => option(word, word)));
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

export class PolicyForm {
  constructor(parts) {
    Object.assign(this, parts); /* policy: a select; note: a paragraph; fields: a container */
    this.policy.addEventListener('change', () => this.choose(this.policy.value));
    this.fields.addEventListener('change', () => this.showFields());
  }

  setModel(model) {
    this.model = model;
    this.policy.replaceChildren(option('', `the server's: ${model.kv_policy.type}`),
      ...model.kv_policies.map((each) => option(each.type, each.type)));
    this.choose('');
  }

  showFields() {
    const values = valuesOf(this.fields);
    for (const input of this.fields.querySelectorAll('[data-name]')) {
      const beside = BESIDE[input.dataset.name];
      input.parentElement.hidden = Boolean(beside) && !beside[1](values);
    }
  }

  choose(type, values = {}) {
    const policy = this.model.kv_policies.find((each) => each.type === type);
    this.policy.value = policy ? type : '';
    this.note.textContent = NOTES[policy ? type : this.model.kv_policy.type] ?? '';
    const all = {...policy};
    delete all.type;
    delete all.layers;
    if (policy && 'score' in all) for (const [name, [initial]] of Object.entries(BESIDE)) all[name] ??= initial;
    if (policy && 'prompt' in all) all.chunk ??= BESIDE.chunk[0];
    const shown = policy ? {...all, ...values} : {};
    this.fields.replaceChildren(...Object.entries(shown).map((each) => fieldOf(...each)));
    this.showFields();
  }

  asked() {
    if (!this.policy.value) return undefined;
    const values = valuesOf(this.fields), asked = {type: this.policy.value};
    for (const [name, value] of Object.entries(values))
      if (!BESIDE[name] || BESIDE[name][1](values)) asked[name] = value;
    return asked;
  }
}

export class PrefillForm {
  constructor(parts) {
    Object.assign(this, parts); /* prefill, pattern: selects; fields: a container; reuse: a checkbox */
    this.prefill.addEventListener('change', () => this.showFields());
    this.pattern.addEventListener('change', () => this.showFields());
  }

  setModel(model) {
    this.prefill.replaceChildren(option('', `the server's: ${model.prefill.mode}`),
      ...model.prefill.modes.map((mode) => option(mode, mode)));
    this.showFields();
  }

  showFields(values = {}) {
    const mode = this.prefill.value, isSparse = mode === 'sparse';
    this.pattern.parentElement.hidden = this.fields.hidden = !isSparse;
    this.reuse.parentElement.hidden = mode !== 'sparse' && mode !== 'auto';
    this.fields.replaceChildren(...Object.entries({...PATTERNS[this.pattern.value], ...values})
      .map((each) => fieldOf(...each)));
  }

  /* Shows what asked() has told. */
  choose(asked) {
    const {mode = '', pattern, reuse = true} = typeof asked === 'object' ? asked : {mode: asked};
    const {type = '', ...values} = pattern ?? {};
    this.prefill.value = mode;
    if (this.prefill.selectedIndex < 0) this.prefill.value = '';
    this.pattern.value = type;
    this.reuse.checked = reuse;
    this.showFields(values);
  }

  asked() {
    const mode = this.prefill.value, pattern = mode === 'sparse' ? this.pattern.value : '';
    const reuse = this.reuse.checked || mode === 'dense';
    if (!mode) return undefined;
    if (!pattern && reuse) return mode;
    return {mode, ...pattern && {pattern: {type: pattern, ...valuesOf(this.fields)}}, ...!reuse && {reuse}};
  }
}
