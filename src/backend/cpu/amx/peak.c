/* What the AMX tier's products of tiles reach. */
#include "backend/cpu/peak.h"

#include <immintrin.h>
#include <string.h>

enum { ROWS = 16, ROW_BYTES = 64, TILE_BYTES = ROWS * ROW_BYTES, ROUNDS = 512 };

/* Four sums, so that a product waits for the one before it no more; two tiles of rows, two of columns. */
static void begin(uint32_t word) {
    struct {
        uint8_t palette, start, reserved[14];
        uint16_t row_bytes[16];
        uint8_t rows[16];
    } config = {.palette = 1};
    uint32_t numbers[TILE_BYTES / sizeof(uint32_t)];
    for (int i = 0; i < 8; i++) {
        config.row_bytes[i] = ROW_BYTES;
        config.rows[i] = ROWS;
    }
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        numbers[i] = word;
    }
    /* gcc does not know that these instructions read and write more memory than their first bytes. */
    SL_PEAK_MEMORY(&config);
    SL_PEAK_MEMORY(numbers);
    _tile_loadconfig(&config);
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    _tile_loadd(4, numbers, ROW_BYTES);
    _tile_loadd(5, numbers, ROW_BYTES);
    _tile_loadd(6, numbers, ROW_BYTES);
    _tile_loadd(7, numbers, ROW_BYTES);
}

static void end(void *sink) {
    unsigned char sum[TILE_BYTES];
    _tile_stored(0, sum, ROW_BYTES);
    SL_PEAK_MEMORY(sum);
    memcpy(sink, sum, SL_CPU_PEAK_SINK);
    _tile_release();
}

static double int8(void *sink) {
    begin(0x13e7f905);
    for (int round = 0; round < ROUNDS; round++) {
        _tile_dpbssd(0, 4, 6);
        _tile_dpbssd(1, 4, 7);
        _tile_dpbssd(2, 5, 6);
        _tile_dpbssd(3, 5, 7);
    }
    end(sink);
    return 2.0 * ROWS * ROWS * ROW_BYTES * 4 * ROUNDS;
}

static double bf16(void *sink) {
    begin(0x3e81bd03);
    for (int round = 0; round < ROUNDS; round++) {
        _tile_dpbf16ps(0, 4, 6);
        _tile_dpbf16ps(1, 4, 7);
        _tile_dpbf16ps(2, 5, 6);
        _tile_dpbf16ps(3, 5, 7);
    }
    end(sink);
    return 2.0 * ROWS * ROWS * (ROW_BYTES / 2.0) * 4 * ROUNDS;
}

const sl_cpu_peak sl_cpu_peak_amx = {.loops = {[SL_WITH_INT8] = int8, [SL_WITH_BF16] = bf16}};
