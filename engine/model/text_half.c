/* text_half.c - see text_half.h.  A new wrapper is a row of `wrappers`. */
#include "engine/model/text_half.h"

#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "engine/base/count.h"
#include "engine/base/error.h"
#include "engine/model/config_reader.h"
#include "engine/model/family.h"
#include "engine/model/weight_source.h"

enum { MAX_TYPES = 3 };

static const struct wrapper {
    const char *architecture;
    /* The 'model_type' of text models that it may have; the first is the usual one. */
    const char *types[MAX_TYPES];
    bool is_untied; /* unless it says that its embeddings are tied */
} wrappers[] = {
    {"Gemma3ForConditionalGeneration", {"gemma3_text"}, false},
    {"Gemma4ForConditionalGeneration", {"gemma4_text"}, false},
    {"Gemma4UnifiedForConditionalGeneration", {"gemma4_unified_text"}, false},
    {"Mistral3ForConditionalGeneration", {"mistral", "ministral3"}, false},
    {"Qwen3_5ForConditionalGeneration", {"qwen3_5_text"}, true},
    {"Qwen3_5MoeForConditionalGeneration", {"qwen3_5_moe_text"}, true},
};

/* The settings that transformers has for keys which 'text_config' lacks.  What family.c has as the
 * usual value is not repeated. */
static const struct usual_settings {
    const char *type, *json;
} usual_settings[] = {
    {"gemma3_text",
     "{\"vocab_size\": 262208, \"hidden_size\": 2304, \"intermediate_size\": 9216,"
     " \"num_hidden_layers\": 26, \"num_attention_heads\": 8, \"num_key_value_heads\": 4,"
     " \"max_position_embeddings\": 131072, \"eos_token_id\": 1, \"bos_token_id\": 2}"},
    {"gemma4_text",
     "{\"vocab_size\": 262144, \"hidden_size\": 2304, \"intermediate_size\": 9216,"
     " \"num_hidden_layers\": 30, \"num_attention_heads\": 8, \"num_key_value_heads\": 4,"
     " \"max_position_embeddings\": 131072, \"eos_token_id\": 1, \"bos_token_id\": 2}"},
    {"gemma4_unified_text",
     "{\"vocab_size\": 262144, \"hidden_size\": 2304, \"intermediate_size\": 9216,"
     " \"num_hidden_layers\": 30, \"num_attention_heads\": 8, \"num_key_value_heads\": 4,"
     " \"max_position_embeddings\": 262144, \"eos_token_id\": 1, \"bos_token_id\": 2}"},
    {"mistral", "{\"vocab_size\": 32000, \"hidden_size\": 4096, \"intermediate_size\": 14336,"
                " \"num_hidden_layers\": 32, \"num_attention_heads\": 32,"
                " \"num_key_value_heads\": 8, \"max_position_embeddings\": 131072,"
                " \"eos_token_id\": 2, \"bos_token_id\": 1}"},
    {"ministral3", "{\"vocab_size\": 131072, \"hidden_size\": 4096, \"intermediate_size\": 14336,"
                   " \"num_hidden_layers\": 34, \"num_attention_heads\": 32,"
                   " \"num_key_value_heads\": 8, \"head_dim\": 128,"
                   " \"max_position_embeddings\": 262144, \"eos_token_id\": 2,"
                   " \"bos_token_id\": 1}"},
    {"qwen3_5_text", "{\"vocab_size\": 248320, \"hidden_size\": 4096, \"intermediate_size\": 12288,"
                     " \"num_hidden_layers\": 32, \"num_attention_heads\": 16,"
                     " \"num_key_value_heads\": 4, \"max_position_embeddings\": 32768}"},
    {"qwen3_5_moe_text",
     "{\"vocab_size\": 248320, \"hidden_size\": 2048, \"moe_intermediate_size\": 512,"
     " \"shared_expert_intermediate_size\": 512, \"num_experts\": 256, \"num_experts_per_tok\": 8,"
     " \"num_hidden_layers\": 40, \"num_attention_heads\": 16, \"num_key_value_heads\": 2,"
     " \"max_position_embeddings\": 32768}"},
};

/* Keys beside 'text_config' that hold for the text model, too. */
static const struct outer_key {
    const char *key;
    bool wins; /* over the text model's own */
} outer_keys[] = {
    {"tie_word_embeddings", true},
    {"eos_token_id", true},
    {"bos_token_id", true},
    {"quantization_config", false},
    {"compression_config", false},
    {"quantization", false},
    {"dtype", false},
    {"torch_dtype", false},
};

static const struct tensor_prefix prefixes[] = {{"model.language_model.", ""},
                                                {"language_model.model.", "language_model."}};

const char *text_half_architecture(size_t i) {
    return i < COUNT(wrappers) ? wrappers[i].architecture : NULL;
}

static const struct wrapper *find_wrapper(const json_t *config) {
    const json_t *list = config_get(config, "architectures");
    const char *name = json_string_value(json_array_get(list, 0));
    for (size_t i = 0; name && json_array_size(list) == 1 && i < COUNT(wrappers); i++)
        if (strcmp(wrappers[i].architecture, name) == 0) return &wrappers[i];
    return NULL;
}

/* Returns the family's name of the text model, NULL if it is none that the wrapper may have. */
static const char *family_of_text(const struct wrapper *wrapper, const char *type) {
    for (int i = 0; i < MAX_TYPES && wrapper->types[i]; i++)
        if (strcmp(wrapper->types[i], type) == 0) return family_of_type(type);
    return NULL;
}

/* Adds the settings that a text model of this type usually has, where it lacks them. */
static int add_usual(json_t *text, const char *type) {
    for (size_t i = 0; i < COUNT(usual_settings); i++) {
        if (strcmp(usual_settings[i].type, type) != 0) continue;
        json_t *usual = json_loads(usual_settings[i].json, 0, NULL);
        const int failed = !usual || json_object_update_missing(text, usual);
        json_decref(usual);
        return failed;
    }
    return 0;
}

/* Sets what holds for all parts of the model. */
static int add_outer(json_t *text, const struct wrapper *wrapper, const json_t *config) {
    int failed =
        json_object_set_new(text, "tie_word_embeddings", json_boolean(!wrapper->is_untied));
    for (size_t i = 0; i < COUNT(outer_keys); i++) {
        json_t *value = (json_t *)config_get(config, outer_keys[i].key);
        if (value && (outer_keys[i].wins || !config_get(text, outer_keys[i].key)))
            failed |= json_object_set(text, outer_keys[i].key, value);
    }
    return failed;
}

int text_half_config(json_t **out, const json_t *config, const char *label, struct error *err) {
    const struct wrapper *wrapper = find_wrapper(config);
    const struct config_reader r = {.root = config, .label = label, .err = err};
    const json_t *inner = config_get(config, "text_config");
    *out = NULL;
    if (!wrapper) return 0;
    if (inner && !json_is_object(inner))
        return config_refuse(&r, ERR_INVALID, "text_config", "is not an object");
    const json_t *said = config_get(inner, "model_type");
    const char *type = said ? json_string_value(said) : wrapper->types[0];
    const char *family = type ? family_of_text(wrapper, type) : NULL;
    if (!family)
        return error_set(err, ERR_UNSUPPORTED,
                         "%.200s: config.json: 'text_config': 'model_type' '%.60s' is no text "
                         "model of %s that is supported",
                         label, type ? type : "", wrapper->architecture);
    json_t *text = inner ? json_copy((json_t *)inner) : json_object();
    if (!text || add_usual(text, type) || add_outer(text, wrapper, config) ||
        json_object_set_new(text, "model_type", json_string(type)) ||
        json_object_set_new(text, "architectures", json_pack("[s]", family))) {
        json_decref(text);
        return error_set(err, ERR_NOMEM, "%.200s: no memory for 'text_config'", label);
    }
    *out = text;
    return 0;
}

const struct tensor_prefix *text_half_prefix(const struct weight_source *files) {
    char name[WEIGHT_SOURCE_NAME];
    for (size_t i = 0; i < COUNT(prefixes); i++) {
        snprintf(name, sizeof(name), "%sembed_tokens.weight", prefixes[i].model);
        if (!files || files->ops->has(files, name)) return &prefixes[i];
    }
    return NULL;
}
