"""How far `lower/src/convert/softplus.rs` is from ln(1 + eˣ), over all floats or every STEPth: `python softplus.py [STEP]`."""

import sys

import mpmath
import numpy as np


def converted(x):
    """The converter's operations, each rounded to f32."""
    one = np.float32(1)
    e = np.exp(-np.abs(x))
    u = e + one
    with np.errstate(invalid="ignore", divide="ignore"):
        product = e * (np.log(u) / (u - one))
    return np.maximum(x, np.float32(0)) + np.where(u == one, e, product)


def exact(x):
    """In f64, whose own error is below 1e-15; `torch.nn.functional.softplus` gives x above 20."""
    x = x.astype(np.float64)
    return np.where(x > 20, x, np.log1p(np.exp(np.minimum(x, 21))))


def main():
    step = int(sys.argv[1]) if len(sys.argv) > 1 else 1
    # The judge is judged itself, in 60 digits.
    mpmath.mp.dps = 60
    few = np.random.default_rng(1).uniform(-100, 20, 2000).astype(np.float32)
    digits = [mpmath.log1p(mpmath.exp(mpmath.mpf(float(x)))) for x in few]
    own = max(abs(mpmath.mpf(float(found)) / right - 1) for found, right in zip(exact(few), digits))
    assert own < 1e-15, own
    worst, count = (0.0, None), 0
    for sign in (0, 1 << 31):
        for start in range(0, 0x7F7FFFFF, step << 22):
            bits = np.arange(start, min(start + (step << 22), 0x7F7FFFFF), step, dtype=np.uint32) | np.uint32(sign)
            x = bits.view(np.float32)
            right = exact(x)
            # A result below the smallest normal number may be 0: some processors flush it.
            normal = right >= np.finfo(np.float32).tiny
            ulps = np.abs(converted(x)[normal].astype(np.float64) - right[normal]) / np.spacing(right[normal].astype(np.float32))
            count += len(x)
            if len(ulps) and ulps.max() > worst[0]:
                worst = (float(ulps.max()), float(x[normal][ulps.argmax()]))
    print(f"{count} floats: {worst[0]:.2f} units in the last place at {worst[1]}")


main()
