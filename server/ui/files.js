/* files.js - reads a file that is given as context: text, or the text of a PDF. */
import {askJson} from './api.js';
import {has, load, workerOf} from './load.js';

const MOST_BYTES = 32 << 20; /* a body of a request has 64 MiB at most */

let reader = null; /* of PDFs: {library, worker} */

async function pdfReader() {
  if (reader) return reader;
  const library = await load('pdf.js');
  if (!library || !has('pdf.worker.js')) return null;
  library.GlobalWorkerOptions.workerPort = workerOf('pdf.worker.js');
  return reader = library;
}

async function textOfPage(pdf, i) {
  const page = await pdf.getPage(i);
  const {items} = await page.getTextContent();
  const text = items.map((item) => (item.str ?? '') + (item.hasEOL ? '\n' : '')).join('');
  page.cleanup();
  return text;
}

async function textOfPdf(data) {
  const library = await pdfReader();
  if (!library) throw new Error('this server was built without pdf.js, so it reads no PDF files');
  const task = library.getDocument({data, isEvalSupported: false, enableXfa: false, disableFontFace: true,
    useSystemFonts: false, verbosity: 0});
  const pdf = await task.promise.catch(() => {
    throw new Error('it is no PDF that can be read; it may be damaged, or locked with a password');
  });
  const pages = [];
  for (let i = 1; i <= pdf.numPages; i++) pages.push(await textOfPage(pdf, i));
  await task.destroy();
  const text = pages.join('\n\n').trim();
  if (!text) throw new Error('its pages have no text: they may be pictures of text');
  return text;
}

function textOf(data) {
  const text = new TextDecoder('utf-8').decode(data);
  const odd = text.match(/[\0\ufffd]/g)?.length ?? 0;
  if (odd > text.length / 100) throw new Error('it is neither text nor a PDF');
  return text.replaceAll('\0', '');
}

/* Resolves to {name, text}, or throws what is wrong with the file. */
export async function readFile(file) {
  if (file.size > MOST_BYTES) throw new Error('it has more than 32 MiB');
  const data = new Uint8Array(await file.arrayBuffer());
  const isPdf = new TextDecoder('latin1').decode(data.subarray(0, 1024)).includes('%PDF-');
  const text = isPdf ? await textOfPdf(data) : textOf(data);
  if (!text.trim()) throw new Error('it is empty');
  return {name: file.name.slice(0, 200), text};
}

export async function countTokens(text) {
  return (await askJson('tokenize', {prompt: text, add_special_tokens: false})).count;
}
