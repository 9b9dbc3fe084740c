"""The device, its driver and the versions of what runs on it."""

import importlib.metadata
import platform
import subprocess

from common import command, report, settings


def main() -> None:
    asked = "name,driver_version,memory.total,clocks.max.sm,clocks.max.memory,power.limit,compute_cap"
    try:
        line = ["nvidia-smi", f"--query-gpu={asked}", "--format=csv,noheader"]
        report(gpu=subprocess.run(line, capture_output=True, text=True, check=True).stdout.strip())
        head = subprocess.run(["nvidia-smi"], capture_output=True, text=True, check=True).stdout.splitlines()
        report(nvidia_smi=head[2].strip(" |") if len(head) > 2 else "")
    except (OSError, subprocess.CalledProcessError) as error:
        report(gpu=f"none: {error}")
    versions = {"python": platform.python_version(), "kernel": platform.release()}
    for package in ("jax", "jaxlib", "jax-cuda13-pjrt", "torch", "transformers", "triton", "numpy", "nvidia-cublas",
                    "nvidia-cudnn-cu13"):  # fmt: skip
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            versions[package] = None
    report(versions=versions)
    report(tracewright=command("--version").strip(), devices=command("devices").splitlines())
    if not settings()["rehearse"]:
        import jax

        device = jax.devices()[0]
        report(jax_platform=device.client.platform_version, jax_device=device.device_kind)


if __name__ == "__main__":
    main()
