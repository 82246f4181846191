/* Families with blocks of their own: numbers of xIELU. What is read from folders and GGUF files, and what is
 * refused. */
#include "unit/model/support.h"

#include "model/files.h"

#include <math.h>
#include <string.h>

static const char SYNTHETIC[] = "test_config_blocks.gguf";

static int read_file_config(const char *path, sl_config *config, sl_error *error) {
    sl_source *source;
    assert_int_equal(sl_source_open(path, &source, error), 0);
    const int code = sl_config_read(source, config, error);
    sl_source_close(source);
    return code;
}

/* A synthetic file in which `from` is replaced by `to`, of the same size, where it is found first. */
static int read_changed(const char *preset, const void *from, const void *to, size_t size, sl_error *error) {
    const sl_synth_options options = {.preset = preset, .type = SL_QTYPE_Q8_0};
    static sl_config config;
    remove(SYNTHETIC);
    assert_int_equal(sl_synth_file(SYNTHETIC, &options, NULL, error), 0);
    FILE *file = fopen(SYNTHETIC, "r+b");
    assert_non_null(file);
    static char head[1 << 16];
    const size_t length = fread(head, 1, sizeof head, file);
    size_t at = 0;
    while (at + size <= length && memcmp(head + at, from, size) != 0) {
        at++;
    }
    assert_true(at + size <= length);
    fseek(file, (long)at, SEEK_SET);
    assert_int_equal(fwrite(to, 1, size, file), size);
    fclose(file);
    const int code = read_file_config(SYNTHETIC, &config, error);
    remove(SYNTHETIC);
    return code;
}

/* In a folder they are tensors, of which two have no dimension. */
static void xielu_of_a_folder(void **state) {
    (void)state;
    static sl_config config;
    sl_error error;
    assert_int_equal(read_file_config(FIXTURES "/apertus", &config, &error), 0);
    assert_int_equal(config.activation, SL_ACTIVATION_XIELU);
    for (int32_t layer = 0; layer < config.layers; layer++) {
        assert_float_equal(config.xielu[SL_XIELU_BETA][layer], 0.5, 0);
        assert_float_equal(config.xielu[SL_XIELU_EPSILON][layer], -1e-6, 1e-12);
        assert_true(config.xielu[SL_XIELU_POSITIVE][layer] != config.xielu[SL_XIELU_NEGATIVE][layer]);
    }
    assert_true(config.xielu[SL_XIELU_POSITIVE][0] != config.xielu[SL_XIELU_POSITIVE][1]);
}

/* In a GGUF file keys without the architecture's name. */
static void xielu_of_gguf(void **state) {
    (void)state;
    sl_error error;
    assert_int_equal(read_changed("apertus", "xielu.beta", "xielu.beta", 10, &error), 0);
    assert_int_equal(read_changed("apertus", "xielu.beta", "xielu.Beta", 10, &error), SL_ERR_FORMAT);
    assert_non_null(strstr(error.message, "xielu.beta must be an array of 3 numbers"));
    const float epsilon = -1e-6f, above = 1e-6f;
    assert_int_equal(read_changed("apertus", &epsilon, &above, 4, &error), SL_ERR_INVALID);
    assert_non_null(strstr(error.message, "eps at most 0"));
    const float beta = 0.5f, none = NAN;
    assert_int_equal(read_changed("apertus", &beta, &none, 4, &error), SL_ERR_INVALID);
    assert_non_null(strstr(error.message, "xIELU's numbers"));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(xielu_of_a_folder),
        cmocka_unit_test(xielu_of_gguf),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
