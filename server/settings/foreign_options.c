/* foreign_options.c - see foreign_options.h.  Spellings that are ours as well are not listed. */
#include "server/settings/foreign_options.h"

#include <stdbool.h>
#include <stddef.h>
#include <string.h>

#include "server/json/buffer.h"
#include "server/settings/option_json.h"

#define LLAMA "llama.cpp"
#define VLLM "vLLM"
#define SGLANG "SGLang"
#define BOTH "vLLM and SGLang"

#define PER_REQUEST "requests say it themselves; defaults are those of generation_config.json"
#define ONE_DEVICE                                                                                 \
    "ranks share a model (--tensor-parallel-size), or replicas have one each "                     \
    "(--data-parallel-size)"
#define OWN_FORMAT                                                                                 \
    "the model's files say in which format its weights are; `quire quantize` writes others"
#define ALWAYS_ON "it is always on"
#define OWN_KERNELS "kernels are chosen by the device and the shapes; there is nothing to set"
#define NO_LORA "adapters are not supported: merge them into the model's weights"
#define FROM_MODEL "the model's config.json says it"
#define BY_TEMPLATE "calls and reasoning are found by the model's chat template, without an option"
#define NO_DRAFT "quire guesses tokens without a second model: see --speculation"
#define TEXT_ONLY "quire serves models of text only"
#define NO_CODE "quire runs no code of a model; the architectures that it knows are built in"

static const struct foreign_option table[] = {
    {{"-m"}, LLAMA, "model", NULL},
    {{"-hf", "--hf-repo"}, LLAMA, "model", NULL},
    {{"-hft", "--hf-token"}, BOTH, NULL, "set HF_TOKEN: an option shows in the list of processes"},
    {{"--revision"}, BOTH, NULL, "the model's name takes it: OWNER/NAME@REVISION"},
    {{"--download-dir"}, BOTH, NULL, "HF_HOME or HF_HUB_CACHE names the folder of fetched models"},
    {{"-c", "--ctx-size"}, LLAMA, "max-model-len", NULL},
    {{"-t"}, LLAMA, "threads", NULL},
    {{"-np", "--parallel"}, LLAMA, "max-num-seqs", NULL},
    {{"-a", "--alias"}, LLAMA, "served-model-name", NULL},
    {{"-b", "--batch-size"}, LLAMA, "max-num-batched-tokens", NULL},
    {{"--chat-template-file"}, LLAMA, "chat-template", NULL},
    {{"--chat-template-kwargs"}, LLAMA, "default-chat-template-kwargs", NULL},
    {{"--reasoning-budget"},
     LLAMA,
     NULL,
     "requests say it: enable_thinking; see --default-chat-template-kwargs for those that do not"},
    {{"--reasoning-format"}, LLAMA, NULL, BY_TEMPLATE},
    {{"--ssl-key-file"}, LLAMA, "ssl-keyfile", NULL},
    {{"--ssl-cert-file"}, LLAMA, "ssl-certfile", NULL},
    {{"--slot-save-path"}, LLAMA, "kv-disk-path", NULL},
    {{"--no-webui"}, LLAMA, "no-ui", NULL},
    {{"--no-cache-prompt"}, LLAMA, "no-enable-prefix-caching", NULL},
    {{"-ngl", "--gpu-layers", "--n-gpu-layers"},
     LLAMA,
     NULL,
     "all layers run on one device: --device cuda or cpu; it is cuda where there is a usable GPU"},
    {{"-ub", "--ubatch-size"}, LLAMA, NULL, "a step is one batch: see --max-num-batched-tokens"},
    {{"-tb", "--threads-batch"}, LLAMA, NULL, "prompts and answers share --threads"},
    {{"-fa", "--flash-attn"}, LLAMA, NULL, ALWAYS_ON},
    {{"-cb", "--cont-batching"}, LLAMA, NULL, ALWAYS_ON},
    {{"--jinja"}, LLAMA, NULL, ALWAYS_ON},
    {{"--metrics", "--slots", "--props"}, LLAMA, NULL, "/metrics is always on: see --metrics-key"},
    {{"-ctk", "--cache-type-k"}, LLAMA, NULL, "see --kv-cache-dtype, for keys and values"},
    {{"-ctv", "--cache-type-v"}, LLAMA, NULL, "see --kv-cache-dtype, for keys and values"},
    {{"-n", "--predict", "--n-predict"}, LLAMA, NULL, PER_REQUEST},
    {{"--temp", "--temperature"}, LLAMA, NULL, PER_REQUEST},
    {{"--top-k", "--top-p", "--min-p"}, LLAMA, NULL, PER_REQUEST},
    {{"-s", "--seed"}, "llama.cpp and vLLM", NULL, PER_REQUEST},
    {{"--repeat-penalty", "--presence-penalty", "--frequency-penalty"}, LLAMA, NULL, PER_REQUEST},
    {{"--grammar", "--grammar-file"}, LLAMA, NULL, PER_REQUEST},
    {{"-ts", "--tensor-split"}, LLAMA, NULL, ONE_DEVICE},
    {{"-sm", "--split-mode"}, LLAMA, NULL, ONE_DEVICE},
    {{"-mg", "--main-gpu"}, LLAMA, NULL, "CUDA_VISIBLE_DEVICES chooses the GPU"},
    {{"-md", "--model-draft", "--draft"}, LLAMA, NULL, NO_DRAFT},
    {{"--lora", "--lora-scaled"}, LLAMA, NULL, NO_LORA},
    {{"--mmproj", "--image"}, LLAMA, NULL, TEXT_ONLY},
    {{"--embedding", "--embeddings"}, LLAMA, NULL, "quire has no route for embeddings"},
    {{"--rerank", "--reranking"}, LLAMA, NULL, "quire has no route for rankings"},
    {{"--rope-scaling", "--rope-scale", "--rope-freq-base"}, LLAMA, NULL, FROM_MODEL},
    {{"--keep", "--context-shift", "--no-context-shift"},
     LLAMA,
     NULL,
     "a KV policy says what a long text retains: see --kv-policy"},
    {{"--mlock", "--no-mmap"}, LLAMA, NULL, "weights are read into memory at start"},
    {{"-nkvo", "--no-kv-offload"},
     LLAMA,
     NULL,
     "the KV cache is on the device; --kv-offload-size moves what is not used to the machine's"},
    {{"-v", "--verbose"}, LLAMA, NULL, "see --log-level debug"},
    {{"-lv", "--verbosity", "--log-verbosity"}, LLAMA, NULL, "see --log-level"},
    {{"--log-file"}, LLAMA, NULL, "the log goes to standard error"},
    {{"-to", "--timeout"}, LLAMA, NULL, "see --request-deadline and --stall-timeout"},
    {{"-p", "--prompt"}, LLAMA, NULL, "`quire run MODEL \"prompt\"` answers one"},
    {{"-r", "--reverse-prompt"}, LLAMA, NULL, PER_REQUEST},

    {{"--kv-cache-memory-bytes"}, VLLM, "kv-cache-memory", NULL},
    {{"--otlp-traces-endpoint"}, VLLM, "otlp-endpoint", NULL},
    {{"-tp"}, BOTH, "tensor-parallel-size", NULL},
    {{"-pcp", "--prefill-context-parallel-size"}, VLLM, "context-parallel-size", NULL},
    {{"-pp", "--pipeline-parallel-size"}, BOTH, NULL, ONE_DEVICE},
    {{"-dp"}, BOTH, "data-parallel-size", NULL},
    {{"--enable-expert-parallel", "--distributed-executor-backend"}, VLLM, NULL, ONE_DEVICE},
    {{"--enforce-eager"}, VLLM, NULL, OWN_KERNELS},
    {{"-O", "--compilation-config"}, VLLM, NULL, OWN_KERNELS},
    {{"-q", "--quantization"}, BOTH, NULL, OWN_FORMAT},
    {{"--trust-remote-code"}, BOTH, NULL, NO_CODE},
    {{"--model-impl", "--runner", "--task"}, VLLM, NULL, NO_CODE},
    {{"--tokenizer", "--tokenizer-mode"}, VLLM, NULL, "the tokenizer is that of the model's files"},
    {{"--hf-overrides", "--rope-theta"}, VLLM, NULL, FROM_MODEL},
    {{"--enable-chunked-prefill", "--no-enable-chunked-prefill"},
     VLLM,
     NULL,
     "prompts are always computed in chunks: see --max-num-batched-tokens and --max-itl"},
    {{"--block-size"}, VLLM, NULL, "pages of the KV cache have a fixed size"},
    {{"--num-gpu-blocks-override"}, VLLM, NULL, "see --kv-cache-memory"},
    {{"--swap-space"}, VLLM, NULL, "see --kv-offload-size, in bytes: 4G"},
    {{"--cpu-offload-gb"}, BOTH, NULL, "weights stay on the device"},
    {{"--enable-auto-tool-choice"}, VLLM, NULL, BY_TEMPLATE},
    {{"--tool-call-parser", "--reasoning-parser", "--enable-reasoning"}, BOTH, NULL, BY_TEMPLATE},
    {{"--speculative-config", "--speculative-model"}, VLLM, NULL, NO_DRAFT},
    {{"--enable-lora", "--lora-modules", "--lora-paths"}, BOTH, NULL, NO_LORA},
    {{"--limit-mm-per-prompt", "--enable-multimodal"}, BOTH, NULL, TEXT_ONLY},
    {{"--guided-decoding-backend", "--structured-outputs-config"},
     VLLM,
     NULL,
     "xgrammar constrains answers, where it is built in"},
    {{"--scheduling-policy"}, VLLM, NULL, "requests have a priority, and keys have weights"},
    {{"--disable-log-requests", "--no-enable-log-requests"}, VLLM, NULL, "see --log-level warn"},
    {{"--uvicorn-log-level", "--disable-log-stats"}, VLLM, NULL, "see --log-level"},
    {{"--max-logprobs"}, VLLM, NULL, "requests may ask for at most 20"},
    {{"--kv-transfer-config"}, VLLM, NULL, "see --kv-offload-size and --kv-disk-path"},
    {{"--kv-events-config"}, VLLM, NULL, "see --kv-events"},
    {{"--api-server-count", "--root-path"}, VLLM, NULL, "one process answers, at its root"},
    {{"--calculate-kv-scales"}, VLLM, NULL, "--kv-cache-dtype fp8 needs no scales of the model"},

    {{"--model-path"}, SGLANG, "model", NULL},
    {{"--context-length"}, SGLANG, "max-model-len", NULL},
    {{"--mem-fraction-static"}, SGLANG, "gpu-memory-utilization", NULL},
    {{"--max-running-requests"}, SGLANG, "max-num-seqs", NULL},
    {{"--max-queued-requests"}, SGLANG, "max-num-queued-reqs", NULL},
    {{"--chunked-prefill-size"}, SGLANG, "max-num-batched-tokens", NULL},
    {{"--disable-radix-cache"}, SGLANG, "no-enable-prefix-caching", NULL},
    {{"--enable-deterministic-inference"}, SGLANG, "batch-invariant", NULL},
    {{"--tp", "--tp-size"}, SGLANG, "tensor-parallel-size", NULL},
    {{"--attn-cp-size", "--attention-context-parallel-size"},
     SGLANG,
     "context-parallel-size",
     NULL},
    {{"--dp", "--dp-size"}, SGLANG, "data-parallel-size", NULL},
    {{"--pp-size"}, SGLANG, NULL, ONE_DEVICE},
    {{"--nnodes", "--node-rank", "--dist-init-addr"}, SGLANG, NULL, ONE_DEVICE},
    {{"--disable-cuda-graph", "--enable-torch-compile"}, SGLANG, NULL, OWN_KERNELS},
    {{"--attention-backend", "--sampling-backend"}, SGLANG, NULL, OWN_KERNELS},
    {{"--grammar-backend"}, SGLANG, NULL, "xgrammar constrains answers, where it is built in"},
    {{"--max-total-tokens"}, SGLANG, NULL, "see --kv-cache-memory"},
    {{"--enable-hierarchical-cache", "--hicache-size"},
     SGLANG,
     NULL,
     "see --kv-offload-size, in bytes, and --kv-disk-path"},
    {{"--schedule-policy", "--schedule-conservativeness"},
     SGLANG,
     NULL,
     "requests have a priority, and keys have weights"},
    {{"--enable-metrics"}, SGLANG, NULL, "/metrics is always on: see --metrics-key"},
    {{"--tokenizer-path"}, SGLANG, NULL, "the tokenizer is that of the model's files"},
    {{"--random-seed"}, SGLANG, NULL, PER_REQUEST},
    {{"--log-level-http", "--log-requests"}, SGLANG, NULL, "see --log-level"},
    {{"--watchdog-timeout"}, SGLANG, NULL, "see --step-timeout"},
    {{"--speculative-algorithm", "--speculative-draft-model-path"}, SGLANG, NULL, NO_DRAFT},
    {{0}, NULL, NULL, NULL},
};

/* Options that, with some values, ask for what quire does anyhow.  They are taken, so that a
 * command line of another server works.  Between commas: the values.  "": there is none.  A comma
 * first: it may be absent.  "*": any. */
static const struct usual {
    const char *spelling, *values;
} usual[] = {
    {"-fa", ",on,auto,1,true,enabled"},
    {"--flash-attn", ",on,auto,1,true,enabled"},
    {"-cb", ""},
    {"--cont-batching", ""},
    {"--jinja", ""},
    {"--metrics", ""},
    {"--no-context-shift", ""},
    {"--mlock", ""},
    {"--no-mmap", ""},
    {"-ngl", "99,999,9999,-1,all,auto"},
    {"--gpu-layers", "99,999,9999,-1,all,auto"},
    {"--n-gpu-layers", "99,999,9999,-1,all,auto"},
    {"-pp", "1"},
    {"--pipeline-parallel-size", "1"},
    {"-dp", "1"},
    {"--data-parallel-size", "1"},
    {"--trust-remote-code", ""},
    {"--enable-chunked-prefill", ""},
    {"--enable-auto-tool-choice", ""},
    {"--enable-reasoning", ""},
    {"--tool-call-parser", "*"},
    {"--reasoning-parser", "*"},
    {"--cpu-offload-gb", "0"},
    {"--pp-size", "1"},
    {"--dp", "1"},
    {"--dp-size", "1"},
    {"--nnodes", "1"},
    {"--node-rank", "0"},
    {"--enable-metrics", ""},
};
enum { N_USUAL = sizeof(usual) / sizeof(*usual) };

enum { MAX_SPELLINGS = sizeof(table->spellings) / sizeof(*table->spellings) };

const struct foreign_option *foreign_options(void) {
    return table;
}

static bool is_spelt(const struct foreign_option *option, const char *argument, size_t n) {
    for (size_t i = 0; i < MAX_SPELLINGS && option->spellings[i]; i++)
        if (strlen(option->spellings[i]) == n && strncmp(option->spellings[i], argument, n) == 0)
            return true;
    return false;
}

const struct foreign_option *foreign_option_find(const char *argument) {
    const size_t n = strcspn(argument, "=");
    const struct foreign_option *option = table;
    while (option->of && !is_spelt(option, argument, n)) option++;
    return option->of ? option : NULL;
}

/* Tells whether a list with commas between its words has this one. */
static bool has_word(const char *list, const char *word) {
    const size_t n = strlen(word);
    while (list) {
        if (n > 0 && strcspn(list, ",") == n && strncmp(list, word, n) == 0) return true;
        list = strchr(list, ',');
        if (list) list++;
    }
    return false;
}

static const char *usual_values(const char *argument) {
    const size_t n = strcspn(argument, "=");
    for (size_t i = 0; i < N_USUAL; i++)
        if (strlen(usual[i].spelling) == n && strncmp(usual[i].spelling, argument, n) == 0)
            return usual[i].values;
    return NULL;
}

bool foreign_option_is_usual(int argc, char **argv, int *i) {
    static const char switches[] = "on,off,auto,true,false,0,1,enabled,disabled";
    const char *values = usual_values(argv[*i]), *equals = strchr(argv[*i], '=');
    if (!values || !*values) return values && !equals;
    const char *value = equals ? equals + 1 : *i + 1 < argc ? argv[*i + 1] : "";
    if (!equals && *values == ',' && !has_word(switches, value)) return true;
    if (!*value || (*values != '*' && !has_word(values, value))) return false;
    *i += !equals;
    return true;
}

static void write_option(struct buffer *out, const struct foreign_option *option) {
    buffer_puts(out, "{\"spellings\":[");
    for (size_t i = 0; i < MAX_SPELLINGS && option->spellings[i]; i++) {
        if (i > 0) buffer_puts(out, ",");
        buffer_json_string(out, option->spellings[i], strlen(option->spellings[i]));
    }
    buffer_puts(out, "],");
    option_json_member(out, "of", option->of);
    buffer_puts(out, ",");
    option_json_member(out, option->flag ? "option" : "instead",
                       option->flag ? option->flag : option->instead);
    buffer_puts(out, "}");
}

void foreign_options_json(struct buffer *out) {
    buffer_puts(out, "[");
    for (const struct foreign_option *option = table; option->of; option++) {
        buffer_puts(out, option == table ? "\n" : ",\n");
        write_option(out, option);
    }
    buffer_puts(out, "]");
}

void foreign_options_usual_json(struct buffer *out) {
    for (size_t i = 0; i < N_USUAL; i++) {
        buffer_puts(out, i ? "," : "{");
        option_json_member(out, usual[i].spelling, usual[i].values);
    }
    buffer_puts(out, "}");
}
