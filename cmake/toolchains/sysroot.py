#!/usr/bin/env python3
"""Unpacks the arm64 packages of what libattn needs into a folder, for cmake/toolchains/aarch64-linux-gnu.cmake.

usage: sysroot.py FOLDER

Debian 12. Uses apt's own sources and keys, with lists and a package database of its own below FOLDER: nothing is
installed, the machine's architectures and packages stay as they are, and root is not needed. About 25 MB are
fetched; a complete folder is left as it is. Called by ./dev cross.
"""
import subprocess
import sys
from pathlib import Path

# Development files, and the shared libraries that their CMake packages name. libc and libstdc++ come with the
# cross compiler.
PACKAGES = ["libhwy-dev", "libhwy1", "libtbb-dev", "libtbb12", "libtbbmalloc2", "libtbbbind-2-5", "libfmt-dev", "libfmt9",
            "libgtest-dev", "libgmock-dev", "nlohmann-json3-dev", "libcli11-dev"]


def main(argv):
    if len(argv) != 2 or argv[1].startswith("-"):
        print(__doc__.strip(), file=sys.stderr)
        return 2
    folder = Path(argv[1]).resolve()
    stamp, wanted = folder / "packages.txt", "".join(f"{p}\n" for p in PACKAGES)
    if stamp.exists() and stamp.read_text() == wanted:
        return 0
    apt_folder = folder / "apt"
    for name in ("state/lists/partial", "cache/archives/partial"):
        (apt_folder / name).mkdir(parents=True, exist_ok=True)
    (apt_folder / "status").touch()
    apt = ["apt-get", "-q", "-o", "APT::Architecture=arm64", "-o", "APT::Architectures::=arm64",
           "-o", f"Dir::State={apt_folder}/state", "-o", f"Dir::State::status={apt_folder}/status",
           "-o", f"Dir::Cache={apt_folder}/cache", "-o", "APT::Sandbox::User=",
           "-o", "Acquire::Languages=none", "-o", "Acquire::http::Timeout=30", "-o", "Acquire::Retries=1"]
    try:
        subprocess.run([*apt, "update"], check=True, capture_output=True, text=True)
        subprocess.run([*apt, "download", *PACKAGES], check=True, capture_output=True, text=True, cwd=apt_folder)
        for archive in sorted(apt_folder.glob("*.deb")):
            subprocess.run(["dpkg-deb", "-x", archive, folder], check=True, capture_output=True, text=True)
    except FileNotFoundError as missing:
        print(f"sysroot.py: {missing.filename} is not here: this needs Debian's package tools", file=sys.stderr)
        return 1
    except subprocess.CalledProcessError as failed:
        print(f"{failed.stdout}{failed.stderr}sysroot.py: {' '.join(map(str, failed.cmd[-3:]))} failed", file=sys.stderr)
        return 1
    stamp.write_text(wanted)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv))
