/* composer.js - where a question is written, with the files that go with it. */
import {$, button, make, number} from './dom.js';
import {countTokens, readFile} from './files.js';

let files = []; /* {name, text, tokens}; without text while it is read */

export class Composer {
  /* contextOf(): {used, most} tokens; send({content, files}); say(text) for readers of screens */
  constructor({contextOf, send, say}) {
    Object.assign(this, {contextOf, send, say});
    this.field = $('message');
    this.field.addEventListener('input', () => this.grow());
    this.field.addEventListener('keydown', (event) => this.key(event));
    this.field.addEventListener('paste', (event) => this.take(event.clipboardData.files, event));
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
    if (event.key !== 'Enter' || event.shiftKey || event.isComposing) return;
    if (matchMedia('(pointer: coarse)').matches && !event.ctrlKey && !event.metaKey) return;
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
    this.focus();
  }

  async take(list, event) {
    if (list.length === 0) return;
    event?.preventDefault();
    for (const file of list) await this.takeFile(file);
    this.focus();
  }

  async takeFile(file) {
    const entry = {name: file.name};
    files.push(entry);
    this.show();
    try {
      Object.assign(entry, await readFile(file));
      entry.tokens = await countTokens(entry.text);
      this.say(`${entry.name} has ${number(entry.tokens)} tokens.`);
    } catch (error) {
      files = files.filter((each) => each !== entry);
      this.problem(`${file.name} cannot be used: ${error.message}.`);
    }
    this.show();
  }

  problem(text) {
    $('composer-problem').textContent = text;
    $('composer-problem').hidden = !text;
  }

  chip(file) {
    const {most} = this.contextOf();
    const told = file.tokens === undefined ? 'is read …'
      : `${number(file.tokens)} tokens${most ? ` of ${number(most)}` : ''}`;
    return make('li', {className: most && file.tokens > most ? 'chip bad' : 'chip'},
      make('b', {}, file.name), make('span', {}, told),
      button('×', {className: 'small', 'aria-label': `Leave out ${file.name}`}, () => {
        files = files.filter((each) => each !== file);
        this.show();
        this.focus();
      }));
  }

  /* Shows the files, and how much of the context is used. */
  show() {
    const {used, most} = this.contextOf(), more = files.reduce((sum, file) => sum + (file.tokens ?? 0), 0);
    $('files').replaceChildren(...files.map((file) => this.chip(file)));
    $('files').hidden = files.length === 0;
    const all = used + more, isFull = most > 0 && all > most;
    $('context').textContent = most && all ? `${number(all)} of ${number(most)} tokens${isFull ? ': more than the model reads' : ''}` : '';
    $('context').className = isFull ? 'hint bad' : 'hint';
  }

  submit() {
    const content = this.field.value.trim();
    if ((!content && files.length === 0) || files.some((file) => file.tokens === undefined)) return;
    if (!this.send({content, files})) return;
    files = [];
    this.problem('');
    this.field.value = '';
    this.grow();
    this.show();
  }

  setRunning(isRunning) {
    $('send').hidden = isRunning;
    $('stop').hidden = !isRunning;
  }
}
