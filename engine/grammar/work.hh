/* work.hh - bounds what the library does on a thread: its processor time, its memory, and whether it
 * should stop.
 *
 * The library counts units of work in its loops (packagefiles/xgrammar-limits.patch) and calls
 * CheckWorkImpl() now and then.  Where memory is bounded, too, each allocation counts as well, so a loop
 * without a count of its own is seen if it allocates, and so is a recursion that nears the stack's end.  Work that has reached a bound is ended by an
 * exception.
 *
 * Thread: a bound is that of the thread that makes it.  Memory: none. */
#ifndef ENGINE_GRAMMAR_WORK_HH
#define ENGINE_GRAMMAR_WORK_HH

#include <cstdint>
#include <exception>

/* Thrown out of the library. */
struct work_ended : std::exception {
    enum reason { TIME, MEMORY, DEPTH, STOPPED } why;
    explicit work_ended(reason r) : why(r) {}
    const char *what() const noexcept override { return "the work has been ended"; }
};

/* Bounds this thread's work as long as it lives.  One at a time. */
class work_bound {
  public:
    /* seconds: of a processor.  max_bytes: of allocations that are not freed; 0: unbounded, and
     * allocations are not looked at.  is_stopped: tells whether the work should end; may be nullptr. */
    explicit work_bound(double seconds, int64_t max_bytes = 0,
                        bool (*is_stopped)(const void *user) = nullptr, const void *user = nullptr);
    ~work_bound();
    work_bound(const work_bound &) = delete;
    work_bound &operator=(const work_bound &) = delete;

    double taken() const;       /* processor seconds */
    int64_t peak_bytes() const; /* the most that was allocated at once */
    int64_t n_bytes() const;    /* what was allocated and has not been freed */

  private:
    const double began;
};

/* Goes on looking at bounds, once the library has made a message. */
void work_go_on();

#endif
