/* fuzz_hub_files.c - any bytes at all as the hub's list of a repository's files.  Whatever is taken
 * stays in its folder, has a hash, and is within its bounds. */
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/error.h"
#include "server/hub/choice.h"
#include "server/hub/files.h"
#include "server/hub/name.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(bool holds) {
    if (!holds) abort();
}

static void check_file(const struct hub_file *file) {
    char path[HUB_PATH_MAX + 3];
    const size_t n = strlen(file->path), n_hash = strlen(file->hash);
    require(n > 0 && n <= HUB_PATH_MAX && (n_hash == 40 || n_hash == 64));
    require(hub_is_hex(file->hash, n_hash));
    path[0] = '/';
    memcpy(path + 1, file->path, n);
    memcpy(path + 1 + n, "/", 2);
    require(!strstr(path, "//") && !strstr(path, "/../") && !strstr(path, "/./"));
}

static void choose(const struct hub_files *files, const char *quant, bool has_weights) {
    struct hub_name name = {.repository = "a/b", .revision = "main"};
    struct hub_choice choice;
    struct error err = {0};
    memcpy(name.quant, quant, strlen(quant));
    if (hub_choose(&choice, files, &name, has_weights, &err)) {
        require(err.text[0] != 0);
        return;
    }
    require(choice.n_small + choice.n_weights <= files->n && hub_choice_bytes(&choice) + 1 > 0);
    require(choice.n_weights > 0 || !(has_weights || choice.is_gguf));
    hub_choice_fini(&choice);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct hub_files files;
    struct error err = {0};
    if (hub_files_parse(&files, (const char *)data, size, &err)) {
        require(err.text[0] != 0 && !files.all && files.n == 0);
        return 0;
    }
    require(hub_is_hex(files.commit, HUB_COMMIT_CHARS) && files.n <= HUB_FILES_MAX);
    for (size_t i = 0; i < files.n; i++) check_file(&files.all[i]);
    choose(&files, "", true);
    choose(&files, "", false);
    choose(&files, "Q4_K_M", true);
    hub_files_fini(&files);
    return 0;
}
