"""Models as GGUF files answer as the same models in safetensors: each architecture, whole or split,
and packed.  What cannot be read is refused by a sentence."""
import json

import pytest

import gguf_file
from bounded_oracle import Text
from gguf_file import checkpoint
from oracle_model import Model
from precision import N_TOP, PRECISE, check_errors, row_error, values_of
from server import DEVICE, MODEL
from test_families import DATA, link_checkpoint, link_for_gguf
from test_model_files import start

CHECKPOINTS = ["mha-f32", "gqa-bf16-llama3-tied", "mqa-f16-linear-bias",
               "mistral-gqa-bf16-head128-window", "qwen2-gqa-bf16-head64-tied",
               "qwen2-gqa-bf16-head128-yarn", "qwen3-gqa-bf16-head64-bias",
               "phi3-gqa-bf16-partial-longrope", "phi3-mha-f16-head64-window", "gemma2-gqa-bf16-head64",
               "gemma3-gqa-bf16-head64", "gemma3-mqa-f16-head128-linear",
               "gemma4-gqa-bf16-head64-128", "gemma4-gqa-bf16-head32-experts",
               "gemma4-mqa-f16-head256-512", "gemma4-gqa-bf16-head32-shared",
               "gemma4-mqa-f16-head64-shared",
               "smollm3-gqa-bf16-head32", "olmo2-gqa-bf16-head16", "olmo3-gqa-f16-head16-yarn",
               "ministral3-gqa-bf16-head32", "granite-gqa-bf16-head16", "seed_oss-gqa-bf16-head32", "cohere-gqa-bf16-head16",
               "cohere2-gqa-f16-head32-window", "cohere2moe-gqa-bf16-head32-average",
              "glm-gqa-bf16-head64", "glm4-gqa-bf16-head128", "glm4-mha-f16-head32-yarn", "exaone4-gqa-bf16-head16-window",
               "qwen3_5-gqa-bf16-head16", "qwen3_5-gqa-bf16-head32-groups",
              "qwen3_5moe-wrapper-gqa-bf16-head32", "qwen3next-gqa-bf16-head16",
              "lfm2-gqa-bf16-head16", "lfm2-mha-f16-head32-wide", "lfm2moe-gqa-bf16-head32",
              "granite4h-gqa-bf16-head16-dense", "granite4h-gqa-bf16-head32-deep",
              "granite4h-mha-f16-head32",
              *["nemotronh-gqa-bf16-head16", "nemotronh-mha-f16-head32-pattern",
                "nemotronh-gqa-bf16-head32-experts"] * (DEVICE == "cpu"),
              "qwen2moe-gqa-bf16-shared", "glm4moe-gqa-bf16-head64-groups",
               "glm4moe-mha-f16-head32", "mixtral-gqa-bf16-head32-window", "gptoss-gqa-bf16-head32-mxfp4"]
# On a GPU each process measures which kernels are fastest, so two differ in bits without this.
SAME_BITS = ("--batch-invariant",) if DEVICE == "cuda" else ()
# The tokenizer of the default model splits as this one does.
PRE = "deepseek-r1-qwen"


def answer(server, prompt):
    (choice,) = server.complete(prompt, max_tokens=24, logprobs=4, echo=True, temperature=0,
                                ignore_eos=True, return_token_ids=True)["choices"]
    return choice["token_ids"], choice["logprobs"]["token_logprobs"][1:]


def answers(serve, model, prompts):
    one = serve("--kv-cache-memory", "64M", *SAME_BITS, model=model)
    return [answer(one, prompt) for prompt in prompts]


def check_equal(found, expected, close):
    for (ids, values), (other_ids, others) in zip(found, expected, strict=True):
        assert ids == other_ids
        assert max(abs(a - b) for a, b in zip(values, others, strict=True)) <= close


def prompts_of(checkpoint):
    goldens = json.loads((DATA / checkpoint / "goldens.json").read_text())
    return [golden["tokens"] for golden in goldens["prompts"]]


def same_sums(checkpoint):
    """Whether the file's numbers, and their order in sums, are those of the checkpoint."""
    return not any(part in checkpoint for part in ("llama3", "longrope", "qwen3_5", "qwen3next",
                                              "granite4h", "nemotronh"))


def closeness(checkpoint):
    return 0 if same_sums(checkpoint) else 1e-4 if DEVICE == "cpu" else 0.2


@pytest.mark.parametrize("checkpoint", CHECKPOINTS)
def test_an_architecture_answers_as_its_checkpoint(serve, tmp_path, checkpoint):
    """To the bit; but Llama's factors of frequencies and Phi's, and the rates of recurrent layers,
    are rounded to F32, and heads of these may have another order.  On a GPU that changes what is
    rounded to bf16 afterwards."""
    model = link_for_gguf(tmp_path / "model", checkpoint)
    path = gguf_file.write_gguf(model, tmp_path / "m.gguf")
    prompts = prompts_of(checkpoint)
    check_equal(answers(serve, path, prompts), answers(serve, model, prompts),
                closeness(checkpoint))


@pytest.mark.parametrize("checkpoint, how", [
    ("qwen3_5-wrapper-mha-f16-head32", {"says_layers": True}),
    ("qwen3_5-gqa-bf16-head16", {"says_layers": True, "n_guess": 1}),
    ("qwen3_5moe-wrapper-gqa-bf16-head32", {"n_guess": 2}),
    ("qwen3next-gqa-bf16-head16", {"legacy": True}),
    ("granite-gqa-bf16-head16", {"says_layers": True})])
def test_hybrids_say_their_layers_in_several_ways(serve, tmp_path, checkpoint, how):
    """By a list or a period, with layers behind them that guess tokens, as older converters, and as
    those of Granite 4 do where all layers attend."""
    model = link_checkpoint(tmp_path / "model", checkpoint)
    path = gguf_file.write_gguf(model, tmp_path / "m.gguf", **how)
    prompts = prompts_of(checkpoint)
    check_equal(answers(serve, path, prompts), answers(serve, model, prompts),
                closeness(checkpoint))


@pytest.mark.parametrize("checkpoint", ["qwen3_5moe-wrapper-gqa-bf16-head32",
                                        "qwen2moe-gqa-bf16-shared"])
def test_gates_and_ups_of_experts_may_be_one_tensor(serve, tmp_path, checkpoint):
    model = link_checkpoint(tmp_path / "model", checkpoint)
    path = gguf_file.write_gguf(model, tmp_path / "m.gguf", fuses=True)
    prompts = prompts_of(checkpoint)
    check_equal(answers(serve, path, prompts), answers(serve, model, prompts),
                closeness(checkpoint))


@pytest.mark.parametrize("checkpoint", ["granite4h-gqa-bf16-head16-dense",
                                        "granite4h-mha-f16-head32"])
@pytest.mark.skipif(DEVICE != "cpu", reason="a GPU multiplies the packed codes")
def test_products_of_mamba_layers_may_be_packed(serve, tmp_path, checkpoint):
    """They answer as their values do."""
    model = link_for_gguf(tmp_path / "model", checkpoint)
    paths = [gguf_file.write_gguf(model, tmp_path / f"{unpacks}.gguf", kind="Q8_0", unpacks=unpacks)
             for unpacks in (False, True)]
    prompts = prompts_of(checkpoint)
    found, expected = ([answer(serve("--dtype", "float32", model=path), prompt)
                        for prompt in prompts] for path in paths)
    check_equal(found, expected, 1e-5)


@pytest.mark.parametrize("key, words", [
    ("ssm.conv_kernel", "is missing"), ("ssm.state_size", "is missing"),
    ("ssm.group_count", "is missing"), ("ssm.time_step_rank", "is missing"),
    ("ssm.inner_size", "is missing"), ("attention.head_count_kv", "is missing"),
    ("attention.scale", "is missing"),
    ("ssm.inner_size 49", "is no multiple of 'ssm.time_step_rank'"),
    ("ssm.inner_size 51", "is no multiple of 'embedding_length'"),
    ("attention.head_count_kv 1", "differs between layers that have some"),
    ("ssm.group_count 2", "does not divide the heads")])
def test_keys_of_mamba_layers_are_refused_by_name(tmp_path, key, words):
    model = link_for_gguf(tmp_path / "model", "granite4h-gqa-bf16-head32-deep")
    path = gguf_file.write_gguf(model, tmp_path / "m.gguf")
    raw = path.read_bytes()
    name, _, number = key.partition(" ")
    whole = f"granitehybrid.{name}".encode()
    at = raw.index(gguf_file.string(whole.decode())) + 8
    if number:  # of a list: that of the last layer
        at += len(whole) + (4 + 4 + 8 + 6 * 4 if name.endswith("_kv") else 4)
        raw = raw[:at] + int(number).to_bytes(4, "little") + raw[at + 4:]
    else:  # the key of another architecture
        raw = raw[:at] + b"x" + raw[at + 1:]
    path.write_bytes(raw)
    result = start(path)
    assert result.returncode == 1 and f"'granitehybrid.{name}' {words}" in result.stderr, result.stderr


@pytest.mark.parametrize("checkpoint", ["nemotronh-gqa-bf16-head16",
                                        "nemotronh-gqa-bf16-head32-experts"])
@pytest.mark.parametrize("key", ["ssm.conv_kernel", "ssm.state_size", "ssm.group_count",
                                 "ssm.time_step_rank", "ssm.inner_size", "attention.head_count_kv",
                                 "feed_forward_length", "attention.layer_norm_rms_epsilon"])
def test_keys_of_nemotron_are_refused_by_name(tmp_path, checkpoint, key):
    """Two architectures stand for the same model."""
    path = gguf_file.write_gguf(link_checkpoint(tmp_path / "model", checkpoint), tmp_path / "m.gguf")
    name = f"{'nemotron_h_moe' if 'experts' in checkpoint else 'nemotron_h'}.{key}"
    raw = path.read_bytes()
    at = raw.index(gguf_file.string(name)) + 8
    path.write_bytes(raw[:at] + b"x" + raw[at + 1:])
    result = start(path)
    assert result.returncode == 1 and f"'{name}' is missing" in result.stderr, result.stderr


@pytest.mark.parametrize("checkpoint, number, words", [
    ("nemotronh-gqa-bf16-head16", 5, "'nemotron_h.ssm.group_count' does not divide the heads"),
    ("nemotronh-gqa-bf16-head32-experts", 3,
     "'nemotron_h_moe.ssm.group_count' does not divide the heads")])
def test_keys_of_nemotron_have_the_name_of_the_architecture(tmp_path, checkpoint, number, words):
    directory = link_checkpoint(tmp_path / "model", checkpoint)
    path = gguf_file.write_gguf(directory, tmp_path / "m.gguf")
    raw, key = path.read_bytes(), gguf_file.string(words.split("'")[1])
    at = raw.index(key) + len(key) + 4
    path.write_bytes(raw[:at] + number.to_bytes(4, "little") + raw[at + 4:])
    result = start(path)
    assert result.returncode == 1 and words in result.stderr, result.stderr


def test_granite_without_positions_is_refused(tmp_path):
    """One without recurrent layers; a key says whether queries and keys rotate."""
    model = link_checkpoint(tmp_path / "model", "granite-gqa-bf16-head16")
    path = gguf_file.write_gguf(model, tmp_path / "m.gguf", says_layers=True)
    raw, key = path.read_bytes(), gguf_file.string("granite.rope.scaling.finetuned")
    at = raw.index(key) + len(key) + 4
    path.write_bytes(raw[:at] + bytes(1) + raw[at + 1:])
    result = start(path)
    assert result.returncode == 1 and "'granite.rope.scaling.finetuned' is false" in result.stderr


@pytest.mark.parametrize("n_files, version", [(3, 3), (1, 2)])
def test_split_files_and_version_2(serve, tmp_path, n_files, version):
    model = link_checkpoint(tmp_path / "model", "mha-f32")
    path = gguf_file.write_gguf(model, tmp_path / "m.gguf", n_files=n_files, version=version)
    prompts = prompts_of("mha-f32")
    check_equal(answers(serve, path, prompts), answers(serve, model, prompts), 0)


def test_texts_have_the_tokens_of_the_tokenizer_file(serve, tiny_model, tmp_path):
    path = gguf_file.write_gguf(tiny_model, tmp_path / "m.gguf", pre=PRE)
    ours, others = (serve(*SAME_BITS, model=model) for model in (path, tiny_model))
    texts = ["", " ", "two  spaces", "It's 1234567, isn't it?", "caf\u00e9 cafe\u0301 \U0001f600\n\n\tx",
             "<|begin_of_text|>a<|end_of_text|>", (MODEL / "MODEL_CARD.md").read_text()[:3000]]
    for text in texts:
        for special in (True, False):
            body = {"prompt": text, "add_special_tokens": special}
            assert ours.post("/tokenize", body).json() == others.post("/tokenize", body).json(), text
    check_equal([answer(ours, texts[3])], [answer(others, texts[3])], 0)


CONTRACTIONS, SPACES = "(?i:'s|'t|'re|'ve|'m|'ll|'d)", r"|\s*[\r\n]+|\s+(?!\S)|\s+"
LOWER = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
UPPER = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
# What tokenizer.json of the models has whose files have this name: patterns of the splits, whether
# the text is NFC, and whether pieces that are tokens are not merged.
PUBLISHED = {
    "qwen35": ([CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}"
                r"| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*" + SPACES], True, False),
    "lfm2": ([CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
              r"| ?[^\s\p{L}\p{N}]+[\r\n]*" + SPACES], False, True),
    "seed-coder": ([CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1}| ?[^\s\p{L}\p{N}\r\n]+" +
                    SPACES], False, False),
    "cohere2moe": ([r"\d{1,3}(?=(?:\d{3})*\b)", LOWER + CONTRACTIONS + "?|" + UPPER + CONTRACTIONS +
                    r"?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*" + SPACES], False, False),
    "command-r": (None, True, False)}


def steps_of(patterns):
    """None: each digit is a piece, and the rest is split as GPT-2 does."""
    first = [{"type": "Digits", "individual_digits": True}] if patterns is None else [
        {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}
        for pattern in patterns]
    return [*first, {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True,
                     "use_regex": patterns is None}]


@pytest.mark.parametrize("pre", PUBLISHED)
def test_texts_are_split_as_the_name_says(serve, tiny_model, tmp_path, pre):
    patterns, is_composed, ignores_merges = PUBLISHED[pre]
    twin = tmp_path / "twin"
    twin.mkdir()
    for path in tiny_model.iterdir():
        (twin / path.name).symlink_to(path)
    content = json.loads((tiny_model / "tokenizer.json").read_text())
    content["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": steps_of(patterns)}
    content["normalizer"] = {"type": "NFC"} if is_composed else None
    content["model"]["ignore_merges"] = ignores_merges
    (twin / "tokenizer.json").unlink()
    (twin / "tokenizer.json").write_text(json.dumps(content))
    path = gguf_file.write_gguf(tiny_model, tmp_path / "m.gguf", pre=pre)
    ours, others = (serve(*SAME_BITS, model=model) for model in (path, twin))
    for text in ("caf\u00e9 cafe\u0301 s\u0301's _\u0301j", "1234567.89 12 1000 x1000y v2", "a\n\nb?\n\n/ c.\r\nd",
                 "camelCase HTTPServer IT'S it's  two  spaces ", "\u0928\u092e\u0938\u094d\u0924\u0947 \u4e16\u754c",
                 (MODEL / "MODEL_CARD.md").read_text()[:3000]):
        body = {"prompt": text}
        assert ours.post("/tokenize", body).json() == others.post("/tokenize", body).json(), text


def test_packed_weights_are_read_as_they_are_or_unpacked_and_said(serve, tiny_model, tmp_path):
    """On the CPU, products in float32 want them unpacked, and keep their values."""
    path = gguf_file.write_gguf(tiny_model, tmp_path / "m.gguf", kind="Q8_0", pre=PRE)
    for dtype in ("auto", "float32"):
        one = serve("--dtype", dtype, model=path)
        assert "Q8_0" in one.log
        is_repacked = DEVICE == "cpu" and dtype == "auto"
        assert ("multiplied by int8 activations" in one.log) == is_repacked
        element = "F32" if DEVICE == "cpu" else "BF16"  # on a GPU the embedding
        assert (f"unpacked to {element} in memory" in one.log) != is_repacked
        assert ("; in memory I8 with F16 scales of 1 x 32 elements" in one.log) == (DEVICE != "cpu")
        assert len(answer(one, "Once upon a time")[0]) == 24


@pytest.mark.skipif(DEVICE != "cpu", reason="only the CPU computes in float32")
@pytest.mark.parametrize("checkpoint_name", ["gqa-bf16-llama3-tied", "exaone4-gqa-bf16-head16-window",
                                             "mixtral-gqa-bf16-head32-window"])
def test_in_float32_answers_are_those_of_the_values_of_the_file(serve, tmp_path, checkpoint_name):
    """Of a float64 pass over what the file's blocks are worth, which bf16 does not hold."""
    model = link_for_gguf(tmp_path / "model", checkpoint_name)
    path = gguf_file.write_gguf(model, tmp_path / "m.gguf", kind="Q8_0")
    plain = checkpoint.write_model(
        tmp_path / "plain", checkpoint.read_config(model),
        {name: gguf_file.unpacked(values, "Q8_0") if values.ndim > 1 and values.shape[-1] % 32 == 0 else values
         for name, values in checkpoint.read_tensors(model).items()}, MODEL, "F32")
    prompt = max(prompts_of(checkpoint_name), key=len)[:70]
    one = serve(*PRECISE, model=path)
    (choice,) = one.complete(prompt, max_tokens=8, logprobs=N_TOP, temperature=0, ignore_eos=True,
                             return_token_ids=True)["choices"]
    text, ids = Text(Model(plain), None), choice["token_ids"]
    rows = [text.prompt(prompt)[-1], *(text.token(token) for token in ids[:-1])]
    check_errors([row_error(*row, greedy=True)
                  for row in zip(values_of(choice), rows, ids, strict=True)], checkpoint_name)


def test_a_folder_with_one_file_is_that_file(serve, tiny_model, tmp_path):
    folder = tmp_path / "folder"
    folder.mkdir()
    gguf_file.write_gguf(tiny_model, folder / "m.gguf", pre=PRE, n_files=2)
    (folder / "mmproj-m.gguf").write_text("GGUF")
    one = serve(model=folder)
    assert answer(one, "Once")[0]
    (folder / "other.gguf").write_text("GGUF")
    result = start(folder)
    assert result.returncode == 1 and "has several GGUF files" in result.stderr, result.stderr


def spoil(path, kind):
    raw = bytearray(path.read_bytes())
    if kind == "version 1":
        raw[4] = 1
    if kind == "big-endian":
        raw[4:8] = b"\0\0\0\3"
    if kind == "cut short":
        del raw[-100:]
    if kind == "architecture":
        at = raw.index(b"llama")
        raw[at:at + 5] = b"rwkv9"
    if kind == "safetensors only":
        at = raw.index(gguf_file.string("llama")) + 8
        raw[at - 8:at + 5] = gguf_file.string("mpt")
        raw += bytes(64)
    if kind == "count":
        at = raw.index(b"llama.embedding_length") + len("llama.embedding_length") + 4
        raw[at:at + 4] = bytes(4)
    path.write_bytes(raw)


@pytest.mark.parametrize("kind, words", [
    ("version 1", "version 1 of GGUF is not supported; 2 and 3 are"),
    ("big-endian", "a big-endian GGUF file is not supported"),
    ("cut short", "ends beyond the file: it is cut short, or malformed"),
    ("architecture", "the architecture 'rwkv9' is not supported in GGUF; these are: llama, mistral3, "),
    ("safetensors only", "the architecture 'mpt' is served from safetensors only: its files in GGUF"),
    ("count", "'llama.embedding_length' is not a whole number from 1 to "),
    ("second", "it is file 2 of 2: name the first one"),
    ("pre", "'tokenizer.ggml.pre' is 'none', which is not supported; these are: gpt-2"),
    ("key", "'llama.logit_scale' is a key that is not supported")])
def test_what_cannot_be_read_is_named(tiny_model, tmp_path, kind, words):
    path = gguf_file.write_gguf(tiny_model, tmp_path / "m.gguf", pre="none" if kind == "pre" else PRE,
                                n_files=2 if kind == "second" else 1)
    if kind == "second":
        path = path.with_name(path.name.replace("00001-of", "00002-of"))
    if kind == "key":
        raw = path.read_bytes()
        name = b"llama.context_length"
        key = gguf_file.string("llama.logit_scale") + (6).to_bytes(4, "little") + b"\0\0\x80\x3f"
        at = raw.index(name) - 8
        count = int.from_bytes(raw[16:24], "little") + 1
        path.write_bytes(raw[:16] + count.to_bytes(8, "little") + raw[24:at] + key + raw[at:] +
                         bytes(64))
    else:
        spoil(path, kind)
    result = start(path)
    assert result.returncode == 1 and words in result.stderr, result.stderr
    assert result.stderr.count(" error ") == 1
