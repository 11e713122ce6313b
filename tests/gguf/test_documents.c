/* test_documents.c - what the keys of a GGUF file stand for, and mutations of them. */
#define _GNU_SOURCE /* memmem */

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <jansson.h>

#include "engine/base/error.h"
#include "engine/gguf/gguf.h"
#include "engine/gguf/gguf_json.h"
#include "tests/gguf/documents.h"
#include "tests/gguf/sample.h"
#include "tests/test.h"

enum { N_MUTATIONS = 20000 };

static struct writer w, extra; /* large, so not on the stack */

static json_t *read_document(const char *name) {
    json_t *document = NULL;
    struct error err = {0};
    if (document_of(&document, w.bytes, w.n, name, &err)) fail_msg("%s", err.text);
    return document;
}

static void refuse(const char *name, const char *words) {
    json_t *document = NULL;
    struct error err = {0};
    const int rc = document_of(&document, w.bytes, w.n, name, &err);
    assert_int_not_equal(rc, 0);
    assert_int_equal(err.code, rc);
    assert_null(document);
    if (!strstr(err.text, words)) fail_msg("'%s' has not '%s'", err.text, words);
}

/* The document has the members of this text, and takes its reference. */
static void assert_members(json_t *document, const char *expected) {
    json_t *members = json_loads(expected, 0, NULL), *value;
    const char *key;
    assert_non_null(members);
    json_object_foreach(members, key, value) {
        json_t *found = json_object_get(document, key);
        if (json_equal(found, value)) continue;
        char *text = json_dumps(found, JSON_ENCODE_ANY | JSON_SORT_KEYS);
        fail_msg("%s is %s", key, text ? text : "missing");
    }
    json_decref(members);
    json_decref(document);
}

TEST(numbers_keep_their_size) {
    static const struct {
        enum gguf_type type;
        uint64_t bits;
        const char *text;
    } cases[] = {{GGUF_U64, UINT64_MAX, "1.8446744073709552e19"},
                 {GGUF_U64, INT64_MAX, "9223372036854775807"},
                 {GGUF_I64, (uint64_t)INT64_MIN, "-9223372036854775808"},
                 {GGUF_I32, 0xffffffff, "-1"},
                 {GGUF_F64, 0x7ff0000000000000, "null"}};
    for (size_t i = 0; i < COUNT(cases); i++) {
        const struct gguf_value value = {.type = cases[i].type,
                                         .bytes = (const uint8_t *)&cases[i].bits};
        json_t *number = gguf_to_json(&value);
        char text[64] = {0};
        json_dumpb(number, text, sizeof(text) - 1, JSON_ENCODE_ANY);
        assert_string_equal(text, cases[i].text);
        json_decref(number);
    }
}

TEST(keys_become_a_configuration) {
    write_sample(&w, true, NULL, 0);
    assert_members(read_document("config.json"),
                   "{\"architectures\": [\"LlamaForCausalLM\"], \"hidden_size\": 8,"
                   " \"num_hidden_layers\": 1, \"intermediate_size\": 16, \"vocab_size\": 8,"
                   " \"num_attention_heads\": 2, \"max_position_embeddings\": 64,"
                   " \"rope_theta\": 50000.0, \"tie_word_embeddings\": true,"
                   " \"rope_scaling\": {\"rope_type\": \"longrope\", \"long_factor\": [1.0, 8.0],"
                   " \"short_factor\": [1.0, 8.0], \"original_max_position_embeddings\": 64}}");
    assert_members(read_document("generation_config.json"),
                   "{\"bos_token_id\": 1, \"eos_token_id\": [2]}");
}

TEST(keys_become_a_tokenizer) {
    write_sample(&w, true, NULL, 0);
    json_t *pieces = read_document("tokenizer.json");
    assert_members(json_incref(json_object_get(pieces, "model")),
                   "{\"type\": \"BPE\", \"byte_fallback\": true, \"unk_token\": \"<unk>\","
                   " \"merges\": [[\"a\", \"b\"], [\"ab\", \"a\"]],"
                   " \"vocab\": {\"<unk>\": 0, \"<s>\": 1, \"</s>\": 2, \"a\": 3, \"b\": 4,"
                   " \"ab\": 5, \"aba\": 6, \"x\\u2581y\": 7}}");
    assert_int_equal(json_array_size(json_object_get(pieces, "added_tokens")), 3);
    json_decref(pieces);
    write_sample(&w, false, NULL, 0);
    json_t *bytes = read_document("tokenizer.json");
    assert_members(json_incref(json_object_get(bytes, "model")),
                   "{\"merges\": [\"a b\", \"ab a\"], \"ignore_merges\": true,"
                   " \"byte_fallback\": false}");
    assert_members(bytes, "{\"decoder\": {\"type\": \"ByteLevel\"}}");
    assert_members(read_document("tokenizer_config.json"),
                   "{\"bos_token\": \"<s>\", \"eos_token\": \"</s>\","
                   " \"chat_template\": \"{{ messages }}\"}");
}

/* Pieces, as the scores say, but merged as the file says. */
TEST(merges_of_pieces_may_be_named) {
    write_start(&w, 3, 0, SAMPLE_TOKENIZER_KEYS + 1);
    write_string_key(&w, "general.architecture", "gemma4");
    write_sample_tokenizer(&w, "gemma4");
    write_padding(&w, 32);
    json_t *pieces = read_document("tokenizer.json");
    assert_members(json_incref(json_object_get(pieces, "model")),
                   "{\"type\": \"BPE\", \"byte_fallback\": true, \"unk_token\": \"<unk>\","
                   " \"merges\": [\"a b\", \"ab a\"]}");
    assert_null(json_object_get(pieces, "pre_tokenizer"));
    json_decref(pieces);
}

/* Writes Gemma 4's keys: a layer with a window, and one without; with these widths and factors. */
static void write_two_heads(const uint32_t widths[2], uint32_t value_length, float factor) {
    static const char *const wholes[] = {"context_length", "embedding_length",
                                         "attention.head_count"};
    static const uint32_t values[] = {64, SAMPLE_DIM, 2};
    char key[64];
    write_start(&w, 3, 2, 18);
    write_string_key(&w, "general.architecture", "gemma4");
    for (int i = 0; i < 3; i++) {
        snprintf(key, sizeof(key), "gemma4.%s", wholes[i]);
        write_whole_key(&w, key, values[i]);
    }
    write_whole_key(&w, "gemma4.block_count", 2);
    write_array_key(&w, "gemma4.feed_forward_length", GGUF_U32, 2);
    for (int i = 0; i < 2; i++) write_number(&w, widths[i], 4);
    write_array_key(&w, "gemma4.attention.head_count_kv", GGUF_U32, 2);
    write_number(&w, 2, 4), write_number(&w, 1, 4);
    write_array_key(&w, "gemma4.attention.sliding_window_pattern", GGUF_BOOL, 2);
    write_number(&w, 1, 1), write_number(&w, 0, 1);
    write_whole_key(&w, "gemma4.attention.sliding_window", 16);
    write_whole_key(&w, "gemma4.attention.key_length", 8);
    write_whole_key(&w, "gemma4.attention.value_length", value_length);
    write_whole_key(&w, "gemma4.attention.key_length_swa", 4);
    write_whole_key(&w, "gemma4.attention.value_length_swa", 4);
    write_whole_key(&w, "gemma4.attention.shared_kv_layers", 1);
    write_whole_key(&w, "gemma4.embedding_length_per_layer_input", 0);
    write_key(&w, "gemma4.attention.layer_norm_rms_epsilon", GGUF_F32);
    write_float(&w, 1e-5F);
    write_key(&w, "gemma4.rope.freq_base", GGUF_F32);
    write_float(&w, 50000);
    write_key(&w, "gemma4.rope.freq_base_swa", GGUF_F32);
    write_float(&w, 10000);
    write_tensor(&w, "token_embd.weight", 0, SAMPLE_TOKENS, SAMPLE_DIM, 0);
    write_tensor(&w, "rope_freqs.weight", 0, 0, 4, 256);
    write_padding(&w, 32);
    write_zeros(&w, 4 * SAMPLE_TOKENS * SAMPLE_DIM);
    write_float(&w, 1), write_float(&w, factor), write_float(&w, 1e30F), write_float(&w, 1e30F);
}

TEST(heads_of_two_sizes_become_a_configuration) {
    write_two_heads((const uint32_t[]){16, 32}, 8, 1);
    assert_members(
        read_document("config.json"),
        "{\"architectures\": [\"Gemma4ForCausalLM\"], \"head_dim\": 4, \"num_key_value_heads\": 2,"
        " \"per_layer_config\": {\"1\": {\"head_dim\": 8, \"num_key_value_heads\": 1}},"
        " \"attention_k_eq_v\": true, \"intermediate_size\": 16, \"use_double_wide_mlp\": true,"
        " \"num_kv_shared_layers\": 1, \"layer_types\": [\"sliding_attention\","
        " \"full_attention\"], \"sliding_window\": 16, \"rope_parameters\": {\"full_attention\":"
        " {\"rope_type\": \"proportional\", \"partial_rotary_factor\": 0.5,"
        " \"rope_theta\": 50000.0}, \"sliding_attention\": {\"rope_type\": \"default\","
        " \"rope_theta\": 10000.0}}}");
    write_two_heads((const uint32_t[]){16, 20}, 8, 1);
    refuse("config.json", "'gemma4.feed_forward_length' differs between layers");
    write_two_heads((const uint32_t[]){16, 16}, 4, 1);
    refuse("config.json", "'gemma4.attention.value_length' is not the length of keys");
    write_two_heads((const uint32_t[]){16, 16}, 8, 2);
    refuse("config.json", "'rope_freqs.weight' is no list of ones and then of 1e30");
}

TEST(a_call_ends_an_answer_of_messages) {
    static const char *const tokens[][3] = {{"<|end|>", "a", "<|call|>"}, {"a", "<|end|>", "b"}},
                             *const ends[] = {"{\"eos_token_id\": [2]}", "{\"eos_token_id\": [1]}"};
    for (int i = 0; i < 2; i++) {
        write_start(&w, 3, 0, 2);
        write_string_key(&w, "general.architecture", "llama");
        write_array_key(&w, "tokenizer.ggml.tokens", GGUF_STRING, 3);
        for (int k = 0; k < 3; k++) write_text(&w, tokens[i][k]);
        write_padding(&w, 32);
        assert_members(read_document("generation_config.json"), ends[i]);
    }
}

TEST(templates_with_names_are_a_list) {
    extra.n = 0;
    write_string_key(&extra, "tokenizer.chat_template.tool_use", "tools");
    write_sample(&w, true, &extra, 1);
    assert_members(read_document("tokenizer_config.json"),
                   "{\"chat_template\": [{\"name\": \"tool_use\", \"template\": \"tools\"},"
                   " {\"name\": \"default\", \"template\": \"{{ messages }}\"}]}");
}

TEST(a_whole_tokenizer_is_preferred) {
    extra.n = 0;
    write_string_key(&extra, "tokenizer.huggingface.json", "{\"version\": \"1.0\"}");
    write_sample(&w, true, &extra, 1);
    assert_members(read_document("tokenizer.json"), "{\"version\": \"1.0\"}");
}

TEST(keys_that_would_change_answers_are_refused) {
    static const struct {
        const char *key;
        uint32_t value;
        const char *words;
    } wrong[] = {
        {"llama.nextn_predict_layers", 8, "'llama.nextn_predict_layers' is not 0"},
        {"llama.attention.value_length", 8, "'llama.attention.value_length' is not the length"},
        {"llama.rope.dimension_count", 5, "'llama.rope.dimension_count' is not from 1"},
        {"llama.residual_scale", 2, "'llama.residual_scale' is a key that is not supported"}};
    for (size_t i = 0; i < sizeof(wrong) / sizeof(*wrong); i++) {
        extra.n = 0;
        write_whole_key(&extra, wrong[i].key, wrong[i].value);
        write_sample(&w, true, &extra, 1);
        refuse("config.json", wrong[i].words);
    }
    refuse("model.safetensors", "a GGUF file has no model.safetensors");
    write_sample(&w, true, NULL, 0);
    memset(memmem(w.bytes, w.n, "general.arch", 12), 'x', 12);
    refuse("config.json", "'general.architecture' is missing");
}

/* Writes the file without its tensor of factors, and with a scaling by keys. */
static void write_scaled(const char *type, float attention) {
    extra.n = 0;
    write_string_key(&extra, "llama.rope.scaling.type", type);
    write_key(&extra, "llama.rope.scaling.factor", GGUF_F32);
    write_float(&extra, 4);
    write_key(&extra, "llama.rope.scaling.attn_factor", GGUF_F32);
    write_float(&extra, attention);
    write_sample(&w, true, &extra, 3);
    for (size_t i = 0; i + 10 < w.n; i++)
        if (memcmp(w.bytes + i, "rope_freqs", 10) == 0) w.bytes[i] = 'n';
}

TEST(scaling_by_keys_is_read_or_refused) {
    write_scaled("yarn", 1);
    assert_members(read_document("config.json"),
                   "{\"rope_scaling\": {\"rope_type\": \"yarn\", \"factor\": 4.0}}");
    write_scaled("yarn", 1.5F);
    refuse("config.json", "'llama.rope.scaling.attn_factor' is not 1");
    write_scaled("longrope", 1);
    refuse("config.json", "'llama.rope.scaling.type' is not none, linear or yarn");
}

static uint64_t next_random(uint64_t *state) {
    *state = *state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return *state >> 33;
}

TEST(mutations_are_documents_or_refused) {
    static const uint8_t extremes[] = {0, 1, 0x7f, 0x80, 0xff};
    uint64_t random = 11;
    uint32_t n_read = 0;
    for (int i = 0; i < N_MUTATIONS; i++) {
        write_sample(&w, i % 2, NULL, 0);
        for (uint64_t k = 1 + next_random(&random) % 3; k > 0; k--) {
            const size_t at = 4 + next_random(&random) % (w.n - 4);
            const uint8_t any = (uint8_t)next_random(&random);
            w.bytes[at] = next_random(&random) % 2 ? extremes[any % sizeof(extremes)] : any;
        }
        n_read += (uint32_t)read_documents(w.bytes, w.n);
    }
    assert_in_range(n_read, N_MUTATIONS / 4, 4 * N_MUTATIONS - 1);
}
