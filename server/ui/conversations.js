/* conversations.js - the list of conversations: search, rename, delete, export, import. */
import {isComposing} from './composer.js';
import {$, button, make} from './dom.js';
import * as store from './store.js';
import {markdownOf, readConversation} from './tree.js';

function save(name, type, text) {
  const url = URL.createObjectURL(new Blob([text], {type}));
  const link = make('a', {href: url, download: name.replace(/[^\p{L}\p{N} ._-]/gu, '_').slice(0, 80)});
  link.click();
  setTimeout(() => URL.revokeObjectURL(url), 10000);
}

const jsonOf = (conversations) =>
  `${JSON.stringify({format: 'quire-conversations', version: 1, conversations}, null, 1)}\n`;

const exportJson = (conversation) =>
  save(`${conversation.title || 'conversation'}.json`, 'application/json', jsonOf([conversation]));
const exportMarkdown = (conversation) =>
  save(`${conversation.title || 'conversation'}.md`, 'text/markdown', markdownOf(conversation));

/* Tells which day a conversation is of. */
function dayOf(time) {
  const days = Math.floor((new Date().setHours(0, 0, 0, 0) - new Date(time).setHours(0, 0, 0, 0)) / 86400000);
  if (days <= 0) return 'Today';
  if (days === 1) return 'Yesterday';
  return days < 7 ? 'Last seven days' : 'Earlier';
}

export class Conversations {
  /* current(): the one that is shown; open(id); begin(): a new one; keep(conversation);
   * isRunning(id), stop(id): its answer; say(text) */
  constructor(actions) {
    this.actions = actions;
    this.title = $('conversation-title');
    $('new').addEventListener('click', () => actions.begin());
    $('search').addEventListener('input', () => this.show());
    $('rename').addEventListener('click', () => this.rename());
    $('delete').addEventListener('click', () => this.askToDelete());
    $('delete-yes').addEventListener('click', () => this.remove());
    $('delete-no').addEventListener('click', () => $('delete-ask').close());
    $('export-md').addEventListener('click', () => exportMarkdown(actions.current()));
    $('export-json').addEventListener('click', () => exportJson(actions.current()));
    $('export-all').addEventListener('click', async () =>
      save('quire-conversations.json', 'application/json', jsonOf(await store.all())));
    $('import').addEventListener('click', () => $('import-file').click());
    $('import-file').addEventListener('change', () => this.importFrom($('import-file').files[0]));
    $('actions').addEventListener('click', (event) => {
      if (event.target.closest('button')) $('actions').open = false;
    });
    addEventListener('pointerdown', (event) => {
      if (!$('actions').contains(event.target)) $('actions').open = false;
    });
    $('actions').addEventListener('keydown', (event) => {
      if (event.key !== 'Escape') return;
      $('actions').open = false;
      $('actions').querySelector('summary').focus();
    });
  }

  async show() {
    const text = $('search').value, found = await store.list(text);
    if (text !== $('search').value) return; /* a later search has begun */
    const parts = [];
    let day = null;
    for (const each of found) {
      if (dayOf(each.updated) !== day) parts.push(make('li', {className: 'day'}, day = dayOf(each.updated)));
      parts.push(this.entry(each));
    }
    if (found.length === 0)
      parts.push(make('li', {className: 'hint'}, text ? 'Nothing is found.' : 'None yet. Conversations are kept in this browser only.'));
    $('list').replaceChildren(...parts);
    const {title} = this.actions.current();
    this.title.textContent = title || 'New conversation';
    document.title = title ? `${title} – quire` : 'quire';
    $('actions').hidden = this.actions.current().nodes.length === 0;
  }

  entry({id, title}) {
    const one = button(title || 'Without a title', {className: 'entry', dir: 'auto'}, () => this.actions.open(id));
    if (this.actions.isRunning(id)) one.append(make('span', {className: 'writing', role: 'img', 'aria-label': ': being answered'}));
    if (id === this.actions.current().id) one.setAttribute('aria-current', 'true');
    return make('li', {}, one);
  }

  rename() {
    const conversation = this.actions.current(), title = this.title;
    const field = make('input', {type: 'text', value: conversation.title, maxLength: 200,
      'aria-label': 'Title of the conversation'});
    let isOver = false;
    const end = async (isKept) => {
      if (isOver) return;
      isOver = true;
      if (isKept && field.value.trim()) conversation.title = field.value.trim();
      field.replaceWith(title);
      await this.actions.keep(conversation);
      $('actions').querySelector('summary').focus();
    };
    field.addEventListener('keydown', (event) => {
      if (isComposing(event) || event.key !== 'Enter' && event.key !== 'Escape') return;
      event.preventDefault();
      end(event.key === 'Enter');
    });
    field.addEventListener('blur', () => end(true));
    title.replaceWith(field);
    field.focus();
    field.select();
  }

  askToDelete() {
    $('delete-title').textContent = `Delete “${this.actions.current().title || 'Without a title'}”?`;
    $('delete-ask').showModal();
  }

  async remove() {
    $('delete-ask').close();
    const {id} = this.actions.current();
    await store.remove(id);
    this.actions.stop(id);
    this.actions.say('The conversation is deleted.');
    await this.actions.begin();
  }

  async importFrom(file) {
    $('import-file').value = '';
    if (!file) return;
    try {
      const told = JSON.parse(await file.text());
      const list = (told.conversations ?? []).map(readConversation).filter(Boolean);
      if (list.length === 0) throw new Error('none');
      for (const conversation of list) await this.actions.keep(conversation);
      this.actions.say(`${list.length} ${list.length === 1 ? 'conversation' : 'conversations'} imported.`, true);
      await this.actions.open(list[0].id);
    } catch {
      this.actions.say(`${file.name} has no conversations that this page has exported.`, true);
    }
  }
}
