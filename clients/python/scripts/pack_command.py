"""Packs wheels with the command toolfleet, one for each platform, into the current folder. It publishes nothing.

    python3 clients/python/scripts/pack_command.py                          all platforms
    python3 clients/python/scripts/pack_command.py manylinux_2_17_x86_64    some of them

`pip install toolfleet-command` then puts the command beside Python. It needs Go, and of Python the standard library alone.
"""

import base64
import hashlib
import os
import pathlib
import subprocess
import sys
import tempfile
import tomllib
import zipfile

PLATFORMS = {
    "manylinux_2_17_x86_64": ("linux", "amd64"),
    "manylinux_2_17_aarch64": ("linux", "arm64"),
    "macosx_12_0_x86_64": ("darwin", "amd64"),
    "macosx_12_0_arm64": ("darwin", "arm64"),
}
REPOSITORY = pathlib.Path(__file__).resolve().parents[3]


def build(system: str, processor: str) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        command = os.path.join(folder, "toolfleet")
        env = {**os.environ, "CGO_ENABLED": "0", "GOOS": system, "GOARCH": processor}
        subprocess.run(["go", "build", "-trimpath", "-ldflags=-s -w", "-o", command, "./cmd/toolfleet"], cwd=REPOSITORY, env=env, check=True)
        return pathlib.Path(command).read_bytes()


def pack(platform: str, version: str) -> str:
    name = f"toolfleet_command-{version}"
    about = f"Metadata-Version: 2.1\nName: toolfleet-command\nVersion: {version}\nSummary: The command toolfleet.\nLicense: Apache-2.0\n"
    wheel = f"Wheel-Version: 1.0\nGenerator: toolfleet\nRoot-Is-Purelib: false\nTag: py3-none-{platform}\n"
    files = {
        f"{name}.data/scripts/toolfleet": build(*PLATFORMS[platform]),
        f"{name}.dist-info/LICENSE": (REPOSITORY / "LICENSE").read_bytes(),
        f"{name}.dist-info/METADATA": about.encode(),
        f"{name}.dist-info/WHEEL": wheel.encode(),
    }
    record = f"{name}.dist-info/RECORD"
    lines = [f"{path},sha256={base64.urlsafe_b64encode(hashlib.sha256(body).digest()).rstrip(b'=').decode()},{len(body)}\n" for path, body in files.items()]
    files[record] = "".join([*lines, f"{record},,\n"]).encode()
    packed = f"{name}-py3-none-{platform}.whl"
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for path, body in files.items():
            entry = zipfile.ZipInfo(path)  # with the time of 1980, so the same files make the same wheel
            entry.external_attr = (0o100755 if path.endswith("scripts/toolfleet") else 0o100644) << 16
            archive.writestr(entry, body, zipfile.ZIP_DEFLATED)
    return packed


if __name__ == "__main__":
    project = tomllib.loads((REPOSITORY / "clients/python/pyproject.toml").read_text())["project"]
    for platform in sys.argv[1:] or PLATFORMS:
        print(pack(platform, project["version"]))
