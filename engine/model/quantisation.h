/* quantisation.h - what a model's configuration says of quantised weights.
 *
 * Which weights are quantised, and with how many bits, the tensors say: their names, dtypes and
 * shapes (quantised_tensor.h).  Configurations are often stale, and name modules in many spellings.
 * So lists of modules, quantised or not, are not read.  Read is what the tensors cannot say, and
 * refused is what would be computed wrongly.
 *
 *   config.json            'quantization_config', or 'compression_config' before transformers 4.49
 *   quantize_config.json   GPTQ       beside it, in older models
 *   quant_config.json      AWQ
 *   hf_quant_config.json   ModelOpt
 *
 * Thread: any.  Memory: none. */
#ifndef ENGINE_MODEL_QUANTISATION_H
#define ENGINE_MODEL_QUANTISATION_H

#include <stdbool.h>
#include <stdint.h>

struct error;
struct json_t; /* jansson's */

/* How 'qweight' holds its codes. */
enum qweight_order { QWEIGHT_NONE, QWEIGHT_GPTQ, QWEIGHT_AWQ };

enum { QUANTISATION_MOST_BLOCKS = 8 };

/* Which activations the model was made for: as they are, rounded to E4M3, or as no device here
 * computes. */
enum activation_kind { ACTIVATIONS_PLAIN, ACTIVATIONS_E4M3, ACTIVATIONS_OTHER };

struct quantisation {
    char method[32]; /* as the configuration names it; "": weights are not quantised */
    enum qweight_order order;
    /* Of QWEIGHT_GPTQ: zero points differ, and are in the file, less zero_less there.  Else they
     * are half of the number of codes. */
    bool has_zeros;
    uint8_t zero_less;
    enum activation_kind activations;
    float activation_most; /* of ACTIVATIONS_E4M3: what larger ones become; 0: there is no bound */
    /* Sides of blocks that have one scale; the tensors tell which.  Rows 1: a group of columns. */
    uint32_t n_blocks;
    struct {
        uint16_t rows, cols;
    } blocks[QUANTISATION_MOST_BLOCKS];
};

/* Reads what config.json says; out->method is "" if it says nothing.  label: names the directory in
 * messages.  ERR_INVALID, ERR_UNSUPPORTED. */
int quantisation_read(struct quantisation *out, const struct json_t *config, const char *label,
                      struct error *err);
/* Puts what a file beside config.json says of quantised weights into `config`, where that lacks it.
 */
int quantisation_add_file(struct json_t *config, const char *dir, struct error *err);

#endif
