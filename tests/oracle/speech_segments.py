"""Write `tests/fixtures/whisper/segments.json`, the segments of transformers for the files that `speech.py` wrote:
`python speech_segments.py`."""

import json
from itertools import chain

import torch
from golden import NEAR_TIE, REFERENCE, lead
from speech import EXTRACTOR, OUT, clip
from tokenizers import Tokenizer
from transformers import WhisperFeatureExtractor, WhisperForConditionalGeneration

# The length of the file, what `generate` gets, and the prompt.
CASES = [
    (112_000, dict(language="en"), None),
    (16_500, dict(language="de", task="translate"), None),
    (16_000, dict(language="en"), None),
    (80_000, dict(language="fr", condition_on_prev_tokens=True), None),
    (50_000, dict(language="en", condition_on_prev_tokens=True), "Hi"),
    (50_000, dict(language="en"), "Hi!"),
    (112_000, dict(language="en", temperature=(0.0,), logprob_threshold=-1.0, no_speech_threshold=0.001), None),
]
# `<|startofprev|>`, which published models name in `generation_config.json`.
PREVIOUS = 265


def pieces(samples):
    """Loud and quiet parts in turn, so that the scale of a window differs from the scale of the file."""
    scaled = samples.copy()
    for i in range(0, len(scaled), 20_000):
        scaled[i : i + 10_000] *= 0.01
    return scaled


@torch.no_grad()
def heard(model, extractor, count, options, prompt):
    samples = pieces(clip(11, count))
    is_long = count > 16_000
    padding = dict(truncation=False, padding="longest") if is_long else {}
    features = extractor(samples, sampling_rate=16_000, return_tensors="pt", **padding).input_features
    # As `get_prompt_ids` of the processor.
    ids = Tokenizer.from_file(str(OUT / "tokenizer.json")).encode(f" {prompt}", add_special_tokens=False).ids
    prompt_ids = torch.tensor([PREVIOUS, *ids]) if prompt else None
    given = dict(task="transcribe") | options
    output = model.generate(
        features, return_timestamps=True, return_segments=True, return_dict_in_generate=True, output_scores=True, prompt_ids=prompt_ids, **given
    )
    segments = output["segments"][0]
    scores = list(chain.from_iterable(torch.stack(tuple(one["result"]["scores"])) for one in segments))
    gap = lead(torch.stack(scores).masked_fill(torch.stack(scores).isinf(), -1e9), 1)
    return [{"start": round(float(one["start"]), 6), "end": round(float(one["end"]), 6), "tokens": one["tokens"].tolist()} for one in segments], gap


def main():
    extractor = WhisperFeatureExtractor(**EXTRACTOR)
    model = WhisperForConditionalGeneration.from_pretrained(OUT, attn_implementation="eager").eval()
    model.generation_config.prev_sot_token_id = PREVIOUS
    cases = []
    for count, options, prompt in CASES:
        segments, gap = heard(model, extractor, count, options, prompt)
        print(count, options, prompt, len(segments), f"{gap:.1e}", [(s["start"], s["end"], len(s["tokens"])) for s in segments])
        cases.append({"count": count, "options": options, "prompt": prompt, "segments": segments, "min_gap": gap})
    lines = ",\n".join("  " + json.dumps(case) for case in cases)
    (OUT / "segments.json").write_text(f'{{\n "reference": {json.dumps(REFERENCE)}, "clip": 11,\n "cases": [\n{lines}\n ]\n}}\n')


if __name__ == "__main__":
    main()
