/* test_checkpoint.c - what is written in several files is found by the reader of checkpoints. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine/base/error.h"
#include "engine/device/weight.h"
#include "engine/model/weight_source.h"
#include "engine/quantise/checkpoint.h"
#include "tests/test.h"

enum { N_TENSORS = 3, N_COLS = 5 };

static void add(struct checkpoint *checkpoint, uint32_t i) {
    struct error err;
    struct checkpoint_tensor tensor = {
        .element_bytes = 4, .n_dims = 2, .dims = {2, N_COLS}, .bytes = 8 * N_COLS};
    snprintf(tensor.name, sizeof(tensor.name), "t%u", i);
    snprintf(tensor.dtype, sizeof(tensor.dtype), "F32");
    assert_int_equal(checkpoint_add(checkpoint, &tensor, &err), 0);
}

static void write_values(struct checkpoint *checkpoint) {
    struct error err;
    assert_int_equal(checkpoint_begin(checkpoint, &err), 0);
    for (uint32_t i = N_TENSORS; i-- > 0;)
        for (uint32_t row = 0; row < 2; row++) {
            float values[N_COLS];
            for (uint32_t k = 0; k < N_COLS; k++) values[k] = (float)(100 * i + 10 * row + k);
            assert_int_equal(
                checkpoint_write(checkpoint, i, row * sizeof(values), values, sizeof(values), &err),
                0);
        }
    assert_int_equal(checkpoint_end(checkpoint, &err), 0);
}

static void remove_files(const char *dir, uint32_t n_shards) {
    char path[128];
    for (uint32_t i = 0; i < n_shards; i++) {
        snprintf(path, sizeof(path), "%s/model-%05u-of-%05u.safetensors", dir, i + 1, n_shards);
        unlink(path);
    }
    snprintf(path, sizeof(path), "%s/model.safetensors", dir);
    unlink(path);
    snprintf(path, sizeof(path), "%s/model.safetensors.index.json", dir);
    unlink(path);
    assert_int_equal(rmdir(dir), 0); /* nothing else was written */
}

static void check_files(uint64_t shard_bytes, uint32_t n_shards) {
    char dir[] = "/tmp/quire-checkpoint-XXXXXX";
    assert_non_null(mkdtemp(dir));
    struct checkpoint checkpoint = {.dir = dir, .shard_bytes = shard_bytes};
    struct weight_source *files;
    struct error err;
    for (uint32_t i = 0; i < N_TENSORS; i++) add(&checkpoint, i);
    write_values(&checkpoint);
    assert_int_equal(checkpoint.n_shards, n_shards);
    assert_int_equal(weight_source_open(&files, dir, &err), 0);
    for (uint32_t i = 0; i < N_TENSORS; i++) {
        const struct tensor_shape shape = {2, {2, N_COLS}};
        struct weight found;
        float values[N_COLS];
        assert_int_equal(files->ops->get(files, checkpoint.tensors[i].name, &shape, &found, &err),
                         0);
        weight_to_float(&found, 1, values);
        for (uint32_t k = 0; k < N_COLS; k++) assert_true(values[k] == (float)(100 * i + 10 + k));
    }
    files->ops->close(files);
    checkpoint_fini(&checkpoint);
    remove_files(dir, n_shards);
}

TEST(files_end_once_they_are_full) {
    check_files(1 << 20, 1);
    check_files(80, 2);
    check_files(1, 3);
}
