/* weight_tally.h - which formats a model's weights have in its files and in memory.
 *
 * Thread: any.  Memory: none. */
#ifndef ENGINE_MODEL_WEIGHT_TALLY_H
#define ENGINE_MODEL_WEIGHT_TALLY_H

#include <stdbool.h>
#include <stdint.h>

#include "engine/device/weight.h"

enum { WEIGHT_TALLY_FORMATS = 16 };

/* Formats and their bytes; those that found no place are not told apart. */
struct weight_shares {
    uint32_t n;
    struct {
        struct weight_format format;
        uint64_t bytes;
    } formats[WEIGHT_TALLY_FORMATS];
};

struct weight_tally {
    uint64_t n_elements; /* of all weights; a head that is the embedding counts once */
    uint64_t bytes;      /* of all weights as they are loaded */
    uint64_t file_bytes; /* of all weights as the files have them */
    /* As loaded, of the weights that the files have in other formats, or as stacks in pieces. */
    uint64_t converted_bytes;
    /* Those of them that are unpacked to plain elements: their bytes in the files, and as these. */
    uint64_t packed_bytes, unpacked_bytes;
    uint64_t repacked_bytes; /* that the device's own copies take in the system's memory */
    /* In the files, of weights whose products round their input (weight.rounds_input), and from
     * how many rows on. */
    uint64_t rounding_bytes;
    uint32_t rounds_from;
    /* Tensors of parts that are not loaded, and the parts' names, with commas between them. */
    uint32_t n_left_out;
    char left_out[96];
    bool has_kv_scales;            /* the files have scales of keys and values: unclaimed.h */
    bool has_packed;               /* the files have formats that are not plain */
    struct weight_shares files;    /* all formats */
    struct weight_shares loaded;   /* those in memory that are neither plain nor repacked */
    struct weight_shares unpacked; /* the plain elements of unpacked_bytes */
};

/* Adds a weight: as its files have it, and as it is loaded.  repacked_bytes: of the device's copy;
 * 0: it makes none in the system's memory.  is_scattered: weight_find.h. */
void weight_tally_add(struct weight_tally *tally, const struct weight *file,
                      const struct weight *loaded, uint64_t repacked_bytes, bool is_scattered);

#endif
