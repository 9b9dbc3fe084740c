#!/usr/bin/env python3
"""One task of lm-eval, a hundred questions made here, on a model in a GGUF file or on a server.

    lm_eval_task.py --gguf SmolLM2.gguf --out tools/cli/tests/goldens/lm_eval.json
    lm_eval_task.py --url http://127.0.0.1:8080/v1/completions --golden tools/cli/tests/goldens/lm_eval.json

The first command needs requirements.txt, gguf, accelerate and lm-eval.txt, and writes what the Hugging Face backend finds in f32. The
second command needs only lm-eval.txt. It asks the server, and exits with an error unless the scores are equal and each of the 400
log-likelihoods is within 0.01 of the golden.
"""

import argparse
import json
import os
import random
import tempfile
from pathlib import Path

# Nothing is downloaded.
os.environ |= {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}

import lm_eval  # noqa: E402
from lm_eval.tasks import TaskManager  # noqa: E402

NEAR = 0.01
CAPITALS = """France Paris, Germany Berlin, Italy Rome, Spain Madrid, Portugal Lisbon, Austria Vienna, Poland Warsaw, Greece Athens, Norway
Oslo, Sweden Stockholm, Finland Helsinki, Denmark Copenhagen, Ireland Dublin, Hungary Budapest, Japan Tokyo, China Beijing, India Delhi,
Egypt Cairo, Kenya Nairobi, Cuba Havana, Peru Lima, Chile Santiago, Canada Ottawa, Russia Moscow, Turkey Ankara"""
OPPOSITES = """hot cold, big small, fast slow, high low, light dark, old young, rich poor, happy sad, wet dry, early late, open closed, hard
soft, strong weak, long short, full empty, heavy light, near far, good bad, loud quiet, clean dirty, wide narrow, deep shallow, thick
thin, sweet sour, first last"""
ANIMALS = """dog barks, cat meows, cow moos, duck quacks, bee buzzes, lion roars, sheep bleats, horse neighs, pig oinks, frog croaks, snake
hisses, owl hoots, rooster crows, wolf howls, mouse squeaks, bird sings, donkey brays, bear growls, goose honks, hen clucks, crow caws,
elephant trumpets, monkey chatters, dove coos, cricket chirps"""


def pairs(text):
    return [tuple(pair.split()) for pair in text.split(",")]


def items():
    """The questions: each has four answers, of which one is right."""
    draw = random.Random(67)
    kinds = [("The capital of {} is", CAPITALS), ("The opposite of {} is", OPPOSITES), ("The {} is an animal that", ANIMALS)]
    made = []
    for form, table in kinds:
        for word, right in pairs(table):
            others = draw.sample(sorted({other for _, other in pairs(table)} - {right}), 3)
            choices = draw.sample([right, *others], 4)
            made.append({"question": form.format(word), "choices": choices, "answer": choices.index(right)})
    for _ in range(25):
        start, step = draw.randint(1, 20), draw.randint(1, 5)
        right = start + 4 * step
        choices = draw.sample([str(right), *(str(right + off) for off in draw.sample([-3, -2, -1, 1, 2, 3], 3))], 4)
        question = "Continue the numbers: " + ", ".join(str(start + i * step) for i in range(4)) + ","
        made.append({"question": question, "choices": choices, "answer": choices.index(str(right))})
    draw.shuffle(made)
    return made


def evaluate(model, arguments, **more):
    """Returns the scores, and the log-likelihoods of the answers to each question."""
    with tempfile.TemporaryDirectory() as folder:
        os.environ["HF_HOME"] = folder
        lines = Path(folder, "items.jsonl")
        lines.write_text("".join(json.dumps(item) + "\n" for item in items()))
        task = {
            "task": "hundred_questions",
            "dataset_path": "json",
            "dataset_kwargs": {"data_files": {"test": str(lines)}, "cache_dir": folder},
            "output_type": "multiple_choice",
            "test_split": "test",
            "doc_to_text": "{{question}}",
            "doc_to_choice": "{{choices}}",
            "doc_to_target": "{{answer}}",
            "metric_list": [{"metric": "acc"}, {"metric": "acc_norm"}],
        }
        Path(folder, "task.yaml").write_text(json.dumps(task))
        manager = TaskManager(include_path=folder, include_defaults=False)
        found = lm_eval.simple_evaluate(
            model=model, model_args=arguments, tasks=[task["task"]], task_manager=manager, bootstrap_iters=0, log_samples=True, **more
        )
    result = found["results"][task["task"]]
    samples = sorted(found["samples"][task["task"]], key=lambda sample: sample["doc_id"])
    numbers = [[round(float(one[0][0]), 4) for one in sample["resps"]] for sample in samples]
    return {"acc": result["acc,none"], "acc_norm": result["acc_norm,none"], "loglikelihoods": numbers}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gguf", type=Path)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--url")
    parser.add_argument("--model", default="model", help="the model's name on the server")
    parser.add_argument("--golden", type=Path)
    arguments = parser.parse_args()
    if arguments.gguf:
        model = {"pretrained": str(arguments.gguf.parent), "gguf_file": arguments.gguf.name, "dtype": "float32"}
        found = evaluate("hf", model, device="cpu", batch_size=1)
        lines = ",\n".join(json.dumps(numbers) for numbers in found["loglikelihoods"])
        arguments.out.write_text(f'{{"acc": {found["acc"]}, "acc_norm": {found["acc_norm"]}, "loglikelihoods": [\n{lines}\n]}}\n')
        print(found["acc"], found["acc_norm"])
        return
    server = {"model": arguments.model, "base_url": arguments.url, "num_concurrent": 4, "max_retries": 1, "tokenizer_backend": "remote"}
    found, golden = evaluate("local-completions", server), json.loads(arguments.golden.read_text())
    far = max(abs(a - b) for ours, theirs in zip(found["loglikelihoods"], golden["loglikelihoods"], strict=True) for a, b in zip(ours, theirs, strict=True))
    scores = [(one["acc"], one["acc_norm"]) for one in (found, golden)]
    assert scores[0] == scores[1], scores
    assert far < NEAR, f"a log-likelihood differs by {far}"
    print(f"acc {found['acc']}, acc_norm {found['acc_norm']}, log-likelihoods within {far:.5f}")


main()
