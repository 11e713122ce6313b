"""Selections of a real process against the oracle that chooses from the definition: every
log-probability of the prompt and of hundreds of generated tokens, with what is not selected in the
pool of pages and outside it.

The tokens are sampled by the server and given to the oracle, so that the text does not run in
circles as greedy text does."""
import concurrent.futures
import contextlib
import json
import random

import numpy
import pytest

import bounded_oracle
from offload_oracle import PAGE, Selection, Text, whole_pages
from oracle_model import Model, softmax
from precision import (BF16_DEEP, ELEMENT_BYTES, EXACT, N_TOP, PRECISE, SELECTED,
                       check_chosen, check_errors, row_error, values_of)
from random_model import write_random_model
from server import LONG, SLOW, Server

CONTEXT, N_LAYERS = 8192, 8
N_GENERATED = 150 if SLOW else 1000 if LONG else 250
FILTERS = {"two": ((1, 4), 1), "three": ((0, 3, 5), 0), "late": ((6,), 0)}  # layers, wait
FEW = 20  # log-probabilities, of which the median says little
SETTINGS = (*PRECISE, "--max-num-seqs", 16, "--kv-offload-size", "64M")


def write_filters(path, filters, wait):
    path.write_text(json.dumps({"format": "quire-filters-1", "filters": list(filters),
                                "wait": wait}))
    return path


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return write_random_model(tmp_path_factory.mktemp("random"), CONTEXT,
                              num_hidden_layers=N_LAYERS)


@pytest.fixture(scope="module", params=sorted(FILTERS))
def regime(request, model, tmp_path_factory):
    """(a server, the same model for the oracle, its filters and how long layers wait)."""
    directory = tmp_path_factory.mktemp(request.param)
    filters = FILTERS[request.param]
    file = write_filters(directory / "filters.json", *filters)
    with Server(directory, "--filters-file", file, "--max-num-batched-tokens", 96, *SETTINGS,
                model=model) as server:
        yield server, Model(model), filters


def random_tokens(n, seed):
    return random.Random(seed).choices(range(3, 8000), k=n)


def ask(server, prompt, selection, offload, n, **parameters):
    """The choice and the usage of one completion that reports every log-probability."""
    policy = {"type": "offload", "selected": selection.selected, "tail": selection.tail,
              "sink": selection.sink, "selector": selection.selector, "offload": offload}
    body = {"prompt": prompt, "kv_policy": policy, "max_tokens": n, "echo": True,
            "logprobs": N_TOP, "return_token_ids": True, "ignore_eos": True, "seed": 1,
            **parameters}
    reply = server.post("/v1/completions", body, timeout=300)
    assert reply.status == 200, reply.body
    answer = reply.json()
    return answer["choices"][0], answer["usage"]


class Errors:
    """Of log-probabilities: where everything was seen, and where some of it was chosen."""

    def __init__(self):
        self.seen, self.chosen = [], []

    def read(self, text, prompt, values, following):
        """values: of all its tokens but the first, and of one that follows."""
        for logits, each, token in zip(text.prompt(prompt), values, [*prompt[1:], following],
                                       strict=True):
            self.seen.append(row_error(each, logits, token))

    def generate(self, text, tokens, values):
        """tokens: one more than there are values, which are of those behind the first.  Where
        rounding decides what is chosen, that is chosen which comes nearest to the values."""
        for before, each, token in zip(tokens[:-1], values, tokens[1:], strict=True):
            n_chosen = text.n_chosen
            logits = text.token(before, lambda tried: row_error(each, tried, token))
            errors = self.seen if text.n_chosen == n_chosen else self.chosen
            errors.append(row_error(each, logits, token))

    def check(self, bf16=BF16_DEEP):
        noise = check_errors(self.seen, "all seen", bf16)
        if len(self.seen) < FEW:  # the median of the model by which the bound was set
            noise = max(noise, bf16[0] / 2)
        check_chosen(self.chosen, "some chosen", noise, SELECTED)


def read_choice(choice, model, prompt, selection, errors):
    """Returns the oracle's text, without the last token: that was never computed."""
    text, ids, values = Text(model, selection), choice["token_ids"], values_of(choice)
    assert len(values) == len(prompt) + len(ids)
    errors.read(text, prompt, values[1:len(prompt) + 1], ids[0])
    errors.generate(text, ids, values[len(prompt) + 1:])
    return text


def check_usage(usage, text, n_generated, offload):
    kv, model = usage["kv"], text.model
    assert kv["policy"] == "offload" and kv["evicted_tokens"] == 0
    assert kv["selected_tokens"] == text.n_chosen
    if not text.n_chosen:
        assert kv["hit_rate"] is None and kv["bytes_fetched_per_token"] == 0
        return
    # Where a tie was decided, the answer need not show how.
    slack = text.n_ties * 2 if EXACT else text.n_fetched / 8 + 1
    assert abs((1 - kv["hit_rate"]) * text.n_chosen - text.n_fetched) <= slack + 1
    layer = min(text.groups)
    copy_bytes = 2 * model.kv_heads[layer] * model.head_dims[layer] * ELEMENT_BYTES
    assert kv["bytes_fetched_per_token"] * n_generated / copy_bytes == pytest.approx(
        text.n_copies, abs=slack * max(text.groups.values()) + 0.01)
    assert (kv["offloaded_tokens"] > 0) == offload


def check_answers(server, model, questions, bf16=BF16_DEEP):
    """questions: (prompt, selection, whether what is not selected is moved, tokens to generate),
    asked all at once.  Returns the texts."""
    with concurrent.futures.ThreadPoolExecutor(len(questions)) as pool:
        answers = list(pool.map(lambda q: ask(server, *q), questions))
    texts, errors = [], Errors()
    for (prompt, selection, offload, n), (choice, usage) in zip(questions, answers):
        texts.append(read_choice(choice, model, prompt, selection, errors))
        check_usage(usage, texts[-1], n, offload)
    errors.check(bf16)
    return texts


def read_generated(choice, model, prompt, selection, errors):
    """Of a prompt that went layer by layer: its last token is computed as if it had been generated.
    Returns the oracle's text, as above."""
    text = Text(model, selection)
    text.prompt(prompt[:-1])
    errors.generate(text, [prompt[-1], *choice["token_ids"]], values_of(choice))
    return text


def random_selection(rng, filters, selector="last"):
    return Selection(*filters, selected=rng.choice([10, 64, 65, 128, 190, 300]),
                     tail=rng.choice([1, 64, 65, 128]), sink=rng.randint(0, 8), selector=selector)


def test_the_oracle_is_dense_where_all_is_selected(model):
    model = Model(model)
    tokens = random_tokens(500, 1)
    text = Text(model, Selection((1, 4), 1, selected=600, tail=64))
    wanted = bounded_oracle.Text(model)
    got = [*text.prompt(tokens[:300]),
           *(text.token(token, None) for token in tokens[300:])]
    wanted = [*wanted.prompt(tokens[:300]), *(wanted.token(token) for token in tokens[300:])]
    assert abs(numpy.array(got) - wanted).max() < 1e-10 * abs(numpy.array(wanted)).max()
    assert text.n_chosen == 0


def test_the_oracle_chooses_what_is_counted_by_hand(model):
    """Of the first filter: nothing that is hidden reaches its queries and keys."""
    model, selection = Model(model), Selection((0, 3), 0, selected=64, tail=64, sink=2)
    tokens, text = random_tokens(400, 2), Text(model, selection)
    text.prompt(tokens[:399])
    text.token(tokens[399], None)
    q, k, _ = model.qkv(0, model.table[numpy.asarray(tokens)])
    at = numpy.arange(400)
    q, k = (model.rotate(0, part.transpose(1, 0, 2), at) for part in (q, k))
    p = [softmaxed[-1] for softmaxed in
         (softmax(q[h] @ k[h // model.group].T / model.head_dim ** 0.5)
          for h in range(model.n_heads))]
    worth = {token: max(head[token] for head in p) for token in range(2, 320)}  # 400 - 64 in pages
    best = sorted(worth, key=worth.get)[-62:]
    assert text.held[0] == {0, 1, *best}
    assert text.n_chosen == text.n_fetched == 128 and set(text.held) == {0, 3}


def test_hundreds_of_steps(regime):
    """Prompts, sizes and places are random; all run beside each other."""
    server, model, filters = regime
    rng = random.Random(5)
    questions = [(random_tokens(rng.randint(50, 900), rng.random()),
                  random_selection(rng, filters), offload, N_GENERATED - 10 * i)
                 for i, offload in enumerate([False, True])]
    texts = check_answers(server, model, questions)
    assert all(0 < text.n_fetched < text.n_chosen for text in texts)


@pytest.mark.parametrize("selector", ["uniform", "exponential", "accumulated"])
def test_windows_of_queries(regime, selector):
    """Also where the prompt's last chunk is one row, and where most of the window is generated."""
    server, model, filters = regime
    rng = random.Random(selector)
    questions = [(random_tokens(n, rng.random()), random_selection(rng, filters, selector),
                  rng.random() < 0.5, 40 + rng.randint(0, 60))
                 for n in (1, 96 * 5 + 1, 96 * 5 + 9, rng.randint(300, 700))]
    check_answers(server, model, questions)


@pytest.mark.parametrize("selector,n_found", [("uniform", 6 * PAGE), ("accumulated", 0)])
def test_a_window_of_a_prompt_in_the_prefix_cache(regime, selector, n_found):
    """The prompt's last rows are computed again if they are among the queries that count."""
    server, model, filters = regime
    selection = Selection(*filters, selected=64, tail=64, selector=selector)
    prompt = random_tokens(7 * PAGE + 2, selector)
    for n_cached in (0, n_found):
        choice, usage = ask(server, prompt, selection, False, 40, echo=False)
        assert usage["prompt_tokens_details"]["cached_tokens"] == n_cached
        text, ids, values, errors = (Text(model, selection), choice["token_ids"],
                                     values_of(choice), Errors())
        errors.seen.append(row_error(values[0], text.prompt(prompt)[-1], ids[0]))
        errors.generate(text, ids, values[1:])
        errors.check()


@pytest.mark.parametrize("offload", [False, True])
def test_prompts_around_the_borders_of_pages_and_selections(regime, offload):
    server, model, filters = regime
    rng = random.Random(7)
    selection = Selection(*filters, selected=64, tail=64)
    border = whole_pages(selection.selected) + whole_pages(selection.tail) + PAGE
    lengths = [1, PAGE, PAGE + 1, *range(border - 2, border + 2), border + PAGE - 1]
    questions = [(random_tokens(n, n), selection, offload, max(border + 2 - n, rng.randint(20, 90)))
                 for n in lengths]
    check_answers(server, model, questions)


def test_a_second_prompt_finds_the_first_ones_blocks(regime):
    server, model, filters = regime
    selection, prompt = Selection(*filters, selected=64, tail=64), random_tokens(500, 9)
    longer, errors = prompt + random_tokens(100, 10), Errors()
    choice, usage = ask(server, prompt, selection, False, 40)
    check_usage(usage, read_choice(choice, model, prompt, selection, errors), 40, False)
    choice, usage = ask(server, longer, selection, False, 40, echo=False)
    assert usage["prompt_tokens_details"]["cached_tokens"] == len(prompt) // PAGE * PAGE
    text, ids, values = Text(model, selection), choice["token_ids"], values_of(choice)
    errors.seen.append(row_error(values[0], text.prompt(longer)[-1], ids[0]))
    errors.generate(text, ids, values[1:])
    errors.check()


@contextlib.contextmanager
def scarce_server(model, directory, n_blocks):
    """A server whose pages are 8 layers of so many blocks: a text of 3 more has room only if its
    prompt goes layer by layer, 3 dense layers and 2 lists for the other 5."""
    filters = FILTERS["three"]
    file = write_filters(directory / "filters.json", *filters)
    oracle = Model(model)
    page_bytes = 2 * oracle.n_kv_heads * PAGE * oracle.head_dim * ELEMENT_BYTES
    with Server(directory, "--filters-file", file, "--max-num-batched-tokens", 256,
                "--max-model-len", (n_blocks + 3) * PAGE, "--allowed-kv-policies", "full,offload",
                "--kv-cache-memory", n_blocks * N_LAYERS * page_bytes, *SETTINGS,
                model=model) as server:
        yield server, oracle, filters


def test_scores_of_all_queries_need_a_dense_prompt(regime):
    server, _, _ = regime
    body = {"prompt": random_tokens(600, 1), "max_tokens": 4,
            "kv_policy": {"type": "offload", "selected": 64, "tail": 64, "selector": "accumulated"},
            "prefill": {"mode": "sparse", "pattern": {"type": "a_shape", "sink": 64, "recent": 128}}}
    reply = server.post("/v1/completions", body)
    assert reply.status == 400 and reply.json()["error"]["param"] == "prefill"
    assert "another kv_policy.selector" in reply.json()["error"]["message"]


@pytest.fixture(scope="module")
def scarce(model, tmp_path_factory):
    with scarce_server(model, tmp_path_factory.mktemp("scarce"), 13) as regime:
        yield regime


@pytest.mark.parametrize("selector", ["exponential", "accumulated"])
def test_a_window_behind_a_prompt_that_goes_layer_by_layer(model, tmp_path, selector):
    """Its last queries come in slices, but for the last one, which is the first to select.  Of 128
    pages the text would have 128 in any other way, and has the scores of its queries besides: 12
    pages, and twice as many of those of a device, which are half as large."""
    with scarce_server(model, tmp_path, 16) as (server, oracle, filters):
        for n in (15 * PAGE + 1, 16 * PAGE - 3):
            selection = Selection(*filters, selected=64, tail=64, sink=3, selector=selector)
            prompt, errors = random_tokens(n, n), Errors()
            choice, usage = ask(server, prompt, selection, True, 60, echo=False, prefill="dense")
            text = read_generated(choice, oracle, prompt, selection, errors)
            check_usage(usage, text, 60, True)
            assert text.n_chosen == len(text.groups) * 64 * 60
            errors.check()


@pytest.mark.parametrize("prefill", [
    "dense", {"mode": "sparse", "pattern": {"type": "a_shape", "sink": 64, "recent": 4096}}])
def test_prompts_that_go_layer_by_layer(scarce, prefill):
    """The pattern is one that visits everything."""
    server, model, filters = scarce
    rng = random.Random(13)
    lengths = [13 * PAGE, 14 * PAGE + 1, 15 * PAGE - 1, 940]
    questions = [(random_tokens(n, n), Selection(*filters, selected=rng.choice([10, 64, 128]),
                                                 tail=64, sink=3), 16 * PAGE - n) for n in lengths]
    short = random_tokens(100, 1), Selection(*filters, selected=64, tail=64), True, 40
    with concurrent.futures.ThreadPoolExecutor(len(questions) + 1) as pool:
        beside = pool.submit(ask, server, *short)
        answers = list(pool.map(lambda q: ask(server, *q[:2], True, q[2], echo=False,
                                              prefill=prefill), questions))
    errors = Errors()
    read_choice(beside.result()[0], model, short[0], short[1], errors)
    for (prompt, selection, n), (choice, usage) in zip(questions, answers):
        text = read_generated(choice, model, prompt, selection, errors)
        check_usage(usage, text, n, True)
        assert text.n_chosen == len(text.groups) * whole_pages(selection.selected) * n
        assert usage["prefill"]["mode"] == ("dense" if prefill == "dense" else "sparse")
    errors.check()
