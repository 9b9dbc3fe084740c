"""Write `tests/fixtures/whisper/words.json`, the times of words by transformers for files of `speech_segments.py`:
`python speech_words.py`."""

import json
from itertools import chain

import torch
from golden import NEAR_TIE, REFERENCE, lead
from speech import EXTRACTOR, OUT, clip
from speech_segments import pieces
from tokenizers import Tokenizer
from transformers import WhisperFeatureExtractor, WhisperForConditionalGeneration
from transformers.models.whisper.tokenization_whisper import _collate_word_timestamps

# The length of the file, and what `generate` gets. 16 kHz, windows of one second.
CASES = [(112_000, dict(language="en")), (16_500, dict(language="de", task="translate")), (16_000, dict(language="yue")), (50_321, dict(language="fr", condition_on_prev_tokens=True))]


class Texts:
    """The part of a tokenizer that joins tokens to words."""

    eos_token_id = 256
    inner = Tokenizer.from_file(str(OUT / "tokenizer.json"))

    def decode(self, tokens, decode_with_timestamps=False):
        return self.inner.decode(tokens)


@torch.no_grad()
def heard(model, extractor, count, options):
    is_long = count > 16_000
    padding = dict(truncation=False, padding="longest") if is_long else {}
    samples = pieces(clip(11, count))
    found = extractor(samples, sampling_rate=16_000, return_tensors="pt", return_attention_mask=True, **padding)
    output = model.generate(
        **found, return_timestamps=True, return_token_timestamps=True, return_segments=True, return_dict_in_generate=True, output_scores=True,
        **dict(task="transcribe") | options,
    )
    scores = torch.stack(list(chain.from_iterable(tuple(one["result"]["scores"]) for one in output["segments"][0])))
    segments, before = [], 0.0
    for one in output["segments"][0]:
        tokens, ends = one["tokens"].tolist(), [float(end) for end in one["token_timestamps"]]
        # As `_decode_asr`: a token begins where the one before it ends.
        starts = [before, *ends[:-1]]
        before = ends[-1]
        text = [i for i, token in enumerate(tokens) if token < Texts.eos_token_id]
        times = [(round(starts[i], 2), round(ends[i], 2)) for i in text]
        language = "cantonese" if options["language"] == "yue" else "english"
        words = _collate_word_timestamps(Texts(), [tokens[i] for i in text], times, language, False)
        segments.append([[word["text"], *word["timestamp"]] for word in words])
    return segments, lead(scores.masked_fill(scores.isinf(), -1e9), 1)


def main():
    extractor = WhisperFeatureExtractor(**EXTRACTOR)
    model = WhisperForConditionalGeneration.from_pretrained(OUT, attn_implementation="eager").eval()
    cases = []
    for count, options in CASES:
        segments, gap = heard(model, extractor, count, options)
        assert gap > NEAR_TIE
        print(count, options, f"{gap:.1e}", [len(words) for words in segments], segments[0])
        cases.append({"count": count, "options": options, "segments": segments, "min_gap": gap})
    lines = ",\n".join("  " + json.dumps(case) for case in cases)
    (OUT / "words.json").write_text(f'{{\n "reference": {json.dumps(REFERENCE)}, "clip": 11,\n "cases": [\n{lines}\n ]\n}}\n')


if __name__ == "__main__":
    main()
