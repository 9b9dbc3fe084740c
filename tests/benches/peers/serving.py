#!/usr/bin/env python3
"""`tracewright serve` beside llama-server: the same GGUF file, the same requests, round by round in turn, two threads each.

    SCRATCH/venv/bin/python tests/benches/peers/serving.py MODEL.gguf --llama-server SCRATCH/llama.cpp/bin/llama-server

Needs `cargo build --release --all-features` and iree-compile on PATH. `llama_cpp.py` builds llama.cpp; add `-DLLAMA_BUILD_SERVER=ON` and
the target `llama-server`. Each round sends the requests of all clients to one server, and then to the other server. A request asks
for a streamed chat answer of a fixed length, and no server reuses a prompt. The script prints tokens per second and the median time
to the first token of each round, the medians of the rounds, and the percentiles of the time to the first token of all requests.

With more clients than slots, requests wait for a slot. For example, `--clients 32 --slots 8` shows whether some wait longer than others.
Without `--llama-server`, the script measures only `tracewright serve`.
"""

import argparse
import http.client
import json
import statistics
import subprocess
import sys
import threading
import time
from pathlib import Path

HERE = Path(__file__).parent
WORDS = (HERE / "quality.txt").read_text().split()


def request(port, number, tokens, words):
    """Sends one request. Returns the seconds to the first token, and the number of tokens in the answer."""
    text = " ".join(WORDS[number * 37 % 400 :][:words])
    body = {
        "messages": [{"role": "user", "content": f"{number}. Continue this text: {text}"}],
        "max_tokens": tokens,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
        "ignore_eos": True,
        "cache_prompt": False,
    }
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=300)
    start = time.perf_counter()
    connection.request("POST", "/v1/chat/completions", json.dumps(body), {"Content-Type": "application/json"})
    response = connection.getresponse()
    if response.status != 200:
        sys.exit(f"{response.status} {response.read().decode()}")
    first, count = None, 0
    for line in response:
        if not line.startswith(b"data: {"):
            continue
        event = json.loads(line[6:])
        if event.get("choices") and event["choices"][0].get("delta", {}).get("content"):
            first = first or time.perf_counter() - start
        if event.get("usage"):
            count = event["usage"]["completion_tokens"]
    connection.close()
    return first, count


def measure(port, arguments, round_number):
    """Sends the requests of one round. Returns tokens per second, and the times to the first token."""
    found = []

    def client(index):
        for turn in range(arguments.turns):
            number = (round_number * arguments.clients + index) * arguments.turns + turn
            found.append(request(port, number, arguments.tokens, arguments.words))

    threads = [threading.Thread(target=client, args=[index]) for index in range(arguments.clients)]
    start = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    seconds = time.perf_counter() - start
    return sum(count for _, count in found) / seconds, [first for first, _ in found]


def percentile(times, share):
    """The time below which this share of the times lies."""
    return sorted(times)[min(len(times) - 1, int(share * len(times)))]


def healthy(port, process):
    """Waits until the server answers."""
    for _ in range(600):
        if process.poll() is not None:
            sys.exit(f"a server ended with {process.returncode}")
        try:
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
            connection.request("GET", "/health")
            if connection.getresponse().status == 200:
                return
        except OSError:
            pass
        time.sleep(0.5)
    sys.exit("a server did not start")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--llama-server", type=Path)
    parser.add_argument("--tracewright", type=Path, default=HERE.parents[2] / "target/release/tracewright")
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--slots", type=int, help="answers that a server generates in parallel; by default one for each client")
    parser.add_argument("--turns", type=int, default=2, help="requests of each client in a round")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=64, help="tokens of an answer")
    parser.add_argument("--words", type=int, default=80, help="words of a prompt")
    parser.add_argument("--options", default="", help="further options of `tracewright serve`")
    arguments = parser.parse_args()
    context, slots = 512, arguments.slots or arguments.clients
    theirs = [arguments.llama_server, "-m", arguments.model, "-t", "2", "-np", slots, "-c", context * slots, "--port", "8391"]
    theirs += ["--no-cache-prompt", "--log-disable"]
    ours = [arguments.tracewright, "serve", arguments.model, "--slots", slots, "--context", context, "--port", "8392"]
    ours += arguments.options.split()
    servers = {"tracewright": (8392, ours)}
    if arguments.llama_server:
        servers["llama-server"] = (8391, theirs)
    running = []
    rates, firsts, all_times = ({name: [] for name in servers} for _ in range(3))
    try:
        for port, words in servers.values():
            running.append(subprocess.Popen([str(word) for word in words], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL))
            healthy(port, running[-1])
        for round_number in range(arguments.rounds + 1):
            for name, (port, _) in servers.items():
                rate, times = measure(port, arguments, round_number)
                first = statistics.median(times)
                # The first round warms up.
                if round_number:
                    rates[name].append(rate)
                    firsts[name].append(first)
                    all_times[name] += times
                    print(f"{name}: {rate:.1f} tokens/s, first token after {first:.2f} s", flush=True)
    finally:
        for process in running:
            process.terminate()
    for name, times in all_times.items():
        half, most = percentile(times, 0.5), percentile(times, 0.99)
        print(f"{name}: first token of {len(times)} requests: p50 {half:.2f} s, p99 {most:.2f} s, {most / half:.2f} x")
    if not arguments.llama_server:
        return
    rate = {name: statistics.median(values) for name, values in rates.items()}
    first = {name: statistics.median(values) for name, values in firsts.items()}
    print(f"medians: {rate['tracewright']:.1f} and {rate['llama-server']:.1f} tokens/s, {rate['tracewright'] / rate['llama-server']:.2f} x;", end=" ")
    print(f"first token {first['tracewright']:.2f} and {first['llama-server']:.2f} s, {first['tracewright'] / first['llama-server']:.2f} x")


main()
