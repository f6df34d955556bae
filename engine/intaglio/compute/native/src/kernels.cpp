// Compiled once per instruction set: IG_TARGET_* chooses it, IG_NS names its namespace and IG_TABLE its table.
#include "attention.h"
#include "linear.h"
#include "rows.h"

namespace ig {

#if defined(IG_TARGET_AVX512BF16)
extern const KernelTable IG_TABLE = {"avx512bf16", true,
#elif defined(IG_TARGET_AVX512)
extern const KernelTable IG_TABLE = {"avx512", false,
#elif defined(IG_TARGET_AVX2)
extern const KernelTable IG_TABLE = {"avx2", false,
#elif defined(IG_TARGET_NEON)
extern const KernelTable IG_TABLE = {"neon", false,
#else
extern const KernelTable IG_TABLE = {"portable", false,
#endif
                                     IG_NS::linear, IG_NS::norm, IG_NS::convert, IG_NS::store, IG_NS::rope, IG_NS::attention,
                                     IG_NS::swiglu, IG_NS::top};

}  // namespace ig
