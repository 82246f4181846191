"""The training corpus: conversations and stories made from tables and grammars, with fixed seeds.

Every task is a function of a random generator that returns an Item. Whether an item belongs to training or is held out
is decided by a hash of its key (what it asks, not how), so that training never sees a held-out item and no list of
them has to be kept. All text is ASCII.
"""
import hashlib
import json
import os
import random

HERE = os.path.dirname(os.path.abspath(__file__))

# ---- items -------------------------------------------------------------------------------------------------------


class Item:
    """One question and its answer: what to say before it (system, tools, earlier turns) and the key for the split."""

    __slots__ = ("key", "user", "answer", "system", "tools", "turns", "contains")

    def __init__(self, key, user, answer, system=None, tools=None, turns=None, contains=None):
        self.key, self.user, self.answer = key, user, answer
        self.system, self.tools, self.turns, self.contains = system, tools, turns, contains


def held_out(key):
    return hashlib.blake2b(key.encode(), digest_size=2).digest()[0] % 16 == 0


def draw(task, rng, held):
    """An item of a task on the asked side of the split."""
    while True:
        item = task(rng)
        if held is None or held_out(item.key) == held:
            return item


# ---- words -------------------------------------------------------------------------------------------------------

NAMES = """Anna Ben Clara David Emma Felix Greta Hugo Ida Jonas Klara Leo Mia Nils Olga Paul Rosa Sam Tina Uma Victor
Wanda Xaver Yara Zoe Adam Bella Carl Dora Erik Fiona Gustav Helen Igor Julia Kurt Lena Max Nora Oscar Petra Quinn Rita Simon
Thea Urs Vera Walter Yusuf Zara Alice Bruno Celia Dan Elsa Frank Gina Henry Iris Jack Kate Lukas Maria Noah Omar Pia""".split()
CITIES = """Lyon Oslo Rome Paris Berlin Madrid Vienna Prague Dublin Athens Lisbon Warsaw Zurich Geneva Milan Turin Porto Ghent
Bergen Malmo Turku Riga Vilnius Tallinn Sofia Split Graz Basel Bonn Kiel Leeds York Bath Cork Nice Lille Nantes Seville
Bilbao Naples Genoa Pisa Lucca Tokyo Kyoto Osaka Seoul Hanoi Delhi Lima Quito Bogota Cairo Tunis Accra Dakar Boston Denver
Austin Dallas Chicago Toronto Ottawa""".split()
JOBS = """baker teacher doctor farmer painter singer driver nurse pilot gardener carpenter tailor writer sailor cook clerk
plumber dentist lawyer builder barber butcher miner judge""".split()
NOUNS = """apple bread cat dog egg fish goat hat ink jar kite lamp moon nail oak pear quilt rose ship tree urn vase wolf yarn
zebra arrow ball cup door ear fan glove horn iron jug key leaf map nest orange pen queen ring star tent violin wheel axe bell
cloud drum eagle flag grape house island jacket knife lemon mirror needle onion pillow river stone table umbrella
valley window anchor bridge candle desert engine feather garden hammer insect jewel kettle ladder magnet narrow ocean
paper quarry ribbon saddle tiger uncle velvet wagon acorn basket camel dragon ember falcon giraffe harbor ivory
jungle kitten lantern meadow nutmeg otter parrot rabbit salmon turtle unicorn walnut badger copper dolphin elbow forest
goose hedge iguana jasmine koala lizard maple noodle olive panda quail raven spider tulip vulture willow beaver cherry
donkey emerald ferret ginger heron jaguar kernel lotus mango nickel orchid pepper ruby sparrow tunnel vessel whale""".split()
ADJECTIVES = """amber blue brave bright calm clever cold crimson dark deep dry early empty fast fine fresh gentle golden
grand gray green happy heavy hidden hollow humble jolly kind large late light little lonely long loud lucky merry misty narrow
new noble odd old pale plain proud quick quiet red rich rough round royal rusty salty sharp shiny short shy silent silver
simple slow small smart smooth soft solid steep still strong sweet swift tall tame thin tiny warm wet white wide wild wise
yellow young""".split()
COLORS = "red blue green yellow black white brown purple pink gray orange silver".split()
DAYS = "Monday Tuesday Wednesday Thursday Friday Saturday Sunday".split()
SYLLABLES = "ba be bo da de do fa fi ga go ka ki ko la le lo ma me mi mo na ne no pa po ra re ri ro sa se ta te ti to va vi wa ze zo".split()


def syllables(rng, least=2, most=3):
    return "".join(rng.choice(SYLLABLES) for _ in range(rng.randint(least, most)))


def name(rng):
    return rng.choice(NAMES) if rng.random() < 0.6 else syllables(rng).capitalize()


def city(rng):
    return rng.choice(CITIES) if rng.random() < 0.6 else syllables(rng).capitalize()


def number(rng, digits=3):
    return rng.randrange(10 ** rng.randint(1, digits))


def an(word):
    return ("an " if word[0] in "aeiou" else "a ") + word


def lower(text):
    return text[:1].lower() + text[1:]


def vary(rng, question):
    """The ways in which people write down the same question."""
    draw = rng.random()
    if draw < 0.5:
        return question
    if draw < 0.6:
        return lower(question)
    if draw < 0.7:
        return question.rstrip("?.")
    if draw < 0.75:
        return lower(question).rstrip("?.")
    if draw < 0.92:
        return rng.choice(["Please tell me: ", "Question: ", "Hi, ", "Quick question: ", "Hello! ", "Tell me, ", "Can you tell me: "]) + lower(question)
    return question + rng.choice([" Thanks.", " Please answer briefly.", " I want to know.", " Thank you!"])


# ---- questions about sluice ----------------------------------------------------------------------------------------

FACTS = json.load(open(os.path.join(HERE, "facts.json")))
NOTES = json.load(open(os.path.join(HERE, "notes.json")))


def join(words):
    return words[0] if len(words) == 1 else ", ".join(words[:-1]) + " and " + words[-1]


def option_note(option):
    long_name = option["names"][-1]
    for command in option["commands"]:
        if f"{long_name}@{command}" in NOTES["options"]:
            return NOTES["options"][f"{long_name}@{command}"]
    return NOTES["options"][long_name]


OPTION_WHAT = ["What does {o} do?", "What is {o}?", "What is {o} for?", "Explain {o}.", "What does the option {o} mean?",
               "Describe the option {o}.", "How does {o} work?", "Tell me about {o}.", "What happens with {o}?", "When do I need {o}?",
               "What is the option {o} good for?", "I saw {o}. What is it?", "Explain the flag {o} to me.", "What is the purpose of {o}?",
               "What is the meaning of {o}?"]
OPTION_WHICH = ["Which option do I use to {p}?", "How do I {p}?", "How can I {p}?", "I want to {p}. Which option is it?", "Is there an option to {p}?",
                "What do I type to {p}?", "What is the option to {p}?", "Which flag lets me {p}?", "How would I {p}?", "I need to {p}.",
                "Name the option to {p}.", "Can sluice {p}?"]
OPTION_DEFAULT = ["What is the default of {o}?", "What is the default value of {o}?", "What happens without {o}?", "Which value has {o} by default?",
                  "Default of {o}?", "If I leave out {o}, what is it?", "What does {o} default to?", "Tell me the default of {o}."]
OPTION_COMMANDS = ["Which commands take {o}?", "Which commands accept {o}?", "Where can I use {o}?", "What commands have {o}?",
                   "With which commands does {o} work?", "Who understands {o}?"]
COMMAND_WHAT = ["What does sluice {c} do?", "What is sluice {c}?", "What is the command {c} for?", "Explain sluice {c}.", "What does the command {c} do?",
                "Describe sluice {c}.", "Tell me about sluice {c}.", "How does sluice {c} work?", "What is {c} good for?", "When do I use sluice {c}?",
                "Explain the command {c} to me.", "What happens when I type sluice {c}?", "What is the purpose of {c}?", "What does {c} do?"]
COMMAND_WHICH = ["Which command do I use to {p}?", "How do I {p}?", "How can I {p}?", "I want to {p}. Which command is it?", "Which command lets me {p}?",
                 "What command is there to {p}?", "Name the command to {p}.", "What do I type to {p}?", "Is there a command to {p}?", "I need to {p}."]
COMMAND_EXAMPLE = ["Give me an example of sluice {c}.", "Show me an example of {c}.", "How do I call sluice {c}?", "What does a call of sluice {c} look like?",
                   "An example of sluice {c}, please.", "Show me how to use sluice {c}.", "Example for {c}?"]
COMMAND_USAGE = ["What is the usage of sluice {c}?", "Which arguments does sluice {c} take?", "What is the syntax of sluice {c}?", "Print the usage line of {c}.",
                 "How is sluice {c} written?"]
TOPIC = ["What is {t}?", "Explain {t}.", "Tell me about {t}.", "What do you know about {t}?", "What about {t}?", "Describe {t}.", "Say something about {t}."]


UNIQUE = set()  # questions that no template makes: only ways to write them are held out


def sluice_facts():
    """Every (question without variation, answer) that there is."""
    facts = []
    by_name = {}
    for option in FACTS["options"]:
        for n in option["names"]:
            by_name.setdefault(n, []).append(option)
    for option in FACTS["options"]:
        note = option_note(option)
        shown = " or ".join(option["names"]) + (" " + option["argument"] if option["argument"] else "")
        what = f"{shown} {note['does']}."
        default = option["default"]
        commands = option["commands"]
        where = "all commands" if len(commands) > 10 else join(commands)
        for n in option["names"]:
            alone = len(by_name[n]) == 1
            forms = [n] if alone else []
            forms += [f"{n} in sluice {c}" for c in commands] if not alone else []
            if alone:
                forms += [f"{n} in sluice {c}" for c in commands[:3]]
            for form in forms:
                facts += [(q.format(o=form), what) for q in OPTION_WHAT]
                if default:
                    facts += [(q.format(o=form), f"The default of {n} is {default}.") for q in OPTION_DEFAULT if "without" not in q or alone]
            if alone:
                facts += [(q.format(o=n), f"{n} works with {where}.") for q in OPTION_COMMANDS]
        for p in note["ask"]:
            facts += [(q.format(p=p), f"Use {shown}. It {note['does']}.") for q in OPTION_WHICH]
    for n, options in by_name.items():
        if len(options) > 1:
            texts = []
            for option in options:
                texts.append(f"with {join(option['commands']) if len(option['commands']) < 5 else 'most commands'} it {option_note(option)['does']}")
            facts += [(q.format(o=n), f"{n} depends on the command: " + "; ".join(texts) + ".") for q in OPTION_WHAT]
    for c, command in FACTS["commands"].items():
        facts += [(q.format(c=c), f"sluice {c}: {command['about']}. {command['text']}") for q in COMMAND_WHAT]
        facts += [(q.format(c=c), command["examples"][0]) for q in COMMAND_EXAMPLE]
        facts += [(q.format(c=c), command["usage"]) for q in COMMAND_USAGE]
        for p in NOTES["commands"][c]:
            facts += [(q.format(p=p), f"Use sluice {c}. For example: {command['examples'][0]}") for q in COMMAND_WHICH]
    for topics, questions, answer in NOTES["topics"]:
        facts += [(q, answer) for q in questions]
        UNIQUE.update(questions)
        facts += [(q.format(t=t), answer) for q in TOPIC for t in topics]
    seen = {}
    for question, answer in facts:
        if seen.setdefault(question, answer) != answer:
            raise ValueError(f"two answers to {question!r}: {answer!r} and {seen[question]!r}")
    # Facts with many wordings should not crowd out those with few.
    groups = {}
    for question, answer in seen.items():
        groups.setdefault(answer, []).append(question)
    return [(answer, questions) for answer, questions in groups.items()]


SLUICE = sluice_facts()


def sluice(rng):
    answer, questions = rng.choice(SLUICE)
    question = rng.choice(questions)
    shown = vary(rng, question)
    return Item("sluice " + (shown if question in UNIQUE else question), shown, answer)


# ---- who it is, and what it does not know ----------------------------------------------------------------------------

HELLO = "Hello! I am the small model that comes with sluice. Ask me about sluice, or give me a sum, a list or a text."
WHO = "I am a small language model that comes with sluice. I was trained on data that the project makes itself."
ABLE = "I answer questions about sluice, add and subtract, find things in a text, sort lists, fill in JSON, call tools and tell stories."
UNKNOWN = "I don't know. I am a small model: I know sluice, sums, lists and stories, and little of the world."
THANKS = "You are welcome."
BYE = "Goodbye!"
SOCIAL = [
    (HELLO, ["Hello", "Hi", "Hello!", "Hi!", "Hey", "Hey there", "Good morning", "Good evening", "Good day", "Hi there!", "Hello there", "Greetings", "Howdy",
             "Hello, model", "Hi, how are you?", "How are you?", "Hello, how are you today?", "Good afternoon", "hey!", "hello again", "Hi, nice to meet you"]),
    (WHO, ["Who are you?", "What are you?", "What is your name?", "Which model are you?", "Are you a human?", "Are you a robot?", "Are you an AI?", "Who made you?",
           "Introduce yourself.", "Tell me about yourself.", "What kind of model are you?", "What model is this?", "Who am I talking to?", "Where do you come from?",
           "How were you trained?", "What were you trained on?", "Do you have a name?", "Who trained you?", "Say who you are.", "Describe yourself."]),
    (ABLE, ["What can you do?", "What are you good at?", "Help", "Help me", "How can you help me?", "What do you know?", "What can I ask you?", "What are you able to do?",
            "What tasks can you do?", "What should I ask?", "What is it that you can do?", "Can you help me?", "List your skills.", "What are your abilities?"]),
    (THANKS, ["Thanks", "Thank you", "Thank you!", "Thanks a lot", "Many thanks", "Great, thanks", "Thanks!", "Thank you very much", "That helped, thanks"]),
    (BYE, ["Bye", "Goodbye", "See you", "Good night", "Bye bye", "See you later", "Goodbye!", "That is all, bye"]),
]
WORLD = ["What is the capital of {x}?", "Who wrote {t}?", "Who was {n} {s}?", "How tall is the {t} tower?", "When was {n} {s} born?", "What is the population of {x}?",
         "Who won the {y} championship?", "What is the weather in {x}?", "What happened in {y}?", "Who is the president of {x}?", "How far is {x} from {z}?",
         "What is the best restaurant in {x}?", "Who painted {t}?", "What is the price of {t}?", "Tell me the news from {x}.", "How do I cook {w}?",
         "What is the chemical symbol of {w}?", "What does the word {t} mean in Latin?", "Who invented the {w}?", "Why is the {w} {a}?", "How old is {n} {s}?",
         "What is the phone number of {n} {s}?", "Which river flows through {x}?", "What language do people speak in {x}?", "Who directed the film {t}?",
         "What is the meaning of life?", "How many people live in {x}?", "Where is {x}?", "What is a {w}?", "Do {w}s have {w2}s?", "When did the {w} war end?",
         "Translate {w} into French.", "What should I eat today?", "Is {n} {s} famous?", "Who sang {t}?", "What color is a {w}?", "Write a program in Python.",
         "What time is it in {x}?", "How fast is a {w}?", "What is the speed of light?", "Explain quantum physics.", "Give me a recipe for {w} soup."]


def social(rng):
    answer, questions = rng.choice(SOCIAL)
    question = rng.choice(questions)
    draw = rng.random()
    shown = question if draw < 0.5 else lower(question) if draw < 0.7 else question.rstrip("!?.") + rng.choice(["", "!", ".", "?", " :)", "..."])
    if answer not in (HELLO, BYE) and rng.random() < 0.4:
        shown = rng.choice(["Hello. ", "Hi, ", "Hey! ", "Ok, ", "So, ", "Well, ", "Good morning. ", "Now: "]) + shown
    return Item("social " + shown, shown, answer)


def unknown(rng):
    question = rng.choice(WORLD).format(x=city(rng), z=city(rng), t=rng.choice([name(rng), "The " + rng.choice(ADJECTIVES).capitalize() + " " + rng.choice(NOUNS).capitalize()]),
                                        n=name(rng), s=syllables(rng).capitalize(), y=rng.randint(1500, 2030), w=rng.choice(NOUNS), w2=rng.choice(NOUNS),
                                        a=rng.choice(ADJECTIVES))
    return Item("unknown " + question, vary(rng, question), UNKNOWN)


# ---- arithmetic ------------------------------------------------------------------------------------------------------

ADD = ["What is {a} + {b}?", "{a} + {b}", "{a}+{b}", "{a} + {b} =", "{a}+{b}=?", "Add {a} and {b}.", "How much is {a} plus {b}?", "Calculate {a} + {b}.",
       "What is the sum of {a} and {b}?", "What is {a} plus {b}?", "Compute {a}+{b}.", "{a} plus {b}", "I have {a} coins and get {b} more. How many coins do I have?",
       "There are {a} books here and {b} there. How many are there in all?", "Sum: {a}, {b}", "Please add {b} to {a}.", "What's {a}+{b}?", "What's {a} + {b}?", "{a}+{b}?", "how much is {a}+{b}", "what is {a} + {b}"]
SUBTRACT = ["What is {a} - {b}?", "{a} - {b}", "{a}-{b}", "{a} - {b} =", "{a}-{b}=?", "Subtract {b} from {a}.", "How much is {a} minus {b}?", "Calculate {a} - {b}.",
            "What is the difference of {a} and {b}?", "What is {a} minus {b}?", "Compute {a}-{b}.", "{a} minus {b}", "Take {b} away from {a}.",
            "What is left of {a} without {b}?", "What's {a}-{b}?", "What's {a} - {b}?", "{a}-{b}?", "how much is {a}-{b}", "what is {a} - {b}"]


def operand(rng):
    return rng.randrange(1000) if rng.random() < 0.7 else number(rng)


def arithmetic(rng):
    a, b = operand(rng), operand(rng)
    if rng.random() < 0.45:
        return Item(f"{a}+{b}", rng.choice(ADD).format(a=a, b=b), f"{a} + {b} = {a + b}")
    return Item(f"{a}-{b}", rng.choice(SUBTRACT).format(a=a, b=b), f"{a} - {b} = {a - b}")


# ---- lists -----------------------------------------------------------------------------------------------------------

SORT_UP = ["Sort these {k}: {l}", "Sort: {l}", "Put these {k} in order: {l}", "Sort the list {l}", "Order these {k}: {l}", "Please sort {l}",
           "Sort these {k} in ascending order: {l}"]
SORT_NUMBERS_UP = ["Sort these numbers from small to large: {l}", "Sort from smallest to largest: {l}"]
SORT_WORDS_UP = ["Sort these words alphabetically: {l}", "Put these words in alphabetical order: {l}", "Sort from A to Z: {l}"]
SORT_NUMBERS_DOWN = ["Sort these numbers from large to small: {l}", "Sort from largest to smallest: {l}", "Sort these numbers in descending order: {l}"]
REVERSE = ["Reverse this list: {l}", "Reverse: {l}", "Write these {k} backwards: {l}", "Reverse the order of {l}", "Turn this list around: {l}",
           "Give me these {k} in reverse order: {l}", "Read the list from the end: {l}"]
COUNT = ["How many {k} are in this list: {l}?", "Count these {k}: {l}", "Count: {l}", "How many {k} are these: {l}", "How long is the list {l}?", "What is the number of {k} in {l}?"]
COPY = ["Copy this list: {l}", "Repeat: {l}", "Repeat these {k}: {l}", "Say exactly: {l}", "Copy: {l}", "Write the same list again: {l}", "Repeat after me: {l}"]


def lists(rng):
    op = rng.choice(["up", "up", "down", "reverse", "count", "copy"])
    count = rng.randint(3, 8) if op != "count" else rng.randint(1, 12)
    words = op != "down" and rng.random() < 0.5
    if words:
        kind, values = "words", rng.sample(NOUNS, count)
    else:
        kind, values = "numbers", [number(rng) for _ in range(count)]
    shown = ", ".join(map(str, values))
    if op == "up":
        template = rng.choice(SORT_UP + (SORT_WORDS_UP if words else SORT_NUMBERS_UP))
        answer = sorted(values)
    elif op == "down":
        template, answer = rng.choice(SORT_NUMBERS_DOWN), sorted(values, reverse=True)
    elif op == "reverse":
        template, answer = rng.choice(REVERSE), values[::-1]
    elif op == "count":
        template, answer = rng.choice(COUNT), [count]
    else:
        template, answer = rng.choice(COPY), values
    return Item(f"{op} {shown}", template.format(k=kind, l=shown), ", ".join(map(str, answer)))


# ---- a value in a long text ------------------------------------------------------------------------------------------

VERBS = "carried found lost painted sold bought watched hid followed opened closed cleaned broke fixed moved kept made drew built left".split()
PLACES = "market river school station harbor forest bridge castle village garden mountain valley library kitchen field island mill tower square road".split()
TIMES = ["in the morning", "at night", "yesterday", "last week", "after the rain", "before noon", "in spring", "every evening", "long ago", "on {d}", "in winter",
         "without a word", "with great care", "for {n} days"]
ATTRIBUTES = "code password number price color room address size weight name word date page rank age length height secret sign mark".split()


def filler_sentence(rng):
    a, n, p = rng.choice, NOUNS, PLACES
    time = a(TIMES).format(d=a(DAYS), n=rng.randint(2, 40))
    kind = rng.randrange(9)
    who = a(NAMES) if rng.random() < 0.4 else f"the {a(ADJECTIVES)} {a(JOBS)}"
    who = who[0].upper() + who[1:]
    if kind == 0:
        return f"{who} {a(VERBS)} a {a(ADJECTIVES)} {a(n)} near the {a(p)} {time}."
    if kind == 1:
        return f"The {a(n)} stood between the {a(p)} and the {a(p)}."
    if kind == 2:
        return f"{who} walked from the {a(p)} to the {a(p)} {time}."
    if kind == 3:
        return f"There were {rng.randint(2, 99)} {a(n)}s and {rng.randint(2, 99)} {a(n)}s at the {a(p)}."
    if kind == 4:
        return f"{time[0].upper() + time[1:]} the {a(p)} was {a(ADJECTIVES)} and {a(ADJECTIVES)}."
    if kind == 5:
        return f"{who} {a(VERBS)} the {a(n)}, but {a(NAMES)} {a(VERBS)} the {a(n)}."
    if kind == 6:
        return f"A {a(ADJECTIVES)} {a(n)} is worth more than a {a(ADJECTIVES)} {a(n)}."
    if kind == 7:
        return f"Nobody knew why {a(NAMES)} {a(VERBS)} {rng.randint(2, 99)} {a(n)}s {time}."
    return f"{who} and {a(NAMES)} talked about the {a(ADJECTIVES)} {a(n)} {time}."


def needle_key(rng):
    kind = rng.randrange(6)
    if kind == 0:
        return f"{rng.choice(ADJECTIVES)}-{rng.choice(NOUNS)}"
    if kind == 1:
        return f"the {rng.choice(ADJECTIVES)} {rng.choice(NOUNS)}"
    if kind == 2:
        return name(rng)
    if kind == 3:
        return f"{chr(65 + rng.randrange(26))}-{rng.randrange(10, 10000)}"
    if kind == 4:
        return f"{rng.choice(['box', 'room', 'train', 'door', 'house', 'team', 'unit'])} {rng.randrange(1, 1000)}"
    return syllables(rng, 2, 4)


def needle_value(rng):
    kind = rng.randrange(5)
    if kind <= 1:
        return str(rng.randrange(10 ** rng.randint(2, 6)))
    if kind == 2:
        return f"{rng.choice(ADJECTIVES)} {rng.choice(NOUNS)}"
    if kind == 3:
        return "".join(rng.choice("0123456789abcdef") for _ in range(rng.randint(4, 8)))
    return f"{syllables(rng)}-{rng.randrange(100)}"


NEEDLE_ASK = ["What is {}?", "Tell me {}.", "Find {}.", "According to the text, what is {}?", "Do you remember {}?", "Which is {}?", "Look up {}.", "Give me {}."]
NEEDLE_INTRO = ["Read this text.\n\n", "", "", "Here is a text:\n\n", "Remember this:\n\n"]
ABSENT = "The text does not say."


class Document:
    """A text with needles. `parts` are sentences; `turns` are questions about it and their answers."""

    __slots__ = ("key", "intro", "parts", "turns")


def needles(rng, sentences, needle_count, question_count, sentence=filler_sentence, together=0.0, absent=0.0):
    document = Document()
    facts = {}
    while len(facts) < needle_count:
        facts.setdefault((rng.choice(ATTRIBUTES), needle_key(rng)), needle_value(rng))
    pairs = list(facts.items())
    parts = [sentence(rng) for _ in range(sentences)]
    places = sorted((rng.randrange(sentences + 1) for _ in pairs), reverse=True)
    rng.shuffle(pairs)
    for place, ((attribute, key), value) in zip(places, pairs):
        parts.insert(place, f"The {attribute} of {key} is {value}.")
    document.key = "needle " + pairs[0][0][1] + pairs[0][1]
    document.intro, document.parts = rng.choice(NEEDLE_INTRO), parts
    document.turns = []
    rng.shuffle(pairs)
    for i in range(question_count):
        (attribute, key), value = pairs[i % len(pairs)]
        asked = f"the {attribute} of {key}"
        answer = f"The {attribute} of {key} is {value}."
        if rng.random() < absent:
            other = needle_key(rng)
            if (attribute, other) not in facts:
                asked, answer = f"the {attribute} of {other}", ABSENT
        elif len(pairs) > 1 and rng.random() < together:
            (attribute2, key2), value2 = rng.choice([p for p in pairs if p[0] != (attribute, key)])
            asked += f" and the {attribute2} of {key2}"
            answer += f" The {attribute2} of {key2} is {value2}."
        document.turns.append((rng.choice(NEEDLE_ASK).format(asked), answer))
    return document


# ---- a sentence into JSON --------------------------------------------------------------------------------------------

FIELDS = {  # kind -> (words, sentences, key names)
    "person": (lambda r: {"name": name(r), "age": r.randint(5, 99), "city": city(r), "job": r.choice(JOBS)},
               ["{name} is {age} years old, lives in {city} and works as a {job}.", "{name}, a {job} from {city}, is {age} years old.",
                "In {city} lives {name}, {age}, who is a {job}.", "The {job} {name} is {age} and lives in {city}.",
                "My neighbor {name} from {city} turned {age} and works as a {job}."],
               {"name": ["name", "person", "who"], "age": ["age", "years"], "city": ["city", "town", "place"], "job": ["job", "work", "profession"]}),
    "product": (lambda r: {"item": r.choice(NOUNS), "price": r.randint(1, 999), "color": r.choice(COLORS), "count": r.randint(2, 99)},
                ["We ordered {count} {color} {item}s for {price} euros.", "The shop sells {count} {item}s, all {color}, at {price} euros.",
                 "For {price} euros you get {count} {color} {item}s.", "There are {count} {item}s in {color}, and they cost {price} euros."],
                {"item": ["item", "product", "thing"], "price": ["price", "cost", "euros"], "color": ["color", "paint"], "count": ["count", "amount", "number"]}),
    "event": (lambda r: {"title": r.choice(ADJECTIVES) + " " + r.choice(NOUNS), "day": r.choice(DAYS), "hour": r.randint(1, 23), "place": city(r)},
              ["The {title} meeting is on {day} at {hour} in {place}.", "On {day} at {hour} we meet in {place} for the {title} meeting.",
               "Come to {place} on {day}: the {title} meeting starts at {hour}.", "At {hour} on {day} the {title} meeting begins in {place}."],
              {"title": ["title", "event", "meeting"], "day": ["day", "date", "weekday"], "hour": ["hour", "time", "start"], "place": ["place", "city", "where"]}),
    "trip": (lambda r: {"who": name(r), "from": city(r), "to": city(r), "days": r.randint(2, 60)},
             ["{who} travels from {from} to {to} and stays {days} days.", "For {days} days {who} goes to {to}, coming from {from}.",
              "{who} leaves {from} for {to} and comes back after {days} days.", "After {days} days in {to} {who} will return to {from}."],
             {"who": ["name", "traveler", "person"], "from": ["from", "origin", "start"], "to": ["to", "destination", "target"], "days": ["days", "stay", "duration"]}),
}
JSON_ASK = ["Put this into JSON of the shape {s}: {t}", "Fill in {s} from this sentence: {t}", "{t}\nWrite it as JSON like {s}", "Extract {s} from: {t}",
            "Sentence: {t}\nShape: {s}", "Convert to JSON with the shape {s}.\n{t}", "{t} Answer as {s}"]


def json_fields(rng):
    values, sentences, keys = rng.choice(list(FIELDS.values()))
    values = values(rng)
    sentence = rng.choice(sentences).format(**values)
    fields = list(values)
    rng.shuffle(fields)
    fields = fields[:rng.randint(2, len(fields))]
    names = [rng.choice(keys[f]) for f in fields]
    shape = json.dumps({n: 0 if isinstance(values[f], int) else "" for n, f in zip(names, fields)})
    answer = json.dumps({n: values[f] for n, f in zip(names, fields)})
    return Item(f"json {sentence}", rng.choice(JSON_ASK).format(s=shape, t=sentence), answer)


# ---- tools -----------------------------------------------------------------------------------------------------------

TOOLS = [  # names, description, parameters {canonical: (names, type)}, value maker, requests, result
    (["get_weather", "weather", "fetch_weather"], "Get the weather of a city", {"city": (["city", "location", "place"], "string")},
     lambda r: {"city": city(r)}, ["What is the weather in {city}?", "How is the weather in {city} today?", "Is it raining in {city}?", "Tell me the weather of {city}."]),
    (["set_timer", "timer", "start_timer"], "Start a timer", {"minutes": (["minutes", "duration", "length"], "integer")},
     lambda r: {"minutes": r.randint(1, 120)}, ["Set a timer for {minutes} minutes.", "Wake me in {minutes} minutes.", "Start a timer of {minutes} minutes, please."]),
    (["send_message", "message", "send_text"], "Send a message to a person", {"to": (["to", "recipient", "person"], "string"), "text": (["text", "message", "body"], "string")},
     lambda r: {"to": name(r), "text": f"{r.choice(['meet me at the', 'I am at the', 'come to the'])} {r.choice(PLACES)}"},
     ["Send {to} the message: {text}", "Write to {to}: {text}", "Tell {to} by message: {text}"]),
    (["play_music", "play_song", "music"], "Play a song", {"title": (["title", "song", "name"], "string")},
     lambda r: {"title": f"{r.choice(ADJECTIVES)} {r.choice(NOUNS)}"}, ["Play the song {title}.", "I want to hear {title}.", "Please play {title}."]),
    (["book_table", "reserve_table", "reservation"], "Book a table in a restaurant", {"people": (["people", "guests", "count"], "integer"), "hour": (["hour", "time"], "integer")},
     lambda r: {"people": r.randint(2, 20), "hour": r.randint(11, 23)}, ["Book a table for {people} people at {hour}.", "Reserve a table at {hour} for {people} guests.",
                                                                          "We are {people} people and want a table at {hour}."]),
    (["convert_currency", "exchange", "convert_money"], "Convert an amount of money", {"amount": (["amount", "value", "sum"], "integer"), "currency": (["currency", "to", "target"], "string")},
     lambda r: {"amount": r.randint(1, 999), "currency": r.choice(["dollars", "euros", "pounds", "yen", "francs", "crowns"])},
     ["Convert {amount} into {currency}.", "How much is {amount} in {currency}?", "Change {amount} to {currency}."]),
    (["find_file", "search_file", "locate_file"], "Find a file by its name", {"name": (["name", "file", "pattern"], "string")},
     lambda r: {"name": f"{r.choice(NOUNS)}.{r.choice(['txt', 'pdf', 'csv', 'c', 'md'])}"}, ["Find the file {name}.", "Where is {name}?", "Search for the file {name}, please."]),
    (["turn_on_light", "light", "switch_light"], "Turn on the light in a room", {"room": (["room", "where", "place"], "string")},
     lambda r: {"room": r.choice(["kitchen", "bedroom", "bathroom", "hall", "cellar", "office", "garage", "garden"])},
     ["Turn on the light in the {room}.", "It is dark in the {room}. Light, please.", "Light in the {room}!"]),
    (["add_event", "create_event", "calendar"], "Add an event to the calendar", {"title": (["title", "event", "what"], "string"), "day": (["day", "date", "when"], "string")},
     lambda r: {"title": f"{r.choice(JOBS)} {r.choice(['visit', 'meeting', 'call'])}", "day": r.choice(DAYS)},
     ["Add the event {title} on {day}.", "Put {title} into my calendar for {day}.", "On {day} I have: {title}. Note it in the calendar."]),
    (["search_trains", "find_train", "trains"], "Find a train connection", {"from": (["from", "origin", "start"], "string"), "to": (["to", "destination", "target"], "string")},
     lambda r: {"from": city(r), "to": city(r)}, ["Find a train from {from} to {to}.", "I want to go from {from} to {to} by train.", "Which trains go from {from} to {to}?"]),
    (["get_time", "clock", "current_time"], "Get the time in a city", {"city": (["city", "place", "zone"], "string")},
     lambda r: {"city": city(r)}, ["What time is it in {city}?", "How late is it in {city}?", "Tell me the time in {city}."]),
    (["call_person", "phone", "dial"], "Call a person", {"name": (["name", "person", "who"], "string")},
     lambda r: {"name": name(r)}, ["Call {name}.", "Phone {name}, please.", "I want to talk to {name} on the phone."]),
    (["get_price", "stock_price", "quote"], "Get the price of a thing", {"item": (["item", "thing", "product"], "string")},
     lambda r: {"item": r.choice(NOUNS)}, ["What does a {item} cost?", "Get me the price of a {item}.", "How expensive is a {item}?"]),
    (["set_temperature", "heating", "thermostat"], "Set the temperature of a room", {"room": (["room", "where", "place"], "string"), "degrees": (["degrees", "temperature", "value"], "integer")},
     lambda r: {"room": r.choice(["kitchen", "bedroom", "bathroom", "hall", "office", "garage"]), "degrees": r.randint(10, 30)},
     ["Set the {room} to {degrees} degrees.", "Make it {degrees} degrees in the {room}.", "Heat the {room} to {degrees} degrees."]),
]
NO_TOOL = "I have no tool for that."
ACTIONS = "open close clean fix move count measure sort paint order rent sell buy lock wash print scan cut lift pack load check test reset start stop".split()
PARAMETERS = {"count": "integer", "size": "integer", "level": "integer", "speed": "integer", "color": "string", "place": "string", "name": "string", "kind": "string",
              "day": "string", "city": "string", "mode": "string", "owner": "string"}


def made_up_tool(rng):
    """A tool that is in no table, so that a description has to be read."""
    action, thing = rng.choice(ACTIONS), rng.choice(NOUNS)
    names = rng.sample(list(PARAMETERS), rng.randint(1, 3))
    makers = {"color": lambda: rng.choice(COLORS), "place": lambda: rng.choice(PLACES), "name": lambda: name(rng), "kind": lambda: rng.choice(ADJECTIVES),
              "day": lambda: rng.choice(DAYS), "city": lambda: city(rng), "mode": lambda: rng.choice(ADJECTIVES), "owner": lambda: name(rng)}
    values = {n: makers[n]() if n in makers else rng.randint(1, 500) for n in names}
    said = [f"{n} {{{n}}}" for n in names]
    shown = " and ".join([", ".join(said[:-1]), said[-1]] if len(said) > 1 else said)
    requests = [f"{action.capitalize()} the {thing} with {shown}.", f"Please {action} the {thing}: {shown}.", f"I want to {action} a {thing}, {shown}."]
    return ([f"{action}_{thing}", f"{thing}_{action}", f"{action}{thing.capitalize()}"], f"{action.capitalize()} {an(thing)}", {n: ([n], PARAMETERS[n]) for n in names},
            lambda r: values, requests)


def describe_tool(rng, tool):
    """One way to offer a tool: its JSON and the names chosen for its parameters."""
    names, description, parameters = tool[:3]
    chosen = {p: rng.choice(n) for p, (n, _) in parameters.items()}
    offered = {"type": "function", "function": {
        "name": rng.choice(names), "description": description,
        "parameters": {"type": "object", "properties": {chosen[p]: {"type": t} for p, (_, t) in parameters.items()}, "required": list(chosen.values())}}}
    return offered, chosen


def tools(rng):
    used = [t if rng.random() < 0.7 else made_up_tool(rng) for t in rng.sample(TOOLS, rng.randint(1, 4))]
    asked = used[0]
    rng.shuffle(used)
    values = asked[3](rng)
    request = vary(rng, rng.choice(asked[4]).format(**values)) if rng.random() < 0.4 else rng.choice(asked[4]).format(**values)
    key = f"tool {asked[0][0]} " + json.dumps(values)
    if rng.random() < 0.12:  # offered are others only
        offered = [describe_tool(rng, t)[0] for t in used if t is not asked]
        if offered:
            return Item(key, request, NO_TOOL, tools=offered)
    if rng.random() < 0.18:  # nothing to call for
        other = draw(rng.choice([sluice, social, arithmetic]), rng, held_out(key))
        return Item(key, other.user, other.answer, tools=[describe_tool(rng, t)[0] for t in used])
    offered = []
    for tool in used:
        description, chosen = describe_tool(rng, tool)
        offered.append(description)
        if tool is asked:
            call = {"name": description["function"]["name"], "arguments": {chosen[p]: values[p] for p in values}}
    return Item(key, request, "<tool_call>\n" + json.dumps(call) + "\n</tool_call>", tools=offered)


def tool_result(rng):
    """What comes after a call: the result is said in words."""
    item = tools(rng)
    while not item.answer.startswith("<tool_call>"):
        item = tools(rng)
    result = rng.choice([f"{rng.randint(-20, 999)}", rng.choice(ADJECTIVES), "done", f"{rng.choice(ADJECTIVES)} {rng.choice(NOUNS)}", f"{rng.randint(1, 23)}:{rng.randint(10, 59)}"])
    item.turns = [("tool", result, f"The result is: {result}")]
    return item


# ---- stories ---------------------------------------------------------------------------------------------------------

KINDS = "fox rabbit bear mouse owl cat dog goat hedgehog squirrel frog duck badger beaver turtle wolf otter sparrow girl boy king queen baker sailor".split()
THINGS = {  # what was lost or wanted -> where it can be found
    "golden key": "under a stone by the river", "red ball": "behind the old mill", "silver bell": "high in the oak tree", "warm coat": "in the attic of the mill",
    "magic lamp": "at the bottom of the well", "blue kite": "on the roof of the school", "little boat": "among the reeds", "lost letter": "inside a hollow tree",
    "big drum": "in the cave on the hill", "shiny coin": "in the nest of a magpie", "green hat": "on the head of a scarecrow", "old map": "under the floor of the castle",
    "glass star": "in the snow on the mountain", "sweet cake": "in the window of the bakery", "tiny bird": "in the rose bush"}
HOMES = ["a quiet forest", "a small village", "a green valley", "an old mill", "a house by the sea", "a cave on a hill", "a castle", "a garden behind the wall"]
TRAITS = "brave shy clever kind proud curious lonely lazy patient cheerful".split()
LESSONS = ["that asking for help is not a weakness", "that a friend is worth more than a treasure", "that patience finds what hurry misses", "that small steps lead far",
           "that a kind word opens many doors", "that it is better to share"]
STORY_ASK = ["Tell me a story about {who}.", "Tell me a short story about {who}.", "Write a story about {who}.", "A story about {who}, please.", "Make up a story about {who}.",
             "Can you tell me a story about {who}?", "I want to hear a story about {who}.", "Tell a tale of {who}."]
STORY_ANY = ["Tell me a story.", "Tell me a short story.", "Write a story.", "Please tell me a story.", "A bedtime story, please.", "Once upon a time", "Make up a story.",
             "Can you tell me a story?", "I want to hear a story.", "Story time!"]


def story(rng, hero=None, kind=None, thing=None):
    a = rng.choice
    hero, kind = hero or name(rng), kind or a(KINDS)
    friend, other = hero, kind
    while friend == hero:
        friend = name(rng)
    while other == kind:
        other = a(KINDS)
    she = {"girl": "she", "queen": "she", "boy": "he", "king": "he"}.get(kind) or a(["he", "she"])
    her = "her" if she == "she" else "his"
    him = "her" if she == "she" else "him"
    thing = thing or a(list(THINGS))
    place, trait, home = THINGS[thing], a(TRAITS), a(HOMES)
    S = she.capitalize()
    lines = [a([f"Once upon a time there was {an(trait)} {kind} named {hero} who lived in {home}.", f"In {home} there once lived {an(trait)} {kind} called {hero}.",
                f"Long ago, in {home}, there lived {an(kind)} named {hero}, who was very {trait}."]),
             a([f"More than anything {hero} loved {her} {thing}.", f"{hero} had one treasure: {an(thing)}.", f"Every day {hero} played with {her} {thing}."]),
             a([f"One morning the {thing} was gone.", f"But one day {hero} woke up and could not find the {thing}.", f"One stormy night the {thing} disappeared."]),
             a([f"{S} looked everywhere, but {she} could not find it.", f"{S} searched the whole day and found nothing.", f"{hero} was sad and began to search."])]
    lines += [a([f"Then {hero} met {an(other)} named {friend}.", f"On the way {she} met {friend}, {an(other)}.", f"In the evening {an(other)} called {friend} came by."]),
              a([f'"Why are you so sad?" asked {friend}.', f'"What are you looking for?" asked the {other}.', f'"Can I help you?" asked {friend}.']),
              a([f'"I have lost my {thing}," said {hero}.', f'"My {thing} is gone," said the {kind}.']),
              a([f'"Then let us look together," said {friend}.', f'"Two pairs of eyes see more than one," said the {other}.', f'"I will help you," said {friend}.'])]
    if rng.random() < 0.5:
        lines.append(a(["They walked for a long time.", "They asked everyone they met, but nobody had seen it.", "It began to rain, but they did not give up.",
                        f"When {hero} grew tired, {friend} sang a song."]))
    lines += [a([f"At last they found the {thing} {place}.", f"And there it was: the {thing} lay {place}.", f"In the end {friend} saw the {thing} {place}."]),
              a([f"{hero} was so happy that {she} danced.", f"{hero} thanked {friend} with all {her} heart.", f'"Thank you, {friend}!" said {hero}.']),
              a([f"From that day on {hero} and {friend} were friends.", f"Since then the {kind} and the {other} have been the best of friends.", f"And {hero} never forgot how {friend} had helped {him}."])]
    if rng.random() < 0.6:
        lines.append(f"{hero} had learned {a(LESSONS)}.")
    lines.append("The end.")
    return hero, kind, thing, " ".join(lines)


def stories(rng):
    hero, kind, thing, text = story(rng)
    draw_ = rng.random()
    if draw_ < 0.3:
        return Item("story " + text[:80], rng.choice(STORY_ANY), text)
    if draw_ < 0.5:
        who, contains = an(kind), [kind]
    elif draw_ < 0.7:
        who, contains = f"{an(kind)} named {hero}", [kind, hero]
    elif draw_ < 0.85:
        who, contains = f"{hero} and the {thing}", [hero, thing]
    else:
        who, contains = an(thing), [thing]
    return Item(f"story {who}", rng.choice(STORY_ASK).format(who=who), text, contains=contains)


# ---- what training reads ---------------------------------------------------------------------------------------------

SYSTEMS = ["You are a helpful assistant.", "Answer in one sentence.", "You are the assistant of sluice.", "Be brief.", "You are a small model.", "Answer the question."]
TASKS = {"sluice": sluice, "social": social, "unknown": unknown, "arithmetic": arithmetic, "lists": lists, "json": json_fields, "tools": tools, "stories": stories}

TOOL_HEAD = ("# Tools\n\nYou may call one of these functions. To call one, answer with its name and arguments as JSON inside <tool_call></tool_call>.\n<tools>")


def render(item):
    """The segments of a conversation, as chat_template.jinja renders it: (text, is it learned), special tokens as <|...|>."""
    segments = []
    if item.tools:
        head = (item.system + "\n\n" if item.system else "") + TOOL_HEAD
        segments.append(("<|im_start|>system\n" + head + "".join("\n" + json.dumps(t) for t in item.tools) + "\n</tools><|im_end|>\n", False))
    elif item.system:
        segments.append(("<|im_start|>system\n" + item.system + "<|im_end|>\n", False))
    segments.append(("<|im_start|>user\n" + item.user + "<|im_end|>\n<|im_start|>assistant\n", False))
    segments.append((item.answer + "<|im_end|>", True))
    for role, text, answer in item.turns or ():
        if role == "tool":
            text = "<tool_response>\n" + text + "\n</tool_response>"
        segments.append(("\n<|im_start|>user\n" + text + "<|im_end|>\n<|im_start|>assistant\n", False))
        segments.append((answer + "<|im_end|>", True))
    return segments


def render_document(document):
    """A document with needles and the questions about it. The question comes after the text in one message, or in a message of its own."""
    segments = []
    for i, (question, answer) in enumerate(document.turns):
        if i == 0:
            segments.append(("<|im_start|>user\n" + document.intro + document.parts[0], False))
            segments.append((document.parts[1:-1], False))
            # The last sentence goes with the question: its full stop and the line breaks are one token.
            segments.append((" " + document.parts[-1] + "\n\n" + question + "<|im_end|>\n<|im_start|>assistant\n", False))
        else:
            segments.append(("\n<|im_start|>user\n" + question + "<|im_end|>\n<|im_start|>assistant\n", False))
        segments.append((answer + "<|im_end|>", True))
    return segments


# Shares of the drawn items of short documents.
MIX = [("sluice", 0.25), ("arithmetic", 0.17), ("lists", 0.19), ("json", 0.12), ("tools", 0.09), ("tool_result", 0.01), ("unknown", 0.04), ("social", 0.03),
       ("stories", 0.03), ("raw_story", 0.02), ("needles", 0.07)]


def short_document(rng):
    """Segments of one training document of at most a few hundred tokens: (text, or a list of sentences; is it learned)."""
    task = rng.choices([t for t, _ in MIX], [w for _, w in MIX])[0]
    if task == "needles":
        count = rng.randint(1, 6)
        document = needles(rng, rng.randint(2, 24), count, rng.randint(1, count + 1), together=0.15, absent=0.1)
        while held_out(document.key):
            document = needles(rng, rng.randint(2, 24), count, rng.randint(1, count + 1), together=0.15, absent=0.1)
        return render_document(document)
    if task == "raw_story":
        return [(story(rng)[3] + "<|endoftext|>", True)]
    if task == "tool_result":
        return render(draw(tool_result, rng, False))
    item = draw(TASKS[task], rng, False)
    if rng.random() < 0.08:
        item.system = rng.choice(SYSTEMS)
    if not item.tools and task != "stories" and rng.random() < 0.6:
        # Further turns: the same task again, or another one.
        item.turns = []
        while rng.random() < 0.7 and len(item.turns) < 5:
            other = rng.choice([task, task, "sluice", "arithmetic", "lists", "json", "social", "unknown"])
            other = draw(TASKS[other], rng, False)
            item.turns.append(("user", other.user, other.answer))
    return render(item)


def long_document(rng, sentence, longest):
    """A text of up to `longest` sentences with many needles and questions, so that one reading teaches much."""
    sentences = int(24 * (longest / 24) ** rng.random())
    while True:
        count = 1 if rng.random() < 0.15 else rng.randint(2, 24)
        document = needles(rng, sentences, count, rng.randint(1, 3) if count == 1 else min(count + 2, rng.randint(4, 20)), sentence=sentence, together=0.15, absent=0.08)
        if not held_out(document.key):
            return render_document(document)


def show(count):
    """Training documents, with what is learned in green."""
    rng = random.Random(1)
    for _ in range(count):
        for text, learned in short_document(rng):
            print(f"\033[32m{text}\033[0m" if learned else " ".join(text) if isinstance(text, list) else text, end="")
        print("\n-----")


if __name__ == "__main__":
    import sys
    if sys.argv[1:2] == ["stories"]:  # a text to measure perplexity with
        generator = random.Random(7)
        print("\n\n".join(story(generator)[3] for _ in range(int(sys.argv[2]))))
    else:
        show(30)
