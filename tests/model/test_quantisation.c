/* test_quantisation.c - what configurations say of quantised weights: published ones, and those
 * that are malformed or of methods that are not read. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <jansson.h>

#include "engine/base/error.h"
#include "engine/model/quantisation.h"
#include "tests/test.h"

#define HOW(members) "{\"quantization_config\":{" members "}}"
#define GROUP(members)                                                                             \
    HOW("\"quant_method\":\"compressed-tensors\",\"config_groups\":{\"group_0\":" members "}")

static int read_text(struct quantisation *out, const char *text, struct error *err) {
    json_t *config = json_loads(text, 0, NULL);
    assert_non_null(config);
    const int rc = quantisation_read(out, config, "model", err);
    json_decref(config);
    return rc;
}

TEST(says_what_tensors_cannot_say) {
    static const struct {
        const char *text;
        struct quantisation q;
    } cases[] = {
        {"{}", {.n_blocks = 0}},
        {"{\"quantization_config\":null}", {.n_blocks = 0}},
        {HOW("\"quant_method\":\"fp8\",\"weight_block_size\":[64,32]"),
         {"fp8", .activations = ACTIVATIONS_E4M3, .n_blocks = 2, .blocks = {{64, 32}, {128, 128}}}},
        {HOW("\"quant_method\":\"fp8\",\"weight_block_size\":null"),
         {"fp8", .activations = ACTIVATIONS_E4M3, .n_blocks = 1, .blocks = {{128, 128}}}},
        {HOW("\"quant_method\":\"gptq\",\"bits\":4,\"group_size\":64,\"sym\":false,"
             "\"dynamic\":{\"-:.*mlp.*\":{},\"x\":{\"bits\":8,\"group_size\":32}}"),
         {"gptq", QWEIGHT_GPTQ, true, 1, .n_blocks = 3, .blocks = {{1, 64}, {1, 32}, {128, 128}}}},
        {HOW("\"quant_method\":\"gptq\",\"checkpoint_format\":\"gptq_v2\",\"group_size\":-1"),
         {"gptq", QWEIGHT_GPTQ, .n_blocks = 1, .blocks = {{128, 128}}}},
        {HOW("\"quant_method\":\"mxfp4\",\"modules_to_not_convert\":[\"lm_head\"]"),
         {"mxfp4", .n_blocks = 1, .blocks = {{128, 128}}}},
        {HOW("\"quant_method\":\"awq\",\"w_bit\":4,\"q_group_size\":128,\"version\":\"GEMM\""),
         {"awq", QWEIGHT_AWQ, .n_blocks = 2, .blocks = {{1, 128}, {128, 128}}}},
        {HOW("\"quant_method\":\"auto-round\",\"packing_format\":\"auto_round:auto_awq\","
             "\"extra_config\":{\"lm_head\":{\"bits\":16}}"),
         {"auto-round", QWEIGHT_AWQ, false, 1, .n_blocks = 1, .blocks = {{128, 128}}}},
        {"{\"compression_config\":{\"config_groups\":{\"FP8_DYNAMIC\":[\"Linear\"]}}}",
         {"compressed-tensors", .activations = ACTIVATIONS_E4M3, .n_blocks = 1,
          .blocks = {{128, 128}}}},
        {HOW("\"quant_method\":\"fbgemm_fp8\",\"activation_scale_ub\":1200.0"),
         {"fbgemm_fp8", .activations = ACTIVATIONS_E4M3, .activation_most = 1200, .n_blocks = 1,
          .blocks = {{128, 128}}}},
        {GROUP("{\"weights\":{\"num_bits\":8,\"type\":\"float\"},"
               "\"input_activations\":{\"num_bits\":8,\"type\":\"float\",\"dynamic\":true}}"),
         {"compressed-tensors", .activations = ACTIVATIONS_E4M3, .n_blocks = 1,
          .blocks = {{128, 128}}}},
        {GROUP("{\"weights\":{\"num_bits\":8},\"input_activations\":{\"num_bits\":8}}"),
         {"compressed-tensors", .activations = ACTIVATIONS_OTHER, .n_blocks = 1,
          .blocks = {{128, 128}}}},
        {GROUP("{\"weights\":{\"num_bits\":8,\"block_structure\":\"256x64\"}}"),
         {"compressed-tensors", .n_blocks = 2, .blocks = {{256, 64}, {128, 128}}}},
        {HOW("\"quant_method\":\"modelopt\",\"quant_algo\":\"FP8\""),
         {"modelopt", .activations = ACTIVATIONS_E4M3, .n_blocks = 1, .blocks = {{128, 128}}}},
    };
    (void)state;
    for (size_t i = 0; i < COUNT(cases); i++) {
        struct quantisation q;
        struct error err = {0};
        if (read_text(&q, cases[i].text, &err)) fail_msg("%s: %s", cases[i].text, err.text);
        assert_string_equal(q.method, cases[i].q.method);
        assert_int_equal(q.order, cases[i].q.order);
        assert_int_equal(q.has_zeros, cases[i].q.has_zeros);
        assert_int_equal(q.zero_less, cases[i].q.zero_less);
        assert_int_equal(q.activations, cases[i].q.activations);
        assert_true(q.activation_most == cases[i].q.activation_most);
        assert_int_equal(q.n_blocks, cases[i].q.n_blocks);
        assert_memory_equal(q.blocks, cases[i].q.blocks, q.n_blocks * sizeof(q.blocks[0]));
    }
}

TEST(refuses_by_name) {
    static const struct {
        const char *text;
        int code;
        const char *needle;
    } cases[] = {
        {HOW("\"bits\":4"), ERR_UNSUPPORTED, "by a method without a name"},
        {HOW("\"load_in_8bit\":true"), ERR_UNSUPPORTED, "quantised (bitsandbytes)"},
        {"{\"quantization\":{\"bits\":4}}", ERR_UNSUPPORTED, "quantised (mlx)"},
        {HOW("\"quant_method\":\"mxfp6\""), ERR_UNSUPPORTED, "read are FP8, int8 and int4 of"},
        {HOW("\"quant_method\":7"), ERR_UNSUPPORTED, "by a method without a name"},
        {HOW("\"quant_method\":\"fp8\",\"fmt\":\"e5m2\""), ERR_UNSUPPORTED, "'e5m2'"},
        {HOW("\"quant_method\":\"fp8\",\"fmt\":5"), ERR_INVALID, "'fmt' is not a text"},
        {HOW("\"quant_method\":\"fp8\",\"weight_block_size\":[128]"), ERR_INVALID, "two sizes"},
        {HOW("\"quant_method\":\"fp8\",\"weight_block_size\":[0,128]"), ERR_INVALID, "a block"},
        {HOW("\"quant_method\":\"fp8\",\"weight_block_size\":[1,70000]"), ERR_INVALID, "a block"},
        {HOW("\"quant_method\":\"fp8\",\"weight_block_size\":[1e300,\"x\"]"), ERR_INVALID,
         "a block"},
        {HOW("\"quant_method\":\"modelopt\",\"quant_algo\":\"NVFP4\""), ERR_UNSUPPORTED, "'NVFP4'"},
        {HOW("\"quant_method\":\"gptq\",\"bits\":3"), ERR_UNSUPPORTED, "weights of 3 bits"},
        {HOW("\"quant_method\":\"gptq\",\"bits\":\"4\""), ERR_INVALID, "'bits' is not a whole"},
        {HOW("\"quant_method\":\"gptq\",\"sym\":1"), ERR_INVALID, "'sym' is not true or false"},
        {HOW("\"quant_method\":\"gptq\",\"group_size\":0"), ERR_INVALID, "'group_size'"},
        {HOW("\"quant_method\":\"gptq\",\"pack_dtype\":\"int8\""), ERR_UNSUPPORTED, "'int8'"},
        {HOW("\"quant_method\":\"gptq\",\"dynamic\":[]"), ERR_INVALID, "'dynamic' is not an"},
        {HOW("\"quant_method\":\"gptq\",\"dynamic\":{\"a\":{\"sym\":false}}"), ERR_UNSUPPORTED,
         "another 'sym'"},
        {HOW("\"quant_method\":\"awq\",\"zero_point\":false"), ERR_UNSUPPORTED, "'zero_point'"},
        {HOW("\"quant_method\":\"awq\",\"version\":\"gemv_fast\""), ERR_UNSUPPORTED, "gemv_fast"},
        {HOW("\"quant_method\":\"auto-round\",\"data_type\":\"mx_fp\""), ERR_UNSUPPORTED, "mx_fp"},
        {GROUP("7"), ERR_INVALID, "'config_groups' is malformed"},
        {GROUP("{\"weights\":7}"), ERR_INVALID, "'weights' is not an object"},
        {GROUP("{\"weights\":{\"num_bits\":6}}"), ERR_UNSUPPORTED, "weights of 6 bits"},
        {GROUP("{\"format\":\"nvfp4-pack-quantized\"}"), ERR_UNSUPPORTED, "nvfp4-pack-quantized"},
        {GROUP("{\"output_activations\":{}}"), ERR_UNSUPPORTED, "'output_activations'"},
        {HOW("\"config_groups\":[1]"), ERR_INVALID, "'config_groups' is not an object"},
        {HOW("\"config_groups\":{},\"sparsity_config\":{\"format\":\"sparse-24-bitmask\"}"),
         ERR_UNSUPPORTED, "sparse-24-bitmask"},
        {HOW("\"config_groups\":{},\"transform_config\":{\"a\":1}"), ERR_UNSUPPORTED, "rotations"},
    };
    (void)state;
    for (size_t i = 0; i < COUNT(cases); i++) {
        struct quantisation q;
        struct error err = {0};
        const int rc = read_text(&q, cases[i].text, &err);
        if (rc != cases[i].code || !strstr(err.text, cases[i].needle))
            fail_msg("%s: %d, '%s'", cases[i].text, rc, err.text);
    }
}

TEST(refuses_more_sizes_of_groups_than_there_are) {
    char text[1024] = HOW("\"quant_method\":\"gptq\",\"dynamic\":{"), member[64];
    struct quantisation q;
    struct error err = {0};
    (void)state;
    text[strlen(text) - 2] = '\0'; /* the object goes on */
    for (int i = 1; i <= QUANTISATION_MOST_BLOCKS + 1; i++) {
        snprintf(member, sizeof(member), "%s\"m%d\":{\"group_size\":%d}", i > 1 ? "," : "", i,
                 8 * i);
        strcat(text, member);
    }
    strcat(text, "}}}");
    assert_int_equal(read_text(&q, text, &err), ERR_UNSUPPORTED);
    assert_non_null(strstr(err.text, "too many sizes"));
}

/* Writes a file beside config.json. */
static void write_beside(const char *dir, const char *name, const char *text, char path[128]) {
    snprintf(path, 128, "%s/%s", dir, name);
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    assert_true(fputs(text, file) >= 0);
    assert_int_equal(fclose(file), 0);
}

TEST(files_beside_the_configuration_are_read) {
    static const char *const files[][3] = {
        {"quantize_config.json", "{\"bits\":4,\"group_size\":32,\"sym\":true}", "gptq"},
        {"quant_config.json", "{\"w_bit\":4,\"q_group_size\":128,\"version\":\"GEMM\"}", "awq"},
        {"hf_quant_config.json", "{\"quantization\":{\"quant_algo\":\"FP8\"}}", "modelopt"}};
    char dir[] = "/tmp/quire-test-XXXXXX", path[128];
    struct error err = {0};
    struct quantisation q;
    (void)state;
    assert_non_null(mkdtemp(dir));
    for (size_t i = 0; i < COUNT(files); i++) {
        json_t *config = json_object(), *own = json_loads(HOW("\"quant_method\":\"fp8\""), 0, NULL);
        write_beside(dir, files[i][0], files[i][1], path);
        assert_int_equal(quantisation_add_file(config, dir, &err), 0);
        assert_int_equal(quantisation_read(&q, config, "model", &err), 0);
        assert_string_equal(q.method, files[i][2]);
        assert_int_equal(quantisation_add_file(own, dir, &err), 0);
        assert_int_equal(quantisation_read(&q, own, "model", &err), 0);
        assert_string_equal(q.method, "fp8"); /* config.json's own counts */
        write_beside(dir, files[i][0], "[", path);
        json_object_clear(config);
        assert_int_equal(quantisation_add_file(config, dir, &err), ERR_INVALID);
        unlink(path);
        json_decref(config);
        json_decref(own);
    }
    assert_int_equal(rmdir(dir), 0);
}
