/* sluice: the command line. */
#include "cli.h"

#include <pthread.h>
#include <string.h>
#include <unistd.h>

const command COMMANDS[] = {
    {"run", IN_RUN, NULL, 0, true, "go on from a prompt",
     "Reads a prompt and prints what the model goes on to say, and nothing else, as it comes. The prompt is "
     "the text\n"
     "as it stands: for a conversation use sluice chat.",
     "  sluice run -m model.gguf -p \"Once upon a time\" -n 200\n"
     "  sluice run -m model.gguf -f question.txt --temp 0 -o json\n",
     run_command},
    {"chat", IN_CHAT, NULL, 0, true, "talk with a model",
     "A conversation in the model's own chat format (ChatML when it has none). Only what is new is read with "
     "each turn.\n"
     "/reset begins anew, /exit or the end of input ends. Without a terminal each line of standard input is "
     "a turn.",
     "  sluice chat -m model.gguf --system \"Answer in one sentence.\"\n"
     "  echo \"What is a sluice?\" | sluice chat -m model.gguf -n 64\n",
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
     "the cache, for one sequence or several at once. Columns are llama-bench's; JSON, CSV and -v add bytes "
     "and operations.",
     "  sluice bench -m model.gguf -p 512,2048 -n 128\n"
     "  sluice bench -m model.gguf -p 0 -n 64 -d 0,4096 --sequences 8 -o json\n",
     bench_command},
    {"perplexity", IN_PERPLEXITY, NULL, 0, true, "how well a model predicts a text",
     "Cuts a text into windows of equal length, reads each as a sequence of its own, and prints the mean "
     "negative\n"
     "log-likelihood of the next token, its exponential, and a hash of all logits, which does not depend on "
     "how the\n"
     "windows were cut into steps or how many ran at once.",
     "  sluice perplexity -m model.gguf -f text.txt\n"
     "  sluice perplexity -m model.gguf -f text.txt --window 1024 --sequences 8 -o json\n",
     perplexity_command},
    {"tokenize", IN_TOKENIZE, NULL, 0, true, "text to tokens",
     "Reads text from standard input and prints its tokens, one on a line with its id, or only the ids.",
     "  echo -n \"Hello\" | sluice tokenize -m model.gguf\n"
     "  sluice tokenize -m model.gguf --ids --bos < text.txt > ids.txt\n",
     tokenize_command},
    {"detokenize", IN_DETOKENIZE, NULL, 0, true, "tokens to text",
     "Reads token ids from standard input and prints the text that they stand for.",
     "  echo 1 2 3 | sluice detokenize -m model.gguf\n"
     "  sluice tokenize -m model.gguf --ids < text.txt | sluice detokenize -m model.gguf\n",
     detokenize_command},
    {"inspect", IN_INSPECT, NULL, 0, true, "what is in a model",
     "Prints a model's family, sizes, weight types and every tensor.",
     "  sluice inspect -m model.gguf\n"
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
};
const int COMMAND_COUNT = sizeof COMMANDS / sizeof *COMMANDS;

static void print_help(void) {
    printf("usage: sluice COMMAND [options]\n\n"
           "Runs large language models: a prompt is read as one batch, and the same step "
           "generates.\n\ncommands:\n");
    for (int i = 0; i < COMMAND_COUNT; i++) {
        printf("  %-12s %s\n", COMMANDS[i].name, COMMANDS[i].about);
    }
    printf("\nsluice COMMAND --help explains a command; sluice --version prints the version.\n\nexamples:\n"
           "  sluice run -m model.gguf -p \"Once upon a time\"\n"
           "  sluice chat -m model.gguf\n"
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

static int run(const command *command, int count, char **arguments) {
    settings settings;
    const int code = parse_options(command, count, arguments, &settings);
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
    return command->run(&settings);
}

int main(int count, char **arguments) {
    const char *name = count > 1 ? arguments[1] : NULL;
    int code = WRONG_USAGE;
    if (!name) {
        fail("no command (see sluice --help)");
    } else if (strcmp(name, "--help") == 0 || strcmp(name, "-h") == 0 || strcmp(name, "help") == 0) {
        print_help();
        code = DONE;
    } else if (strcmp(name, "--version") == 0) {
        printf("sluice %s\n", sluice_version());
        code = DONE;
    } else {
        const command *found = NULL;
        for (int i = 0; i < COMMAND_COUNT && !found; i++) {
            found = strcmp(name, COMMANDS[i].name) == 0 ? &COMMANDS[i] : NULL;
        }
        code = found ? run(found, count - 2, arguments + 2) : unknown_command(name);
    }
    if (code == DONE && (fflush(stdout) || ferror(stdout))) {
        code = fail("standard output: cannot write");
    }
    return code;
}
