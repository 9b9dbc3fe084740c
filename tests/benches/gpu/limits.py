"""What the device can do: the bandwidth of a copy on the device, and the rate of a bf16 matmul."""

import torch
from common import medians, report, settings


def main() -> None:
    small = settings()["rehearse"]
    device = "cpu" if small else "cuda"
    wait = (lambda: None) if small else torch.cuda.synchronize

    def timed(work, repeats: int) -> float:
        def run() -> None:
            for _ in range(repeats):
                work()
            wait()

        return medians(run, 9) / repeats

    for megabytes in [16] if small else [256, 1024, 4096]:
        source = torch.randn(megabytes << 18, device=device)
        target = torch.empty_like(source)
        seconds = timed(lambda: target.copy_(source), 1 if small else 10)
        report(copy={"megabytes": megabytes, "bytes_per_s": 2 * source.nbytes / seconds})
        # A sum only reads, as a decode step reads its weights.
        seconds = timed(lambda: torch.sum(source), 1 if small else 10)
        report(read={"megabytes": megabytes, "bytes_per_s": source.nbytes / seconds})
    for size in [256] if small else [4096, 8192]:
        a, b = (torch.randn(size, size, device=device, dtype=torch.bfloat16) for _ in range(2))
        seconds = timed(lambda: a @ b, 1 if small else 10)
        report(matmul={"size": size, "operations_per_s": 2 * size**3 / seconds})
    # What torch's library reaches for the matmuls of a 1B step, in a graph, with more weights than fit the cache.
    for rows in (1, 8):
        for outer, inner in [(64, 32)] if small else [(8192, 2048), (16384, 2048), (2048, 8192), (2048, 2048), (128256, 2048)]:
            count = max(2, min(24, int(1.5e9) // (2 * outer * inner)))
            weights = [torch.randn(outer, inner, device=device).to(torch.bfloat16) for _ in range(count)]
            x = torch.randn(rows, inner, device=device).to(torch.bfloat16)

            def products() -> None:
                for weight in weights:
                    torch.nn.functional.linear(x, weight)

            if small:
                seconds = timed(products, 1)
            else:
                products()
                graph = torch.cuda.CUDAGraph()
                with torch.cuda.graph(graph):
                    products()
                seconds = timed(graph.replay, 4)
            report(rows={"rows": rows, "weight": [outer, inner], "bytes_per_s": 2 * outer * inner * count / seconds,
                         "us": seconds / count * 1e6})  # fmt: skip
    one = torch.zeros(1, device=device)
    seconds = timed(lambda: one.add_(1), 1000)
    report(launch={"us": seconds * 1e6})


if __name__ == "__main__":
    main()
