/* files.js - reads a file that is given as context: text, or the text of a PDF. */
import {askJson} from './api.js';
import {has, load, workerOf} from './load.js';

const MOST_BYTES = 32 << 20; /* a body of a request has 64 MiB at most */
const MOST_PAGES = 20000;

/* What is wrong with a file, for people. */
export class FileError extends Error {}

const NO_PDF = 'it is no PDF that can be read; it may be damaged, or locked with a password';
const TOO_LARGE = 'it has more than 32 MiB of text';

let reader = null; /* of PDFs: {library, worker} */

async function pdfReader() {
  if (reader) return reader;
  const library = await load('pdf.js');
  if (!library || !has('pdf.worker.js')) throw new FileError('this server was built without pdf.js, so it reads no PDF files');
  const worker = workerOf('pdf.worker.js');
  library.GlobalWorkerOptions.workerPort = worker;
  return reader = {library, worker};
}

/* A worker may be in a loop that a hostile file has made, so it is not asked to end. */
function stopReader() {
  reader?.worker.terminate();
  reader = null;
}

async function textOfPage(pdf, i) {
  const page = await pdf.getPage(i);
  const {items} = await page.getTextContent();
  const text = items.map((item) => (item.str ?? '') + (item.hasEOL ? '\n' : '')).join('');
  page.cleanup();
  return text;
}

async function textOfPages(library, data) {
  const pdf = await library.getDocument({data, isEvalSupported: false, enableXfa: false, disableFontFace: true,
    useSystemFonts: false, verbosity: 0}).promise;
  if (pdf.numPages > MOST_PAGES) throw new FileError(`it says that it has ${pdf.numPages} pages`);
  const pages = [];
  let size = 0;
  for (let i = 1; i <= pdf.numPages; i++) {
    pages.push(await textOfPage(pdf, i));
    if ((size += pages.at(-1).length) > MOST_BYTES) throw new FileError(TOO_LARGE);
  }
  await pdf.destroy();
  return pages.join('\n\n').trim();
}

let last = Promise.resolve();
/* One PDF after the other, because they share a worker. */
function inTurn(act) {
  const done = last.then(act);
  last = done.catch(() => {});
  return done;
}

async function textOfPdf(data, signal) {
  const {library} = await pdfReader();
  const stopped = new Promise((_, reject) => signal.addEventListener('abort', () => reject(new FileError('it was left out'))));
  let text;
  try {
    text = await Promise.race([textOfPages(library, data), stopped]);
  } catch (error) {
    stopReader();
    throw error instanceof FileError ? error : new FileError(NO_PDF);
  }
  if (!text) throw new FileError('its pages have no text: they may be pictures of text');
  return text;
}

function textOf(file, data) {
  if (file.type.startsWith('image/')) throw new FileError('it is a picture, and only text and PDF files are read here');
  const text = new TextDecoder('utf-8').decode(data);
  const odd = text.match(/[\0\ufffd]/g)?.length ?? 0;
  if (odd > text.length / 100) throw new FileError('it is neither text nor a PDF');
  return text.replaceAll('\0', '');
}

/* Resolves to {name, text}, or throws what is wrong with the file. */
export async function readFile(file, signal) {
  if (file.size > MOST_BYTES) throw new FileError('it has more than 32 MiB');
  const data = new Uint8Array(await file.arrayBuffer().catch(() => {
    throw new FileError('it cannot be opened; a folder is no file');
  }));
  const isPdf = new TextDecoder('latin1').decode(data.subarray(0, 1024)).includes('%PDF-');
  const text = isPdf ? await inTurn(() => textOfPdf(data, signal)) : textOf(file, data);
  if (!text.trim()) throw new FileError('it is empty');
  return {name: file.name.slice(0, 200), text};
}

export async function countTokens(text, signal) {
  return (await askJson('tokenize', {prompt: text, add_special_tokens: false}, signal)).count;
}
