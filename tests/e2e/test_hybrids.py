"""Models with recurrent layers on a real process: what is found of a text again, from which
checkpoint, and that every answer is what a server without a cache gives."""
import concurrent.futures
import json
import random

import pytest

from precision import EXACT, PRECISE
from server import DEVICE, INVARIANT, LONG, ROOT, Server
from test_families import DATA, N_VOCAB, link_checkpoint

CONTEXT, PAGE_TOKENS, N_TAIL = 65536 if LONG else 16384, 64, 150
CPU_ONLY = ("nemotronh",)  # a GPU has no kernel for the square of a ReLU
CHECKPOINTS = ["qwen3_5-gqa-bf16-head16", "granite4h-gqa-bf16-head16-dense",
               *["nemotronh-gqa-bf16-head16"] * (DEVICE == "cpu")]
TEMPLATE = "{% for m in messages %}{{ '<s>' }}{{ m.content }}{{ '</s>' }}{% endfor %}{{ '<s>' }}"
PLAIN = ("--max-num-seqs", 8, "--max-model-len", CONTEXT, "--allowed-kv-policies", "full",
         "--max-num-batched-tokens", 1024)
SETTINGS = (*PLAIN, *INVARIANT)
# By scripts/fixtures/make_hybrid_goldens.py: what transformers answers to prompts of a seed.
GOLDENS = json.loads((ROOT / "tests/e2e/hybrid_goldens.json").read_text())["models"]
SERVED = [name for name in GOLDENS if DEVICE == "cpu" or not name.startswith(CPU_ONLY)]
SPECIAL = ("<unk>", "<s>", "</s>")
# Log-probabilities of which bf16 may choose either; where a near tie of a router gives other
# experts, an H200 was off by 0.53.
NEAR, NEAR_EXPERTS = 0.3, 0.8


def make_model(directory, checkpoint):
    """A tiny checkpoint with a context for long texts."""
    path = link_checkpoint(directory / checkpoint, checkpoint)
    config = json.loads((path / "config.json").read_text())
    (path / "config.json").unlink()
    (path / "config.json").write_text(json.dumps({**config, "max_position_embeddings": 65536}))
    (path / "tokenizer_config.json").write_text(json.dumps({"chat_template": TEMPLATE}))
    return path


@pytest.fixture(scope="module", params=CHECKPOINTS)
def model(request, tmp_path_factory):
    return make_model(tmp_path_factory.mktemp("hybrids"), request.param)


@pytest.fixture(scope="module")
def server(model):
    with Server(model.parent, *SETTINGS, "--kv-cache-memory", "96M", model=model) as running:
        yield running


@pytest.fixture(scope="module")
def fresh(model):
    """A server that finds nothing again."""
    with Server(model.parent, *SETTINGS, "--kv-cache-memory", "96M", "--enable-prefix-caching",
                "false", model=model) as running:
        yield running


def text(n, seed):
    generator = random.Random(seed)
    return [generator.randrange(3, N_VOCAB) for _ in range(n)]


def letters(tokens):
    """The text of tokens, and the names of special ones."""
    return "".join(SPECIAL[token] if token < len(SPECIAL) else chr(0x4E00 + token - len(SPECIAL))
                   for token in tokens)


def ask(server, prompt, **parameters):
    """The answer's tokens with their log-probabilities, and how many tokens were cached."""
    answer = server.complete(prompt, ignore_eos=True, return_token_ids=True, logprobs=1,
                             **{"max_tokens": 8, **parameters})
    values = [(choice["token_ids"], choice["logprobs"]["token_logprobs"])
              for choice in answer["choices"]]
    return values, answer["usage"]["prompt_tokens_details"]["cached_tokens"]


def check(server, fresh, prompt, **parameters):
    """Asks both; returns the answer's first choice, and how much the first one had cached."""
    values, n_cached = ask(server, prompt, **parameters)
    assert values == ask(fresh, prompt, **parameters)[0]
    return values[0][0], n_cached


def check_tokens(answer, wanted, near=NEAR):
    """A choice with log-probabilities must have these tokens; where bf16 rounds, up to the first
    near tie."""
    if answer["token_ids"] == wanted:
        return
    pairs = list(zip(answer["token_ids"], wanted, answer["logprobs"]["top_logprobs"], strict=True))
    other, top = next((b, top) for a, b, top in pairs if a != b)
    assert not EXACT and top.get(letters([other]), -100) > max(top.values()) - near, pairs


def check_golden(server, golden, **parameters):
    answer = server.complete(golden["tokens"], ignore_eos=True, return_token_ids=True, logprobs=5,
                             max_tokens=len(golden["greedy"]), **parameters)["choices"][0]
    check_tokens(answer, golden["greedy"])


def test_answers_are_those_of_the_goldens(model, server):
    """Each by itself, and all of them beside one another."""
    for golden in json.loads((DATA / model.name / "goldens.json").read_text())["prompts"]:
        with concurrent.futures.ThreadPoolExecutor(4) as pool:
            for done in [pool.submit(check_golden, server, golden) for _ in range(4)]:
                done.result()


@pytest.mark.parametrize("n_rows", [1024, 61])
@pytest.mark.parametrize("checkpoint", SERVED)
def test_long_prompts_are_those_of_the_goldens(tmp_path, checkpoint, n_rows):
    """Prompts of up to 5,000 tokens, in steps that end where no page and no chunk does, too."""
    model = make_model(tmp_path, checkpoint)
    with Server(tmp_path, *PLAIN, *PRECISE, "--kv-cache-memory", "96M",
                "--max-num-batched-tokens", n_rows, model=model) as cut:
        for golden in GOLDENS[checkpoint]:
            generator = random.Random(f"{golden['length']} {golden['seed']}")
            prompt = [generator.randrange(3, N_VOCAB) for _ in range(golden["length"])]
            answer = cut.complete(prompt, max_tokens=len(golden["greedy"]), ignore_eos=True,
                                  return_token_ids=True, logprobs=5)["choices"][0]
            has_experts = "num_experts" in json.loads((model / "config.json").read_text())
            check_tokens(answer, golden["greedy"], NEAR_EXPERTS if has_experts else NEAR)
            if EXACT:
                assert answer["logprobs"]["token_logprobs"] == pytest.approx(golden["logprobs"],
                                                                             rel=1e-3, abs=1e-3)


@pytest.mark.parametrize("n_shared", [1, 100, 500, 1500, 2200, 7000] + [50000] * LONG)
def test_the_third_prompt_finds_what_all_share(server, fresh, n_shared):
    """The second one leaves a checkpoint where it leaves the first."""
    shared = text(n_shared, n_shared)
    for i in range(5):
        prompt = shared + text(N_TAIL + 13 * i, f"tail {n_shared} {i}")
        _, n_cached = check(server, fresh, prompt)
        assert n_cached <= n_shared
        if i >= 2:
            assert n_cached >= n_shared - PAGE_TOKENS


def n_shared(prompt, answer):
    """How many tokens the next turn may find: the last one's row is not computed, and a
    batch-invariant server shares no answers."""
    return len(prompt) - 1 + (0 if INVARIANT else len(answer))


class Conversation:
    """Its text, and how many of its tokens the next turn must find."""

    def __init__(self, number, n):
        self.number, self.text, self.n_computed = number, text(n, f"conversation {number}"), 0

    def take_turn(self, server, fresh, turn):
        answer, n_cached = check(server, fresh, self.text, max_tokens=70 + 17 * (self.number % 3))
        assert n_cached >= self.n_computed // PAGE_TOKENS * PAGE_TOKENS
        self.n_computed = n_shared(self.text, answer)
        self.text = self.text + answer + text(30, f"turn {turn} of {self.number}")

    def edit(self, turn):
        """Its beginning stays, so less than before may be found."""
        self.text = self.text[:100] + text(60, f"{turn} of {self.number}") + self.text[160:]
        self.n_computed = 0


def take_turns(conversations, take_turn):
    """All at once: an answer does not depend on what runs beside it."""
    with concurrent.futures.ThreadPoolExecutor(16) as pool:
        for done in [pool.submit(take_turn, conversation) for conversation in conversations]:
            done.result()


def test_turns_go_on_where_the_last_one_ended(server, fresh):
    """Conversations that take turns: a turn computes its own tokens, and those of a block."""
    conversations = [Conversation(i, 200 + 31 * i) for i in range(64 if LONG else 3)]
    for turn in range(20 if LONG else 4):
        take_turns(conversations, lambda one: one.take_turn(server, fresh, turn))


def test_an_edit_in_the_middle_begins_at_the_checkpoint_before_it(server, fresh):
    whole = text(9000, "edited")
    check(server, fresh, whole)
    edited = whole[:8500] + text(300, "an edit")
    assert check(server, fresh, edited)[1] == 8192
    assert check(server, fresh, edited + text(20, "more"))[1] >= 8800 - PAGE_TOKENS


def test_a_long_prompt_leaves_all_its_checkpoints(model):
    """As many as it has multiples of 8,192 tokens, though none is inserted before its end."""
    whole = text(42000, "long")
    with Server(model.parent, *SETTINGS, "--kv-cache-memory", "96M", "--max-model-len", 49152,
                "--max-num-batched-tokens", 4096, model=model) as server:
        assert ask(server, whole, max_tokens=1)[1] == 0
        for n in (42000, 41500, 33000, 20000):
            _, n_cached = ask(server, whole[:n] + text(100, n), max_tokens=1)
            assert n_cached == (n // PAGE_TOKENS * PAGE_TOKENS if n == 42000 else n // 8192 * 8192)


def chat(server, contents):
    """The answer to messages of the user and the assistant in turns, and how much was cached."""
    reply = server.post("/v1/chat/completions", {
        "messages": [{"role": "assistant" if i % 2 else "user", "content": content}
                     for i, content in enumerate(contents)],
        "temperature": 0, "max_tokens": 8, "ignore_eos": True, "logprobs": True}).json()
    tokens = reply["choices"][0]["logprobs"]["content"]
    return ([(token["token"], token["logprob"]) for token in tokens],
            reply["usage"]["prompt_tokens_details"]["cached_tokens"])


def test_a_last_message_may_be_edited(server, fresh):
    """The first sight of a conversation leaves a checkpoint before its last message."""
    before = [letters(text(3000, "first")), letters(text(200, "second"))]
    n_before = 3000 + 200 + 5  # two marks around each, and one in front of the last
    for i, n in enumerate((700, 300, 1200)):
        contents = before + [letters(text(n, f"last {i}"))]
        answer, n_cached = chat(server, contents)
        assert answer == chat(fresh, contents)[0]
        assert n_cached == (n_before // PAGE_TOKENS * PAGE_TOKENS if i else 0)


def test_all_choices_of_a_prompt_are_equal_to_one(server, fresh):
    prompt = text(333, "choices")
    values, _ = ask(server, prompt, n=4, seed=5, temperature=1.0)
    assert values == ask(fresh, prompt, n=4, seed=5, temperature=1.0)[0]
    assert ask(server, prompt)[1] == 320


def test_many_texts_at_once_with_few_slots(model, fresh):
    """There is no slot for every checkpoint, nor pages for all: sequences wait, and are preempted."""
    prompts = [text(300 + 90 * (i % 4), f"crowd {i % 6}") + text(5 * i, i) for i in range(24)]
    with Server(model.parent, *SETTINGS, "--kv-cache-memory", "700K", "--max-model-len", 1024,
                model=model) as small:
        answers, _ = ask(small, prompts, max_tokens=100)
        preempted = small.metrics()["quire_preemptions_total"]
        small.wait_idle()
    assert (preempted == 0) == bool(INVARIANT)
    for prompt, answer in zip(prompts, answers, strict=True):
        assert [answer] == ask(fresh, prompt, max_tokens=100)[0]


def test_evicted_checkpoints_are_found_in_the_hosts_memory(model, fresh):
    """Neither the slots nor the pages of all texts stay on the device."""
    texts = [text(220, f"evicted {i}") for i in range(12)]
    with Server(model.parent, *SETTINGS, "--max-num-seqs", 1, "--max-model-len", 512,
                "--kv-cache-memory", "200K", "--kv-offload-size", "8M", model=model) as small:
        for prompt in texts:
            check(small, fresh, prompt)
        assert small.metrics()["quire_checkpoints_stored"] > 0
        for i, prompt in enumerate(texts):
            _, n_cached = check(small, fresh, prompt + text(20, i))
            assert n_cached == 192


def leave(server, prompt):
    """Asks for a long answer, and goes away."""
    try:
        server.post("/v1/completions", {"prompt": prompt, "max_tokens": 4000, "ignore_eos": True},
                    timeout=0.05)
    except TimeoutError:
        pass


def test_clients_that_leave_give_their_states_back(model):
    with Server(model.parent, *SETTINGS, "--kv-cache-memory", "64M", model=model) as left:
        for i in range(12):
            leave(left, text(2000, f"left {i}"))
        left.wait_idle(20)
        metrics = left.metrics()
        assert metrics["quire_recurrent_states_used"] == metrics["quire_checkpoints"]


@pytest.mark.parametrize("policy", [{"type": "streaming", "sink": 4, "recent": 300},
                                    {"type": "heavy_hitter", "recent": 150, "heavy": 150}])
def test_budgets_are_of_the_layers_that_attend(model, policy):
    """One that the text fits changes nothing."""
    golden = json.loads((DATA / model.name / "goldens.json").read_text())["prompts"][-1]
    with Server(model.parent, "--kv-cache-memory", "16M", "--max-model-len", 512,
                model=model) as all_policies:
        check_golden(all_policies, golden, kv_policy=policy)


def test_conversations_go_on_after_restarts(model, fresh, tmp_path):
    """Each turn by another server, with so few slots that most checkpoints are on the disk alone.
    Clients leave, and some texts are edited in the middle."""
    n_texts, n_turns, memory = (64, 20, "24M") if LONG else (4, 4, "8M")
    conversations = [Conversation(i, 150 + 47 * i) for i in range(n_texts)]
    n_read = 0

    def take_turn(one):
        leave(restarted, one.text + text(500, f"{turn} of {one.number}, left"))
        one.take_turn(restarted, fresh, turn)
        if (turn + one.number) % 5 == 4:
            one.edit(turn)

    for turn in range(n_turns):
        with Server(model.parent, *SETTINGS, "--kv-cache-memory", memory, "--max-model-len", 16384,
                    "--kv-disk-path", tmp_path / "disk", model=model) as restarted:
            take_turns(conversations, take_turn)
            n_read += restarted.metrics()["quire_kv_disk_hits_total"]
    assert n_read > 0


@pytest.mark.parametrize("memory", ["96M", "700K"])
def test_wrong_guesses_are_undone(model, fresh, memory):
    """Texts that repeat themselves, with plenty of slots and with few: some guesses are right, some
    are not, and the answers and the next turn are those without any."""
    texts = [text(40 + 9 * i, f"said again {i}") * 4 + text(i, f"new {i}") for i in range(8)]
    with Server(model.parent, *PLAIN, "--kv-cache-memory", memory, "--max-model-len", 1024,
                "--speculation", "suffix", model=model) as guesses:
        for turn in range(2):
            reply = guesses.complete(texts, max_tokens=150, ignore_eos=True, return_token_ids=True,
                                     logprobs=5)
            for i, choice in enumerate(reply["choices"]):
                check_tokens(choice, ask(fresh, texts[i], max_tokens=150)[0][0][0])
                texts[i] = texts[i] + choice["token_ids"] + text(5, f"turn {turn} {i}")
        ask(guesses, texts[0], max_tokens=150)  # alone: there a GPU guesses more
        guesses.wait_idle()
        metrics = guesses.metrics()
    assert metrics["quire_recurrent_states_used"] == metrics["quire_checkpoints"]
    right = metrics["quire_speculation_accepted_tokens_total"]
    assert 0 < right < metrics["quire_speculation_drafted_tokens_total"]
