/* A model's file that somebody cuts while it is mapped: an error that names it, and the engine's end; a
 * SIGBUS of anybody else goes to whom it went before. */
#define _GNU_SOURCE
#include "support/engine.h"

#include "base/map.h"

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

static char path[] = "/tmp/sluice-truncation-XXXXXX";

static sigjmp_buf back;
static volatile sig_atomic_t ours;

/* The library's handler, which the test's frame replaces by its own for each test. */
static struct sigaction library;

static void set_handler(void) {
    assert_int_equal(sigaction(SIGBUS, &library, NULL), 0);
}

static void on_bus_error(int number) {
    (void)number;
    ours++;
    siglongjmp(back, 1);
}

/* Reads behind the end of a file that the library knows nothing of. */
static int read_behind_the_end(void) {
    char name[] = "/tmp/sluice-truncation-XXXXXX";
    const int file = mkstemp(name);
    unlink(name);
    assert_int_equal(ftruncate(file, 4096), 0);
    const volatile char *map = mmap(NULL, 4096, PROT_READ, MAP_SHARED, file, 0);
    assert_ptr_not_equal(map, MAP_FAILED);
    assert_int_equal(ftruncate(file, 0), 0);
    close(file);
    const int read = map[100];
    munmap((void *)(size_t)map, 4096);
    return read;
}

/* The signal that ends a process that begins so. */
static int signal_of_child(bool handled, bool sent) {
    const pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        signal(SIGBUS, SIG_DFL);
        if (handled && sluice_handle_truncation(NULL) != 0) {
            _exit(1);
        }
        if (sent) {
            raise(SIGBUS);
        }
        _exit(read_behind_the_end());
    }
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    return WIFSIGNALED(status) ? WTERMSIG(status) : 0;
}

/* Before this process calls the function, so that children begin without it. */
static void errors_of_others_end_the_process_as_before(void **state) {
    (void)state;
    assert_int_equal(signal_of_child(false, false), SIGBUS);
    assert_int_equal(signal_of_child(true, false), SIGBUS);
    assert_int_equal(signal_of_child(true, true), SIGBUS);
}

static void errors_of_others_go_to_the_handler_that_was_there(void **state) {
    (void)state;
    const struct sigaction action = {.sa_handler = on_bus_error};
    sluice_error error;
    assert_int_equal(sigaction(SIGBUS, &action, NULL), 0);
    must(sluice_handle_truncation(&error), &error, "handler");
    must(sluice_handle_truncation(NULL), &error, "again");
    assert_int_equal(sigaction(SIGBUS, NULL, &library), 0);
    if (sigsetjmp(back, 1) == 0) {
        read_behind_the_end();
        fail_msg("a page that is not there was read");
    }
    assert_int_equal(ours, 1);
}

/* A copy of the built-in model. */
static void copy_model(void) {
    FILE *from = fopen(SLUICE_SOURCE_DIR "/models/mini.gguf", "rb");
    assert_non_null(from);
    memcpy(path + strlen(path) - 6, "XXXXXX", 6);
    const int file = mkstemp(path);
    char block[65536];
    for (size_t read; (read = fread(block, 1, sizeof block, from)) > 0;) {
        assert_int_equal(write(file, block, read), read);
    }
    fclose(from);
    close(file);
}

static void expect_loss(int code, const char *message) {
    if (code != SLUICE_ERR_IO || !strstr(message, path)) {
        fail_msg("%s (%d), expected IO and %s", message, code, path);
    }
}

/* Matrices in place, as no kernel of this tier packs any. */
static const sluice_engine_options in_place = {
    .size = sizeof in_place, .device = "cpu", .isa = "plain", .threads = 2, .sequences = 2};

static void maps_tell_what_was_lost(void **state) {
    (void)state;
    set_handler();
    copy_model();
    sl_map map = {0}, whole = {0};
    sl_error error;
    sl_map_begin();
    assert_int_equal(sl_map_open(&map, path, &error), 0);
    assert_int_equal(sl_map_open(&whole, SLUICE_SOURCE_DIR "/models/mini.gguf", &error), 0);
    const unsigned losses = sl_map_losses();
    assert_int_equal(truncate(path, 100000), 0);
    /* Of the last page that is left the system gives zeros anyway. */
    assert_memory_equal(map.data, whole.data, 90000);
    assert_int_equal(sl_map_losses(), losses);
    assert_int_equal(sl_map_check(map.data, &error), 0);
    assert_int_equal(map.data[map.size - 1], 0);
    assert_int_equal(map.data[200000], 0);
    assert_memory_equal(map.data, whole.data, 90000);
    assert_true(sl_map_losses() > losses);
    expect_loss(sl_map_check(map.data, &error), error.message);
    assert_int_equal(sl_map_check(whole.data, &error), 0);
    assert_int_equal(sl_map_end(7, &error), 7);
    sl_map_close(&whole);
    assert_int_equal(sl_map_end(7, &error), 7);
    sl_map_close(&map);
    expect_loss(sl_map_end(0, &error), error.message);
    sl_map_begin();
    assert_int_equal(sl_map_end(0, &error), 0);
    unlink(path);
}

static void a_file_cut_before_the_engine_is_made_is_named(void **state) {
    (void)state;
    set_handler();
    copy_model();
    sluice_model *model = open_model(path);
    sluice_engine *engine;
    sluice_error error;
    assert_int_equal(truncate(path, 1 << 20), 0);
    /* The best tier packs matrices, and reads all of them for that. */
    const sluice_engine_options options = {.size = sizeof options, .device = "cpu", .threads = 2};
    if (sluice_engine_create(model, &options, &engine, &error) == 0) {
        sluice_engine_destroy(engine); /* nothing was packed, so nothing was read either */
    } else {
        expect_loss(error.code, error.message);
        expect_loss(sluice_engine_create(model, &options, &engine, &error), error.message);
        assert_null(engine);
    }
    sluice_model_release(model);
    unlink(path);
}

static void a_file_cut_under_an_engine_ends_it(void **state) {
    (void)state;
    set_handler();
    copy_model();
    sluice_model *model = open_model(path);
    sluice_model *other = open_model(SLUICE_SOURCE_DIR "/models/mini.gguf");
    sluice_engine *engine = open_engine(model, &in_place), *whole = open_engine(other, &in_place);
    const int32_t tokens[] = {1, 2, 3};
    const sluice_request_options options = {
        .size = sizeof options, .tokens = tokens, .token_count = 3, .generate = 1000, .ignore_eos = true};
    sluice_sequence *sequences[] = {open_sequence(engine), open_sequence(engine), open_sequence(whole)};
    sluice_request *requests[3];
    sluice_error error;
    sluice_event event = {.size = sizeof event};
    for (int i = 0; i < 3; i++) {
        requests[i] = submit(sequences[i], &options);
    }
    must(sluice_poll(requests[0], -1, &event, &error), &error, "poll");
    assert_int_equal(event.kind, SLUICE_EVENT_TOKEN);
    assert_int_equal(truncate(path, 4096), 0);
    for (int i = 0; i < 2; i++) {
        do {
            must(sluice_poll(requests[i], -1, &event, &error), &error, "poll");
        } while (event.kind != SLUICE_EVENT_DONE);
        assert_int_equal(event.finish, SLUICE_FINISH_ERROR);
        expect_loss(event.error.code, event.error.message);
        sluice_request_release(requests[i]);
    }
    expect_loss(sluice_submit(sequences[0], &options, &requests[0], &error), error.message);
    /* Another engine, of a file that is whole, goes on. */
    must(sluice_poll(requests[2], -1, &event, &error), &error, "poll");
    assert_int_equal(event.kind, SLUICE_EVENT_TOKEN);
    sluice_request_release(requests[2]);
    for (int i = 0; i < 3; i++) {
        sluice_sequence_release(sequences[i]);
    }
    sluice_engine_destroy(engine);
    sluice_engine_destroy(whole);
    sluice_model_release(model);
    sluice_model_release(other);
    assert_int_equal(ours, 1);
    unlink(path);
}

static bool cut_file(void *context, uint64_t done, uint64_t total) {
    (void)context;
    return total == 0 || done == 0 || truncate(path, 65536) == 0;
}

static void a_file_cut_under_quantize_leaves_nothing_behind(void **state) {
    (void)state;
    set_handler();
    copy_model();
    char output[64];
    sluice_error error;
    snprintf(output, sizeof output, "%s-out.gguf", path);
    expect_loss(sluice_quantize(path, output, "q8_0", cut_file, NULL, &error), error.message);
    assert_int_not_equal(access(output, F_OK), 0);
    unlink(path);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(errors_of_others_end_the_process_as_before),
        cmocka_unit_test(errors_of_others_go_to_the_handler_that_was_there),
        cmocka_unit_test(maps_tell_what_was_lost),
        cmocka_unit_test(a_file_cut_before_the_engine_is_made_is_named),
        cmocka_unit_test(a_file_cut_under_an_engine_ends_it),
        cmocka_unit_test(a_file_cut_under_quantize_leaves_nothing_behind),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
