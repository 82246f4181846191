/* cuTensorMapEncodeTiled, and how it is found. The rules are those of the CUDA driver API's description of
 * it. */
#include "grid.h"

#include <cuda.h>
#include <string.h>

uint32_t emu_element_bytes(const emu_tensor_map &map) {
    switch ((CUtensorMapDataType)map.type) {
    case CU_TENSOR_MAP_DATA_TYPE_UINT8:
        return 1;
    case CU_TENSOR_MAP_DATA_TYPE_UINT16:
    case CU_TENSOR_MAP_DATA_TYPE_FLOAT16:
    case CU_TENSOR_MAP_DATA_TYPE_BFLOAT16:
        return 2;
    case CU_TENSOR_MAP_DATA_TYPE_UINT32:
    case CU_TENSOR_MAP_DATA_TYPE_INT32:
    case CU_TENSOR_MAP_DATA_TYPE_FLOAT32:
    case CU_TENSOR_MAP_DATA_TYPE_FLOAT32_FTZ:
    case CU_TENSOR_MAP_DATA_TYPE_TFLOAT32:
    case CU_TENSOR_MAP_DATA_TYPE_TFLOAT32_FTZ:
        return 4;
    case CU_TENSOR_MAP_DATA_TYPE_UINT64:
    case CU_TENSOR_MAP_DATA_TYPE_INT64:
    case CU_TENSOR_MAP_DATA_TYPE_FLOAT64:
        return 8;
    default:
        return 0;
    }
}

static bool is_sound(const emu_tensor_map &map) {
    const uint32_t bytes = emu_element_bytes(map);
    static const uint32_t spans[] = {0, 32, 64, 128};
    bool sound = map.rank >= 1 && map.rank <= 5 && map.address % 16 == 0 && map.swizzle < 4;
    for (int i = 0; i < map.rank && sound; i++) {
        sound = map.size[i] >= 1 && map.size[i] <= (uint64_t)1 << 32 && map.box[i] >= 1 &&
                map.box[i] <= 256 && map.step[i] >= 1 && map.step[i] <= 8 &&
                (i == 0 || (map.stride[i - 1] % 16 == 0 && map.stride[i - 1] < (uint64_t)1 << 40));
    }
    const uint32_t row = map.box[0] * bytes;
    return sound && bytes > 0 && row % 16 == 0 && (map.swizzle == 0 || row <= spans[map.swizzle]);
}

static CUresult encode(CUtensorMap *out, CUtensorMapDataType type, cuuint32_t rank, void *address,
                       const cuuint64_t *size, const cuuint64_t *stride, const cuuint32_t *box,
                       const cuuint32_t *step, CUtensorMapInterleave interleave, CUtensorMapSwizzle swizzle,
                       CUtensorMapL2promotion promotion, CUtensorMapFloatOOBfill fill) {
    static_assert(sizeof(emu_tensor_map) <= sizeof(CUtensorMap), "fits");
    emu_tensor_map map = {};
    map.magic = EMU_TENSOR_MAP;
    map.type = (uint8_t)type;
    map.rank = (uint8_t)rank;
    map.interleave = (uint8_t)interleave;
    map.swizzle = (uint8_t)swizzle;
    map.promotion = (uint8_t)promotion;
    map.fill = (uint8_t)fill;
    map.address = (uint64_t)address;
    for (cuuint32_t i = 0; i < rank && i < 5; i++) {
        map.size[i] = size[i];
        map.box[i] = box[i] <= 256 ? (uint16_t)box[i] : 0;
        map.step[i] = step[i] <= 8 ? (uint8_t)step[i] : 0;
        if (i > 0) {
            map.stride[i - 1] = stride[i - 1];
        }
    }
    if (rank > 5 || !is_sound(map)) {
        emu_report("cuTensorMapEncodeTiled: refused");
        return CUDA_ERROR_INVALID_VALUE;
    }
    memcpy(out, &map, sizeof map);
    return CUDA_SUCCESS;
}

extern "C" cudaError_t cudaGetDriverEntryPointByVersion(const char *symbol, void **function, unsigned int,
                                                        unsigned long long,
                                                        cudaDriverEntryPointQueryResult *found) {
    const bool is_known = strcmp(symbol, "cuTensorMapEncodeTiled") == 0;
    *function = is_known ? (void *)encode : NULL;
    if (found) {
        *found = is_known ? cudaDriverEntryPointSuccess : cudaDriverEntryPointSymbolNotFound;
    }
    return cudaSuccess;
}
