"""Selections of a real process against the oracle that chooses from the definition: every
log-probability of the prompt and of a thousand generated tokens, with what is not selected in the
pool of pages and outside it.

The tokens are sampled by the server and given to the oracle, so that the text does not run in
circles as greedy text does."""
import concurrent.futures
import json
import random

import numpy
import pytest

import bounded_oracle
from offload_oracle import PAGE, Selection, Text, whole_pages
from oracle_model import Model, log_softmax, softmax
from random_model import write_random_model
from server import DEVICE, SLOW, Server

TOLERANCE = 1e-4  # of the last log-probability among the best
CONTEXT, N_LAYERS, N_TOP = 8192, 8, 5
N_GENERATED = 150 if SLOW else 1000
FILTERS = {"two": ((1, 4), 1), "three": ((0, 3, 5), 0), "late": ((6,), 0)}  # layers, wait
SETTINGS = ("--dtype", "float32", "--kv-cache-dtype", "float32", "--threads", 2,
            "--max-num-seqs", 16, "--kv-offload-size", "64M")

pytestmark = pytest.mark.skipif(DEVICE != "cpu", reason="other devices compute in bf16")


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
              "sink": selection.sink, "offload": offload}
    body = {"prompt": prompt, "kv_policy": policy, "max_tokens": n, "echo": True,
            "logprobs": N_TOP, "return_token_ids": True, "ignore_eos": True, "seed": 1,
            **parameters}
    reply = server.post("/v1/completions", body, timeout=300)
    assert reply.status == 200, reply.body
    answer = reply.json()
    return answer["choices"][0], answer["usage"]


def off_by(values, logits, token):
    """In tolerances.  values: the log-probabilities that the server gave, of the token, then of the
    best, to which the token was added if it is not one of them."""
    wanted = log_softmax(logits)
    best = numpy.sort(numpy.partition(wanted, -N_TOP)[-N_TOP:])[::-1]
    got = numpy.array([values[0], *sorted(values[1:], reverse=True)[:N_TOP]])
    return abs(got - [wanted[token], *best]).max() / (TOLERANCE * abs(best).max())


def check_choice(choice, model, prompt, selection):
    """Returns the oracle's text, without the last token: that was never computed."""
    text = Text(model, selection)
    ids, listed = choice["token_ids"], choice["logprobs"]
    values = [[value, *(top or {}).values()]
              for value, top in zip(listed["token_logprobs"], listed["top_logprobs"])]
    tokens = prompt + ids
    assert len(values) == len(tokens)
    rows = text.prompt(prompt)
    for i in range(1, len(tokens)):
        if i <= len(prompt):
            logits = rows[i - 1]
        else:
            logits = text.token(tokens[i - 1], lambda tried: off_by(values[i], tried, tokens[i]))
        assert off_by(values[i], logits, tokens[i]) < 1, f"token {i} of {len(prompt)} + {len(ids)}"
    return text


def check_usage(usage, text, n_generated, offload):
    kv, model = usage["kv"], text.model
    assert kv["policy"] == "offload" and kv["evicted_tokens"] == 0
    assert kv["selected_tokens"] == text.n_chosen
    if not text.n_chosen:
        assert kv["hit_rate"] is None and kv["bytes_fetched_per_token"] == 0
        return
    # Where a tie was decided, the answer need not show how.
    slack = text.n_ties * 2
    assert abs((1 - kv["hit_rate"]) * text.n_chosen - text.n_fetched) <= slack + 1
    copy_bytes = 2 * model.n_kv_heads * model.head_dim * 4
    assert kv["bytes_fetched_per_token"] * n_generated / copy_bytes == pytest.approx(
        text.n_copies, abs=slack * max(text.groups.values()) + 0.01)
    assert (kv["offloaded_tokens"] > 0) == offload


def check_answers(server, model, questions):
    """questions: (prompt, selection, whether what is not selected is moved, tokens to generate),
    asked all at once.  Returns the texts."""
    with concurrent.futures.ThreadPoolExecutor(len(questions)) as pool:
        answers = list(pool.map(lambda q: ask(server, *q), questions))
    texts = []
    for (prompt, selection, offload, n), (choice, usage) in zip(questions, answers):
        texts.append(check_choice(choice, model, prompt, selection))
        check_usage(usage, texts[-1], n, offload)
    return texts


def check_generated(choice, model, prompt, selection):
    """Of a prompt that went layer by layer: its last token is computed as if it had been generated.
    Returns the oracle's text, as above."""
    text = Text(model, selection)
    text.prompt(prompt[:-1])
    before = [prompt[-1], *choice["token_ids"]]
    listed = choice["logprobs"]
    for i, (value, top) in enumerate(zip(listed["token_logprobs"], listed["top_logprobs"],
                                         strict=True)):
        values, token = [value, *top.values()], choice["token_ids"][i]
        logits = text.token(before[i], lambda tried: off_by(values, tried, token))
        assert off_by(values, logits, token) < 1, f"token {i} behind {len(prompt)}"
    return text


def random_selection(rng, filters):
    return Selection(*filters, selected=rng.choice([10, 64, 65, 128, 190, 300]),
                     tail=rng.choice([1, 64, 65, 128]), sink=rng.randint(0, 8))


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


def test_a_thousand_steps(regime):
    """Prompts, sizes and places are random; all run beside each other."""
    server, model, filters = regime
    rng = random.Random(5)
    questions = [(random_tokens(rng.randint(50, 900), rng.random()),
                  random_selection(rng, filters), offload, N_GENERATED - 10 * i)
                 for i, offload in enumerate([False, True])]
    texts = check_answers(server, model, questions)
    assert all(0 < text.n_fetched < text.n_chosen for text in texts)


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
    check_answers(server, model, [(prompt, selection, False, 40)])
    longer = prompt + random_tokens(100, 10)
    choice, usage = ask(server, longer, selection, False, 40, echo=False)
    assert usage["prompt_tokens_details"]["cached_tokens"] == len(prompt) // PAGE * PAGE
    text = Text(model, selection)
    logits = text.prompt(longer)[-1]
    tops = choice["logprobs"]["top_logprobs"]
    for token, value, top in zip(choice["token_ids"], choice["logprobs"]["token_logprobs"], tops):
        values = [value, *top.values()]
        assert off_by(values, logits, token) < 1
        logits = text.token(token, lambda tried: 0)


@pytest.fixture(scope="module")
def scarce(model, tmp_path_factory):
    """A server whose pages are 8 layers of 13 blocks: a text of 16 has room only if its prompt goes
    layer by layer, 3 dense layers and 2 lists for the other 5."""
    directory, filters = tmp_path_factory.mktemp("scarce"), FILTERS["three"]
    file = write_filters(directory / "filters.json", *filters)
    oracle = Model(model)
    page_bytes = 2 * oracle.n_kv_heads * PAGE * oracle.head_dim * 4
    with Server(directory, "--filters-file", file, "--max-num-batched-tokens", 256,
                "--max-model-len", 16 * PAGE, "--allowed-kv-policies", "full,offload",
                "--kv-cache-memory", 13 * N_LAYERS * page_bytes, *SETTINGS, model=model) as server:
        yield server, oracle, filters


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
    for (prompt, selection, n), (choice, usage) in zip(questions, answers):
        text = check_generated(choice, model, prompt, selection)
        check_usage(usage, text, n, True)
        assert text.n_chosen == len(text.groups) * whole_pages(selection.selected) * n
        assert usage["prefill"]["mode"] == ("dense" if prefill == "dense" else "sparse")
    check_choice(beside.result()[0], model, short[0], short[1])


@pytest.mark.parametrize("offload", [False, True])
def test_selecting_everything_is_the_policy_full(regime, offload):
    server, _, filters = regime
    prompt, n = random_tokens(400, 8), 200
    full = {"prompt": prompt, "max_tokens": n, "echo": True, "logprobs": N_TOP, "temperature": 0,
            "return_token_ids": True, "ignore_eos": True}
    wanted = server.complete(**full)["choices"][0]
    got, usage = ask(server, prompt, Selection(*filters, selected=600, tail=64), offload, n,
                     temperature=0)
    assert got["token_ids"] == wanted["token_ids"]
    assert got["logprobs"] == wanted["logprobs"] and usage["kv"]["selected_tokens"] == 0
