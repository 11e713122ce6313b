/* bench.c - see bench.h.
 *
 *   prefill   one prompt, one token: prompt tokens / time to the first token
 *   decode    B prompts; from when all of them decode to when the first is done
 *
 * The bounds: a decode step must read every weight once (memory), a prefilled token must be
 * multiplied with every weight once and with the keys and values before it (arithmetic). */
#include "server/bench.h"

#include <errno.h>
#include <semaphore.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "engine/cpu/cpu.h"
#include "engine/engine.h"
#include "engine/error.h"
#include "engine/model/model.h"
#include "server/options.h"
#include "server/serve.h"

struct bench {
    const struct bench_plan *plan;
    struct engine *engine;
    const struct engine_info *info;
    sem_t bell; /* rung when the engine has events */
    struct cpu_ceiling ceiling;
    uint64_t random;
};

/* What one batch showed. */
struct timing {
    double total_seconds;  /* from submission to the last sequence's end */
    double decode_seconds; /* from the first step in which every sequence generated to the first
                              one's end */
    uint64_t decode_tokens;
};

static void ring(void *bench) {
    sem_post(&((struct bench *)bench)->bell);
}

static double seconds_now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* --- the command line --- */

static int read_number(const char *name, const char *text, uint64_t low, uint64_t high,
                       uint64_t *out, char **end, struct error *err) {
    errno = 0;
    unsigned long long value = strtoull(text, end, 10);
    if (*end == text || *text == '-' || errno || value < low || value > high) {
        return error_set(err, ERR_INVALID, "--%s: expected a number from %llu to %llu, got '%s'",
                         name, (unsigned long long)low, (unsigned long long)high, text);
    }
    *out = value;
    return 0;
}

static int read_list(const char *name, const char *text, uint32_t high, uint32_t *list, uint32_t *n,
                     struct error *err) {
    for (*n = 0;; text++) {
        uint64_t value = 0;
        char *end;
        if (*n == BENCH_MAX_SIZES)
            return error_set(err, ERR_INVALID, "--%s: at most %d sizes", name, BENCH_MAX_SIZES);
        int rc = read_number(name, text, 1, high, &value, &end, err);
        if (rc < 0) return rc;
        list[(*n)++] = (uint32_t)value;
        if (*end == '\0') return 0;
        if (*end != ',')
            return error_set(err, ERR_INVALID, "--%s: sizes are separated by commas", name);
        text = end;
    }
}

static int read_flag(struct bench_plan *plan, const char *name, const char *value,
                     struct error *err) {
    uint64_t number = 0;
    char *end = "";
    int rc;
    if (strcmp(name, "prompts") == 0)
        rc = read_list(name, value, 1u << 22, plan->prompts, &plan->n_prompts, err);
    else if (strcmp(name, "batches") == 0)
        rc = read_list(name, value, 4096, plan->batches, &plan->n_batches, err);
    else if (strcmp(name, "generate") == 0)
        rc = read_number(name, value, 2, 1u << 16, &number, &end, err);
    else if (strcmp(name, "runs") == 0) rc = read_number(name, value, 1, 100, &number, &end, err);
    else rc = read_number(name, value, 0, UINT64_MAX, &number, &end, err);
    if (rc < 0) return rc;
    if (*end) return error_set(err, ERR_INVALID, "--%s: '%s' is not a number", name, value);
    if (strcmp(name, "generate") == 0) plan->n_generate = (uint32_t)number;
    if (strcmp(name, "runs") == 0) plan->n_runs = (uint32_t)number;
    if (strcmp(name, "max-resident") == 0) plan->max_resident = number;
    return 0;
}

int bench_plan_read(struct bench_plan *plan, int *argc, char **argv, struct error *err) {
    static const char *const names[] = {"prompts", "batches", "generate", "runs", "max-resident"};
    *plan = (struct bench_plan){{512, 4096, 16384}, 3, {1, 8, 64}, 3, 64, 3, 65536};
    int kept = 0;
    for (int i = 0; i < *argc; i++) {
        const char *name = NULL;
        for (size_t k = 0; k < sizeof(names) / sizeof(names[0]); k++) {
            if (strncmp(argv[i], "--", 2) == 0 && strcmp(argv[i] + 2, names[k]) == 0)
                name = names[k];
        }
        if (!name) {
            argv[kept++] = argv[i];
            continue;
        }
        if (i + 1 == *argc) return error_set(err, ERR_INVALID, "--%s needs a value", name);
        int rc = read_flag(plan, name, argv[++i], err);
        if (rc < 0) return rc;
    }
    *argc = kept;
    return 0;
}

void bench_print_help(void) {
    puts("usage: quire bench [MODEL] [options of `quire serve`] [--prompts 512,4096,16384] "
         "[--batches 1,8,64]\n"
         "                   [--generate 64] [--runs 3] [--max-resident 65536]\n"
         "\n"
         "Measures the engine without HTTP and prints CSV: prefill and decode tokens per second "
         "(median, least and\n"
         "greatest of --runs), and the fraction of this machine's memory-copy bandwidth and peak "
         "f32 multiply rate.\n"
         "--max-resident bounds prompt tokens times sequences of the decode rows (0: no bound).");
}

/* --- one batch --- */

static uint32_t random_token(struct bench *b) {
    b->random = b->random * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(b->random >> 33) % b->info->model->n_vocab;
}

static int submit(struct bench *b, uint32_t n_prompt, uint32_t batch, uint32_t n_generate,
                  struct error *err) {
    struct engine_request *requests = calloc(batch, sizeof(*requests));
    uint64_t *ids = calloc(batch, sizeof(*ids));
    int rc = requests && ids ? 0 : error_set(err, ERR_NOMEM, "bench: no memory");
    for (uint32_t i = 0; rc == 0 && i < batch; i++) {
        requests[i] = (struct engine_request){.n_prompt = n_prompt, .params = sampling_defaults()};
        requests[i].prompt = malloc(n_prompt * sizeof(uint32_t));
        if (!requests[i].prompt) rc = error_set(err, ERR_NOMEM, "bench: no memory");
        for (uint32_t t = 0; rc == 0 && t < n_prompt; t++) requests[i].prompt[t] = random_token(b);
        requests[i].params.temperature = 0;
        requests[i].params.ignore_eos = true;
        requests[i].params.max_tokens = n_generate;
    }
    if (rc == 0) rc = engine_submit(b->engine, requests, batch, ids, err);
    if (rc < 0 && requests) { /* still ours */
        for (uint32_t i = 0; i < batch; i++) free(requests[i].prompt);
    }
    free(requests);
    free(ids);
    return rc;
}

/* Takes what the engine has to say and counts the sequences that are done. */
static int take_finished(struct bench *b, uint32_t *n_finished, struct error *err) {
    int rc = 0;
    struct engine_event *event = engine_take_events(b->engine), *next;
    for (; event; event = next) {
        next = event->next;
        *n_finished += event->kind == EVENT_FINISH;
        if (event->kind == EVENT_FINISH && event->reason == FINISH_ERROR) {
            rc = error_set(err, event->error_code, "bench: %s", event->error_text);
        }
        engine_event_free(event);
    }
    return rc;
}

/* Counts through the engine's statistics: an event may hold a token back until its text is
 * complete. */
static int run_batch(struct bench *b, uint32_t n_prompt, uint32_t batch, uint32_t n_generate,
                     struct timing *out, struct error *err) {
    struct engine_stats last, now;
    uint32_t n_finished = 0;
    uint64_t tokens_then = 0;
    double start = seconds_now(), decoding = 0;
    *out = (struct timing){0};
    engine_stats(b->engine, &last);
    int rc = submit(b, n_prompt, batch, n_generate, err);
    while (rc == 0 && n_finished < batch) {
        while (sem_wait(&b->bell) != 0) { /* interrupted by a signal */
        }
        double time = seconds_now();
        engine_stats(b->engine, &now);
        uint32_t n_before = n_finished;
        rc = take_finished(b, &n_finished, err);
        if (n_before == 0 && n_finished > 0 && decoding > 0) {
            out->decode_seconds = time - decoding;
            out->decode_tokens = now.generated_tokens - tokens_then;
        }
        if (n_finished == batch) out->total_seconds = time - start;
        uint64_t n_steps = now.n_steps - last.n_steps;
        if (decoding == 0 && n_steps > 0 &&
            now.generated_tokens - last.generated_tokens == n_steps * batch) {
            decoding = time;
            tokens_then = now.generated_tokens;
        }
        last = now;
    }
    return rc;
}

/* --- results --- */

static int compare_doubles(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

/* Weight bytes that a decode step reads: all but an embedding table that is not also the head. */
static double step_bytes(const struct engine_info *info) {
    const struct model_config *m = info->model;
    double table = m->tied_head ? 0
                                : (double)m->n_vocab * m->dim * (double)dtype_size(m->weight_dtype);
    return (double)info->weight_bytes - table;
}

/* Operations of a prompt: two for each weight and token, and for each query with each key and
 * value.  Past the last layer's attention only the last token goes on. */
static double prompt_flops(const struct model_config *m, double n) {
    double qkv = (double)m->dim * (m->n_heads + 2.0 * m->n_kv_heads) * m->head_dim;
    double o = (double)m->n_heads * m->head_dim * m->dim, ffn = 3.0 * m->dim * m->ffn_dim;
    double attention = 4.0 * m->n_heads * m->head_dim * n * (n + 1) / 2;
    double rows = n * (m->n_layers - 1) + 1;
    return m->n_layers * (2 * n * qkv + attention) + 2 * rows * (o + ffn) +
           2.0 * m->n_vocab * m->dim;
}

static void print_row(struct bench *b, const char *what, uint32_t n_prompt, uint32_t batch,
                      double *rates, uint32_t n, double memory, double arithmetic) {
    qsort(rates, n, sizeof(*rates), compare_doubles);
    printf("%s,%u,%u,%.1f,%.1f,%.1f", what, n_prompt, batch, rates[n / 2], rates[0], rates[n - 1]);
    if (b->ceiling.copy_bytes_per_s <= 0) printf(",,"); /* not measured on this backend */
    else if (memory > 0) printf(",%.3f,", rates[n / 2] * memory / b->ceiling.copy_bytes_per_s);
    else printf(",,%.3f", rates[n / 2] * arithmetic / b->ceiling.flops_per_s);
    printf("\n");
    fflush(stdout);
}

static int bench_prefill(struct bench *b, uint32_t n_prompt, struct error *err) {
    double rates[100];
    for (uint32_t run = 0; run < b->plan->n_runs; run++) {
        struct timing t;
        int rc = run_batch(b, n_prompt, 1, 1, &t, err);
        if (rc < 0) return rc;
        rates[run] = n_prompt / t.total_seconds;
    }
    print_row(b, "prefill", n_prompt, 1, rates, b->plan->n_runs, 0,
              prompt_flops(b->info->model, n_prompt) / n_prompt);
    return 0;
}

static int bench_decode(struct bench *b, uint32_t n_prompt, uint32_t batch, struct error *err) {
    double rates[100];
    /* The first sequences decode while the last ones are still being prefilled: each of those steps
     * takes one of their tokens, and at least one prompt token of the others. */
    uint32_t slack = batch == 1 ? 0 : batch + (uint32_t)((uint64_t)batch * n_prompt / 256);
    for (uint32_t run = 0; run < b->plan->n_runs; run++) {
        struct timing t;
        int rc = run_batch(b, n_prompt, batch, b->plan->n_generate + slack, &t, err);
        if (rc < 0) return rc;
        if (t.decode_tokens == 0)
            return error_set(err, ERR_INVALID, "bench: no step had all %u sequences", batch);
        rates[run] = (double)t.decode_tokens / t.decode_seconds;
    }
    print_row(b, "decode", n_prompt, batch, rates, b->plan->n_runs, step_bytes(b->info) / batch, 0);
    return 0;
}

static int run_plan(struct bench *b, struct error *err) {
    const struct bench_plan *plan = b->plan;
    int rc = 0;
    printf("# copy %.1f GB/s (read + written), peak f32 %.1f Gflop/s, weights %.1f MB\n",
           b->ceiling.copy_bytes_per_s * 1e-9, b->ceiling.flops_per_s * 1e-9,
           (double)b->info->weight_bytes * 1e-6);
    printf("phase,prompt_tokens,sequences,tokens_per_s,least,greatest,fraction_of_copy,fraction_of_"
           "peak\n");
    for (uint32_t i = 0; rc == 0 && i < plan->n_prompts; i++)
        rc = bench_prefill(b, plan->prompts[i], err);
    for (uint32_t i = 0; rc == 0 && i < plan->n_batches; i++) {
        for (uint32_t j = 0; rc == 0 && j < plan->n_prompts; j++) {
            uint64_t resident = (uint64_t)plan->batches[i] * plan->prompts[j];
            if (plan->max_resident && resident > plan->max_resident) {
                printf("# decode,%u,%u not run: %llu tokens exceed --max-resident\n",
                       plan->prompts[j], plan->batches[i], (unsigned long long)resident);
            } else {
                rc = bench_decode(b, plan->prompts[j], plan->batches[i], err);
            }
        }
    }
    return rc;
}

int bench_run(const struct bench_plan *plan, const struct options *options, const char *model_dir,
              struct backend *backend, struct error *err) {
    struct bench b = {.plan = plan, .random = 42};
    struct engine_config config = serve_engine_config(options, model_dir, backend);
    config.prefix_caching = false; /* every prompt is computed */
    config.tokens_only = true;     /* no text is wanted, so no tokenizer is needed */
    config.wake = ring;
    config.wake_ctx = &b;
    sem_init(&b.bell, 0, 0);
    printf("# %s\n", backend->description);
    int rc = strcmp(backend->name, "cpu") == 0 ? cpu_measure(backend, &b.ceiling, err) : 0;
    if (rc == 0) rc = serve_create_engine(&b.engine, &config, err);
    if (rc == 0) {
        b.info = engine_info(b.engine);
        rc = run_plan(&b, err);
    }
    engine_destroy(b.engine);
    sem_destroy(&b.bell);
    return rc;
}
