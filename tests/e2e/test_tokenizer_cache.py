"""The tokenizer's cache: a text that comes again is looked up, but by no other client, and the answer
is the same."""
import pytest

HIT, MISSED = "quire_tokenizer_cache_hit_bytes_total", "quire_tokenizer_cache_missed_bytes_total"
TOPICS = ("pages", "tokens", "layers", "heads", "queues", "threads", "kernels")
TEXT = " ".join(f"Sentence {i} tells of {TOPICS[i % 7]}, in {i * i} words.\n" for i in range(110))


def ask(server, messages, key=None, **members):
    body = {"messages": messages, "max_tokens": 4, "temperature": 0, "kv_policy": {"type": "streaming"}, **members}
    reply = server.post("/v1/chat/completions", body,
                        headers={"Authorization": f"Bearer {key}"} if key else {})
    assert reply.status == 200, reply.body
    return reply.json()


def counted(server, messages, **rest):
    """Returns the answer's text, and the bytes that were found and that were not."""
    before = server.metrics()
    answer = ask(server, messages, **rest)
    after = server.metrics()
    return (answer["choices"][0]["message"]["content"], after[HIT] - before[HIT],
            after[MISSED] - before[MISSED])


def test_a_later_turn_is_looked_up(serve, light_model):
    server = serve(model=light_model)
    turns = [{"role": "user", "content": TEXT + "Which comes first?"}]
    answer, hit, missed = counted(server, turns)
    assert hit == 0 and missed >= len(TEXT)
    again, hit, missed = counted(server, turns)
    assert again == answer and hit >= len(TEXT) and missed == 0
    turns += [{"role": "assistant", "content": answer}, {"role": "user", "content": "And then?"}]
    _, hit, missed = counted(server, turns)
    assert hit >= len(TEXT) and missed == 0
    assert server.metrics()["quire_tokenizer_cache_bytes"] > len(TEXT)


def test_a_text_with_another_question_is_looked_up(serve, light_model):
    server = serve(model=light_model)
    counted(server, [{"role": "user", "content": TEXT + "Which comes first?"}])
    _, hit, missed = counted(server, [{"role": "user", "content": TEXT + "Which comes last?"}])
    assert hit > len(TEXT) / 3 and 0 < missed < 2 * 4096


def test_another_salt_or_client_finds_nothing(serve, light_model):
    server = serve(model=light_model)
    turns = [{"role": "user", "content": TEXT}]
    for members in ({}, {"cache_salt": "mine"}, {"key": "k"}, {"key": "k", "cache_salt": "mine"}):
        _, hit, missed = counted(server, turns, **members)
        assert hit == 0 and missed >= len(TEXT), members
        _, hit, missed = counted(server, turns, **members)
        assert hit >= len(TEXT) and missed == 0, members


def test_counting_tokens_finds_and_leaves_nothing(serve, light_model):
    server = serve(model=light_model)
    ask(server, [{"role": "user", "content": TEXT}])
    before = server.metrics()
    for _ in range(2):
        assert server.post("/tokenize", {"prompt": TEXT}).status == 200
    after = server.metrics()
    assert [after[name] - before[name] for name in (HIT, MISSED)] == [0, 0]


@pytest.mark.parametrize("settings", [("--tokenizer-cache-size", "0"), ("--no-enable-prefix-caching",)])
def test_without_it_there_are_no_counts(serve, light_model, settings):
    server = serve(*settings, model=light_model)
    answers = {ask(server, [{"role": "user", "content": TEXT}])["choices"][0]["message"]["content"]
               for _ in range(2)}
    assert len(answers) == 1 and HIT not in server.metrics()
