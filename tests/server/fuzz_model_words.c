/* fuzz_model_words.c - any bytes at all as the files of a model's directory that name tokens,
 * sampling and templates: the first byte says which.  Whatever is taken is within its bounds. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "engine/base/error.h"
#include "engine/tokenizer/token_names.h"
#include "server/settings/chat_template.h"
#include "server/settings/generation.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const char *const files[] = {"tokenizer_config.json", "special_tokens_map.json",
                                    "added_tokens.json",     "generation_config.json",
                                    "config.json",           "chat_template.jinja"};

static void write_file(const char *path, const uint8_t *data, size_t size) {
    FILE *file = fopen(path, "wb");
    if (!file || (size > 0 && fwrite(data, 1, size, file) != size) || fclose(file)) abort();
}

static void read_names(const char *dir) {
    struct token_names names = {0};
    struct error err = {0};
    size_t i;
    json_t *entry;
    if (token_names_load(&names, dir, &err)) return;
    json_array_foreach(names.added, i, entry) {
        if (!json_is_integer(json_object_get(entry, "id")) ||
            !json_is_string(json_object_get(entry, "content")))
            abort();
    }
    token_names_fini(&names);
}

static void read_generation(const char *dir) {
    struct generation g;
    struct error err = {0};
    if (generation_load(&g, dir, true, &err)) return;
    const struct sampler *s = &g.sampler;
    if (!(s->temperature >= 0 && s->temperature <= 100) || !(s->top_p > 0 && s->top_p <= 1) ||
        !(s->min_p >= 0 && s->min_p <= 1) || !(s->repetition_penalty > 0))
        abort();
}

static void read_template(const char *dir) {
    struct chat_template chat = {0};
    struct error err = {0};
    (void)chat_template_load(&chat, NULL, dir, &err);
    chat_template_fini(&chat);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    char path[128], dir[] = "/tmp/quire-fuzz-XXXXXX";
    const size_t n = sizeof(files) / sizeof(*files);
    if (size == 0) return 0;
    if (!mkdtemp(dir)) abort();
    snprintf(path, sizeof(path), "%s/%s", dir, files[data[0] % n]);
    write_file(path, data + 1, size - 1);
    read_names(dir);
    read_generation(dir);
    read_template(dir);
    unlink(path);
    rmdir(dir);
    return 0;
}
