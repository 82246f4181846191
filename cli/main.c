/* sluice: the command line. */
#define _GNU_SOURCE
#include "cli.h"

#include <pthread.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

const command COMMANDS[] = {
    {"run", IN_RUN, "[MODEL] [PROMPT]", 0, true, "ask a model, or go on from a text",
     "Prints the answer to a prompt as it comes, and nothing else. The prompt is asked in the model's chat "
     "format; with\n"
     "--raw, and with a model that has none, the model goes on from the text as it stands. The prompt is an "
     "argument, or comes\n"
     "from -p, from -f or from standard input. For a conversation use sluice chat.",
     "  sluice run \"What is sluice?\"\n"
     "  sluice run model.gguf \"Why is the sky blue?\" -n 200\n"
     "  sluice run -m model.gguf -f question.txt --temp 0 -o json\n"
     "  sluice run -m model.gguf --raw -p \"Once upon a time\"\n",
     run_command},
    {"chat", IN_CHAT, NULL, 0, true, "talk with a model",
     "A conversation in the model's own chat format (ChatML when it has none). Only what is new is read with "
     "each turn.\n"
     "A line that ends in \\ goes on in the next one, and lines between two lines of \"\"\" are one message. "
     "Commands begin with\n"
     "a slash: /help lists them. Ctrl-C ends an answer, /exit or the end of input the conversation. Without "
     "a terminal each\n"
     "line of standard input is a turn; with -p or -f there is one answer.",
     "  sluice chat -m model.gguf --system \"Answer in one sentence.\"\n"
     "  sluice chat -m model.gguf -p \"What is a sluice?\" -n 64\n"
     "  printf 'Hello\\nWho are you?\\n' | sluice chat\n",
     chat_command},
    {"serve", IN_SERVE, NULL, 0, false, "answer over HTTP: the APIs of OpenAI, Anthropic and Ollama",
     "Serves models to the clients that people have: chat completions, completions and responses as OpenAI's "
     "packages use\n"
     "them, messages as Anthropic's do, Ollama's API, llama-server's and vLLM's extras, /health and "
     "/metrics. "
     "Without -m the\n"
     "built-in model answers. SIGTERM ends it when the running requests are complete. docs/server.md tells "
     "more.",
     "  sluice serve\n"
     "  sluice serve -m model.gguf --port 9000 --sequences 32 --api-key-file keys.txt\n"
     "  curl http://127.0.0.1:8080/v1/chat/completions -d '{\"messages\": [{\"role\": \"user\", \"content\": "
     "\"Hello\"}]}'\n",
     serve_command},
    {"bench", IN_BENCH, NULL, 0, true, "measure speed",
     "Measures how many tokens a second are read (pp) and generated (tg), with random tokens, with nothing "
     "or -d tokens in\n"
     "the cache, for one sequence or several at once; every combination of what is listed. Columns and "
     "fields are\n"
     "llama-bench's; JSON, CSV and -v add bytes and operations.",
     "  sluice bench -m model.gguf -p 512,2048 -n 128\n"
     "  sluice bench -m a.gguf -m b.gguf -t 1,2,4 -p 512 -n 0 -pg 512,128\n"
     "  sluice bench -m model.gguf -p 0 -n 64 -d 0,4096 --sequences 8 -o json\n",
     bench_command},
    {"perplexity", IN_PERPLEXITY, NULL, 0, true, "how well a model predicts a text",
     "Cuts a text into windows of equal length, reads each as a sequence of its own, and prints the mean "
     "negative\n"
     "log-likelihood of the next token, its exponential, and a hash of all logits, which does not depend on "
     "how the\n"
     "windows were cut into steps or how many ran at once. By default every token of the text is scored; for "
     "figures to lay\n"
     "beside those of llama-perplexity use --scoring second-half. --kl-write keeps a model's logits, and "
     "--kl "
     "says how far\n"
     "another one, or the same in fewer bits, is from them.",
     "  sluice perplexity -m model.gguf -f text.txt\n"
     "  sluice perplexity -m model.gguf -f text.txt --window 1024 --sequences 8 -o json\n"
     "  sluice perplexity -m bf16-folder -f text.txt --scoring second-half --kl-write base.kl\n"
     "  sluice perplexity -m q4_k_m.gguf -f text.txt --kl base.kl\n",
     perplexity_command},
    {"tokenize", IN_TOKENIZE, NULL, 0, true, "text to tokens",
     "Prints the tokens of a text, one on a line with its id, or only the ids. The text comes with -p, with "
     "-f or "
     "on standard input.",
     "  sluice tokenize model.gguf -p \"Hello\"\n"
     "  sluice tokenize -m model.gguf --ids --bos < text.txt > ids.txt\n",
     tokenize_command},
    {"detokenize", IN_DETOKENIZE, NULL, 0, true, "tokens to text",
     "Prints the text that token ids stand for. They come with -p, with -f or on standard input.",
     "  echo 1 2 3 | sluice detokenize -m model.gguf\n"
     "  sluice tokenize -m model.gguf --ids < text.txt | sluice detokenize -m model.gguf\n",
     detokenize_command},
    {"template", IN_TEMPLATE, NULL, 0, true, "messages to the prompt that a model gets",
     "Writes a conversation in the model's chat format, to see what it reads: as text, or with -o json also "
     "as tokens. In the\n"
     "text a special token that somebody wrote into a message looks as the template's own; among the tokens "
     "it stays text.",
     "  sluice template -p \"What is sluice?\"\n"
     "  sluice template model.gguf -f messages.json --template-option enable_thinking=false -o json\n"
     "  sluice template folder --show > template.jinja\n",
     template_command},
    {"inspect", IN_INSPECT, NULL, 0, true, "what is in a model",
     "Prints a model's family, sizes, weight types and every tensor. Of a file that cannot run (an adapter, "
     "a\n"
     "vision part, a family or weight type that is not known) it says why, and what the file holds.",
     "  sluice inspect -m model.gguf\n"
     "  sluice inspect -m model.gguf --keys\n"
     "  sluice inspect -m folder -o json\n",
     inspect_command},
    {"plan", IN_PLAN, NULL, 0, true, "what a model will need",
     "Prints the bytes of every memory pool that an engine with these options would take, without loading "
     "anything, or the\n"
     "list of operations of its largest step.",
     "  sluice plan -m model.gguf -c 32768 --sequences 16\n"
     "  sluice plan -m model.gguf --ops\n",
     plan_command},
    {"explain", IN_EXPLAIN, NULL, 0, true, "which kernels will run, and why",
     "Prints the kernel chosen for every operation and step size, and for every faster one why it was "
     "declined.",
     "  sluice explain -m model.gguf\n"
     "  sluice explain -m model.gguf --isa avx2 -o json\n",
     explain_command},
    {"quantize", IN_QUANTIZE, "IN OUT TYPE", 3, false, "write a model in another weight type",
     "Writes a GGUF copy of a GGUF file, a Hugging Face folder or a built-in model with its matrices in "
     "another type. "
     "Names are\n"
     "llama.cpp's, in any case, and mean its mixtures: some tensors take more bits than most. Vectors and "
     "routers "
     "become f32.\n"
     "OUT appears when it is complete.",
     "  sluice quantize folder model.gguf q8_0\n"
     "  sluice quantize --dry-run model.gguf Q4_K_M\n"
     "  sluice quantize model.gguf small.gguf Q4_K_M --imatrix model.imatrix.gguf\n"
     "  sluice quantize model.gguf small.gguf Q4_K_M --type-of 'attn_[kv]=q8_0' --output-type q8_0\n",
     quantize_command},
    {"imatrix", IN_IMATRIX, NULL, 0, true, "which columns of a model's matrices matter, for quantize",
     "Reads a text with a model and writes an importance matrix: for each column of every matrix the sum of "
     "squares of what\n"
     "it was multiplied with, for each expert apart. The text is cut into windows, each read as a sequence "
     "of "
     "its own. Take a\n"
     "text like those that the model will see. The file is in llama-imatrix's GGUF format.",
     "  sluice imatrix -m model.gguf -f text.txt\n"
     "  sluice imatrix -m model.gguf -f text.txt --chunks 100 -o model.imatrix.gguf\n"
     "  sluice quantize model.gguf small.gguf Q4_K_M --imatrix model.imatrix.gguf\n",
     imatrix_command},
    {"synth", IN_SYNTH, "PRESET OUT", 2, false, "write a model of true shape with random weights",
     "Writes a GGUF file to measure with: the shape of a real model, random weights, a byte-level "
     "vocabulary. Presets:\n"
     "qwen3-0.6b, qwen3-8b, qwen3-30b-a3b as published; llama, mistral, qwen2, qwen3, qwen3moe, gemma3, "
     "qwen3_5 small.",
     "  sluice synth qwen3-0.6b random.gguf --type q8_0\n"
     "  sluice synth qwen3moe random.gguf --type q4_k --layers 16 --width 1024 --experts 64\n",
     synth_command},
    {"eval", IN_EVAL, NULL, 0, true, "how many tasks a model solves",
     "Asks a model the held-out items of a task file, many at once and always taking the likeliest token, "
     "and "
     "prints for\n"
     "each task how many answers are exactly right.",
     "  sluice eval -m mini\n"
     "  sluice eval -m model.gguf -f tasks.json --sequences 16 -o json\n",
     eval_command},
    {"completion", IN_COMPLETION, "bash|zsh|fish", 1, false, "what a shell needs to complete command lines",
     "Prints a script that completes commands, options and their values. `make install` puts it where the "
     "shells look.",
     "  . <(sluice completion bash)\n"
     "  sluice completion fish > ~/.config/fish/completions/sluice.fish\n",
     completion_command},
    {"man", IN_MAN, "[COMMAND]", 0, false, "the manual page of a command",
     "Prints a manual page for man(1), of sluice or of one command. `make install` puts them where man "
     "looks.",
     "  sluice man run | man -l -\n", man_command},
};
const int COMMAND_COUNT = sizeof COMMANDS / sizeof *COMMANDS;

static void print_help(void) {
    printf("usage: sluice COMMAND [options]\n\n"
           "Runs large language models: a prompt is read as one batch, and the same step "
           "generates.\n\ncommands:\n");
    for (int i = 0; i < COMMAND_COUNT; i++) {
        if (!(COMMANDS[i].bit & (IN_COMPLETION | IN_MAN))) {
            printf("  %-12s %s\n", COMMANDS[i].name, COMMANDS[i].about);
        }
    }
    printf("\nsluice help COMMAND explains a command; sluice version prints the version.\n\nexamples:\n"
           "  sluice run \"What is sluice?\"\n"
           "  sluice run model.gguf \"Why is the sky blue?\"\n"
           "  sluice chat model.gguf\n"
           "  sluice serve -m model.gguf\n");
}

static int unknown_command(const char *name) {
    const char *names[32];
    for (int i = 0; i < COMMAND_COUNT; i++) {
        names[i] = COMMANDS[i].name;
    }
    const char *near = nearest(name, names, COMMAND_COUNT);
    fail("there is no command %s%s%s%s (see sluice --help)", name, near ? "; did you mean " : "",
         near ? near : "", near ? "?" : "");
    return WRONG_USAGE;
}

/* Has this line been here before? Engines are opened several times by some commands, and say it each time. */
static bool is_repeated(const char *line) {
    enum { LINES = 64, SIZE = 256 };
    static char lines[LINES][SIZE];
    static int count;
    static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
    bool found = false;
    pthread_mutex_lock(&mutex);
    for (int i = 0; i < count && !found; i++) {
        found = strncmp(lines[i], line, SIZE - 1) == 0;
    }
    if (!found && count < LINES) {
        snprintf(lines[count++], SIZE, "%s", line);
    }
    pthread_mutex_unlock(&mutex);
    return found;
}

/* Errors and warnings, each once; with -v everything. */
static void print_log(void *context, sluice_log_level level, const char *line) {
    static const char *const names[] = {"error", "warning", "info", "debug"};
    const bool *verbose = context;
    if (*verbose || (level <= SLUICE_LOG_WARNING && !is_repeated(line))) {
        fprintf(stderr, "%s: %s\n", names[level], line);
    }
}

static int draw_seed(settings *settings) {
    uint32_t drawn;
    if (settings->seed == RANDOM_SEED) {
        if (getrandom(&drawn, sizeof drawn, 0) != sizeof drawn) {
            return fail("no random seed is to be had: give one with --seed");
        }
        settings->seed = drawn; /* short enough to be typed again */
        if (settings->verbose) {
            fprintf(stderr, "sluice: --seed %u\n", drawn);
        }
    }
    return DONE;
}

static int run(const command *command, int count, char **arguments) {
    settings settings;
    int code = parse_options(command, count, arguments, &settings);
    if (code != DONE) {
        return code;
    }
    if (settings.help) {
        print_command_help(command);
        return DONE;
    }
    static bool verbose; /* outlives threads that still log */
    verbose = settings.verbose;
    sluice_log_set(print_log, &verbose);
    sluice_handle_truncation(NULL); /* without it a file that is cut ends the program without a word */
    code = draw_seed(&settings);
    return code == DONE ? command->run(&settings) : code;
}

static const command *find_command(const char *name) {
    for (int i = 0; i < COMMAND_COUNT; i++) {
        if (strcmp(name, COMMANDS[i].name) == 0) {
            return &COMMANDS[i];
        }
    }
    return NULL;
}

static bool is_one_of(const char *text, const char *a, const char *b, const char *c) {
    return strcmp(text, a) == 0 || strcmp(text, b) == 0 || strcmp(text, c) == 0;
}

static int help(const char *name) {
    const command *found = name ? find_command(name) : NULL;
    if (name && !found) {
        return unknown_command(name);
    }
    if (found) {
        print_command_help(found);
    } else {
        print_help();
    }
    return DONE;
}

int main(int count, char **arguments) {
    const char *name = count > 1 ? arguments[1] : NULL;
    int code = WRONG_USAGE;
    if (!name) {
        fail("no command (see sluice --help)");
    } else if (is_one_of(name, "help", "--help", "-h")) {
        code = help(count > 2 ? arguments[2] : NULL);
    } else if (is_one_of(name, "version", "--version", "-V")) {
        printf("sluice %s\n", sluice_version());
        code = DONE;
    } else {
        const command *found = find_command(name);
        code = found ? run(found, count - 2, arguments + 2) : unknown_command(name);
    }
    if (code == DONE && (fflush(stdout) || ferror(stdout))) {
        code = fail("standard output: cannot write");
    }
    return code;
}
