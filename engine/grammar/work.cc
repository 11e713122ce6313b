/* work.cc - see work.hhh. */
#include "engine/grammar/work.hh"

#include <cstddef>
#include <cstdlib>
#include <ctime>
#include <malloc.h>
#include <new>
#include <pthread.h>

namespace {

struct work {
    double deadline; /* processor time at which the thread's work ends; 0: no bound */
    int64_t max_bytes, n_bytes, peak_bytes;
    bool (*is_stopped)(const void *user);
    const void *user;
    unsigned n_allocations;
    const char *stack_end; /* the stack may grow down to here; nullptr: it is not looked at */
    bool is_paused;        /* a message is being made, by destructors, which must not throw */
};

thread_local work now;

/* How many allocations count as one look at the clock. */
constexpr unsigned ALLOCATIONS_OF_CHECK = 256;

double thread_seconds() {
    struct timespec time;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
    return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) * 1e-9;
}

void check() {
    if (now.is_paused) return;
    if (now.is_stopped && now.is_stopped(now.user)) throw work_ended(work_ended::STOPPED);
    if (now.deadline > 0 && thread_seconds() > now.deadline) throw work_ended(work_ended::TIME);
}

/* Returns the address down to which the thread's stack may be used: a quarter is left for what does
 * not look. */
const char *find_stack_end() {
    pthread_attr_t attr;
    void *lowest = nullptr;
    std::size_t size = 0;
    if (pthread_getattr_np(pthread_self(), &attr)) return nullptr;
    pthread_attr_getstack(&attr, &lowest, &size);
    pthread_attr_destroy(&attr);
    return static_cast<const char *>(lowest) + size / 4;
}

/* Counts an allocation before it is made. */
void count_allocation(std::size_t size) {
    if (now.is_paused) return;
    if (static_cast<const char *>(__builtin_frame_address(0)) < now.stack_end)
        throw work_ended(work_ended::DEPTH);
    if (size > static_cast<std::size_t>(now.max_bytes) ||
        now.n_bytes > now.max_bytes - static_cast<int64_t>(size))
        throw work_ended(work_ended::MEMORY);
    if (++now.n_allocations % ALLOCATIONS_OF_CHECK == 0) check();
}

} // namespace

namespace xgrammar {

/* Declares what the library calls. */
void CheckWorkImpl();
void BeginLogImpl();

void CheckWorkImpl() {
    check();
}

void BeginLogImpl() {
    now.is_paused = true;
}

} // namespace xgrammar

work_bound::work_bound(double seconds, int64_t max_bytes, bool (*is_stopped)(const void *user),
                       const void *user)
    : began(thread_seconds()) {
    const char *stack_end = max_bytes > 0 ? find_stack_end() : nullptr;
    now = {began + seconds, max_bytes, 0, 0, is_stopped, user, 0, stack_end, false};
}

work_bound::~work_bound() {
    now = {};
}

void work_go_on() {
    now.is_paused = false;
}

double work_bound::taken() const {
    return thread_seconds() - began;
}

int64_t work_bound::n_bytes() const {
    return now.n_bytes;
}

int64_t work_bound::peak_bytes() const {
    return now.peak_bytes;
}

/* Replaces the program's, so that what the library allocates is counted. */
void *operator new(std::size_t size) {
    if (now.max_bytes > 0) count_allocation(size);
    void *memory = std::malloc(size ? size : 1);
    if (!memory) throw std::bad_alloc();
    if (now.max_bytes > 0) {
        now.n_bytes += static_cast<int64_t>(malloc_usable_size(memory));
        if (now.n_bytes > now.peak_bytes) now.peak_bytes = now.n_bytes;
    }
    return memory;
}

void operator delete(void *memory) noexcept {
    if (now.max_bytes > 0 && memory)
        now.n_bytes -= static_cast<int64_t>(malloc_usable_size(memory));
    std::free(memory);
}

void operator delete(void *memory, std::size_t) noexcept {
    operator delete(memory);
}
