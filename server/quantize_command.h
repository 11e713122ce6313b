/* quantize_command.h - `quire quantize`: writes a model's folder again with weights of fewer bits.
 *
 * Thread: main.  Memory: its own, freed on return. */
#ifndef SERVER_QUANTIZE_COMMAND_H
#define SERVER_QUANTIZE_COMMAND_H

#include <stdint.h>
#include <stdio.h>

struct error;
struct option_table;

struct quantize_options {
    char *to, *out;
    uint64_t group_size;
};

/* Takes the command's own flags out of argv.  ERR_INVALID names the flag. */
int quantize_options_read(struct quantize_options *options, int *argc, char **argv,
                          struct error *err);
void quantize_options_fini(struct quantize_options *options);
void quantize_print_help(void);
/* Returns the command's own options. */
const struct option_table *quantize_option_table(void);

/* Quantises the model, and prints what each layer lost to `out`. */
int quantize_command(const struct quantize_options *options, const char *model_dir, FILE *out,
                     struct error *err);

#endif
