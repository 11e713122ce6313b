/* doctor_checks.c - the checks of doctor.h, in the order in which they are printed. */
#define _GNU_SOURCE /* sched_getaffinity */

#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <sched.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "engine/base/cgroup.h"
#include "engine/base/error.h"
#include "engine/system_memory.h"
#include "server/settings/build_info.h"
#include "server/settings/options.h"
#include "server/terminal/doctor.h"

static const double gib = 1 << 30;

/* Less than this is noted: a small model and its KV cache, or one download. */
static const double least_memory = 2.0 * (1 << 30), least_disk = 10.0 * (1 << 30);

/* Descriptors that a server needs beside those of its connections. */
enum { OTHER_DESCRIPTORS = 256 };

static void say(struct finding *out, enum finding_level level, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
static void advise(struct finding *out, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

static void say(struct finding *out, enum finding_level level, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    out->level = level;
    vsnprintf(out->text, sizeof(out->text), format, arguments);
    va_end(arguments);
}

static void advise(struct finding *out, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(out->remedy, sizeof(out->remedy), format, arguments);
    va_end(arguments);
}

static void look_at_build(const struct doctor *doctor, struct finding *out) {
    (void)doctor;
    say(out, FINDING_OK, "quire %s, commit %s", build_info.version, build_info.commit);
}

static void look_at_model(const struct doctor *doctor, struct finding *out) {
    say(out, doctor->model.rc ? FINDING_PROBLEM : FINDING_OK, "%s", doctor->model.text);
    if (doctor->model.rc)
        advise(out, "name a folder or a GGUF file; `quire pull` fetches a model of the hub");
}

/* Tells the instruction set whose kernels will run, and how many threads. */
static void look_at_cpu(const struct doctor *doctor, struct finding *out) {
    const uint64_t device = doctor->options->device;
    const bool is_needed = device == DEVICE_CPU || (device == DEVICE_AUTO && doctor->gpu.rc != 0);
    say(out,
        doctor->cpu.rc == 0 ? FINDING_OK
        : is_needed         ? FINDING_PROBLEM
                            : FINDING_NOTE,
        "%s", doctor->cpu.text);
    if (doctor->cpu.rc) {
        advise(out, "--isa auto takes what the processor has");
    } else if (doctor->lacking_kernels) {
        say(out, FINDING_NOTE, "%s; built without kernels for %s, which this processor has",
            doctor->cpu.text, doctor->lacking_kernels);
        advise(out, "scripts/build makes the kernels of all processors");
    }
}

static void look_at_threads(const struct doctor *doctor, struct finding *out) {
    cpu_set_t set;
    const int n = sched_getaffinity(0, sizeof(set), &set) == 0 ? CPU_COUNT(&set) : 0;
    const double quota = cgroup_cpus("");
    (void)doctor;
    if (quota > 0 && quota < n) {
        say(out, FINDING_NOTE, "%d CPUs, of which the control group allows the time of %.1f", n,
            quota);
        advise(out, "raise the quota (cpu.max, --cpus, CPUQuota=) for faster answers of the CPU");
    } else {
        say(out, FINDING_OK, "%d usable CPUs", n);
    }
}

static void look_at_memory(const struct doctor *doctor, struct finding *out) {
    struct system_memory memory;
    (void)doctor;
    system_memory_read(&memory);
    const bool is_little = memory.available > 0 && (double)memory.available < least_memory;
    say(out, is_little ? FINDING_NOTE : FINDING_OK, "%.1f GiB free of %.1f GiB%s%.300s",
        (double)memory.available / gib, (double)memory.total / gib,
        memory.limit[0] ? ", limited by " : "", memory.limit);
    if (is_little) advise(out, "a model of more than some hundred million weights needs more");
}

static void look_at_files(const struct doctor *doctor, struct finding *out) {
    struct rlimit limit = {0};
    const uint64_t wanted = doctor->options->max_connections + OTHER_DESCRIPTORS;
    if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_max == RLIM_INFINITY ||
        limit.rlim_max >= wanted) {
        say(out, FINDING_OK, "enough for %" PRIu64 " connections",
            doctor->options->max_connections);
        return;
    }
    say(out, limit.rlim_max <= OTHER_DESCRIPTORS ? FINDING_PROBLEM : FINDING_NOTE,
        "%" PRIu64 " open files at most, too few for --max-connections %" PRIu64,
        (uint64_t)limit.rlim_max, doctor->options->max_connections);
    advise(out, "ulimit -Hn, or LimitNOFILE= of the service: at least %" PRIu64, wanted);
}

static void look_at_locked(const struct doctor *doctor, struct finding *out) {
    struct rlimit limit = {0};
    const uint64_t pool = doctor->options->kv_offload_size;
    if (getrlimit(RLIMIT_MEMLOCK, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) {
        say(out, FINDING_OK, "no limit of locked memory");
        return;
    }
    const bool is_less = limit.rlim_cur < pool && doctor->gpu.rc == 0;
    say(out, is_less ? FINDING_NOTE : FINDING_OK, "%.1f MiB of memory may be locked",
        (double)limit.rlim_cur / (1 << 20));
    if (is_less) advise(out, "ulimit -l unlimited, if the driver refuses --kv-offload-size");
}

/* Reads the first line of a file; "" where there is none. */
static void read_line(char *out, size_t size, const char *path) {
    FILE *file = fopen(path, "r");
    out[0] = 0;
    if (!file) return;
    if (!fgets(out, (int)size, file)) out[0] = 0;
    out[strcspn(out, "\n")] = 0;
    fclose(file);
}

static void look_at_gpu(const struct doctor *doctor, struct finding *out) {
    const uint64_t device = doctor->options->device;
    const bool is_usual = doctor->gpu.rc == ERR_UNSUPPORTED && device != DEVICE_CUDA;
    say(out,
        doctor->gpu.rc == 0                ? FINDING_OK
        : is_usual || device == DEVICE_CPU ? FINDING_NOTE
                                           : FINDING_PROBLEM,
        "%s", doctor->gpu.text);
    if (is_usual) advise(out, "models run on the CPU; a GPU needs a driver and a build with CUDA");
    else if (doctor->gpu.rc) advise(out, "--device cpu serves without it");
}

static void look_at_driver(const struct doctor *doctor, struct finding *out) {
    char version[200];
    (void)doctor;
    read_line(version, sizeof(version), "/proc/driver/nvidia/version");
    say(out, FINDING_OK, "%s", version[0] ? version : "none of NVIDIA is loaded");
}

/* Cuts a path to the nearest folder that exists. */
static void find_existing(char *path) {
    while (access(path, F_OK) != 0) {
        char *slash = strrchr(path, '/');
        if (!slash || slash == path) break;
        *slash = 0;
    }
}

/* Says whether a folder, or the one it will be made in, can be written, and what is free there. */
static void look_at_folder(struct finding *out, const char *path, const char *setting) {
    char nearest[PATH_MAX];
    struct statvfs disk;
    snprintf(nearest, sizeof(nearest), "%s", path);
    find_existing(nearest);
    const bool has_size = statvfs(nearest, &disk) == 0;
    const double free_bytes = has_size ? (double)disk.f_bavail * (double)disk.f_frsize : 0;
    if (access(nearest, W_OK) != 0) {
        say(out, FINDING_NOTE, "%.300s cannot be written: %s", path, strerror(errno));
        advise(out, "%s names another folder", setting);
    } else {
        say(out, has_size && free_bytes < least_disk ? FINDING_NOTE : FINDING_OK,
            "%.300s, %.1f GiB free", path, free_bytes / gib);
        if (out->level != FINDING_OK) advise(out, "large models need more: %s", setting);
    }
}

static void look_at_models(const struct doctor *doctor, struct finding *out) {
    if (doctor->hub.rc) say(out, FINDING_NOTE, "%s", doctor->hub.text);
    else look_at_folder(out, doctor->cache, "HF_HOME");
}

static void look_at_disk(const struct doctor *doctor, struct finding *out) {
    const char *path = doctor->options->kv_disk_path;
    if (path) look_at_folder(out, path, "--kv-disk-path");
    else say(out, FINDING_OK, "no cache on disk is asked for (--kv-disk-path)");
}

const struct doctor_check *doctor_checks(void) {
    static const struct doctor_check checks[] = {
        {"build", look_at_build},
        {"model", look_at_model},
        {"cpu", look_at_cpu},
        {"threads", look_at_threads},
        {"memory", look_at_memory},
        {"gpu", look_at_gpu},
        {"driver", look_at_driver},
        {"open files", look_at_files},
        {"memory lock", look_at_locked},
        {"model cache", look_at_models},
        {"kv cache", look_at_disk},
        {NULL, NULL},
    };
    return checks;
}
