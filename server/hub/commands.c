/* commands.c - see commands.h. */
#include "server/hub/commands.h"

#include <dirent.h>
#include <errno.h>
#include <limits.h>
#include <signal.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine/base/error.h"
#include "server/hub/pull.h"
#include "server/hub/remove.h"
#include "server/hub/settings.h"
#include "server/settings/hub_cache.h"
#include "server/settings/option_table.h"

enum { MAX_REPOSITORIES = 10000, REFS_BYTES = 128 };

static const struct option pull_entries[] = {
    {"dry-run", OPTION_BOOL, offsetof(struct hub_plan, dry_run), 0, 0, "false", NULL,
     "say what would come, and fetch nothing"},
};
static const struct option rm_entries[] = {
    {"yes", OPTION_BOOL, offsetof(struct hub_plan, yes), 0, 0, "false", NULL, "do not ask"},
};
static const struct option_table pull_table = {pull_entries, 1}, rm_table = {rm_entries, 1};

const struct option_table *hub_pull_options(void) {
    return &pull_table;
}

const struct option_table *hub_rm_options(void) {
    return &rm_table;
}

void hub_pull_print_help(void) {
    puts("usage: quire pull NAME [options below]\n"
         "\n"
         "  quire pull OWNER/NAME                  a model of the hub\n"
         "  quire pull hf:OWNER/NAME:Q4_K_M        one of its GGUF files\n"
         "  quire pull OWNER/NAME@REVISION         a branch, a tag or a commit\n"
         "\n"
         "Fetches what quire reads of a model, once the small files have said that it can be "
         "served,\n"
         "and prints where it is.  The cache is that of huggingface_hub (HF_HOME, HF_HUB_CACHE).  "
         "An\n"
         "interrupted fetch goes on where it was.  HF_TOKEN: a token; HF_ENDPOINT: a mirror.\n"
         "QUIRE_DEVICE: the device that is to serve it, if that is not this machine's GPU.\n");
    option_table_print(stdout, &pull_table);
}

void hub_list_print_help(void) {
    puts(
        "usage: quire list\n"
        "\n"
        "Lists the models that the hub's cache has, whatever program fetched them: size, name and\n"
        "revisions.  A size is that of a revision's files; revisions of a model may share them.");
}

void hub_rm_print_help(void) {
    puts(
        "usage: quire rm NAME [options below]\n"
        "\n"
        "  quire rm OWNER/NAME                    all that the cache has of a model\n"
        "  quire rm OWNER/NAME@REVISION           one revision\n"
        "  quire rm hf:OWNER/NAME:Q4_K_M          one GGUF file\n"
        "\n"
        "Removes a model from the hub's cache, and asks before.  Files that another revision has,\n"
        "too, stay.\n");
    option_table_print(stdout, &rm_table);
}

int hub_plan_read(struct hub_plan *plan, const struct option_table *options, int argc, char **argv,
                  struct error *err) {
    *plan = (struct hub_plan){0};
    const int rc = option_table_take(options, plan, &argc, argv, err);
    if (rc) return rc;
    if (argc == 0) return error_set(err, ERR_INVALID, "NAME must be given, such as OWNER/NAME");
    if (argc > 1 || argv[0][0] == '-')
        return error_set(err, ERR_INVALID, "'%.64s' is not expected here; --help shows what is",
                         argv[argv[0][0] == '-' ? 0 : 1]);
    plan->is_revision = strchr(argv[0], '@') || strstr(argv[0], "/tree/");
    return hub_name_read(&plan->name, argv[0], err) ? ERR_INVALID : 0;
}

/* ---- pull ---- */

/* Ends the process; what has come stays. */
static void interrupted(int number) {
    static const char text[] = "\nquire: interrupted; run it again to go on\n";
    if (write(STDERR_FILENO, text, sizeof(text) - 1) < 0) _exit(128 + number);
    _exit(128 + number);
}

int hub_pull_command(const struct hub_plan *plan, const struct hub_voice *voice,
                     int (*check)(void *ctx, const char *path, bool has_weights, struct error *err),
                     void *ctx, FILE *out, struct error *err) {
    const struct hub_request request = {.name = plan->name,
                                        .has_weights = true,
                                        .only_tells = plan->dry_run,
                                        .needs_newest = true,
                                        .voice = voice,
                                        .check = check,
                                        .ctx = ctx};
    char path[PATH_MAX];
    signal(SIGINT, interrupted);
    signal(SIGTERM, interrupted);
    const int rc = hub_pull(path, &request, err);
    if (!rc && !plan->dry_run) fprintf(out, "%s\n", path);
    return rc;
}

/* ---- list ---- */

/* Writes OWNER/NAME of a folder's name.  Returns false if it is none of a model with an owner. */
static bool name_of_folder(char out[HUB_FOLDER_MAX + 1], const char *folder) {
    return hub_cache_repository(out, HUB_FOLDER_MAX + 1, folder, strlen(folder)) &&
           strchr(out, '/');
}

static void print_size(FILE *out, uint64_t bytes) {
    if (bytes < 1000000000) fprintf(out, "%8.1f MB", (double)bytes / 1e6);
    else fprintf(out, "%8.2f GB", (double)bytes / 1e9);
}

static void print_stock(FILE *out, const char *name, const struct hub_stock *stock) {
    char refs[REFS_BYTES];
    for (size_t i = 0; i < stock->n; i++) {
        const struct hub_files *revision = &stock->revisions[i];
        uint64_t bytes = 0;
        for (size_t k = 0; k < revision->n; k++) bytes += revision->all[k].size;
        hub_stock_refs(stock, revision->commit, refs, sizeof(refs));
        print_size(out, bytes);
        fprintf(out, "  %s  %.12s%s%s\n", name, revision->commit, *refs ? " " : "", refs);
    }
    if (stock->incomplete == 0) return;
    print_size(out, stock->incomplete);
    fprintf(out, "  %s  not whole: `quire pull %s` goes on, `quire rm %s` removes it\n", name, name,
            name);
}

static int compare(const void *a, const void *b) {
    return strcmp(a, b);
}

/* Reads the names of all repositories in the cache, in order.  The caller frees *out. */
static int read_names(char (**out)[HUB_FOLDER_MAX + 1], size_t *n, const char *cache,
                      struct error *err) {
    DIR *dir = opendir(cache);
    const struct dirent *entry;
    *n = 0;
    *out = NULL;
    if (!dir && errno == ENOENT) return 0;
    if (!dir) return error_set(err, ERR_IO, "%.200s: %s", cache, strerror(errno));
    *out = calloc(MAX_REPOSITORIES, sizeof(**out));
    while (*out && *n < MAX_REPOSITORIES && (entry = readdir(dir)))
        *n += name_of_folder((*out)[*n], entry->d_name);
    closedir(dir);
    if (!*out) return error_set(err, ERR_NOMEM, "no memory for the names of models");
    qsort(*out, *n, sizeof(**out), compare);
    return 0;
}

int hub_list_command(FILE *out, struct error *err) {
    char(*names)[HUB_FOLDER_MAX + 1];
    struct hub_settings settings;
    uint64_t bytes = 0;
    size_t n;
    int rc = hub_settings_read(&settings, err);
    if (!rc) rc = read_names(&names, &n, settings.cache, err);
    if (rc) return rc;
    for (size_t i = 0; i < n; i++) {
        struct hub_stock stock;
        struct error why = {0};
        if (hub_stock_read(&stock, &settings, names[i], &why)) {
            fprintf(out, "%11s  %s  cannot be read: %s\n", "?", names[i], why.text);
            continue;
        }
        print_stock(out, names[i], &stock);
        bytes += stock.bytes;
        hub_stock_fini(&stock);
    }
    free(names);
    print_size(out, bytes);
    fprintf(out, "  in %s\n", settings.cache);
    return 0;
}

/* ---- rm ---- */

/* Asks whether to go on; without a terminal or an answer it is no. */
static bool is_wanted(FILE *in) {
    char answer[16] = "";
    fputs("quire: remove it? [y/N] ", stderr);
    fflush(stderr);
    return fgets(answer, sizeof(answer), in) && (answer[0] == 'y' || answer[0] == 'Y');
}

static void describe(const struct hub_removal *removal, const struct hub_plan *plan) {
    char shared[80] = "";
    if (removal->shared > 0)
        snprintf(shared, sizeof(shared), "; %.1f MB stay, which another revision has, too",
                 (double)removal->shared / 1e6);
    fprintf(stderr, "quire: %s%s%s%s%s: %.1f MB%s\n", plan->name.repository,
            *plan->name.quant ? ":" : "", plan->name.quant, plan->is_revision ? "@" : "",
            plan->is_revision ? plan->name.revision : "", (double)removal->bytes / 1e6, shared);
}

static int remove_stock(const struct hub_plan *plan, const struct hub_stock *stock, FILE *in,
                        FILE *out, struct error *err) {
    struct hub_removal removal;
    int rc = hub_removal_plan(&removal, stock, &plan->name, plan->is_revision, err);
    if (rc) return rc;
    describe(&removal, plan);
    if (!plan->yes && !is_wanted(in))
        rc = error_set(err, ERR_STOPPED, "nothing is removed; --yes removes without asking");
    if (!rc) rc = hub_removal_run(&removal, stock, err);
    if (!rc) fprintf(out, "removed %.1f MB\n", (double)removal.bytes / 1e6);
    hub_removal_fini(&removal);
    return rc;
}

int hub_rm_command(const struct hub_plan *plan, FILE *in, FILE *out, struct error *err) {
    struct hub_settings settings;
    struct hub_stock stock;
    int rc = hub_settings_read(&settings, err);
    if (!rc) rc = hub_stock_read(&stock, &settings, plan->name.repository, err);
    if (rc == ERR_NOT_FOUND)
        return error_set(err, rc,
                         "the cache, %.200s, has no %.150s: `quire list` shows what it has",
                         settings.cache, plan->name.repository);
    if (rc) return rc;
    rc = remove_stock(plan, &stock, in, out, err);
    hub_stock_fini(&stock);
    return rc;
}
