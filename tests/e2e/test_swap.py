"""--kv-offload-size without the policy that it is named for: sequences that lose their places keep
what they have computed, and their answers do not change."""

import pytest

from composition import prompt_of, text_of
from server import DEVICE

POOL = ("--kv-cache-memory", {"cpu": "24M", "cuda": "12M"}[DEVICE], "--max-model-len", 1024,
        "--no-enable-prefix-caching")
PROMPTS = [prompt_of(300, seed=seed) for seed in range(8)]


def ask(server, prompt, **parameters):
    return server.complete(prompt, **{"max_tokens": 150, **parameters}, ignore_eos=True,
                           temperature=0, logprobs=0)


def ask_all(server, prompts=PROMPTS, **parameters):
    """All at once, for which there are too few pages."""
    answers = server.at_once(lambda prompt: ask(server, prompt, **parameters), prompts)
    server.wait_idle()
    return answers


def said(answer):
    return text_of(answer), answer["choices"][0]["logprobs"]


@pytest.mark.parametrize("settings", [("--allowed-kv-policies", "full"),
                                      ("--kv-offload-dtype", "fp8")], ids=["no_filters", "fp8"])
def test_answers_of_those_that_lose_their_places(serve, small_model, settings):
    """With filter layers the store's blocks are cut for something else, in 8 bits even: what is
    swapped is not."""
    server = serve(*POOL, *settings, "--kv-offload-size", "256M", model=small_model)
    answers = ask_all(server)
    metrics = server.metrics()
    assert metrics["quire_preemptions_total"] > 0
    assert metrics["quire_kv_pages_swapped_in_total"] > 0
    assert metrics["quire_kv_pages_swapped_out_total"] == metrics["quire_kv_pages_swapped_in_total"]
    assert metrics["quire_kv_store_used_bytes"] == 0
    if DEVICE == "cpu":
        assert [said(ask(server, prompt)) for prompt in PROMPTS[:4]] == [
            said(answer) for answer in answers[:4]]


@pytest.mark.parametrize("moves", [False, True], ids=["not_moved", "moved"])
@pytest.mark.parametrize("dtype", ["auto", "fp8"])
def test_selections_of_those_that_lose_their_places(serve, small_model, moves, dtype):
    """What they had generated cannot be worked out again like a prompt.  Tokens that were moved
    have 8 bits, pages that wait have not."""
    server = serve(*POOL, "--kv-offload-size", "256M", "--kv-offload-dtype", dtype,
                   model=small_model)
    policy = {"type": "offload", "selected": 64, "tail": 64, "offload": moves}
    # Those that move tokens have most pages when they start, unless they grow long.
    prompts = [prompt[:100] if moves else prompt for prompt in PROMPTS]
    parameters = {"kv_policy": policy, "max_tokens": 450 if moves else 150}
    answers = ask_all(server, prompts, **parameters)
    metrics = server.metrics()
    assert metrics["quire_preemptions_total"] > 0
    assert metrics["quire_kv_pages_swapped_in_total"] > 0
    assert metrics["quire_kv_pages_swapped_out_total"] == metrics["quire_kv_pages_swapped_in_total"]
    assert metrics["quire_kv_store_used_bytes"] == 0
    if DEVICE == "cpu":
        alone = [ask(server, prompt, **parameters) for prompt in prompts[-4:]]
        assert [said(each) for each in alone] == [said(answer) for answer in answers[-4:]]
        assert [each["usage"] for each in alone] == [each["usage"] for each in answers[-4:]]


def test_a_store_without_room_is_no_loss(serve, small_model):
    server = serve(*POOL, "--allowed-kv-policies", "full", "--kv-offload-size", "1M",
                   model=small_model)
    answers = ask_all(server)
    metrics = server.metrics()
    assert metrics["quire_preemptions_total"] > 0 and metrics["quire_kv_store_bytes"] > 0
    assert metrics["quire_kv_pages_swapped_out_total"] == 0
    if DEVICE == "cpu":
        assert text_of(ask(server, PROMPTS[-1])) == text_of(answers[-1])


@pytest.mark.parametrize("settings", [("--allowed-kv-policies", "full"),
                                      ("--kv-offload-dtype", "fp8")], ids=["no_filters", "fp8"])
def test_prefixes_that_the_cache_has_evicted(serve, small_model, settings):
    """Others need the pages; the next request with that beginning finds it all the same."""
    server = serve("--kv-cache-memory", {"cpu": "13M", "cuda": "7M"}[DEVICE], "--max-model-len",
                   1000, *settings, "--kv-offload-size", "256M", model=small_model)
    first = ask(server, PROMPTS[0])
    for prompt in PROMPTS[1:4]:
        ask(server, prompt)
    metrics = server.metrics()
    assert metrics["quire_kv_pages_stored"] > 0 and metrics["quire_kv_store_used_bytes"] == 0
    assert metrics["quire_kv_pages_swapped_in_total"] == 0
    again = ask(server, PROMPTS[0])
    assert again["usage"]["prompt_tokens_details"]["cached_tokens"] == 256
    assert server.metrics()["quire_kv_pages_swapped_in_total"] == 4 * 12  # layers
    assert text_of(again) == text_of(first)
    if DEVICE == "cpu":
        assert said(again) == said(first)
