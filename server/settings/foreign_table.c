/* foreign_table.c - the rows of foreign_table.h.  Spellings that are ours, too, are not listed. */
#include "server/settings/foreign_table.h"

#include <stddef.h>

#define LLAMA "llama.cpp"
#define VLLM "vLLM"
#define SGLANG "SGLang"
#define TRT "TensorRT-LLM"
#define TGI "TGI"
#define OLLAMA "Ollama"
#define BOTH "vLLM and SGLang"
#define ALL "several servers"

#define PER_REQUEST "requests say it themselves; defaults are those of generation_config.json"
#define RANKS                                                                                      \
    "ranks share a model (--tensor-parallel-size), or replicas have one each "                     \
    "(--data-parallel-size)"
#define ONE_HOST "ranks and replicas are those of one host, and find each other without an address"
#define OWN_FORMAT                                                                                 \
    "the model's files say in which format its weights are; `quire quantize` writes others"
#define ALWAYS_ON "it is always on"
#define NOT_THERE "quire has nothing of the kind"
#define OWN_KERNELS "kernels are chosen by the device and the shapes; there is nothing to set"
#define NO_LORA "adapters are not supported: merge them into the model's weights"
#define FROM_MODEL "the model's config.json says it"
#define OWN_TOKENIZER "the tokenizer is that of the model's files"
#define BY_TEMPLATE "calls and reasoning are found by the model's chat template, without an option"
#define NO_DRAFT "quire guesses tokens without a second model: see --speculation"
#define TEXT_ONLY "quire serves models of text only"
#define NO_CODE "quire runs no code of a model; the architectures that it knows are built in"
#define NO_EMBEDDINGS "quire has no route for embeddings"
#define ONE_MODEL "a process serves one model, and loads it whole at start"
#define WHOLE_DEVICE                                                                               \
    "all layers run on one device: --device cuda or cpu; it is cuda where there is a usable GPU"
#define IN_CHUNKS                                                                                  \
    "prompts are always computed in chunks: see --max-num-batched-tokens and --max-itl"
#define PRIORITIES "requests have a priority, lower first, and keys have weights"
#define IN_MEMORY "weights are read into memory at start"
#define SEE_OFFLOAD "see --kv-offload-size, in bytes: 10G"
#define SEE_LEVEL "see --log-level"
#define METRICS_ON "/metrics is always on: see --metrics-key"
#define METRICS_FIXED "/metrics has all that is counted: there is nothing to set"
#define XGRAMMAR "xgrammar constrains answers, where it is built in"
#define NO_TRANSFER                                                                                \
    "prompts and answers are computed by one process: see --kv-offload-size and --kv-disk-path "   \
    "for what leaves the KV cache"
#define SALT "prefixes are found by their tokens; a request's cache_salt keeps them apart"
#define CORS "see --allowed-origins"
#define FIT "see --kv-cache-memory and --max-model-len; the log has the memory plan"

const struct foreign_option foreign_table[] = {
    /* llama.cpp */
    {"-m", LLAMA, "model", NULL},
    {"-hf -hfr --hf-repo", LLAMA, "model", NULL},
    {"-hff --hf-file", LLAMA, NULL, "the model's name takes it: hf:OWNER/NAME:QUANT"},
    {"-mu --model-url -dr --docker-repo", LLAMA, NULL,
     "a model is a folder, a GGUF file or a name of the hub: OWNER/NAME"},
    {"-hft --hf-token", ALL, NULL, "set HF_TOKEN: an option shows in the list of processes"},
    {"-c --ctx-size", LLAMA, "max-model-len", NULL},
    {"-t", LLAMA, "threads", NULL},
    {"-np --parallel", LLAMA, "max-num-seqs", NULL},
    {"-a --alias", LLAMA, "served-model-name", NULL},
    {"-b --batch-size", LLAMA, "max-num-batched-tokens", NULL},
    {"--chat-template-file", LLAMA, "chat-template", NULL},
    {"--chat-template-kwargs", LLAMA, "default-chat-template-kwargs", NULL},
    {"--reasoning-budget --reasoning-budget-message -rea --reasoning", LLAMA, NULL,
     "requests say it: enable_thinking; see --default-chat-template-kwargs for those that do not"},
    {"--reasoning-format", LLAMA, NULL, BY_TEMPLATE},
    {"--ssl-key-file", LLAMA, "ssl-keyfile", NULL},
    {"--ssl-cert-file", LLAMA, "ssl-certfile", NULL},
    {"--slot-save-path", LLAMA, "kv-disk-path", NULL},
    {"--no-webui", LLAMA, "no-ui", NULL},
    {"--webui", LLAMA, "ui", NULL},
    {"--webui-config --webui-config-file --webui-mcp-proxy --tools", LLAMA, NULL,
     "the page keeps its settings in the browser; calls are made by the client"},
    {"--no-cache-prompt", LLAMA, "no-enable-prefix-caching", NULL},
    {"--cache-prompt", LLAMA, "enable-prefix-caching", NULL},
    {"--cache-reuse -sps --slot-prompt-similarity -kvu --kv-unified --no-kv-unified --clear-idle",
     LLAMA, NULL, "all requests share one pool of pages, and find any prefix in it"},
    {"-cram --cache-ram", LLAMA, NULL, SEE_OFFLOAD},
    {"-ctxcp --ctx-checkpoints --swa-checkpoints --swa-full", LLAMA, NULL,
     "what a layer with a window or a state needs is kept without an option"},
    {"-ngl --gpu-layers --n-gpu-layers", LLAMA, NULL, WHOLE_DEVICE},
    {"-cmoe --cpu-moe --moe-cache-mib", LLAMA, NULL, "see --moe-offload-size, in bytes: 64G"},
    {"-ncmoe --n-cpu-moe", LLAMA, NULL, "see --moe-offload-size: bytes, in whole layers"},
    {"-ot --override-tensor", LLAMA, NULL, "see --moe-offload-size, for experts"},
    {"-ncffn --n-cpu-ffn --no-op-offload", LLAMA, NULL, WHOLE_DEVICE},
    {"-dev --list-devices", LLAMA, NULL,
     "see --device: cuda or cpu; CUDA_VISIBLE_DEVICES chooses the GPU, and `quire doctor` lists "
     "what is there"},
    {"-ub --ubatch-size", LLAMA, NULL, "a step is one batch: see --max-num-batched-tokens"},
    {"-tb --threads-batch --threads-http", LLAMA, NULL, "prompts and answers share --threads"},
    {"-C --cpu-mask -Cb --cpu-mask-batch -Cr --cpu-range -Crb --cpu-range-batch --cpu-strict "
     "--cpu-strict-batch --prio --prio-batch --poll --poll-batch --numa",
     LLAMA, NULL, "see --threads; taskset, nice and numactl do the rest"},
    {"-fa --flash-attn", LLAMA, NULL, ALWAYS_ON},
    {"-cb --cont-batching -nocb --no-cont-batching", LLAMA, NULL, ALWAYS_ON},
    {"--jinja --no-jinja", LLAMA, NULL, ALWAYS_ON},
    {"--metrics --slots --no-slots --props", LLAMA, NULL,
     "/metrics and /state are always on: see --metrics-key"},
    {"-ctk --cache-type-k -ctv --cache-type-v", LLAMA, NULL,
     "see --kv-cache-dtype, for keys and values"},
    {"-n --predict --n-predict", LLAMA, NULL,
     "requests say it (max_tokens), and `quire run` and `chat` by --max-tokens"},
    {"--temp --temperature", LLAMA, NULL,
     "requests say it, and `quire run` and `chat` by --temperature; the default is that of "
     "generation_config.json"},
    {"--top-k --top-p --min-p", LLAMA, NULL, PER_REQUEST},
    {"-s --seed", ALL, NULL, PER_REQUEST},
    {"--repeat-penalty --presence-penalty --frequency-penalty --ignore-eos -l --logit-bias -j "
     "--json-schema -jf --json-schema-file",
     LLAMA, NULL, PER_REQUEST},
    {"--grammar --grammar-file -r --reverse-prompt", LLAMA, NULL, PER_REQUEST},
    {"--samplers --sampler-seq --sampling-seq --xtc-* --typical --typical-p --repeat-last-n "
     "--dry-* --dynatemp-* --mirostat* --top-nsigma --top-n-sigma --adaptive-* -bs "
     "--backend-sampling",
     LLAMA, NULL,
     "tokens are drawn by temperature, top_k, min_p, top_p and penalties, which requests say"},
    {"-ts --tensor-split -sm --split-mode --rpc", LLAMA, NULL, RANKS},
    {"-mg --main-gpu", LLAMA, NULL, "CUDA_VISIBLE_DEVICES chooses the GPU"},
    {"-fit --fit -fitt --fit-target -fitc --fit-ctx", LLAMA, NULL, FIT},
    {"-md --model-draft --draft* -cd --ctx-size-draft -ngld --gpu-layers-draft -td -hfd "
     "--hf-repo-draft --spec-* -ctkd -ctvd -otd",
     LLAMA, NULL, NO_DRAFT},
    {"--lora --lora-scaled --lora-init-without-apply --control-vector*", LLAMA, NULL, NO_LORA},
    {"-mm --mmproj* --no-mmproj* --image* -mv --model-vocoder --media-path", LLAMA, NULL,
     TEXT_ONLY},
    {"--embedding --embeddings --pooling", LLAMA, NULL, NO_EMBEDDINGS},
    {"--rerank --reranking", LLAMA, NULL, "quire has no route for rankings"},
    {"--spm-infill --fim-*", LLAMA, NULL, "quire has no route to fill in the middle"},
    {"--rope-scaling --rope-scale --rope-freq-* --yarn-*", LLAMA, NULL, FROM_MODEL},
    {"--override-kv --check-tensors", LLAMA, NULL, "the model's files are taken as they are"},
    {"--keep --context-shift --no-context-shift", LLAMA, NULL,
     "a KV policy says what a long text retains: see --kv-policy"},
    {"--mlock --mmap --no-mmap -dio --direct-io --no-direct-io -lm --load-mode -lzm --lazy-mode",
     LLAMA, NULL, IN_MEMORY},
    {"--warmup --no-warmup --repack -nr --no-repack --no-host", LLAMA, NULL,
     "memory is planned, and weights are put in order, at start"},
    {"-kvo -nkvo --no-kv-offload", LLAMA, NULL,
     "the KV cache is on the device; --kv-offload-size moves what is not used to the machine's"},
    {"-dt --defrag-thold", LLAMA, NULL, "pages are never out of order"},
    {"-v --verbose --log-verbose", LLAMA, NULL, "see --log-level debug"},
    {"-lv --verbosity --log-verbosity --log-disable --log-colors --log-prefix --log-timestamps "
     "--perf --no-perf",
     LLAMA, NULL, SEE_LEVEL},
    {"--log-jsonl", LLAMA, NULL, "see --log-format json"},
    {"--log-file", LLAMA, NULL, "the log goes to standard error"},
    {"-to --timeout", LLAMA, NULL, "see --request-deadline and --stall-timeout"},
    {"-p --prompt -f --file -cnv -st -sys", LLAMA, NULL,
     "`quire run MODEL \"prompt\"` answers one, and `quire chat MODEL` talks"},
    {"-e --escape --no-escape -sp --special", LLAMA, NULL,
     "texts are taken as they are; skip_special_tokens is for requests"},
    {"--skip-chat-parsing --prefill-assistant --no-prefill-assistant", LLAMA, NULL, BY_TEMPLATE},
    {"--path --api-prefix --reuse-port --tags", LLAMA, NULL, NOT_THERE},
    {"--models-* --no-models-autoload --sleep-idle-seconds --gpt-oss-*", LLAMA, NULL, ONE_MODEL},

    /* vLLM, and what SGLang spells likewise */
    {"--revision", ALL, NULL, "the model's name takes it: OWNER/NAME@REVISION"},
    {"--code-revision --tokenizer-revision --hf-config-path", VLLM, NULL,
     "all files are those of the model's name: OWNER/NAME@REVISION"},
    {"--download-dir", BOTH, NULL, "HF_HOME or HF_HUB_CACHE names the folder of fetched models"},
    {"--kv-cache-memory-bytes", VLLM, "kv-cache-memory", NULL},
    {"--otlp-traces-endpoint", ALL, "otlp-endpoint", NULL},
    {"--collect-detailed-traces --enable-trace", BOTH, NULL, "see --otlp-endpoint"},
    {"-tp", BOTH, "tensor-parallel-size", NULL},
    {"-pcp --prefill-context-parallel-size", VLLM, "context-parallel-size", NULL},
    {"-dp", BOTH, "data-parallel-size", NULL},
    {"-dcp --decode-context-parallel-size", VLLM, NULL, "see --context-parallel-size"},
    {"-pp --pipeline-parallel-size", ALL, NULL, RANKS},
    {"--enable-expert-parallel --enable-eplb --eplb-* -ep --expert-parallel-size "
     "--distributed-executor-backend --all2all-backend --enable-dbo --worker-cls "
     "--worker-extension-cls --max-parallel-loading-workers --ray-*",
     VLLM, NULL, RANKS},
    {"--data-parallel-size-local --data-parallel-rank --data-parallel-start-rank "
     "--data-parallel-address --data-parallel-rpc-port --data-parallel-backend "
     "--data-parallel-hybrid-lb --data-parallel-external-lb -dpa -dpb -dpl -dpn -dpp -dpr -dph "
     "-dpe --master-addr --master-port "
     "--headless -asc --api-server-count --disable-frontend-multiprocessing",
     VLLM, NULL, ONE_HOST},
    {"--disable-custom-all-reduce --disable-nccl-*", BOTH, NULL,
     "ranks exchange by kernels of their own; there is nothing to set"},
    {"--enforce-eager -O* -cc* --compilation-config* --cudagraph-* --cuda-graph-sizes "
     "--max-cudagraph-* --max-seq-len-to-capture --optimization-level --performance-mode "
     "--attention-config* -ac* --kernel-config* --disable-cascade-attn --moe-backend "
     "--gdn-prefill-backend --async-scheduling --no-async-scheduling --num-scheduler-steps "
     "--kv-sharing-fast-prefill",
     VLLM, NULL, OWN_KERNELS},
    {"--attention-backend", BOTH, NULL, OWN_KERNELS},
    {"-q --quantization --allow-deprecated-quantization --quantization-param-path", BOTH, NULL,
     OWN_FORMAT},
    {"--trust-remote-code --model-impl --runner --task --convert --config-format "
     "--io-processor-plugin --logits-processors --enable-custom-logit-processor --middleware",
     ALL, NULL, NO_CODE},
    {"--tokenizer --tokenizer-mode --tokenizer-path --skip-tokenizer-init --tokenizer-worker-num "
     "--tokenizer-pool-* --renderer-num-workers --tokens-only",
     ALL, NULL, OWN_TOKENIZER},
    {"--hf-overrides --rope-theta --disable-sliding-window", VLLM, NULL, FROM_MODEL},
    {"--override-generation-config", VLLM, NULL,
     "requests say it themselves; see --generation-config for what holds where they do not"},
    {"--enable-chunked-prefill --no-enable-chunked-prefill --disable-chunked-mm-input "
     "--max-num-partial-prefills --max-long-partial-prefills --long-prefill-token-threshold",
     VLLM, NULL, IN_CHUNKS},
    {"--block-size --mamba-* --enable-mamba-* --disable-hybrid-kv-cache-manager", VLLM, NULL,
     "pages of the KV cache have a fixed size, and layers of each kind their own"},
    {"--prefix-caching-hash-algo", VLLM, NULL, SALT},
    {"--num-gpu-blocks-override --cpu-kvcache-space", VLLM, NULL, "see --kv-cache-memory"},
    {"--swap-space --kv-offloading-size --kv-offloading-backend", VLLM, NULL, SEE_OFFLOAD},
    {"--cpu-offload-gb --cpu-offload-params --offload-group-size --offload-mode", BOTH, NULL,
     "only experts can leave the GPU: --moe-offload-size 8G"},
    {"--enable-sleep-mode", VLLM, NULL, "weights stay on the device"},
    {"--enable-auto-tool-choice --tool-call-parser --tool-parser --tool-parser-plugin "
     "--reasoning-parser --reasoning-parser-plugin --enable-reasoning "
     "--exclude-tools-when-tool-choice-none --tool-server",
     ALL, NULL, BY_TEMPLATE},
    {"--chat-template-content-format --trust-request-chat-template --response-role "
     "--hf-chat-template-name --completion-template",
     BOTH, NULL, "the chat template says how messages become a prompt: see --chat-template"},
    {"--speculative-* --num-speculative-tokens --ngram-* -sc*", BOTH, NULL, NO_DRAFT},
    {"--enable-lora --lora-* --max-loras --max-loras-per-batch --max-lora-rank --max-cpu-loras "
     "--fully-sharded-loras --enable-lora-bias --default-mm-loras --max-loaded-loras",
     ALL, NULL, NO_LORA},
    {"--limit-mm-* --enable-multimodal --mm-* --media-io-kwargs --skip-mm-profiling "
     "--language-model-only --video-* --interleave-mm-strings --allowed-local-media-path "
     "--allowed-media-domains --enable-mm-embeds --disable-mm-preprocessor-cache "
     "--ec-transfer-config",
     ALL, NULL, TEXT_ONLY},
    {"--pooler-config --override-pooler-config --is-embedding", BOTH, NULL, NO_EMBEDDINGS},
    {"--guided-decoding-* --structured-outputs-config* --grammar-backend "
     "--constrained-json-* --disable-grammar-support",
     ALL, NULL, XGRAMMAR},
    {"--scheduling-policy --schedule-policy --schedule-conservativeness "
     "--enable-priority-scheduling --preemption-mode --scheduler-cls",
     BOTH, NULL, PRIORITIES},
    {"--disable-log-requests --no-enable-log-requests", VLLM, NULL, "see --log-level warn"},
    {"--enable-log-requests --enable-log-outputs --max-log-len --log-config-file "
     "--uvicorn-log-level --disable-uvicorn-access-log --disable-access-log-for-endpoints "
     "--disable-log-stats --aggregate-engine-logging",
     VLLM, NULL, "see --log-level; texts of requests are never logged"},
    {"--enable-prompt-tokens-details --enable-cache-report", BOTH, NULL,
     "usage always tells cached_tokens"},
    {"--enable-request-id-headers", VLLM, NULL, "answers always have x-request-id"},
    {"--enable-force-include-usage", VLLM, NULL,
     "a stream has its usage where stream_options asks for it"},
    {"--enable-tokenizer-info-endpoint --enable-server-load-tracking", VLLM, NULL,
     "/tokenizer_info and /state are always on"},
    {"--return-tokens-as-token-ids --enable-prompt-embeds", VLLM, NULL,
     "requests may ask for return_token_ids; prompts are texts or token ids"},
    {"--disable-fastapi-docs --enable-offline-docs", VLLM, NULL, "see --ui, for /docs, too"},
    {"--allow-credentials --allowed-methods --allowed-headers --cors-allow-origin", ALL, NULL,
     CORS},
    {"--uds --h11-*", VLLM, NULL, "see --host and --port; quire listens on TCP"},
    {"--ssl-ca-certs --ssl-cert-reqs --ssl-ciphers", VLLM, NULL,
     "clients are known by API keys: see --api-key-file"},
    {"--enable-ssl-refresh", BOTH, NULL, "SIGHUP makes the server read its certificate again"},
    {"--max-logprobs --logprobs-mode", VLLM, NULL,
     "requests may ask for at most 20, of what the model says before temperature and filters"},
    {"--kv-transfer-config --enable-lmcache --disaggregation-*", ALL, NULL, NO_TRANSFER},
    {"--kv-events-config", BOTH, NULL, "see --kv-events"},
    {"--root-path --fastapi-root-path", BOTH, NULL,
     "a server answers at its root: let the proxy cut the prefix off"},
    {"--calculate-kv-scales", VLLM, NULL, "--kv-cache-dtype fp8 needs no scales of the model"},
    {"--show-hidden-metrics-for-version --kv-cache-metrics*", VLLM, NULL, METRICS_FIXED},
    {"--stream-interval --stream-output", BOTH, NULL, "each token is sent when it is there"},
    {"--safetensors-load-strategy --pt-load-map-location --model-loader-extra-config "
     "--ignore-patterns --use-tqdm-on-load --no-use-tqdm-on-load --delete-ckpt-after-loading",
     BOTH, NULL, IN_MEMORY},
    {"--additional-config --numa-bind* --numa-node", BOTH, NULL, NOT_THERE},

    /* SGLang */
    {"--model-path", SGLANG, "model", NULL},
    {"--context-length", SGLANG, "max-model-len", NULL},
    {"--mem-fraction-static", SGLANG, "gpu-memory-utilization", NULL},
    {"--max-running-requests", SGLANG, "max-num-seqs", NULL},
    {"--max-queued-requests", SGLANG, "max-num-queued-reqs", NULL},
    {"--chunked-prefill-size", SGLANG, "max-num-batched-tokens", NULL},
    {"--max-prefill-tokens --prefill-max-requests --enable-mixed-chunk --enable-dynamic-chunking "
     "--enable-prefill-delayer --prefill-delayer-*",
     SGLANG, NULL, IN_CHUNKS},
    {"--disable-radix-cache", SGLANG, "no-enable-prefix-caching", NULL},
    {"--radix-eviction-policy", SGLANG, NULL, "the least recently used prefix goes first"},
    {"--enable-deterministic-inference", SGLANG, "batch-invariant", NULL},
    {"--tp --tp-size", ALL, "tensor-parallel-size", NULL},
    {"--cp-size --attn-cp-size --attention-context-parallel-size", ALL, "context-parallel-size",
     NULL},
    {"--dp --dp-size", SGLANG, "data-parallel-size", NULL},
    {"--pp --pp-size --ep --ep-size --enable-ep-moe --enable-dp-attention --enable-dp-lm-head "
     "--moe-a2a-backend --moe-dense-tp-size --load-balance-method",
     ALL, NULL, RANKS},
    {"--nnodes --node-rank --dist-init-addr --dist-timeout --nccl-port", ALL, NULL, ONE_HOST},
    {"--base-gpu-id --gpu-id-step", SGLANG, NULL,
     "see --tensor-parallel-devices; CUDA_VISIBLE_DEVICES chooses what is seen"},
    {"--disable-cuda-graph* --cuda-graph-* --enable-piecewise-cuda-graph --enable-torch-compile "
     "--torch-compile-* --torchao-config --disable-overlap-schedule --enable-two-batch-overlap "
     "--enable-single-batch-overlap --enable-fp32-lm-head --enable-mscclpp --enable-p2p-check "
     "--enable-nccl-nvls --enable-symm-mem --enable-flashinfer-* --triton-attention-* "
     "--num-continuous-decode-steps --sampling-backend --prefill-attention-backend "
     "--decode-attention-backend --moe-runner-backend --fp8-gemm-* --nsa-* --enable-mla",
     SGLANG, NULL, OWN_KERNELS},
    {"--page-size --swa-full-tokens-ratio --disable-hybrid-swa-memory", SGLANG, NULL,
     "pages of the KV cache have a fixed size"},
    {"--max-total-tokens", "SGLang and TGI", NULL,
     "see --kv-cache-memory for the pool, and --max-model-len for a request"},
    {"--enable-hierarchical-cache --hicache-*", SGLANG, NULL,
     "see --kv-offload-size, in bytes, and --kv-disk-path"},
    {"--enable-metrics* --bucket-* --collect-tokens-histogram --prompt-tokens-buckets "
     "--generation-tokens-buckets",
     SGLANG, NULL, METRICS_ON},
    {"--random-seed", SGLANG, NULL, PER_REQUEST},
    {"--sampling-defaults", SGLANG, NULL, "see --generation-config"},
    {"--preferred-sampling-params", SGLANG, NULL, PER_REQUEST},
    {"--json-model-override-args", SGLANG, NULL, FROM_MODEL},
    {"--log-level-http --log-requests* --show-time-cost --decode-log-interval "
     "--enable-request-time-stats-logging --crash-dump-folder",
     SGLANG, NULL, SEE_LEVEL},
    {"--watchdog-timeout", SGLANG, NULL, "see --step-timeout"},
    {"--allow-auto-truncate", SGLANG, NULL,
     "a prompt that is too long is refused; see --kv-policy for texts without end"},
    {"--admin-api-key", SGLANG, NULL, "see --api-keys; no route changes the server"},
    {"--skip-server-warmup --warmups --sleep-on-idle --enable-memory-saver "
     "--enable-return-hidden-states --weight-version --file-storage-path --grpc-mode "
     "--rl-on-policy-target",
     SGLANG, NULL, NOT_THERE},

    /* TensorRT-LLM's trtllm-serve, with '_' for '-' */
    {"--max-batch-size", "TensorRT-LLM and TGI", "max-num-seqs", NULL},
    {"--max-num-tokens", TRT, "max-num-batched-tokens", NULL},
    {"--max-seq-len", TRT, "max-model-len", NULL},
    {"--kv-cache-free-gpu-memory-fraction --free-gpu-memory-fraction", TRT, NULL,
     "it is a share of what is free there: see --gpu-memory-utilization, a share of the whole, or "
     "--kv-cache-memory"},
    {"--backend --gpus-per-node --custom-tokenizer --custom-module-dirs "
     "--num-postprocess-workers",
     TRT, NULL, NOT_THERE},
    {"--moe-expert-parallel-size --moe-cluster-parallel-size --cluster-size", TRT, NULL, RANKS},
    {"--extra-llm-api-options", TRT, NULL, "see --config, a JSON file with settings"},
    {"--max-beam-width", TRT, NULL, "beam search is not supported; requests have best_of"},
    {"--fail-fast-on-attention-window-too-large", TRT, NULL,
     "a request that could never fit is refused"},
    {"--metadata-server-config-file --server-role --disagg-cluster-uri", TRT, NULL, NO_TRANSFER},

    /* TGI's text-generation-launcher */
    {"--model-id", TGI, "model", NULL},
    {"--hostname", TGI, "host", NULL},
    {"--num-shard", TGI, "tensor-parallel-size", NULL},
    {"--sharded --shard-uds-path", TGI, NULL, RANKS},
    {"--quantize", TGI, NULL, OWN_FORMAT},
    {"--speculate", TGI, NULL, NO_DRAFT},
    {"--max-concurrent-requests", TGI, NULL,
     "see --max-num-seqs for what runs, and --max-num-queued-reqs for what waits"},
    {"--max-input-tokens --max-input-length", TGI, NULL,
     "see --max-model-len, for prompt and answer together"},
    {"--max-batch-prefill-tokens", TGI, "max-num-batched-tokens", NULL},
    {"--max-batch-total-tokens", TGI, NULL, "see --kv-cache-memory"},
    {"--waiting-served-ratio --max-waiting-tokens --cuda-graphs --disable-custom-kernels", TGI,
     NULL, OWN_KERNELS},
    {"--max-best-of --max-stop-sequences --max-top-n-tokens --max-client-batch-size "
     "--validation-workers --enable-prefill-logprobs",
     TGI, NULL, "docs/api.md has the bounds of a request's fields; there is nothing to set"},
    {"--payload-limit", TGI, "max-body-size", NULL},
    {"--cuda-memory-fraction", TGI, "gpu-memory-utilization", NULL},
    {"--rope-factor", TGI, NULL, FROM_MODEL},
    {"--huggingface-hub-cache --weights-cache-override", TGI, NULL,
     "HF_HOME or HF_HUB_CACHE names the folder of fetched models"},
    {"--tokenizer-config-path", TGI, NULL, OWN_TOKENIZER},
    {"--json-output", TGI, NULL, "see --log-format json"},
    {"--prefix-caching", TGI, "enable-prefix-caching", NULL},
    {"--otlp-service-name --watermark-* --ngrok* --env --usage-stats --graceful-termination-*", TGI,
     NULL, NOT_THERE},

    /* Ollama's run */
    {"--keepalive", OLLAMA, NULL, ONE_MODEL},
    {"--think --hidethinking", OLLAMA, NULL,
     "requests say it: enable_thinking; see --default-chat-template-kwargs for those that do not"},
    {"--format", OLLAMA, NULL, "requests have response_format"},
    {"--nowordwrap --insecure --dimensions --truncate", OLLAMA, NULL, NOT_THERE},
    {NULL, NULL, NULL, NULL},
};

const struct usual_option usual_table[] = {
    {"-fa", ",on,auto,1,true,enabled"},
    {"--flash-attn", ",on,auto,1,true,enabled"},
    {"-cb", ""},
    {"--cont-batching", ""},
    {"--jinja", ""},
    {"--metrics", ""},
    {"--slots", ""},
    {"--no-context-shift", ""},
    {"--mlock", ""},
    {"--mmap", ""},
    {"--no-mmap", ""},
    {"--warmup", ""},
    {"--no-warmup", ""},
    {"-kvo", ""},
    {"-kvu", ""},
    {"--kv-unified", ""},
    {"--repack", ""},
    {"--reasoning-format", "auto,deepseek"},
    {"-ngl", "99,999,9999,-1,all,auto"},
    {"--gpu-layers", "99,999,9999,-1,all,auto"},
    {"--n-gpu-layers", "99,999,9999,-1,all,auto"},
    {"-pp", "1"},
    {"--pipeline-parallel-size", "1"},
    {"--trust-remote-code", ""},
    {"--tokenizer-mode", "auto"},
    {"--model-impl", "auto"},
    {"--config-format", "auto"},
    {"--runner", "auto,generate"},
    {"--convert", "auto,none"},
    {"--task", "auto,generate"},
    {"--enable-chunked-prefill", ""},
    {"--async-scheduling", ""},
    {"--enable-auto-tool-choice", ""},
    {"--enable-reasoning", ""},
    {"--tool-call-parser", "*"},
    {"--tool-parser", "*"},
    {"--reasoning-parser", "*"},
    {"--cpu-offload-gb", "0"},
    {"--swap-space", "0"},
    {"--distributed-executor-backend", "mp,uni"},
    {"--scheduling-policy", "priority"},
    {"--guided-decoding-backend", "auto,xgrammar"},
    {"--grammar-backend", "xgrammar"},
    {"--enable-prompt-tokens-details", ""},
    {"--enable-cache-report", ""},
    {"--enable-request-id-headers", ""},
    {"--enable-tokenizer-info-endpoint", ""},
    {"--enable-ssl-refresh", ""},
    {"--api-server-count", "1"},
    {"--stream-interval", "1"},
    {"--pp-size", "1"},
    {"--ep-size", "1"},
    {"--nnodes", "1"},
    {"--node-rank", "0"},
    {"--enable-metrics", ""},
    {"--max-beam-width", "1"},
    {NULL, NULL},
};

#define FLOAT16                                                                                    \
    "weights of float16 are read as they are, and products are of float32 or bfloat16: leave it "  \
    "out"

const struct foreign_value foreign_values[] = {
    {"kv-cache-dtype", "fp8_e4m3", "fp8", NULL},
    {"kv-cache-dtype", "fp8_e4m3fn", "fp8", NULL},
    {"kv-cache-dtype", "bf16", "bfloat16", NULL},
    {"kv-cache-dtype", "f16", "float16", NULL},
    {"kv-cache-dtype", "fp16", "float16", NULL},
    {"kv-cache-dtype", "f32", "float32", NULL},
    {"dtype", "bf16", "bfloat16", NULL},
    {"dtype", "float", "float32", NULL},
    {"dtype", "half", NULL, FLOAT16},
    {"dtype", "float16", NULL, FLOAT16},
    {"dtype", "fp16", NULL, FLOAT16},
    {"load-format", "safetensors", "auto", NULL},
    {"load-format", "gguf", "auto", NULL},
    {"generation-config", "vllm", "none", NULL},
    {"log-level", "warning", "warn", NULL},
    {"device", "none", "cpu", NULL},
    {"max-model-len", "auto", "0", NULL},
    {"max-model-len", "-1", "0", NULL},
    {"threads", "-1", "0", NULL},
    {NULL, NULL, NULL, NULL},
};
