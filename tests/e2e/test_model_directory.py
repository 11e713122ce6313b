"""What a model's directory says beside its weights, in whatever file: end tokens, sampling, names of
tokens, chat templates, a folder of the hub's cache.  Each is taken, and a line at start says so."""
import json
import shutil
import subprocess

import pytest

from precision import EXACT, PRECISE
from server import BINARY, Server, WRAPPER
from test_families import CONTEXT, DATA, link_checkpoint
from tiny_model import CONFIG, write_tiny_model

TURN_END, TEXT_END = 8186, 8184
TEXTS = {TURN_END: "<|im_end|>", TEXT_END: "<|end_of_text|>"}
ADDED = {"__type": "AddedToken", "lstrip": False, "normalized": False, "rstrip": False,
         "single_word": False}
PLAIN = "{{ bos_token }}[{% for m in messages %}{{ m.content }}{% endfor %}]"
TOOLS = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]
WITH_TOOLS = "{% for t in tools %}<tool_call>{{ t.function.name }}</tool_call>{% endfor %}T"


@pytest.fixture(scope="module")
def weights(tmp_path_factory):
    return write_tiny_model(tmp_path_factory.mktemp("weights"))


@pytest.fixture
def model(weights, tmp_path):
    """A directory of its own, without a chat template."""
    directory = tmp_path / "model"
    shutil.copytree(weights, directory)
    return directory


def edit(model, name, **changes):
    """Changes members of a file; None removes one."""
    path = model / name
    content = json.loads(path.read_text()) if path.exists() else {}
    content.update(changes)
    path.write_text(json.dumps({k: v for k, v in content.items() if v is not None}))


def serve(model, tmp_path, *flags):
    return Server(tmp_path, *flags, model=model)


def summary(server):
    return next(line for line in server.log.splitlines() if "the model's files say" in line)


# ---- end tokens ----

def ends_with(server, token):
    """Returns whether an answer that can only be the token ends there."""
    reply = server.post("/v1/completions", {"prompt": "hello", "max_tokens": 4, "temperature": 0,
                                            "logit_bias": {str(token): 100}})
    return reply.json()["choices"][0]["finish_reason"] == "stop"


@pytest.mark.parametrize("config, generation, named, expected", [
    (TEXT_END, {"eos_token_id": [TEXT_END]}, "<|im_end|>", {TURN_END, TEXT_END}),
    (TEXT_END, None, "<|im_end|>", {TURN_END, TEXT_END}),
    (None, None, {"content": "<|im_end|>", **ADDED}, {TURN_END}),
    (None, {"eos_token_id": TEXT_END}, "<|im_end|>", {TURN_END, TEXT_END}),
    (TURN_END, {"eos_token_id": [TEXT_END, TURN_END]}, "<|end_of_text|>", {TURN_END, TEXT_END}),
    (TURN_END, None, None, {TURN_END}),
    (TURN_END, None, "<|no such token|>", {TURN_END}),
])
def test_eos_token_ends_an_answer(model, tmp_path, config, generation, named, expected):
    edit(model, "config.json", eos_token_id=config)
    edit(model, "tokenizer_config.json", eos_token=named)
    (model / "generation_config.json").unlink()
    if generation:
        edit(model, "generation_config.json", **generation)
    with serve(model, tmp_path) as server:
        assert {t for t in TEXTS if ends_with(server, t)} == expected
        line = summary(server)
        assert all((f'{t} "{text}"' in line) == (t in expected) for t, text in TEXTS.items())
        assert ("which the vocabulary lacks" in server.log) == (named == "<|no such token|>")


def test_special_tokens_map_names_the_end_token(model, tmp_path):
    edit(model, "config.json", eos_token_id=TEXT_END)
    (model / "generation_config.json").unlink()
    edit(model, "tokenizer_config.json", eos_token=None, added_tokens_decoder=None)
    edit(model, "special_tokens_map.json", eos_token={"content": "<|im_end|>", **ADDED})
    with serve(model, tmp_path) as server:
        assert ends_with(server, TURN_END)


# ---- sampling ----

def answers(server, **members):
    """The answers of five seeds."""
    body = {"prompt": "hello", "max_tokens": 6, **members}
    return {server.post("/v1/completions", {**body, "seed": seed}).json()["choices"][0]["text"]
            for seed in range(5)}


@pytest.mark.parametrize("generation", [
    {"do_sample": True, "temperature": 1e-6}, {"top_k": 1}, {"top_p": 1e-6}, {"min_p": 1.0},
    {"do_sample": False, "temperature": 1.0, "top_k": 50}, {"temperature": 0}, {"top_k": 1.0},
    {"top_p": 0.0},
])
def test_files_sampling_is_the_default(model, tmp_path, generation):
    edit(model, "generation_config.json", **generation)
    with serve(model, tmp_path) as server:
        assert len(answers(server)) == 1
        assert "(generation_config.json)" in summary(server)
        # A request that says it all is not touched.
        assert len(answers(server, temperature=1, top_k=0, top_p=1, min_p=0)) == 5
    with serve(model, tmp_path, "--generation-config", "none") as server:
        assert len(answers(server)) == 5
        assert "as --generation-config none says" in summary(server)


@pytest.mark.parametrize("generation", [
    {"temperature": None, "top_k": None}, {"top_k": -1}, {"top_k": 0, "temperature": 1.0},
    {"do_sample": True}, {"do_sample": None}, {"transformers_version": "5.0", "use_cache": True},
])
def test_files_that_ask_for_nothing_change_nothing(model, tmp_path, generation):
    (model / "generation_config.json").write_text(json.dumps(generation))
    with serve(model, tmp_path) as server:
        assert len(answers(server)) == 5
        assert "sampling: quire's defaults" in summary(server)
        assert "it is not used" not in server.log


def test_repetition_penalty_of_the_file_counts(model, tmp_path):
    edit(model, "generation_config.json", repetition_penalty=50.0)
    with serve(model, tmp_path) as server:
        body = {"prompt": "hello", "max_tokens": 30, "temperature": 0, "return_token_ids": True}
        mine = server.post("/v1/completions", body).json()["choices"][0]["token_ids"]
        off = server.post("/v1/completions",
                          {**body, "repetition_penalty": 1}).json()["choices"][0]["token_ids"]
        assert len(set(mine)) == len(mine) and mine != off


def test_every_dialect_has_the_files_sampling(model, tmp_path):
    edit(model, "generation_config.json", top_k=1)
    (model / "chat_template.jinja").write_text(PLAIN)
    messages = [{"role": "user", "content": "hi"}]
    bodies = {"/v1/chat/completions": {"messages": messages, "max_tokens": 6},
              "/v1/messages": {"model": "quire", "messages": messages, "max_tokens": 6},
              "/v1/responses": {"model": "quire", "input": "hi", "max_output_tokens": 16}}

    def text(path, answer):
        if path == "/v1/chat/completions":
            return answer["choices"][0]["message"]["content"]
        items = answer["content"] if path == "/v1/messages" else answer["output"][0]["content"]
        return items[0]["text"]

    with serve(model, tmp_path, "--served-model-name", "quire") as server:
        for path, body in bodies.items():
            assert len({text(path, server.post(path, body).json()) for _ in range(4)}) == 1, path


def test_max_new_tokens_is_the_length_of_chats_that_say_none(model, tmp_path):
    edit(model, "generation_config.json", max_new_tokens=5, eos_token_id=None)
    (model / "chat_template.jinja").write_text(PLAIN)
    messages = [{"role": "user", "content": "hi"}]
    with serve(model, tmp_path) as server:
        def length(**members):
            answer = server.post("/v1/chat/completions", {"messages": messages, "min_tokens": 5,
                                                          "ignore_eos": True, **members}).json()
            return answer["usage"]["completion_tokens"]
        assert length() == 5
        assert length(max_tokens=9) == 9
        assert length(max_completion_tokens=7) == 7


def test_config_json_has_the_sampling_of_old_models(model, tmp_path):
    (model / "generation_config.json").unlink()
    edit(model, "config.json", top_k=1)
    with serve(model, tmp_path) as server:
        assert len(answers(server)) == 1
        assert "sampling top_k 1 (config.json)" in summary(server)


def test_config_json_of_old_models_has_the_librarys_defaults(model, tmp_path):
    """Old versions wrote these whatever the author meant."""
    (model / "generation_config.json").unlink()
    edit(model, "config.json", do_sample=False, max_length=20, num_beams=1, temperature=1.0)
    with serve(model, tmp_path) as server:
        assert len(answers(server)) == 5
        assert "it is not used" not in server.log


@pytest.mark.parametrize("generation, rule", [
    ({"temperature": "hot"}, "'temperature' must be a number between 0 and 100"),
    ({"temperature": -1}, "'temperature' must be a number between 0 and 100"),
    ({"top_p": 1.5}, "'top_p' must be a number between 0 and 1"),
    ({"top_k": 2.5}, "'top_k' must be a whole number of at least -1"),
    ({"do_sample": 1}, "'do_sample' must be true or false"),
    ({"repetition_penalty": 0}, "'repetition_penalty' must be a number between 0.01 and 100"),
])
def test_values_that_no_sampler_takes_are_refused_by_name(model, tmp_path, generation, rule):
    edit(model, "generation_config.json", **generation)
    server = Server(tmp_path, model=model, wait=False)
    assert server.process.wait(60) == 1
    assert rule in server.log and "--generation-config none" in server.log
    with serve(model, tmp_path, "--generation-config", "none"):
        pass


def test_what_is_not_served_is_named(model, tmp_path):
    edit(model, "generation_config.json", stop_strings=["x"], num_beams=4, typical_p=1.0,
         no_repeat_ngram_size=0)
    (model / "chat_template.json").write_text(json.dumps({"chat_template": PLAIN}))
    (model / "additional_chat_templates").mkdir()
    (model / "additional_chat_templates" / "rag.jinja").write_text(PLAIN)
    with serve(model, tmp_path) as server:
        line = next(line for line in server.log.splitlines() if "it is not used" in line)
        for text in ("num_beams, stop_strings of generation_config.json", "the chat template rag",
                     "chat_template.json"):
            assert text in line
        assert "typical_p" not in line and "ngram" not in line


# ---- names of tokens, and templates ----

def rendered(server, **members):
    body = {"messages": [{"role": "user", "content": "hi"}], **members}
    return server.post("/v1/chat/completions/render", body)


def text_of(server, **members):
    ids = rendered(server, **members).json()["token_ids"]
    return server.post("/detokenize", {"tokens": ids}).json()["prompt"]


@pytest.mark.parametrize("config, others, template, expected", [
    ({"bos_token": {"content": "<|im_start|>", **ADDED}}, {}, "{{ bos_token }}", "<|im_start|>"),
    ({"extra_special_tokens": {"image_token": "<|im_start|>"}}, {}, "{{ image_token }}",
     "<|im_start|>"),
    ({"model_specific_special_tokens": {"boi_token": "<|im_start|>"}}, {}, "{{ boi_token }}",
     "<|im_start|>"),
    ({"audio_token": "<|im_start|>"}, {}, "{{ audio_token }}", "<|im_start|>"),
    ({"added_tokens_decoder": None}, {"special_tokens_map.json": {"bos_token": "<|im_start|>"}},
     "{{ bos_token }}", "<|im_start|>"),
    (None, {"special_tokens_map.json": {"bos_token": "<|im_start|>"}}, "{{ bos_token }}",
     "<|im_start|>"),
    # transformers reads that file only where tokenizer_config.json lists no tokens.
    ({"bos_token": None}, {"special_tokens_map.json": {"bos_token": "<|im_start|>"}},
     "[{{ bos_token }}]", "[]"),
    ({"add_bos_token": True}, {}, "[{{ add_bos_token }}]", "[]"),
])
def test_named_tokens_are_the_templates(model, tmp_path, config, others, template, expected):
    (model / "special_tokens_map.json").unlink()
    if config is None:
        (model / "tokenizer_config.json").unlink()
    else:
        edit(model, "tokenizer_config.json", **config)
    for name, content in others.items():
        (model / name).write_text(json.dumps(content))
    (model / "chat_template.jinja").write_text(template)
    with serve(model, tmp_path) as server:
        ids = rendered(server).json()["token_ids"]
        assert text_of(server) == expected
        assert len(ids) == 1 or expected == "[]"  # a special token is one, whatever names it


def strip_added(model, text):
    """Takes an added token out of tokenizer.json's list; its text and id become the vocabulary's."""
    path = model / "tokenizer.json"
    content = json.loads(path.read_text())
    entry = next(e for e in content["added_tokens"] if e["content"] == text)
    content["added_tokens"].remove(entry)
    content["model"]["vocab"][text] = entry["id"]
    path.write_text(json.dumps(content))
    edit(model, "tokenizer_config.json", added_tokens_decoder=None)
    return entry["id"]


@pytest.mark.parametrize("changes, name", [
    ({"eos_token": "<|im_start|>"}, "tokenizer_config.json"),
    ({"extra_special_tokens": ["<|im_start|>"]}, "tokenizer_config.json"),
    ({"additional_special_tokens": ["<|im_start|>"]}, "special_tokens_map.json"),
    ({"added_tokens_decoder": {"8185": {"content": "<|im_start|>", "special": True}}},
     "tokenizer_config.json"),
    ({"<|im_start|>": 8185}, "added_tokens.json"),
])
def test_tokens_that_only_other_files_list_are_tokens(model, tmp_path, changes, name):
    token = strip_added(model, "<|im_start|>")
    assert token == 8185
    (model / "special_tokens_map.json").unlink()
    edit(model, "tokenizer_config.json", additional_special_tokens=None)
    with serve(model, tmp_path) as server:
        before = server.post("/tokenize", {"prompt": "<|im_start|>"}).json()["tokens"]
        assert token not in before
    edit(model, name, **changes)
    with serve(model, tmp_path) as server:
        after = server.post("/tokenize", {"prompt": "<|im_start|>", "add_special_tokens": False})
        assert after.json()["tokens"] == [token]


@pytest.mark.parametrize("files, config, plain, with_tools", [
    ({"chat_template.jinja": "A"}, "B", "A", "A"),
    ({}, "B", "B", "B"),
    ({"chat_template.jinja": "A", "additional_chat_templates/tool_use.jinja": WITH_TOOLS}, "B", "A",
     "<tool_call>f</tool_call>T"),
    ({"additional_chat_templates/default.jinja": "A"}, "B", "A", "A"),
    ({"additional_chat_templates/tool_use.jinja": WITH_TOOLS}, "B", None,
     "<tool_call>f</tool_call>T"),
    ({"additional_chat_templates/notes.txt": "A"}, "B", "B", "B"),
    ({}, [{"name": "default", "template": "A"}, {"name": "tool_use", "template": WITH_TOOLS}], "A",
     "<tool_call>f</tool_call>T"),
    ({}, [{"name": "default", "template": "A"}, {"name": "default", "template": "C"}], "C", "C"),
    ({}, {"default": "A", "tool_use": WITH_TOOLS}, "A", "<tool_call>f</tool_call>T"),
    ({"chat_template.json": '{"chat_template": "A"}'}, None, "A", "A"),
    ({"chat_template.json": '{"chat_template": "A"}'}, "B", "B", "B"),
    ({"chat_template.json": json.dumps({"chat_template": [{"name": "tool_use", "template": WITH_TOOLS}]})}, None, None,
     "<tool_call>f</tool_call>T"),
    ({}, None, None, None),
])
def test_templates_come_from_every_place(model, tmp_path, files, config, plain, with_tools):
    edit(model, "tokenizer_config.json", chat_template=config)
    for name, text in files.items():
        (model / name).parent.mkdir(exist_ok=True)
        (model / name).write_text(text)
    with serve(model, tmp_path) as server:
        if plain is None:
            assert rendered(server).status == 400
        else:
            assert text_of(server) == plain
        if with_tools and "tool_call" in with_tools:
            assert text_of(server, tools=TOOLS) == with_tools


# ---- the hub's cache ----

def make_cache(tmp_path, model, folder="models--some-org--a.model", revisions=("aaa",), main="aaa"):
    root = tmp_path / "hub" / folder
    (root / "blobs").mkdir(parents=True)
    for path in model.iterdir():
        shutil.copy(path, root / "blobs" / path.name)
    for revision in revisions:
        (root / "snapshots" / revision).mkdir(parents=True)
        for path in (root / "blobs").iterdir():
            (root / "snapshots" / revision / path.name).symlink_to(f"../../blobs/{path.name}")
    if main:
        (root / "refs").mkdir()
        (root / "refs" / "main").write_text(main)
    return root


@pytest.mark.parametrize("cache, below, name", [
    ({}, "", "some-org/a.model"),
    ({"revisions": ("aaa", "bbb"), "main": "bbb"}, "", "some-org/a.model"),
    ({"main": None}, "", "some-org/a.model"),
    ({"main": "gone"}, "", "some-org/a.model"),
    ({"main": "aaa\n"}, "", "some-org/a.model"),
    ({"folder": "models--gpt2"}, "", "gpt2"),
    ({"revisions": ("aaa", "bbb"), "main": None}, "snapshots/bbb", "some-org/a.model"),
])
def test_a_folder_of_the_hubs_cache_is_served(weights, tmp_path, cache, below, name):
    root = make_cache(tmp_path, weights, **cache)
    with serve(root / below, tmp_path) as server:
        assert server.get("/v1/models").json()["data"][0]["id"] == name
        assert server.get(f"/v1/models/{name}").status == 200
        reply = server.post("/v1/completions", {"model": name, "prompt": "a", "max_tokens": 1})
        assert reply.status == 200


@pytest.mark.parametrize("revisions, text", [
    ((), "the hub's cache has no revision of this model"),
    (("aaa", "bbb"), "there is no refs/main, and there are several revisions"),
])
def test_a_cache_that_does_not_say_is_refused(weights, tmp_path, revisions, text):
    root = make_cache(tmp_path, weights, revisions=revisions, main=None)
    (root / "snapshots").mkdir(exist_ok=True)
    server = Server(tmp_path, model=root, wait=False)
    assert server.process.wait(60) == 1
    assert text in server.log


# ---- a vocabulary that is padded ----

def test_ids_without_a_text_come_back(tmp_path):
    from tiny_model import write_checkpoint
    directory = tmp_path / "padded"
    directory.mkdir()
    write_checkpoint(directory, {**CONFIG, "vocab_size": 8256}, lambda name, shape: 0.08)
    with serve(directory, tmp_path) as server:
        body = {"prompt": "hello", "max_tokens": 2, "temperature": 0, "return_token_ids": True}
        choice = server.post("/v1/completions", {**body, "logit_bias": {"8230": 100}}).json()
        ids = choice["choices"][0]["token_ids"]
        assert ids == [8230, 8230] and choice["choices"][0]["text"] == ""
        for prompt in (ids, [1, 8255]):
            assert server.post("/v1/completions", {**body, "prompt": prompt}).status == 200
        assert server.post("/v1/completions", {**body, "prompt": [8256]}).status == 400
        assert server.post("/v1/completions", {**body, "stop_token_ids": [8255]}).status == 200
        assert server.post("/detokenize", {"tokens": ids}).json()["prompt"] == ""
        top = server.post("/v1/completions", {**body, "logprobs": 2, "logit_bias": {"8230": 100}})
        assert "token_id:8230" in json.dumps(top.json()["choices"][0]["logprobs"]["top_logprobs"])


# ---- a model that reads images ----

# As those of such models have it: content is a text, or a list of parts.
PARTS = ("{% for m in messages %}{% if m.content is string %}{{ m.content }}{% else %}"
         "{% for part in m.content %}{{ part.text }}{% endfor %}{% endif %}{% endfor %}")


@pytest.mark.parametrize("quantised", [False, True])
def test_the_text_half_of_a_model_that_reads_images(tmp_path, quantised):
    """Its weights are read, also quantised ones, and what is for images is named and refused."""
    checkpoint = "gemma3-wrapper-gqa-bf16-head32"
    model = link_checkpoint(tmp_path / "wrapper", checkpoint)
    (model / "chat_template.jinja").write_text(PARTS)
    if quantised:
        out = tmp_path / "fp8"
        subprocess.run([*WRAPPER, BINARY, "quantize", model, "--to", "fp8", "--out", out], check=True,
                       capture_output=True)
        model = out
    golden = json.loads((DATA / checkpoint / "goldens.json").read_text())["prompts"][-1]
    with serve(model, tmp_path, *PRECISE, "--max-model-len", CONTEXT) as server:
        assert ("only text is served: 34 tensors are not loaded, of multi_modal_projector, "
                "vision_tower\n") in server.log
        n_exact = 1 if quantised or not EXACT else len(golden["greedy"])
        answer = server.complete(golden["tokens"], max_tokens=n_exact, temperature=0,
                                 ignore_eos=True, return_token_ids=True)
        assert answer["choices"][0]["token_ids"] == golden["greedy"][:n_exact]
        picture = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA"}}
        for parts, status in (([{"type": "text", "text": "\u4e00\u4e01"}], 200),
                              ([{"type": "text", "text": "\u4e00"}, picture], 400)):
            reply = server.post("/v1/chat/completions", {
                "messages": [{"role": "user", "content": parts}], "max_tokens": 2})
            assert reply.status == status, reply.body
