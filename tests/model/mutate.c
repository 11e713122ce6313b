/* mutate.c - loads a model again and again, each time with bytes of one of its files changed.
 *
 *   mutate MODEL [N] [SEED]
 *
 * MODEL is a folder, of which config.json and model.safetensors are changed, or a GGUF file.  Each
 * of N loads either gives a model or refuses it in words; anything else ends the program.  Most
 * changes are in the first bytes, which say what the others are.
 *
 * Prints how many loads gave a model, and a sum of the refusals' texts to compare runs by.
 *
 * Thread: main.  Memory: the files, and a changed copy of one. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine/base/error.h"
#include "engine/base/rng.h"
#include "engine/cpu/cpu.h"
#include "engine/device/backend.h"
#include "engine/model/model.h"
#include "engine/tokenizer/tokenizer.h"

enum { MAX_FILES = 2, PATH_BYTES = 1024, HEAD = 4096 };

struct file {
    char path[PATH_BYTES]; /* of what is loaded */
    uint8_t *bytes;
    size_t size;
};

/* What is loaded: a folder or a file in `dir`. */
struct subject {
    char *dir, path[PATH_BYTES];
    struct file files[MAX_FILES];
    int n_files;
    bool is_file;
};

struct counts {
    long loaded, refused;
    uint64_t words;
};

static void fail(const char *what) {
    fprintf(stderr, "mutate: %s\n", what);
    exit(2);
}

static void read_file(struct subject *s, const char *from, const char *name) {
    struct file *file = &s->files[s->n_files++];
    FILE *in = fopen(from, "rb");
    if (!in || fseek(in, 0, SEEK_END)) fail(from);
    file->size = (size_t)ftell(in);
    file->bytes = malloc(file->size + 1);
    rewind(in);
    if (!file->bytes || fread(file->bytes, 1, file->size, in) != file->size) fail(from);
    fclose(in);
    snprintf(file->path, sizeof(file->path), "%s/%s", s->dir, name);
}

/* Writes a new file, so that what an earlier load has mapped does not change. */
static void write_file(const char *path, const uint8_t *bytes, size_t size) {
    remove(path);
    FILE *out = fopen(path, "wb");
    if (!out || fwrite(bytes, 1, size, out) != size || fclose(out)) fail(path);
}

static void open_subject(struct subject *s, const char *model) {
    static const char *const names[MAX_FILES] = {"config.json", "model.safetensors"};
    const size_t length = strlen(model);
    static char dir[] = "/tmp/quire-mutate-XXXXXX";
    *s = (struct subject){.dir = mkdtemp(dir)};
    if (!s->dir) fail(dir);
    s->is_file = length > 5 && strcmp(model + length - 5, ".gguf") == 0;
    if (s->is_file) {
        read_file(s, model, "model.gguf");
        strcpy(s->path, s->files[0].path);
        return;
    }
    for (int i = 0; i < MAX_FILES; i++) {
        char from[PATH_BYTES];
        snprintf(from, sizeof(from), "%s/%s", model, names[i]);
        read_file(s, from, names[i]);
        write_file(s->files[i].path, s->files[i].bytes, s->files[i].size);
    }
    strcpy(s->path, s->dir);
}

static void close_subject(struct subject *s) {
    for (int i = 0; i < s->n_files; i++) {
        remove(s->files[i].path);
        free(s->files[i].bytes);
    }
    rmdir(s->dir);
}

struct random {
    uint64_t seed, index;
};

static size_t below(struct random *random, size_t n) {
    return (size_t)((double)n * rng_uniform(random->seed, random->index++));
}

/* Changes a byte, or some of them, from `at` on. */
static void change(struct random *random, uint8_t *bytes, size_t size, size_t at) {
    static const char signs[] = "0123456789[]{},\":-.e\\";
    const size_t from = below(random, size), n = 1 + below(random, 16);
    switch (below(random, 5)) {
    case 0: bytes[at] = (uint8_t)below(random, 256); break;
    case 1: bytes[at] ^= (uint8_t)(1u << below(random, 8)); break;
    case 2: bytes[at] = (uint8_t)signs[below(random, sizeof(signs) - 1)]; break;
    case 3:
        if (at + n < size && from + n < size) memmove(bytes + at, bytes + from, n);
        break;
    default: /* the numbers that follow */
        for (size_t i = at; i < size && i < at + 40; i++)
            if (bytes[i] >= '0' && bytes[i] <= '9') bytes[i] = (uint8_t)('0' + below(random, 10));
    }
}

static void write_mutation(struct random *random, const struct file *file) {
    uint8_t *bytes = malloc(file->size);
    size_t size = file->size;
    const size_t head = size < HEAD ? size : HEAD;
    if (!bytes) fail("no memory");
    memcpy(bytes, file->bytes, size);
    for (size_t n = 1 + below(random, 4); n > 0; n--)
        change(random, bytes, size, below(random, below(random, 8) ? head : size));
    if (below(random, 16) == 0) size = below(random, size);
    write_file(file->path, bytes, size);
    free(bytes);
}

/* A refusal says why, and gives nothing. */
static bool is_judged(int rc, const void *given, const struct error *err, struct counts *counts) {
    if (rc == 0) return true;
    if (given || err->text[0] == '\0' || err->code != rc) {
        fprintf(stderr, "%s after status %d: code %d, '%s'\n", given ? "a model" : "nothing", rc,
                err->code, err->text);
        abort();
    }
    for (const char *c = err->text; *c; c++) counts->words = counts->words * 31 + (uint8_t)*c;
    return false;
}

static void load(const struct subject *s, struct backend *be, struct counts *counts) {
    struct model *measured = NULL, *model = NULL;
    struct error err = {0};
    if (is_judged(model_measure(&measured, s->path, NULL, be, &err), measured, &err, counts))
        model_destroy(measured, be);
    err = (struct error){0};
    const bool loaded = is_judged(model_load(&model, s->path, NULL, be, &err), model, &err, counts);
    if (loaded) model_destroy(model, be);
    counts->loaded += loaded;
    counts->refused += !loaded;
    if (!s->is_file) return;
    struct tokenizer *tokenizer = NULL;
    err = (struct error){0};
    if (is_judged(tokenizer_load(&tokenizer, s->path, &err), tokenizer, &err, counts))
        tokenizer_destroy(tokenizer);
}

int main(int argc, char **argv) {
    const long n = argc > 2 ? atol(argv[2]) : 100;
    struct counts counts = {0};
    struct subject subject;
    struct error err = {0};
    struct backend *be = NULL;
    if (argc < 2) fail("usage: mutate MODEL [N] [SEED]");
    struct random random = {.seed = argc > 3 ? (uint64_t)atoll(argv[3]) : 1};
    if (cpu_backend_create(&be, &(struct cpu_config){.n_threads = 1, .int8_products = true}, &err))
        fail(err.text);
    open_subject(&subject, argv[1]);
    if (subject.is_file) write_file(subject.path, subject.files[0].bytes, subject.files[0].size);
    load(&subject, be, &counts);
    if (counts.loaded != 1) fail("the model is refused as it is");
    for (long i = 0; i < n; i++) {
        const struct file *file = &subject.files[below(&random, (size_t)subject.n_files)];
        write_mutation(&random, file);
        load(&subject, be, &counts);
        write_file(file->path, file->bytes, file->size);
    }
    printf("%ld loaded, %ld refused, texts %016llx\n", counts.loaded - 1, counts.refused,
           (unsigned long long)counts.words);
    close_subject(&subject);
    be->ops->destroy(be);
    return 0;
}
