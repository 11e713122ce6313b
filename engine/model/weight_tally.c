/* weight_tally.c - see weight_tally.h. */
#include "engine/model/weight_tally.h"

/* Adds bytes of a format to its row, or to a new one. */
static void add_format(struct weight_tally *tally, const struct weight_format *format,
                       uint64_t bytes) {
    uint32_t i = 0;
    while (i < tally->n_formats && !weight_same_format(&tally->formats[i].format, format)) i++;
    if (i == WEIGHT_TALLY_FORMATS) return;
    if (i == tally->n_formats) {
        tally->formats[tally->n_formats++].format = *format;
        tally->n_packed += !weight_is_plain(format);
    }
    tally->formats[i].bytes += bytes;
}

void weight_tally_add(struct weight_tally *tally, const struct weight *file,
                      const struct weight *loaded, uint64_t repacked_bytes) {
    const uint64_t bytes = weight_bytes(file);
    tally->n_elements += (uint64_t)file->n_stacked * file->rows * file->cols;
    tally->bytes += repacked_bytes ? repacked_bytes : weight_bytes(loaded);
    tally->repacked_bytes += repacked_bytes;
    tally->file_bytes += bytes;
    add_format(tally, &file->format, bytes);
    if (weight_same_format(&file->format, &loaded->format)) return;
    tally->packed_bytes += bytes;
    tally->unpacked_bytes += weight_bytes(loaded);
    tally->unpacked_to = loaded->format.element;
}
