"""The coefficients of `lower/src/convert/erf.rs`: two fits, each minimax in what it adds to the answer's relative error."""

import math

import numpy as np

EDGE, END, DEGREE = 1.0, 4.0, 6


def minimax(x, target, weight, low, high):
    """The polynomial whose largest weighted error is least, by Lawson's reweighted least squares (1961)."""
    basis = np.polynomial.chebyshev.chebvander(2 * (x - low) / (high - low) - 1, DEGREE)
    density, best = np.ones_like(x), (math.inf, None)
    for _ in range(200):
        scale = np.sqrt(density) * weight
        fit = np.linalg.lstsq(basis * scale[:, None], target * scale, rcond=None)[0]
        error = np.abs(basis @ fit - target) * weight
        best = min(best, (error.max(), tuple(fit)))
        density *= error / error.max() + 1e-9
        density /= density.mean()
    return np.polynomial.Chebyshev(best[1], domain=[low, high]).convert(kind=np.polynomial.Polynomial).coef


def horner(coefficients, x):
    total = np.full_like(x, np.float32(coefficients[-1]))
    for coefficient in coefficients[-2::-1]:
        total = total * x + np.float32(coefficient)
    return total


def main():
    erf, erfc = np.vectorize(math.erf), np.vectorize(math.erfc)
    nodes = (1 - np.cos(np.pi * (np.arange(2000) + 0.5) / 2000)) / 2
    square, x = nodes * EDGE**2, EDGE + nodes * (END - EDGE)
    ratio = erf(np.sqrt(square)) / np.sqrt(square)
    near = minimax(square, ratio - 1, 1 / ratio, 0, EDGE**2)
    far = minimax(x, -np.log(erfc(x)), erfc(x), EDGE, END)
    for name, coefficients in (("NEAR", near), ("FAR", far)):
        print(name, ", ".join(str(np.float32(c)) for c in coefficients))

    # Every 53rd float up to 6, computed in f32 as the converter does.
    x = np.arange(0, 0x40C00000, 53, dtype=np.uint32).view(np.float32)
    magnitude = np.minimum(x, np.float32(END))
    found = np.where(magnitude < EDGE, x + x * horner(near, magnitude**2), 1 - np.exp(-horner(far, magnitude)))
    exact = erf(x.astype(np.float64))
    ulps = np.abs(found - exact) / np.spacing(exact.astype(np.float32))
    print(f"{ulps.max():.2f} units in the last place at {x[ulps.argmax()]}, largest answer {found.max()}")


if __name__ == "__main__":
    main()
