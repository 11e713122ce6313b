/* composer.js - where a question is written, with the files that go with it. */
import {$, button, isTouch, make, number} from './dom.js';
import {FileError, countTokens, readFile} from './files.js';
import {wordsOf} from './stream.js';

let files = []; /* {name, text, tokens, controller}; without tokens while it is read */

/* What is written and not sent yet stays with the tab. */
const DRAFT = 'quire.draft';

function keepDraft(text) {
  try {
    sessionStorage.setItem(DRAFT, text);
  } catch {
    /* It lasts as long as the page. */
  }
}

function draft() {
  try {
    return sessionStorage.getItem(DRAFT) ?? '';
  } catch {
    return '';
  }
}

/* An input method has Enter end a word.  Safari tells that by the code only. */
export const isComposing = (event) => event.isComposing || event.keyCode === 229;

export class Composer {
  /* contextOf(): {used, most} tokens; send({content, files}); say(text) for readers of screens */
  constructor({contextOf, send, say}) {
    Object.assign(this, {contextOf, send, say});
    this.field = $('message');
    this.field.placeholder = isTouch() ? 'Write a message' : 'Write a message, or drop a file';
    this.field.addEventListener('input', () => {
      this.grow();
      keepDraft(this.field.value);
    });
    this.field.addEventListener('keydown', (event) => this.key(event));
    this.field.addEventListener('paste', (event) => {
      /* A text from an office program comes with its picture. */
      if (!event.clipboardData.types.includes('text/plain')) this.take(event.clipboardData.files, event);
    });
    $('composer').addEventListener('submit', (event) => event.preventDefault());
    $('send').addEventListener('click', () => this.submit());
    $('attach').addEventListener('click', () => $('file').click());
    $('file').addEventListener('change', () => {
      this.take($('file').files);
      $('file').value = '';
    });
    this.listenToDrops();
  }

  listenToDrops() {
    const hasFiles = (event) => [...event.dataTransfer?.types ?? []].includes('Files');
    addEventListener('dragover', (event) => {
      if (!hasFiles(event)) return;
      event.preventDefault();
      document.body.classList.add('dropping');
    });
    addEventListener('dragleave', (event) => {
      if (!event.relatedTarget) document.body.classList.remove('dropping');
    });
    addEventListener('drop', (event) => {
      document.body.classList.remove('dropping');
      if (hasFiles(event)) this.take(event.dataTransfer.files, event);
    });
  }

  /* Enter sends, but on a touch screen, where there is no other key for a new line. */
  key(event) {
    if (event.key !== 'Enter' || event.shiftKey || isComposing(event)) return;
    if (isTouch() && !event.ctrlKey && !event.metaKey) return;
    event.preventDefault();
    this.submit();
  }

  grow() {
    this.field.style.height = 'auto';
    this.field.style.height = `${Math.min(this.field.scrollHeight + 2, innerHeight * 0.4)}px`;
  }

  focus() {
    this.field.focus();
  }

  write(text) {
    this.field.value = text;
    this.grow();
    keepDraft(text);
    this.focus();
  }

  restore() {
    this.field.value = draft();
    this.grow();
  }

  /* Takes a copy of the list, which the browser may empty. */
  async take(list, event) {
    const chosen = [...list];
    if (chosen.length === 0) return;
    event?.preventDefault();
    this.problem('');
    if (!isTouch()) this.focus();
    await Promise.all(chosen.map((file) => this.takeFile(file)));
  }

  async takeFile(file) {
    const entry = {name: file.name, controller: new AbortController()}, {signal} = entry.controller;
    files.push(entry);
    this.show();
    try {
      Object.assign(entry, await readFile(file, signal));
      entry.tokens = await countTokens(entry.text, signal);
      this.say(`${entry.name} has ${number(entry.tokens)} tokens.`);
    } catch (error) {
      files = files.filter((each) => each !== entry);
      if (!signal.aborted) this.problem(`${file.name} cannot be used: ${error instanceof FileError ? `${error.message}.` : wordsOf(error)}`);
    }
    this.show();
  }

  problem(text) {
    const before = $('composer-problem').textContent;
    $('composer-problem').textContent = text && before ? `${before} ${text}` : text;
    $('composer-problem').hidden = !text;
  }

  chip(file) {
    const {most} = this.contextOf();
    const told = file.tokens === undefined ? 'being read …'
      : `${number(file.tokens)} tokens${most ? ` of ${number(most)}` : ''}`;
    return make('li', {className: most && file.tokens > most ? 'chip bad' : 'chip'},
      make('b', {}, file.name), make('span', {}, told),
      button('×', {className: 'small', 'aria-label': `Leave out ${file.name}`}, () => {
        file.controller.abort();
        files = files.filter((each) => each !== file);
        this.problem('');
        this.show();
        this.focus();
      }));
  }

  /* The tokens that are known of: of the conversation, and of its new files. */
  count() {
    const {used, most} = this.contextOf(), all = files.reduce((sum, file) => sum + (file.tokens ?? 0), used);
    return {all, most, isFull: most > 0 && all > most};
  }

  /* Shows the files, and how much of the context is used. */
  show() {
    const {all, most, isFull} = this.count();
    $('files').replaceChildren(...files.map((file) => this.chip(file)));
    $('files').hidden = files.length === 0;
    $('context').textContent = most && all ? `${number(all)} of ${number(most)} tokens` : '';
    $('context').className = isFull ? 'hint bad' : 'hint';
  }

  /* Why the question cannot be sent now; empty: it can. */
  obstacle() {
    const {all, most, isFull} = this.count();
    if (files.some((file) => file.tokens === undefined)) return 'A file is still being read: send the question when its tokens are told.';
    if (!isFull) return '';
    return `The model reads ${number(most)} tokens, and this would be ${number(all)}. `
      + `${files.length > 0 ? 'Leave a file out, or begin' : 'Begin'} a new conversation.`;
  }

  submit() {
    const content = this.field.value.trim();
    if (!content && files.length === 0) return;
    this.problem('');
    this.problem(this.obstacle());
    if (this.obstacle() || !this.send({content, files: files.map(({name, text, tokens}) => ({name, text, tokens}))})) return;
    files = [];
    this.field.value = '';
    keepDraft('');
    this.grow();
    this.show();
  }

  setRunning(isRunning) {
    $('send').hidden = isRunning;
    $('stop').hidden = !isRunning;
  }
}
