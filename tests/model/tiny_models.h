/* tiny_models.h - the models of tests/model/data that have goldens by transformers, made by
 * scripts/fixtures/make_tiny_models.py.
 *
 * Thread: any.  Memory: constant. */
#ifndef TESTS_MODEL_TINY_MODELS_H
#define TESTS_MODEL_TINY_MODELS_H

static const char *const tiny_models[] = {
    "mha-f32",
    "gqa-bf16-llama3-tied",
    "mqa-f16-linear-bias",
    "gqa-bf16-head128",
    "gqa-f32-sharded",
    "mistral-gqa-bf16-head80",
    "mistral-mqa-f16-head96-linear",
    "mistral-mha-bf16-window",
    "mistral-gqa-bf16-head128-window",
    "qwen2-gqa-bf16-head64-tied",
    "qwen2-mha-f32",
    "qwen2-gqa-bf16-head64-window",
    "qwen2-gqa-bf16-head128-yarn",
    "qwen3-gqa-bf16-head128-tied",
    "qwen3-mqa-f16-head80-yarn",
    "qwen3-gqa-bf16-head64-bias",
    "phi3-mha-bf16-head96",
    "phi3-gqa-bf16-partial-longrope",
    "phi3-mha-f16-head64-window",
    "phi3-mqa-f16-longrope-short",
    "glm-gqa-bf16-head64",
    "glm-mqa-f16-head80-whole",
    "glm-mha-bf16-head96-linear",
    "glm4-gqa-bf16-head128",
    "glm4-mha-f16-head32-yarn",
    "glm4-mqa-bf16-head256",
    "gemma2-gqa-bf16-head64",
    "gemma2-mqa-f16-head128-linear",
    "gemma2-mha-bf16-head256",
    "gemma3-gqa-bf16-head64",
    "gemma3-mqa-f16-head128-linear",
    "gemma3-gqa-bf16-head256-linear",
    "chatglm-gqa-bf16-head64",
    "chatglm-mha-f16-head32-ratio",
    "opt-mha-f16-head16",
    "opt-mha-bf16-head24-gelu",
    "falcon-mqa-bf16-head16",
    "falcon-gqa-f16-head16-two-norms",
    "falcon-gqa-bf16-head32-bias",
    "falcon-mha-bf16-head16-alibi",
    "mpt-mha-bf16-head16",
    "mpt-mha-f16-head32-scaled",
    "neox-mha-bf16-head32",
    "neox-mha-f16-head24-sequential",
    "neox-mha-f32-head12-linear",
    "gemma3-wrapper-gqa-bf16-head32",
    "mistral3-wrapper-gqa-f16-head32",
    "mqa-bf16-yarn-mscale",
    "gqa-bf16-dynamic",
    "mha-f16-longrope-short",
};
enum { N_TINY_MODELS = sizeof(tiny_models) / sizeof(tiny_models[0]) };

#endif
