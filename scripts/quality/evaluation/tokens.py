"""How many tokens a text has, by whoever knows: a local tokenizer, the server's /tokenize, or,
where there is neither, the usage of a request that asks for one token."""
import hashlib
import json
import os
import time
import urllib.error
import urllib.request

from .client import CONNECT_TRIES, Failed, Gone, Refused, base_url, error_text, retry_after


class Tokens:
    """Counts of texts with the tokens that a server adds to a prompt (BOS), each asked once.

    encode(text, special) gives ids; special adds what the tokenizer adds to a prompt.  Subclasses
    that cannot say can_encode = False and override count_anew."""

    can_encode = True

    def __init__(self):
        self._counts = {}

    def count(self, text):
        # Prompts are long and many: only their digests are kept.
        key = hashlib.sha256(text.encode()).digest()
        if key not in self._counts:
            self._counts[key] = self.count_anew(text)
        return self._counts[key]

    def count_anew(self, text):
        return len(self.encode(text, special=True))

    def beginning(self):
        """The tokens that begin every prompt."""
        whole, bare = (self.encode("a", special=special) for special in (True, False))
        return whole[:len(whole) - len(bare)] if whole[-len(bare):] == bare else whole[:1]


class LocalTokens(Tokens):
    def __init__(self, path):
        from tokenizers import Tokenizer

        super().__init__()
        path = os.path.join(path, "tokenizer.json") if os.path.isdir(path) else path
        self._tokenizer = Tokenizer.from_file(path)
        self.name = path

    def encode(self, text, special):
        return self._tokenizer.encode(text, add_special_tokens=special).ids


class ServerTokens(Tokens):
    """form: the request of this text, as quire and vLLM or as llama.cpp spell it."""

    def __init__(self, post, form):
        super().__init__()
        self._post, self._form = post, form
        self.name = "the server's /tokenize"

    def encode(self, text, special):
        return self._post("/tokenize", self._form(text, special))["tokens"]


class UsageTokens(Tokens):
    can_encode = False

    def __init__(self, post):
        super().__init__()
        self._post = post
        self.name = "usage.prompt_tokens of requests for one token"

    def count_anew(self, text):
        answer = self._post("/v1/completions", {"prompt": text, "max_tokens": 1, "temperature": 0})
        return answer["usage"]["prompt_tokens"]


class Poster:
    """post(path, body) -> parsed answer, for the threads that make samples.  patience_s: with a
    server that keeps saying 429 or 503."""

    def __init__(self, url, model, api_key, timeout_s=600, patience_s=600):
        self._url, self._model = base_url(url), model
        self._timeout_s, self._patience_s = timeout_s, patience_s
        self._headers = {"Content-Type": "application/json"}
        if api_key:
            self._headers["Authorization"] = f"Bearer {api_key}"

    def __call__(self, path, body):
        data = json.dumps({"model": self._model, **body}).encode()
        request = urllib.request.Request(self._url + path, data, self._headers)
        n_failures, deadline = 0, time.monotonic() + self._patience_s
        while True:
            try:
                with urllib.request.urlopen(request, timeout=self._timeout_s) as answer:
                    return json.load(answer)
            except urllib.error.HTTPError as error:
                wait = retry_after(error)
                if wait is None or time.monotonic() + wait > deadline:
                    text = error_text(error.code, error.read())
                    raise (Refused if error.code < 500 else Failed)(text) from None
            except ValueError as error:
                raise Failed(f"{path}: unreadable answer: {error}") from None
            except OSError as error:
                n_failures += 1
                if n_failures == CONNECT_TRIES:
                    raise Gone(f"{self._url}: {error}") from None
                wait = n_failures
            time.sleep(wait)


FORMS = (lambda text, special: {"prompt": text, "add_special_tokens": special},
         lambda text, special: {"content": text, "add_special": special})


def find(url, model, api_key, path=None):
    """The best that there is; a local path wins because it was asked for."""
    if path:
        return LocalTokens(path)
    post = Poster(url, model, api_key)
    for form in FORMS:
        tokens = ServerTokens(post, form)
        try:
            if len(tokens.encode("two words", special=False)) > 0:
                return tokens
        except (Refused, Failed, KeyError, TypeError):
            continue
    return UsageTokens(post)
