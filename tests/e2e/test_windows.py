"""Layers with a window keep its pages only, on a real process: what is computed in a KV cache that
whole texts do not fit is what a large one gives, and what is found of a text is right."""
import json

import pytest

from precision import (BF16, ELEMENT_BYTES, EXACT, N_TOP, PRECISE, check_errors, values_error,
                       values_of)
from server import Server
from test_families import CHECKPOINTS, N_VOCAB, WINDOWS, link_checkpoint

CONTEXT, ROWS, PAGE_TOKENS = 4096, 128, 64
TOLERANCE = 1e-4  # of log-probabilities: steps of different rows add up in different orders


def pages_of(n_tokens):
    return -(-n_tokens // PAGE_TOKENS)


class Model:
    """A checkpoint of the family whose context is longer."""

    def __init__(self, directory, family):
        self.path = link_checkpoint(directory / family, CHECKPOINTS[family])
        config = json.loads((self.path / "config.json").read_text())
        (self.path / "config.json").unlink()
        (self.path / "config.json").write_text(
            json.dumps({**config, "max_position_embeddings": CONTEXT}))
        self.directory = directory
        self.has_experts = "num_experts_per_tok" in config
        # The last layers may share keys: they have no pages of their own.
        self.n_layers = config["num_hidden_layers"] - config.get("num_kv_shared_layers", 0)
        types = (config.get("layer_types") or ["sliding_attention"] * self.n_layers)[:self.n_layers]
        self.n_windowed = types.count("sliding_attention")
        shapes = [(config["num_key_value_heads"], config["head_dim"])]  # and of layers without one
        if "global_head_dim" in config:
            shapes.append((config["num_global_key_value_heads"] or shapes[0][0],
                           config["global_head_dim"]))
        shapes += [(layer.get("num_key_value_heads", shapes[0][0]), layer["head_dim"])
                   for layer in config.get("per_layer_config", {}).values()]
        self.page_bytes = 2 * max(heads * dim for heads, dim in shapes) * PAGE_TOKENS * ELEMENT_BYTES
        self.near = pages_of(max(WINDOWS[family] - 1, PAGE_TOKENS) + ROWS) + 1

    def text_pages(self, n_tokens):
        """That a text takes at most."""
        return (pages_of(n_tokens) * (self.n_layers - self.n_windowed)
                + min(pages_of(n_tokens), self.near) * self.n_windowed)

    def server(self, size_bytes, *settings, **rest):
        server = Server(self.directory, *PRECISE, "--allowed-kv-policies", "full",
                        "--max-num-seqs", 4, "--max-num-batched-tokens", ROWS,
                        "--kv-cache-memory", size_bytes, *settings, model=self.path, **rest)
        server.has_experts = self.has_experts
        return server


@pytest.fixture(scope="module", params=[name for name in WINDOWS if name in CHECKPOINTS])
def model(request, tmp_path_factory):
    return Model(tmp_path_factory.mktemp("windows"), request.param)


@pytest.fixture(scope="module")
def large(model):
    with model.server(16 * model.n_layers * pages_of(CONTEXT) * model.page_bytes) as server:
        yield server


@pytest.fixture(scope="module")
def small(model):
    """One text fits, and only because pages go back.  The prefix cache has a name for a page."""
    n_blocks = -(-model.text_pages(CONTEXT) // model.n_layers)
    n_pages = max(n_blocks * model.n_layers, pages_of(CONTEXT))
    assert n_pages < model.n_layers * pages_of(CONTEXT) * 3 // 4
    with model.server(n_pages * model.page_bytes) as server:
        yield server


def prompt_of(n_tokens, seed):
    return [3 + (seed * 7919 + i * i * 31 + i // 5) % (N_VOCAB - 3) for i in range(n_tokens)]


def ask(server, prompt, n_tokens=32, **parameters):
    return server.complete(prompt, max_tokens=n_tokens, ignore_eos=True, return_token_ids=True,
                           logprobs=N_TOP, **parameters)


def check_same(answer, prompt, server, **parameters):
    """That the server gives the answer, too; where near ties may give other tokens, that it finds
    those of the answer as likely when it reads them.  (--batch-invariant would make them the same,
    but with it no page goes back.)  Returns the server's."""
    (one,) = answer["choices"]
    ids = one["token_ids"]
    if EXACT:
        fresh = ask(server, prompt, len(ids), **parameters)
        (other,) = fresh["choices"]
        assert ids == other["token_ids"]
        assert one["logprobs"]["token_logprobs"] == pytest.approx(
            other["logprobs"]["token_logprobs"], abs=TOLERANCE)
        return fresh
    fresh = ask(server, prompt + ids, 0, echo=True, **parameters)
    read = values_of(fresh["choices"][0])[len(prompt):]
    is_greedy = parameters.get("temperature", 0) == 0
    errors = [values_error(*row, greedy=is_greedy)
              for row in zip(values_of(one), read, strict=True)]
    what = f"{len(prompt)} + {len(ids)} tokens"
    if server.has_experts:  # a near tie of a router may give a token other experts: an H200, 1 of 96
        assert sum(error > BF16[1] for error in errors) <= max(2, len(errors) / 50), what
        check_errors(errors, what, (BF16[0], 1.5))
    else:
        check_errors(errors, what)
    return fresh


def cached_tokens(answer):
    return answer["usage"]["prompt_tokens_details"]["cached_tokens"]


def test_long_texts_are_those_of_a_large_cache(small, large):
    for seed, (n_prompt, n_generated) in enumerate([(4000, 96), (70, 1500), (2500, 300)]):
        prompt = prompt_of(n_prompt, seed)
        check_same(ask(small, prompt, n_generated), prompt, large)
    small.wait_idle()


def test_guesses_change_no_answer(small, large):
    """Rows that are taken back had slots in layers with a window, whose pages go back behind them."""
    n_drafted = 0
    for seed in range(4):
        prompt = prompt_of(40, seed) * 12
        answer = ask(small, prompt, 700, speculation="suffix", temperature=0.4 * seed, seed=seed)
        check_same(answer, prompt, large, temperature=0.4 * seed, seed=seed)
        n_drafted += answer["usage"]["speculation"]["drafted"]
    assert n_drafted > 0
    small.wait_idle()


def ask_all(server, prompts, n_tokens):
    answers = server.at_once(lambda prompt: ask(server, prompt, n_tokens), prompts)
    server.wait_idle()
    return answers


def test_texts_in_company_take_turns(small, large):
    """More than fits at once: some are preempted, or wait."""
    prompts = [prompt_of(600 + 400 * i, 10 + i) for i in range(4)]
    for prompt, answer in zip(prompts, ask_all(small, prompts, 500)):
        check_same(answer, prompt, large)


def ask_at_once(server, prompts, n_tokens):
    """In one request: all begin in the same step, however late a busy machine runs each client."""
    whole = ask(server, prompts, n_tokens)
    server.wait_idle()
    return [{"choices": [{**choice, "index": 0}]} for choice in whole["choices"]]


@pytest.mark.parametrize("caching", [False, True], ids=["", "caching"])
def test_windows_wait_in_the_store(model, caching):
    """Those that lose their places go on where they were: not a bit is another one.  Texts grow
    from a page to their window, where there is room for one and a half."""
    settings = ("--max-model-len", 1024, "--kv-offload-size", "64M",
                "--enable-prefix-caching" if caching else "--no-enable-prefix-caching")
    prompts = [prompt_of(60, 50 + i) for i in range(4)]
    with model.server(model.text_pages(1024) * model.page_bytes * 3 // 2, *settings) as server:
        answers = ask_at_once(server, prompts, 800)
        metrics = server.metrics()
        assert metrics["quire_preemptions_total"] > 0
        assert metrics["quire_kv_pages_swapped_in_total"] > 0
        if not caching:
            assert (metrics["quire_kv_pages_swapped_out_total"]
                    == metrics["quire_kv_pages_swapped_in_total"])
        assert metrics["quire_kv_store_used_bytes"] == 0
        for i, (prompt, answer) in enumerate(zip(prompts, answers)):
            alone = check_same(answer, prompt, server, cache_salt=str(i))
            assert not EXACT or answer["choices"] == alone["choices"]


@pytest.mark.parametrize("size", ["small", "large"])
def test_what_is_found_of_a_text_is_right(size, small, large):
    """A conversation, whose turns end anywhere in a page; another salt finds nothing."""
    server = {"small": small, "large": large}[size]
    text = prompt_of(1500, 20)
    for turn in range(4):
        answer = ask(server, text, 90)
        if turn > 0:
            assert cached_tokens(answer) >= len(text) - 200
        fresh = check_same(answer, text, large, cache_salt=f"{size}{turn}")
        assert cached_tokens(fresh) == 0
        text = text + answer["choices"][0]["token_ids"] + prompt_of(37, turn)


def test_conversations_come_back_from_the_store(model, large):
    """Others have had all pages between two turns."""
    settings = ("--max-model-len", 1024, "--kv-offload-size", "64M")
    with model.server(model.text_pages(1024) * model.page_bytes * 3 // 2, *settings) as server:
        text = prompt_of(500, 60)
        for turn in range(3):
            answer = ask(server, text, 90)
            if turn > 0:
                assert cached_tokens(answer) >= len(text) - 200
                assert server.metrics()["quire_kv_pages_swapped_in_total"] > n_in
            check_same(answer, text, large, cache_salt=f"store{turn}")
            text = text + answer["choices"][0]["token_ids"] + prompt_of(37, turn)
            for seed in range(3):
                ask(server, prompt_of(900, 61 + 3 * turn + seed))
            metrics = server.metrics()
            assert metrics["quire_kv_pages_stored"] > 0
            n_in = metrics["quire_kv_pages_swapped_in_total"]
        server.wait_idle()
        assert server.metrics()["quire_kv_store_used_bytes"] == 0


def test_beginnings_are_shared_while_there_are_pages(large):
    """Of a prompt whose window has long left them."""
    beginning = prompt_of(640, 30)
    ask(large, beginning + prompt_of(2000, 31))
    answer = ask(large, beginning + prompt_of(100, 32))
    assert cached_tokens(answer) == 640
    check_same(answer, beginning + prompt_of(100, 32), large, cache_salt="none")


def test_pages_in_use_are_those_of_the_window(model, large):
    """While a long text is generated, and none of its pages is in use afterwards."""
    least = pages_of(1500) * (model.n_layers - model.n_windowed)
    most = large.most_pages(least, lambda: ask(large, prompt_of(100, 40), 3000))
    assert least < most <= model.text_pages(3100)
    large.wait_idle()


def test_what_does_not_fit_is_refused(model):
    """By a sentence that names what the window leaves of it."""
    server = model.server(model.n_layers * model.page_bytes, wait=False)
    assert server.process.wait(60) != 0
    least = int(server.log.rsplit("at least ", 1)[1].split()[0].rstrip("."))
    assert least == model.text_pages(CONTEXT) * model.page_bytes
