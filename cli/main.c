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
    {"pull", IN_PULL, "NAME...", 1, false, "fetch a model by its name",
     "Fetches models into the cache (~/.cache/sluice/models) and prints where they are. What was fetched "
     "before is\n"
     "kept: after an interruption the same command goes on. Every command takes such a name for -m as well, "
     "and fetches\n"
     "what is not there.\n\n"
     "  hf:OWNER/REPO             a repository of Hugging Face: its Q4_K_M file, or what is nearest, or the "
     "whole folder\n"
     "  hf:OWNER/REPO:QUANT       the GGUF file of that type; a wrong one lists all\n"
     "  hf:OWNER/REPO/FILE        this GGUF file, with folders if there are any\n"
     "  hf:OWNER/REPO@REVISION    of a branch, a tag or a commit; QUANT or FILE may follow\n"
     "  ollama:NAME[:TAG]         a model of Ollama's library, or ollama:USER/NAME[:TAG]\n"
     "  https://HOST/PATH.gguf    a file by its URL\n\n"
     "--dry-run says beforehand what would come, whether it fits this machine and how fast it would be.\n"
     "docs/models.md tells more.",
     "  sluice pull hf:Qwen/Qwen3-8B-GGUF\n"
     "  sluice pull --dry-run hf:unsloth/Qwen3-30B-A3B-GGUF:UD-Q4_K_XL\n"
     "  sluice pull ollama:llama3.2:3b\n"
     "  sluice run hf:Qwen/Qwen3-8B-GGUF \"Why is the sky blue?\"\n"
     "  sluice pull hf:meta-llama/Llama-3.1-8B-Instruct --token-file token.txt\n",
     pull_command},
    {"list", IN_LIST, "[NAME...]", 0, false, "models in the cache, and whether they fit this machine",
     "Lists the models that pull fetched, those that are not finished too. Of each it says how much memory a "
     "plan of\n"
     "one sequence asks for, whether this machine has it, and about how many tokens a second one sequence "
     "would get:\n"
     "generation reads the weights that a token uses from memory, whose rate is measured for a tenth of a "
     "second; the\n"
     "rate of prompts is what the built-in model reaches. A name that is not in the cache is judged by its "
     "header\n"
     "alone, which is fetched; a file or folder is judged as it lies.",
     "  sluice list\n"
     "  sluice list hf:Qwen/Qwen3-8B-GGUF:Q8_0\n"
     "  sluice list model.gguf -o json\n",
     list_command},
    {"rm", IN_RM, "[NAME...]", 0, false, "remove models from the cache",
     "Removes models that list shows, finished or not, and says how many bytes came free. A name without "
     "QUANT means\n"
     "all that the cache has of the repository. On a terminal it asks before. Files outside the cache are "
     "never touched.",
     "  sluice rm hf:Qwen/Qwen3-8B-GGUF:Q8_0\n"
     "  sluice rm --unused 60\n"
     "  sluice rm -y ollama:llama3.2:3b\n",
     rm_command},
    {"bench", IN_BENCH, NULL, 0, true, "measure speed",
     "Measures how many tokens a second are read (pp) and generated (tg), with random tokens, with nothing "
     "or -d tokens in\n"
     "the cache, for one sequence or several at once; every combination of what is listed. Columns and "
     "fields are\n"
     "llama-bench's; JSON, CSV and -v add bytes and operations. \"limit\" is the speed as a share of what "
     "the "
     "device's\n"
     "memory and products allow, by rates measured before: weights are read once a step, keys and values "
     "once a "
     "step.",
     "  sluice bench -m model.gguf -p 512,2048 -n 128\n"
     "  sluice bench -m a.gguf -m b.gguf -t 1,2,4 -p 512 -n 0 -pg 512,128\n"
     "  sluice bench -m model.gguf -p 0 -n 64 -d 0,4096 --sequences 8 -o json\n"
     "  sluice bench -m a.gguf -m b.gguf -p 512 -n 64 -d 0,4096,8192,16384 --plot speed.svg\n"
     "  sluice bench --peak\n",
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
     "  sluice perplexity -m q4_k_m.gguf -f text.txt --kl base.kl --plot kl.svg\n",
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
     "  sluice plan -m model.gguf --memory-limit 8G --plot memory.svg\n"
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
     "vocabulary.\n"
     "A preset with a size in its name has the published shape (qwen3-8b, gemma4-e4b, gpt-oss-20b, ...), one "
     "named\n"
     "after a family (llama, qwen3_5, ...) is small. A wrong name lists all of them.",
     "  sluice synth qwen3-0.6b random.gguf --type q8_0\n"
     "  sluice synth qwen3moe random.gguf --type q4_k --layers 16 --width 1024 --experts 64\n",
     synth_command},
    {"embed", IN_EMBED, "[MODEL] [FILE]", 0, true, "texts to vectors",
     "Prints a vector for each line of a file or of standard input, as the model's files say how: which rows "
     "of "
     "its tokens\n"
     "become the vector, and that it gets the length 1. Lines are read many at once, and what a line gives "
     "does "
     "not depend\n"
     "on the others. --similar prints how alike the lines are instead: the cosine of every two.",
     "  sluice embed -m qwen3-embedding.gguf texts.txt > vectors.jsonl\n"
     "  sluice embed -m qwen3-embedding.gguf -o npy texts.txt > vectors.npy\n"
     "  printf 'a cat\\na dog\\na bridge\\n' | sluice embed -m qwen3-embedding.gguf --similar\n",
     embed_command},
    {"rerank", IN_RERANK, "[MODEL] [FILE]", 0, true, "which texts answer a query best",
     "Scores each line of a file or of standard input by how well it answers the query of -q, and prints "
     "them with "
     "the best\n"
     "first: a number of 0 to 1, the line's number and the line. Rerankers have a way of their own to read a "
     "query "
     "and a text;\n"
     "a model without a classifier is asked whether the text meets the query, as Qwen3-Reranker is.",
     "  sluice rerank -m qwen3-reranker.gguf -q \"how do locks work?\" texts.txt\n"
     "  sluice rerank -m bge-reranker.gguf -q locks --top 3 -o json < texts.txt\n",
     rerank_command},
    {"eval", IN_EVAL, NULL, 0, true, "how many tasks a model solves",
     "Asks a model the held-out items of a task file, many at once and always taking the likeliest token, "
     "and "
     "prints for\n"
     "each task how many answers are exactly right.",
     "  sluice eval -m mini\n"
     "  sluice eval -m model.gguf -f tasks.json --sequences 16 -o json\n",
     eval_command},
    {"load", IN_LOAD, "URL", 1, false, "load a server, and measure what its clients see",
     "Sends requests to a server with OpenAI's API (sluice, llama-server, vLLM, SGLang) and prints what came "
     "back and when:\n"
     "requests and tokens a second, the time to the first token, between tokens, and to the last. Requests "
     "come at a rate, as\n"
     "those of many strangers do, or from clients that ask again as soon as they are answered; several "
     "values "
     "with commas are\n"
     "a sweep. It talks to that server and to no other. Load on somebody else's server costs them money and "
     "others their turn:\n"
     "ask first. docs/load.md says what each figure means.",
     "  sluice load http://127.0.0.1:8080\n"
     "  sluice load http://127.0.0.1:8080 --rate 4 --time 60 --warmup 5 --prompt-tokens 512:128 --max-tokens "
     "128\n"
     "  sluice load http://127.0.0.1:8080 --concurrency 1,2,4,8,16 --plot sweep.svg\n"
     "  sluice load http://127.0.0.1:8080 --turns 4 --think 2 --shared 1000 --objective ttft:500,itl:50\n"
     "  sluice load https://host/v1 --model NAME --api-key-file key.txt --prompts questions.txt -o json\n",
     load_command},
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
           "  sluice run hf:Qwen/Qwen3-8B-GGUF \"Why is the sky blue?\"\n"
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

static int run_with(const command *command, settings *settings) {
    if (settings->help) {
        print_command_help(command);
        return DONE;
    }
    static bool verbose; /* outlives threads that still log */
    verbose = settings->verbose;
    sluice_log_set(print_log, &verbose);
    sluice_handle_truncation(NULL); /* without it a file that is cut ends the program without a word */
    int code = draw_seed(settings);
    code = code == DONE ? resolve_models(command, settings) : code;
    return code == DONE ? command->run(settings) : code;
}

static int run(const command *command, int count, char **arguments) {
    settings settings;
    int code = parse_options(command, count, arguments, &settings);
    code = code == DONE ? run_with(command, &settings) : code;
    json_decref(settings.config_root);
    json_decref(settings.user_root);
    json_decref(settings.texts);
    return code;
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
