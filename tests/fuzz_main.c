/* fuzz_main.c - replays files through a fuzz target when no fuzzer drives it: found inputs become
 * tests.
 *
 * Thread: main.  Memory: one file at a time. */
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static int replay(const char *path) {
    FILE *file = fopen(path, "rb");
    uint8_t *data = NULL;
    int rc = -1;
    if (!file || fseek(file, 0, SEEK_END)) goto out;
    const long size = ftell(file);
    if (size < 0 || fseek(file, 0, SEEK_SET)) goto out;
    data = malloc((size_t)size + 1);
    if (!data || fread(data, 1, (size_t)size, file) != (size_t)size) goto out;
    rc = LLVMFuzzerTestOneInput(data, (size_t)size);

out:
    if (rc) fprintf(stderr, "%s: cannot be replayed\n", path);
    free(data);
    if (file) fclose(file);
    return rc;
}

int main(int argc, char **argv) {
    for (int i = 1; i < argc; i++)
        if (replay(argv[i])) return 1;
    return argc > 1 ? 0 : 1;
}
