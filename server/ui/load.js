/* load.js - loads the libraries that the build has found.  Without one its part of the page is plain.
 *
 * The server's policy forbids to turn a string into the address of a script, but for the Trusted Types
 * policy made here.  It takes the names in the list and nothing else. */
import {LIBRARIES} from './libraries.js';

const GLOBALS = {'marked.js': 'marked', 'highlight.js': 'hljs', 'pdf.js': 'pdfjsLib'};

function addressOf(name) {
  if (!LIBRARIES.includes(name)) throw new TypeError(`${name} is no library of this page`);
  return new URL(`ui/lib/${name}`, document.baseURI).href;
}

const policy = window.trustedTypes?.createPolicy('libraries', {createScriptURL: addressOf})
  ?? {createScriptURL: addressOf};

export const has = (name) => LIBRARIES.includes(name);

const loading = new Map(); /* by name: promises */

function begin(name) {
  return new Promise((resolve) => {
    const script = document.createElement('script');
    script.src = policy.createScriptURL(name);
    script.onload = () => resolve(window[GLOBALS[name]] ?? null);
    script.onerror = () => {
      loading.delete(name); /* a server that was down may be there the next time */
      resolve(null);
    };
    document.head.append(script);
  });
}

/* Resolves to the library, or to null where there is none. */
export function load(name) {
  if (!has(name)) return Promise.resolve(null);
  if (!loading.has(name)) loading.set(name, begin(name));
  return loading.get(name);
}

export const workerOf = (name) => new Worker(policy.createScriptURL(name));
