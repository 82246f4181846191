/* Libraries that are opened at run time: cuBLAS, for the attention that asks for it. What is declared of it
 * is its documented interface (cuBLAS library, "Using the cuBLAS API"), so that building needs none of its
 * headers. */
#include "backend/cuda/run/library.h"
#include "backend/cuda/run/run.h"

#include <dlfcn.h>
#include <pthread.h>

bool sl_cuda_library_open(const char *name, const sl_cuda_symbol *symbols, int32_t count) {
    /* By the loader's own rules, then where the toolkit puts it. */
    static const char *const places[] = {"", "/usr/local/cuda/lib64/", "/opt/cuda/lib64/"};
    void *library = NULL;
    for (size_t i = 0; i < sizeof places / sizeof *places && !library; i++) {
        char path[256];
        const int length = snprintf(path, sizeof path, "%s%s", places[i], name);
        library = length > 0 && (size_t)length < sizeof path ? dlopen(path, RTLD_NOW | RTLD_LOCAL) : NULL;
    }
    for (int32_t i = 0; i < count && library; i++) {
        *(void **)symbols[i].function = dlsym(library, symbols[i].name);
        if (!*(void **)symbols[i].function) {
            dlclose(library);
            library = NULL;
        }
    }
    return library != NULL; /* stays open as long as the module */
}

static struct {
    pthread_once_t once;
    bool there;
    int (*create)(void **handle);
    int (*destroy)(void *handle);
    int (*set_stream)(void *handle, cudaStream_t stream);
    int (*set_workspace)(void *handle, void *workspace, size_t bytes);
    int (*multiply)(void *handle, int a_transposed, int b_transposed, int m, int n, int k, const void *alpha,
                    const void *const *a, int a_type, int a_stride, const void *const *b, int b_type,
                    int b_stride, const void *beta, void *const *c, int c_type, int c_stride, int count,
                    int compute, int algorithm);
} blas = {.once = PTHREAD_ONCE_INIT};

static void open_blas(void) {
    const sl_cuda_symbol symbols[] = {{"cublasCreate_v2", &blas.create},
                                      {"cublasDestroy_v2", &blas.destroy},
                                      {"cublasSetStream_v2", &blas.set_stream},
                                      {"cublasSetWorkspace_v2", &blas.set_workspace},
                                      {"cublasGemmBatchedEx", &blas.multiply}};
    blas.there =
        sl_cuda_library_open("libcublas.so.13", symbols, (int32_t)(sizeof symbols / sizeof *symbols));
}

bool sl_cuda_gemm_there(void) {
    pthread_once(&blas.once, open_blas);
    return blas.there;
}

int sl_cuda_gemm_create(void **handle, sl_error *error) {
    const int status = sl_cuda_inject("cublasLtCreate") ? 1 : blas.create(handle);
    return status == 0 ? SL_OK
                       : sl_fail(error, status == 3 ? SL_ERR_NOMEM : SL_ERR_DEVICE,
                                 "cublas: cublasCreate: status %d", status);
}

void sl_cuda_gemm_destroy(void *handle) {
    if (handle) {
        blas.destroy(handle);
    }
}

cudaError_t sl_cuda_gemm(void *handle, const sl_cuda_gemm_call *call, cudaStream_t stream) {
    enum { COMPUTE_F32 = 68, USUAL_ALGORITHM = -1 };
    const float one = 1.0f, zero = 0.0f;
    /* A new stream takes the workspace away. */
    const bool good =
        blas.set_stream(handle, stream) == 0 &&
        blas.set_workspace(handle, call->workspace, call->workspace_bytes) == 0 &&
        blas.multiply(handle, call->a_transposed, 0, call->m, call->n, call->k, &one, call->a, call->type,
                      call->a_stride, call->b, call->type, call->b_stride, &zero, call->c, CUDA_R_32F,
                      call->c_stride, call->count, COMPUTE_F32, USUAL_ALGORITHM) == 0;
    return good ? cudaSuccess : cudaErrorUnknown;
}
