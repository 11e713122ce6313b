/* fuzz_gguf.c - any bytes at all as a GGUF file: read to its last tensor or refused. */
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include "engine/base/error.h"
#include "tests/gguf/visit.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static volatile uint32_t sink;
    struct error err = {0};
    struct gguf *file = NULL;
    if (gguf_parse(&file, data, size, "fuzz", &err)) {
        if (file || err.text[0] == '\0') abort(); /* a refusal says why and gives nothing */
        return 0;
    }
    sink += visit_all(file);
    gguf_destroy(file);
    return 0;
}
