"""Write `run/audio/tests/goldens/mel.json`, spectrograms by transformers, and `tests/fixtures/whisper/`, a tiny Whisper with random
weights, with the encoder's output and the tokens of transformers: `python speech.py`."""

import json
import shutil
from pathlib import Path

import numpy as np
import torch
from golden import NEAR_TIE, REFERENCE, lead, spread
from safetensors.torch import save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import GenerationConfig, WhisperConfig, WhisperFeatureExtractor, WhisperForConditionalGeneration

ROOT = Path(__file__).parents[2]
OUT = ROOT / "tests" / "fixtures" / "whisper"
LANGUAGES = ["en", "de", "fr", "yue"]
SPECIAL = ["<|endoftext|>", "<|startoftranscript|>", *(f"<|{code}|>" for code in LANGUAGES), "<|translate|>", "<|transcribe|>", "<|startoflm|>", "<|startofprev|>", "<|nospeech|>", "<|notimestamps|>"]
# Windows of one second, 100 frames of 8 bins.
EXTRACTOR = dict(feature_size=8, chunk_length=1)
CONFIG = dict(
    d_model=24, encoder_layers=2, decoder_layers=3, encoder_attention_heads=3, decoder_attention_heads=2, encoder_ffn_dim=37, decoder_ffn_dim=29,
    num_mel_bins=8, max_source_positions=50, max_target_positions=28,
)


def clip(seed, count):
    """Samples of 16 bits that a test computes again without rounding: a triangle that rises in steps, and noise."""
    state, phase, samples = seed, 0, []
    for i in range(count):
        state = (state * 1664525 + 1013904223) % 2**32
        phase = (phase + 200 + 37 * (i // 1600 % 23) * (seed % 7 + 1)) % 65536
        samples.append(abs(phase - 32768) // 2 - 8192 + (state >> 20) - 2048)
    return np.array(samples, np.float32) / 32768


def write_mel():
    cases = []
    for bins, seed, count in [(80, 1, 0), (80, 2, 1), (80, 3, 48_000), (128, 4, 100_000), (80, 5, 480_000), (128, 6, 500_000)]:
        samples = clip(seed, count)
        extractor = WhisperFeatureExtractor(feature_size=bins)
        mel = extractor(samples, sampling_rate=16_000, return_tensors="np").input_features[0]
        frames = sorted({0, 1, 2, 50, count // 160 % 3000, min(count // 160 + 2, 2998), 2999})
        cases.append({"bins": bins, "seed": seed, "count": count, "frames": {str(f): [round(float(x), 7) for x in mel[:, f]] for f in frames}})
    path = ROOT / "run" / "audio" / "tests" / "goldens" / "mel.json"
    path.write_text("[\n" + ",\n".join(json.dumps(case) for case in cases) + "\n]\n")


def write_tokenizer():
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={letter: i for i, letter in enumerate(letters)}, merges=[]))
    tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    tokenizer.add_special_tokens(SPECIAL)
    # As published: timestamps are added tokens, but not special ones.
    tokenizer.add_tokens([AddedToken(f"<|{i * 0.02:.2f}|>", special=False, normalized=False) for i in range(CONFIG["max_source_positions"] + 1)])
    tokenizer.save(str(OUT / "tokenizer.json"))
    return tokenizer


@torch.no_grad()
def transcribed(model, features, language, task):
    """The tokens of `generate` after the prompt, and the narrowest choice."""
    output = model.generate(features, language=language, task=task, return_dict_in_generate=True, output_scores=True, force_unique_generate_call=True)
    scores = torch.stack(output.scores)[:, 0]
    return output.sequences[0].tolist(), lead(scores.masked_fill(scores.isinf(), -1e9), 1)


def heads(attention, part, encoded):
    """What a decoder layer reads of the encoder's output, [heads, positions, features]."""
    return getattr(attention, part)(encoded).unflatten(-1, (attention.num_heads, -1)).transpose(0, 1).contiguous()


# What the decoder hears and where it is must count beside its own tokens, which the head repeats.
MORE = {"encoder_attn.out_proj.weight": 6.0, "encoder_attn.q_proj.weight": 3.0, "decoder.embed_positions.weight": 8.0, "conv1.weight": 2.0}


@torch.no_grad()
def weighted(model):
    for name, p in model.named_parameters():
        p.mul_(next((more for end, more in MORE.items() if name.endswith(end)), 1.0))
    return model


def main():
    write_mel()
    shutil.rmtree(OUT, ignore_errors=True)
    OUT.mkdir(parents=True)
    tokenizer = write_tokenizer()
    extractor = WhisperFeatureExtractor(**EXTRACTOR)
    extractor.save_pretrained(OUT)
    ids = {name: tokenizer.token_to_id(name) for name in SPECIAL}
    end, start = ids["<|endoftext|>"], ids["<|startoftranscript|>"]
    seed = 409
    while True:
        seed += 1
        assert seed < 440, 'no seed of these has clear choices'
        torch.manual_seed(seed)
        config = WhisperConfig(
            **CONFIG, vocab_size=tokenizer.get_vocab_size(), bos_token_id=end, eos_token_id=end, pad_token_id=end, decoder_start_token_id=start,
            suppress_tokens=None, begin_suppress_tokens=None, attn_implementation="eager",
        )
        model = weighted(spread(WhisperForConditionalGeneration(config))).eval()
        model.generation_config = GenerationConfig(
            bos_token_id=end, eos_token_id=end, pad_token_id=end, decoder_start_token_id=start, max_length=CONFIG["max_target_positions"],
            suppress_tokens=[3, 7, *(ids[name] for name in SPECIAL[1:])], begin_suppress_tokens=[40, end], is_multilingual=True,
            lang_to_id={f"<|{code}|>": ids[f"<|{code}|>"] for code in LANGUAGES}, no_timestamps_token_id=ids["<|notimestamps|>"],
            task_to_id={"transcribe": ids["<|transcribe|>"], "translate": ids["<|translate|>"]}, return_timestamps=False,
            alignment_heads=[[1, 1], [2, 0], [2, 1]],
        )
        samples = clip(11, 38_000)
        windows = [samples[i : i + 16_000] for i in range(0, len(samples), 16_000)]
        features = [torch.from_numpy(extractor(window, sampling_rate=16_000, return_tensors="np").input_features) for window in windows]
        with torch.no_grad():
            detected = [int(model.detect_language(one)) for one in features]
            encoded = model.model.encoder(features[0]).last_hidden_state[0]
            memory = {f"{name}.{i}": heads(layer.encoder_attn, part, encoded) for i, layer in enumerate(model.model.decoder.layers) for name, part in [("keys", "k_proj"), ("values", "v_proj")]}
        cases = []
        for language, task in [("en", "transcribe"), ("de", "translate"), ("yue", "transcribe")]:
            found = [transcribed(model, one, language, task) for one in features]
            cases.append({"language": language, "task": task, "tokens": [tokens for tokens, _ in found], "min_gap": min(gap for _, gap in found)})
        gap = min(case["min_gap"] for case in cases)
        distinct = min(len(set(tokens)) for case in cases for tokens in case["tokens"])
        differ = all(len({tuple(tokens) for tokens in case["tokens"]}) == len(windows) for case in cases)
        print(f"seed {seed}: gap {gap:.1e}, {distinct} distinct, languages {detected}, windows differ {differ}")
        if gap > NEAR_TIE and distinct > 7 and differ:
            break
    model.save_pretrained(OUT)
    golden = {
        "reference": REFERENCE, "seed": seed, "clip": [11, len(samples)], "prompt": [start, ids["<|en|>"], ids["<|transcribe|>"], ids["<|notimestamps|>"]],
        "detected": LANGUAGES[detected[0] - ids["<|en|>"]],
    }
    lines = ",\n".join("  " + json.dumps(case) for case in cases)
    (OUT / "golden.json").write_text(json.dumps(golden, indent=1)[:-2] + f',\n "cases": [\n{lines}\n ]\n}}\n')
    save_file({"mel": features[0][0].T.contiguous(), **memory}, OUT / "golden.safetensors")


if __name__ == "__main__":
    main()
