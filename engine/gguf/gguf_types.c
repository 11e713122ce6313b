/* gguf_types.c - see gguf_types.h. */
#include "engine/gguf/gguf_types.h"

#include <stdio.h>

static const struct {
    const char *name;
    bool is_read;
    enum element element;
} types[] = {
    [0] = {"F32", true, ELEMENT_F32},
    [1] = {"F16", true, ELEMENT_F16},
    [2] = {"Q4_0", true, ELEMENT_Q4_0},
    [3] = {"Q4_1", true, ELEMENT_Q4_1},
    [6] = {"Q5_0", true, ELEMENT_Q5_0},
    [7] = {"Q5_1", true, ELEMENT_Q5_1},
    [8] = {"Q8_0", true, ELEMENT_Q8_0},
    [9] = {"Q8_1", false, 0},
    [10] = {"Q2_K", true, ELEMENT_Q2_K},
    [11] = {"Q3_K", true, ELEMENT_Q3_K},
    [12] = {"Q4_K", true, ELEMENT_Q4_K},
    [13] = {"Q5_K", true, ELEMENT_Q5_K},
    [14] = {"Q6_K", true, ELEMENT_Q6_K},
    [15] = {"Q8_K", false, 0},
    [16] = {"IQ2_XXS", false, 0},
    [17] = {"IQ2_XS", false, 0},
    [18] = {"IQ3_XXS", false, 0},
    [19] = {"IQ1_S", false, 0},
    [20] = {"IQ4_NL", true, ELEMENT_IQ4_NL},
    [21] = {"IQ3_S", false, 0},
    [22] = {"IQ2_S", false, 0},
    [23] = {"IQ4_XS", true, ELEMENT_IQ4_XS},
    [24] = {"I8", false, 0},
    [25] = {"I16", false, 0},
    [26] = {"I32", false, 0},
    [27] = {"I64", false, 0},
    [28] = {"F64", false, 0},
    [29] = {"IQ1_M", false, 0},
    [30] = {"BF16", true, ELEMENT_BF16},
    [34] = {"TQ1_0", false, 0},
    [35] = {"TQ2_0", false, 0},
    [39] = {"MXFP4", true, ELEMENT_MXFP4},
    [40] = {"NVFP4", false, 0},
};

enum { N_TYPES = sizeof(types) / sizeof(*types) };

bool gguf_element_of(uint64_t type, enum element *out) {
    if (type >= N_TYPES || !types[type].is_read) return false;
    *out = types[type].element;
    return true;
}

uint32_t gguf_type_of(enum element element) {
    uint32_t type = 0;
    while (!types[type].is_read || types[type].element != element) type++;
    return type;
}

const char *gguf_type_name(uint64_t type) {
    return type < N_TYPES ? types[type].name : NULL;
}

void gguf_types_text(char text[GGUF_TYPES_TEXT]) {
    size_t n = 0;
    for (size_t i = 0; i < N_TYPES && n < GGUF_TYPES_TEXT; i++)
        if (types[i].is_read)
            n += (size_t)snprintf(text + n, GGUF_TYPES_TEXT - n, "%s%s", n ? ", " : "",
                                  types[i].name);
}
