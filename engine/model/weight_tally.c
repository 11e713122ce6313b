/* weight_tally.c - see weight_tally.h. */
#include "engine/model/weight_tally.h"

/* Adds bytes of a format to its row, or to a new one. */
static void add_format(struct weight_shares *shares, const struct weight_format *format,
                       uint64_t bytes) {
    uint32_t i = 0;
    while (i < shares->n && !weight_same_format(&shares->formats[i].format, format)) i++;
    if (i == WEIGHT_TALLY_FORMATS) return;
    if (i == shares->n) shares->formats[shares->n++].format = *format;
    shares->formats[i].bytes += bytes;
}

void weight_tally_add(struct weight_tally *tally, const struct weight *file,
                      const struct weight *loaded, uint64_t repacked_bytes, bool is_scattered) {
    const uint64_t bytes = weight_bytes(file), loaded_bytes = weight_bytes(loaded);
    const bool is_plain = weight_is_plain(&loaded->format);
    tally->n_elements += (uint64_t)file->n_stacked * file->rows * file->cols;
    tally->bytes += repacked_bytes ? repacked_bytes : loaded_bytes;
    tally->repacked_bytes += repacked_bytes;
    tally->file_bytes += bytes;
    tally->has_packed |= !weight_is_plain(&file->format);
    add_format(&tally->files, &file->format, bytes);
    if (loaded->rounds_input) tally->rounding_bytes += bytes;
    if (repacked_bytes) return;
    if (!is_plain) add_format(&tally->loaded, &loaded->format, loaded_bytes);
    const bool is_converted = !weight_same_format(&file->format, &loaded->format);
    if (is_converted || (is_scattered && file->n_stacked > 1))
        tally->converted_bytes += loaded_bytes;
    if (!is_plain || !is_converted) return;
    tally->packed_bytes += bytes;
    tally->unpacked_bytes += loaded_bytes;
    add_format(&tally->unpacked, &loaded->format, loaded_bytes);
}
