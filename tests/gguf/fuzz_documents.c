/* fuzz_documents.c - any bytes at all as a GGUF file: its documents, or a refusal in words. */
#include <stddef.h>
#include <stdint.h>

#include "tests/gguf/documents.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    /* Others are no GGUF file, and so a folder of this name is looked for. */
    if (size >= 4 && data[0] == 'G' && data[1] == 'G' && data[2] == 'U' && data[3] == 'F')
        read_documents(data, size);
    return 0;
}
