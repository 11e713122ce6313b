/* quantize_command.c - see quantize_command.h. */
#include "server/quantize_command.h"

#include <inttypes.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine/base/error.h"
#include "engine/quantise/quantise.h"
#include "server/settings/option_table.h"

#define AT(member) offsetof(struct quantize_options, member)

static const uint64_t shard_bytes = (uint64_t)4 << 30;

static const struct option entries[] = {
    {"to", OPTION_STRING, AT(to), 0, 0, NULL, NULL,
     "fp8, int8 or int4: a folder; q8_0, q5_0, q4_0 or q4_k: a GGUF file"},
    {"out", OPTION_STRING, AT(out), 0, 0, NULL, NULL,
     "the folder that is written, which must not exist, or be empty; or the GGUF file, which must "
     "not exist"},
    {"group-size", OPTION_NUMBER, AT(group_size), 32, 128, "128", NULL,
     "columns that share a scale in int4: 32, 64 or 128"},
};
static const struct option_table flags = {entries, sizeof(entries) / sizeof(*entries)};

const struct option_table *quantize_option_table(void) {
    return &flags;
}

/* Returns the format of a folder; NULL: it has none of this name. */
static const struct rounding *find_rounding(const char *name) {
    const struct rounding *rounding = roundings;
    while (rounding->name && strcmp(rounding->name, name) != 0) rounding++;
    return rounding->name ? rounding : NULL;
}

/* Returns the format of a GGUF file; NULL: it has none of this name. */
static const struct packing *find_packing(const char *name) {
    const struct packing *packing = packings;
    while (packing->name && strcmp(packing->name, name) != 0) packing++;
    return packing->name ? packing : NULL;
}

static int check(const struct quantize_options *options, struct error *err) {
    const uint64_t group = options->group_size;
    if (!options->to || !options->out)
        return error_set(err, ERR_INVALID, "--to FORMAT and --out PATH must be given");
    if (group != 32 && group != 64 && group != 128)
        return error_set(err, ERR_INVALID, "--group-size must be 32, 64 or 128");
    if (find_rounding(options->to) || find_packing(options->to)) return 0;
    return error_set(err, ERR_INVALID,
                     "--to: '%.64s' is not supported: fp8, int8, int4, q8_0, q5_0, q4_0 and q4_k "
                     "are",
                     options->to);
}

int quantize_options_read(struct quantize_options *options, int *argc, char **argv,
                          struct error *err) {
    *options = (struct quantize_options){0};
    int rc = option_table_take(&flags, options, argc, argv, err);
    if (!rc && (rc = check(options, err))) quantize_options_fini(options);
    return rc;
}

void quantize_options_fini(struct quantize_options *options) {
    option_table_free(&flags, options);
}

void quantize_print_help(void) {
    puts("usage: quire quantize [MODEL] --to FORMAT --out PATH [options below]\n"
         "\n"
         "Writes the model again, with the matrices of its layers rounded to the nearest of fewer\n"
         "bits: a folder in the layout of compressed-tensors, or a GGUF file.  Prints what each\n"
         "layer lost by it: the error's root mean square, relative to that of the weights.\n");
    option_table_print(stdout, &flags);
}

/* Prints how many percent are written, each once.  ctx: the last of them. */
static void tell(void *ctx, uint64_t done, uint64_t total) {
    int *last = ctx;
    const int percent = (int)(100 * (double)done / (double)total);
    if (percent == *last) return;
    *last = percent;
    fprintf(stderr, "\r%3d %%%s", percent, percent == 100 ? "\n" : "");
}

static void print_losses(FILE *out, const struct layer_loss *losses, uint32_t n_layers) {
    struct rounding_error all = {0};
    fprintf(out, "layer  error    worst matrix\n");
    for (uint32_t i = 0; i < n_layers; i++) {
        fprintf(out, "%5" PRIu32 "  %.5f  %.5f %s\n", i, rounding_loss(&losses[i].sum),
                losses[i].worst, losses[i].name);
        all.error += losses[i].sum.error;
        all.values += losses[i].sum.values;
    }
    fprintf(out, "  all  %.5f\n", rounding_loss(&all));
}

int quantize_command(const struct quantize_options *options, const char *model_dir, FILE *out,
                     struct error *err) {
    struct layer_loss *losses;
    uint32_t n_layers;
    int last = -1;
    const struct quantise_plan plan = {.from = model_dir,
                                       .to = options->out,
                                       .packing = find_packing(options->to),
                                       .rounding = find_rounding(options->to),
                                       .group = (uint32_t)options->group_size,
                                       .shard_bytes = shard_bytes,
                                       .progress = isatty(STDERR_FILENO) ? tell : NULL,
                                       .ctx = &last};
    const int rc = quantise(&plan, &losses, &n_layers, err);
    if (rc) return rc;
    print_losses(out, losses, n_layers);
    free(losses);
    return 0;
}
