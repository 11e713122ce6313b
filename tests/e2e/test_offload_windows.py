"""Selections on models some of whose layers have a window, against the oracle and with everything
that moves pages: layers with a window keep what it needs and no more, the others are filters,
sparse or dense as everywhere."""
import concurrent.futures
import json
import random

import pytest

import test_offload_oracle
from deep_model import write_deep_model
from offload_oracle import PAGE, Selection, Text, whole_pages
from oracle_model import Model
from precision import ELEMENT_BYTES, EXACT, N_TOP, PRECISE, row_error, values_of
from server import LONG, PATIENCE, SLOW, Server
from test_families import N_VOCAB
from test_offload_oracle import Errors, ask, check_usage, read_choice, read_generated

CONTEXT, ROWS = 2048, 128
N_GENERATED = 60 if SLOW else 250 if LONG else 120
# A checkpoint of tests/model/data, its layers ("w": with a window), filters, and how long others
# wait.  Sparse are 3, 7 and 9; 4, 8 and 9; 2, 6 and 8.
MODELS = {"gemma2": ("gemma2-gqa-bf16-head64", "wfwfwfwfwf", (1, 5), 1),
          "gemma3": ("gemma3-mqa-f16-head128-linear", "wwfwffwwff", (2, 5), 0),
          "qwen2": ("qwen2-gqa-bf16-head64-window", "fwffwwfwf", (0, 3), 1)}
both_places = pytest.mark.parametrize("offload", [False, True], ids=["not_moved", "moved"])


def pages_of(n_tokens):
    return -(-n_tokens // PAGE)


class Deep:
    """One of the models, and servers with it."""

    def __init__(self, directory, name):
        source, self.layers, *self.filters = MODELS[name]
        self.directory = directory
        self.path = write_deep_model(directory / name, source, self.layers, CONTEXT)
        self.oracle = Model(self.path)
        self.window = int(min(self.oracle.windows))
        self.n_windowed, self.n_sparse = self.layers.count("w"), 3
        self.page_bytes = (2 * self.oracle.n_kv_heads * PAGE * self.oracle.head_dim
                           * ELEMENT_BYTES)
        self.file = test_offload_oracle.write_filters(directory / "filters.json", *self.filters)

    def near(self, n_rows):
        """Pages of a window while steps have so many rows."""
        return pages_of(max(self.window - 1, PAGE) + n_rows) + 1

    def text_pages(self, n_tokens):
        """That a text takes at most of which all is kept."""
        return (pages_of(n_tokens) * self.n_wide
                + min(pages_of(n_tokens), self.near(ROWS)) * self.n_windowed)

    def server(self, *settings, **rest):
        return Server(self.directory, *PRECISE, "--max-num-seqs", 8,
                      "--allowed-kv-policies", "full,offload", "--filters-file", self.file,
                      "--max-num-batched-tokens", ROWS, *settings, model=self.path, **rest)

    @property
    def n_wide(self):
        return len(self.layers) - self.n_windowed

    def selection(self, **sizes):
        return Selection(*self.filters, **{"selected": 64, "tail": 64, **sizes})


def pages_for_all(n_pages, model):
    """A KV cache has as many for each layer."""
    return -(-n_pages // len(model.layers)) * len(model.layers)


def tokens_of(n, seed):
    return random.Random(seed).choices(range(3, N_VOCAB), k=n)


@pytest.fixture(scope="module", params=MODELS)
def model(request, tmp_path_factory):
    return Deep(tmp_path_factory.mktemp("deep"), request.param)


@pytest.fixture(scope="module")
def server(model):
    with model.server("--kv-cache-memory", "128M", "--kv-offload-size", "32M",
                      "--no-enable-prefix-caching") as one:
        yield one


def test_layers_are_listed_by_what_they_do(model, server):
    listed = server.get("/v1/models").json()["data"][0]["offload"]["layers"]
    assert listed["filter"] == list(model.filters[0])
    assert listed["windowed"] == [i for i, kind in enumerate(model.layers) if kind == "w"]
    assert len(listed["sparse"]) == model.n_sparse
    assert sorted(sum(listed.values(), [])) == list(range(len(model.layers)))


def test_answers_are_the_oracles(model, server):
    """Of prompts in several steps each; all run beside each other."""
    questions = [(tokens_of(n, n), model.selection(**sizes), offload, N_GENERATED)
                 for n, offload, sizes in ((700, False, {"selected": 128, "sink": 2}),
                                           (310, True, {"tail": 128}), (900, True, {}),
                                           (190, False, {}))]
    texts = test_offload_oracle.check_answers(server, model.oracle, questions)
    assert all(0 < text.n_fetched < text.n_chosen for text in texts)
    assert all(sum(text.groups.values()) == model.n_sparse for text in texts)
    server.wait_idle()


@both_places
def test_sparse_prompts(model, server, offload):
    """Their first token is that of `full`; with a pattern that visits everything all is the
    oracle's."""
    prompt, selection, n = tokens_of(900, 4), model.selection(), 60
    parameters = {"echo": False, "temperature": 0}
    whole = {"mode": "sparse", "pattern": {"type": "a_shape", "sink": 64, "recent": CONTEXT}}
    narrow = {"mode": "sparse", "pattern": {"type": "a_shape", "sink": 16, "recent": 64}}
    choice, usage = ask(server, prompt, selection, offload, n, prefill=whole, **parameters)
    assert usage["prefill"]["mode"] == "sparse"
    text, errors, values = Text(model.oracle, selection), Errors(), values_of(choice)
    errors.seen.append(row_error(values[0], text.prompt(prompt)[-1], choice["token_ids"][0]))
    errors.generate(text, choice["token_ids"], values[1:])
    errors.check()
    check_usage(usage, text, n, offload)

    choice, usage = ask(server, prompt, selection, offload, n, prefill=narrow, **parameters)
    full = server.complete(prompt, max_tokens=n, logprobs=N_TOP, ignore_eos=True, prefill=narrow)
    assert 0 < usage["prefill"]["density"] < 0.9
    read = full["choices"][0]["logprobs"]["token_logprobs"]
    if EXACT:
        assert values_of(choice)[0][0] == read[0] != values[0][0]
        assert choice["logprobs"]["token_logprobs"] != read


def test_a_second_prompt_finds_the_first_ones_blocks(model):
    """Its beginning, too, which windows have long left: there are pages enough."""
    selection, prompt, errors = model.selection(), tokens_of(500, 9), Errors()
    longer = prompt + tokens_of(100, 10)
    with model.server("--kv-cache-memory", "64M") as server:
        choice, usage = ask(server, prompt, selection, False, 40)
        check_usage(usage, read_choice(choice, model.oracle, prompt, selection, errors), 40, False)
        for shorter in (longer, prompt[:250] + tokens_of(100, 11)):
            choice, usage = ask(server, shorter, selection, False, 40, echo=False)
            n_cached = 448 if shorter is longer else 192
            assert usage["prompt_tokens_details"]["cached_tokens"] == n_cached
            text, ids = Text(model.oracle, selection), choice["token_ids"]
            values = values_of(choice)
            errors.seen.append(row_error(values[0], text.prompt(shorter)[-1], ids[0]))
            errors.generate(text, ids, values[1:])
    errors.check()


def ask_all(server, prompts, n, **parameters):
    """All at once."""
    answers = server.at_once(
        lambda prompt: server.complete(prompt, max_tokens=n, ignore_eos=True, logprobs=N_TOP,
                                       return_token_ids=True, **parameters), prompts)
    server.wait_idle(30)
    return answers


@both_places
@pytest.mark.parametrize("caching", [False, True], ids=["", "caching"])
def test_those_that_lose_their_places_change_no_bit(model, offload, caching):
    """What they had generated cannot be worked out again like a prompt.  There is room for one and
    a half of the longest texts."""
    settings = ("--max-model-len", 1024, "--kv-offload-size", "64M",
                "--enable-prefix-caching" if caching else "--no-enable-prefix-caching")
    policy = {"type": "offload", "selected": 64, "tail": 64, "offload": offload}
    prompts, n = [tokens_of(60 if offload else 400, 50 + i) for i in range(5)], 450
    with model.server("--kv-cache-memory", model.text_pages(1024) * model.page_bytes * 3 // 2,
                      *settings) as server:
        answers = ask_all(server, prompts, n, kv_policy=policy)
        metrics = server.metrics()
        assert metrics["quire_preemptions_total"] > 0
        assert metrics["quire_kv_pages_swapped_in_total"] > 0
        assert metrics["quire_kv_store_used_bytes"] == 0
        for i, (prompt, answer) in enumerate(zip(prompts, answers)):
            (alone,) = ask_all(server, [prompt], n, kv_policy=policy, cache_salt=str(i))
            if EXACT:
                assert answer["choices"] == alone["choices"]
                assert (answer["usage"]["kv"]["selected_tokens"]
                        == alone["usage"]["kv"]["selected_tokens"])


@both_places
def test_batch_invariance(model, offload):
    """There no page goes back, and all that a text may need is taken when it starts."""
    policy = {"type": "offload", "selected": 64, "tail": 64, "offload": offload}
    prompts, n = [tokens_of(210 + 90 * i, 70 + i) for i in range(4)], 80
    with model.server("--batch-invariant", "true", "--kv-cache-memory", "128M",
                      "--kv-offload-size", "32M") as server:
        together = ask_all(server, prompts, n, kv_policy=policy)
        for i, (prompt, answer) in enumerate(zip(prompts, together)):
            (alone,) = ask_all(server, [prompt], n, kv_policy=policy, cache_salt=str(i))
            assert answer["choices"] == alone["choices"]
            assert answer["usage"]["kv"]["selected_tokens"] == 128 * (n - 1) > 0


@pytest.fixture(scope="module")
def scarce(model, tmp_path_factory):
    """(a server, its filters) for texts of 16 pages that have room only if their prompt goes layer
    by layer: in the first layer without a window, twice for all others in turn, and then a few
    pages for each of those."""
    filters, n_sparse = (model.layers.index("f"),), model.n_wide - 1
    file = tmp_path_factory.mktemp("one") / "one.json"
    test_offload_oracle.write_filters(file, filters, 0)
    n_pages = 16 + 2 * 16 + n_sparse * (1 + 2) + model.n_windowed * model.near(1) + 1
    n_pages = pages_for_all(n_pages, model)
    assert n_pages < model.text_pages(16 * PAGE)
    with model.server("--max-model-len", 16 * PAGE, "--kv-offload-size", "32M",
                      "--kv-cache-memory", n_pages * model.page_bytes,
                      "--filters-file", file) as server:
        yield server, filters


@pytest.mark.parametrize("prefill", [
    "dense", {"mode": "sparse", "pattern": {"type": "a_shape", "sink": 64, "recent": 4096}}],
    ids=["dense", "sparse"])
def test_prompts_that_go_layer_by_layer(model, scarce, prefill):
    """The pattern is one that visits everything."""
    server, filters = scarce
    lengths = [14 * PAGE, 14 * PAGE + 1, 15 * PAGE - 1]
    questions = [(tokens_of(n, n), Selection(filters, 0, selected=64, tail=64, sink=3),
                  16 * PAGE - n) for n in lengths]
    short = tokens_of(100, 1), Selection(filters, 0, selected=64, tail=64), True, 40
    with concurrent.futures.ThreadPoolExecutor(len(questions) + 1) as pool:
        beside = pool.submit(ask, server, *short)
        answers = list(pool.map(lambda q: ask(server, *q[:2], True, q[2], echo=False,
                                              prefill=prefill), questions))
    errors = Errors()
    read_choice(beside.result()[0], model.oracle, short[0], short[1], errors)
    for (prompt, selection, n), (choice, usage) in zip(questions, answers):
        text = read_generated(choice, model.oracle, prompt, selection, errors)
        check_usage(usage, text, n, True)
        assert text.n_chosen == len(text.groups) * whole_pages(selection.selected) * n
        assert usage["prefill"]["mode"] == ("dense" if prefill == "dense" else "sparse")
    errors.check()
    server.wait_idle()


@both_places
def test_pages_in_use_are_those_of_the_window(model, offload):
    """While a long text is generated, and none of its pages is in use afterwards."""
    policy = {"type": "offload", "selected": 64, "tail": 64, "offload": offload}
    n_sparse = 2 + 2 if offload else pages_of(CONTEXT) + 1
    bound = (pages_of(CONTEXT) * (model.n_wide - model.n_sparse)
             + model.n_windowed * model.near(ROWS) + model.n_sparse * n_sparse + 2)

    with model.server("--kv-cache-memory", "128M", "--kv-offload-size", "32M") as server:
        # Pages that the cache keeps of the prompt's layers with a window are not in use.
        least = pages_of(CONTEXT * 3 // 4) * (model.n_wide - (model.n_sparse if offload else 0))
        most = server.most_pages(least, lambda: server.complete(
            tokens_of(300, 40), max_tokens=CONTEXT - 300, ignore_eos=True, kv_policy=policy))
        assert least < most <= bound
        server.wait_idle()


def test_filters_with_a_window_end_the_start(model, tmp_path):
    windowed = model.layers.index("w")
    layers = sorted([windowed, *model.filters[0]])
    file = test_offload_oracle.write_filters(tmp_path / "bad.json", layers, 0)
    server = model.server("--filters-file", file, wait=False)
    assert server.process.wait(30 * PATIENCE) == 1
    assert f"layer {windowed} cannot be a filter" in server.log, server.log
    assert f"sees {model.window} tokens at most" in server.log


def test_nothing_is_left_where_all_that_follows_has_a_window(model, tmp_path):
    """400 by a sentence, also where the request says more."""
    last = len(model.layers) - 1
    file = test_offload_oracle.write_filters(tmp_path / "last.json", [last], 0)
    with model.server("--filters-file", file) as server:
        for policy in ({"type": "offload"}, {"type": "offload", "offload": False}):
            reply = server.post("/v1/completions", {"prompt": "x", "kv_policy": policy})
            assert reply.status == 400
            assert "no layer to follow them" in json.dumps(reply.error)
