// Which instruction sets were compiled in, and which of them this processor and system can run.
#include "kernels.h"

namespace ig {

#if defined(IG_HAVE_AVX512BF16)
extern const KernelTable table_avx512bf16;
#endif
#if defined(IG_HAVE_AVX512)
extern const KernelTable table_avx512;
#endif
#if defined(IG_HAVE_AVX2)
extern const KernelTable table_avx2;
#endif
#if defined(IG_HAVE_NEON)
extern const KernelTable table_neon;
#endif
extern const KernelTable table_portable;

const KernelTable* const* kernel_tables(int64_t* count) {
    static const KernelTable* const tables[] = {
#if defined(IG_HAVE_AVX512BF16)
        &table_avx512bf16,
#endif
#if defined(IG_HAVE_AVX512)
        &table_avx512,
#endif
#if defined(IG_HAVE_AVX2)
        &table_avx2,
#endif
#if defined(IG_HAVE_NEON)
        &table_neon,
#endif
        &table_portable,
    };
    *count = int64_t(sizeof tables / sizeof tables[0]);
    return tables;
}

bool usable(const KernelTable& table) {
#if defined(__x86_64__)
    const bool wide = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                      __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
#if defined(IG_HAVE_AVX512BF16)
    if (&table == &table_avx512bf16) return wide && __builtin_cpu_supports("avx512bf16");
#endif
#if defined(IG_HAVE_AVX512)
    if (&table == &table_avx512) return wide;
#endif
#if defined(IG_HAVE_AVX2)
    if (&table == &table_avx2) return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
#endif
    (void)wide;
#endif
    (void)table;
    return true;
}

}  // namespace ig
