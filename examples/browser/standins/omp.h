/* OpenMP without threads: what the sources ask for where the compiler ignores their pragmas. */
#ifndef VIT_EXAMPLES_BROWSER_OMP_H
#define VIT_EXAMPLES_BROWSER_OMP_H

static inline int omp_get_max_threads(void) { return 1; }
static inline int omp_get_num_threads(void) { return 1; }
static inline int omp_get_thread_num(void) { return 0; }
static inline int omp_get_thread_limit(void) { return 1; }
static inline int omp_get_num_procs(void) { return 1; }
static inline void omp_set_num_threads(int threads) { (void)threads; }

#endif
