/* test_rng.c - random numbers by counter: repeatable, in range, even, and unrelated between
 * seeds. */

#include "engine/base/rng.h"
#include "tests/test.h"

TEST(a_draw_depends_on_seed_and_index_only) {
    double a = rng_uniform(5, 9);
    rng_uniform(6, 1);
    assert_true(rng_uniform(5, 9) == a);
    assert_true(rng_uniform(5, 10) != a);
    assert_true(rng_uniform(6, 9) != a);
    assert_true(rng_uniform(0, 0) != rng_uniform(0, 1));
}

/* Neighbouring seeds and indices are what clients really use.  Chi-square with 15 degrees of
 * freedom stays below 50 but for one time in 100,000; the draws are fixed, so this passes always or
 * never. */
TEST(draws_are_even_along_seeds_and_indices) {
    enum { N = 16000, BINS = 16 };
    for (int along = 0; along < 3; along++) {
        int bins[BINS] = {0};
        double chi = 0;
        for (uint64_t i = 0; i < N; i++) {
            double u = along == 0   ? rng_uniform(i, 0)
                       : along == 1 ? rng_uniform(42, i)
                                    : rng_uniform(i, i);
            assert_true(u >= 0 && u < 1);
            bins[(int)(u * BINS)]++;
        }
        for (int b = 0; b < BINS; b++) {
            double d = bins[b] - (double)N / BINS;
            chi += d * d / ((double)N / BINS);
        }
        assert_true(chi < 50);
    }
}

TEST(seeds_do_not_share_draws_at_a_shift) {
    for (uint64_t i = 0; i < 1000; i++) assert_true(rng_uniform(7, i + 1) != rng_uniform(8, i));
    assert_true(rng_fresh_seed() != rng_fresh_seed());
}
