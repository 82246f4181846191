"""Text to tokens, fast: words that were seen before come from a dictionary. The same tokens as tokenizer.json's (checked by `check`)."""
import re

SPECIAL = re.compile(r"(<\|im_start\|>|<\|im_end\|>|<\|endoftext\|>)")
# The pre-tokenizer's pattern where all text is ASCII.
WORD = re.compile(r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\nA-Za-z0-9]?[A-Za-z]+|[0-9]| ?[^\sA-Za-z0-9]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")


class Encoder:
    def __init__(self, tokenizer):
        self.tokenizer = tokenizer
        self.special = {t: tokenizer.token_to_id(t) for t in ("<|im_start|>", "<|im_end|>", "<|endoftext|>")}
        self.words = {}
        self.sentences = {}

    def word(self, word):
        ids = self.tokenizer.encode(word, add_special_tokens=False).ids
        if len(self.words) < 1000000:
            self.words[word] = ids
        return ids

    def text(self, text):
        ids = []
        known = self.words
        for part in SPECIAL.split(text):
            if part in self.special:
                ids.append(self.special[part])
                continue
            for word in WORD.findall(part):
                ids += known.get(word) or self.word(word)
        return ids

    def segments(self, segments):
        """(token ids, for each whether it is learned) of what corpus.render gives."""
        ids, learned = [], []
        for text, learn in segments:
            if isinstance(text, list):
                before = len(ids)
                for sentence in text:
                    ids += self.sentence(sentence)
                learned += [learn] * (len(ids) - before)
            else:
                new = self.text(text)
                ids += new
                learned += [learn] * len(new)
        return ids, learned

    def sentence(self, sentence):
        """A sentence in the middle of a text."""
        ids = self.sentences.get(sentence)
        if ids is None:
            ids = self.text(" " + sentence)
            if len(self.sentences) < 200000:
                self.sentences[sentence] = ids
        return ids


def check(encoder, segments):
    """Segment by segment gives the tokens of the whole."""
    text = "".join("".join(" " + s for s in t) if isinstance(t, list) else t for t, _ in segments)
    return encoder.segments(segments)[0] == encoder.tokenizer.encode(text, add_special_tokens=False).ids
