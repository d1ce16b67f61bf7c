#!/usr/bin/env python3
"""The wheel: made from this build, its contents, and used by every Python on this machine (3.9 or newer) in a fresh
place, without a variable set and without the source tree. Also what pip makes of `pip install .`, where there is pip."""
import argparse
import base64
import hashlib
import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

ALLOWED = {"libc.so.6", "libm.so.6", "libpthread.so.0", "libdl.so.2", "librt.so.1", "libstdc++.so.6", "libgcc_s.so.1",
           "ld-linux-x86-64.so.2", "ld-linux-aarch64.so.1", "libhwy.so.1", "libtbb.so.12"}  # fmt: skip


def check(condition, text):
    if not condition:
        print(f"not so: {text}")
        sys.exit(1)


def check_contents(path):
    with zipfile.ZipFile(path) as wheel:
        names = wheel.namelist()
        record = next(name for name in names if name.endswith(".dist-info/RECORD"))
        lines = dict((line.split(",")[0], line.split(",")[1]) for line in wheel.read(record).decode().splitlines())
        check(set(lines) == set(names), "RECORD lists every file")
        for name, digest in lines.items():
            if name != record:
                own = base64.urlsafe_b64encode(hashlib.sha256(wheel.read(name)).digest()).rstrip(b"=").decode()
                check(digest == f"sha256={own}", f"RECORD's digest of {name}")
        for name in ("attn/__init__.py", "attn/py.typed", "attn/lib/libattn.so.0"):
            check(name in names, f"{name} is in the wheel")
        check(any("licenses/LICENSE" in name for name in names), "the licence is in the wheel")
        check(not any("__pycache__" in name for name in names), "no compiled files are in the wheel")
    return names


def check_libraries(folder):
    """Each library needs only the C and C++ run-time and what lies beside it."""
    there = {p.name for p in folder.iterdir()}
    for path in folder.iterdir():
        dynamic = subprocess.run(["readelf", "-d", path], capture_output=True, text=True, check=True).stdout
        needed = set(re.findall(r"\(NEEDED\).*\[(.+)\]", dynamic))
        check(needed <= ALLOWED, f"{path.name} needs only {sorted(ALLOWED)}, not {sorted(needed - ALLOWED)}")
        staged = needed & {"libhwy.so.1", "libtbb.so.12"}
        check(staged <= there, f"{path.name} finds {sorted(staged - there)} beside it")
        if path.name.startswith("libattn"):
            check("$ORIGIN" in dynamic, f"{path.name} looks beside itself")


def pythons():
    """Every CPython from 3.9 on PATH or in pyenv, one of a version, as (version, path)."""
    found = {}
    folders = os.environ.get("PATH", "").split(os.pathsep)
    folders += [str(p) for p in (Path.home() / ".pyenv/versions").glob("*/bin")]
    candidates = [sys.executable] + [str(Path(f) / f"python3.{n}") for f in folders for n in range(9, 16)]
    for candidate in candidates:
        try:
            done = subprocess.run([candidate, "-c", "import sys, ctypes; print('%d.%d' % sys.version_info[:2])"],
                                  capture_output=True, text=True, timeout=60)
        except OSError:
            continue
        if done.returncode == 0 and tuple(map(int, done.stdout.split("."))) >= (3, 9):
            found.setdefault(done.stdout.strip(), candidate)
    return sorted(found.items(), key=lambda item: int(item[0].split(".")[1]))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--source", required=True, type=Path)
    parser.add_argument("--work", required=True, type=Path)
    parser.add_argument("--build", required=True, type=Path)
    options = parser.parse_args()
    options.source, options.work, options.build = (p.resolve() for p in (options.source, options.work, options.build))
    if not shutil.which("readelf"):
        print("SKIP: readelf is not on PATH")
        return 77
    shutil.rmtree(options.work, ignore_errors=True)
    options.work.mkdir(parents=True)
    backend = options.source / "python/backend/attn_build.py"
    subprocess.run([sys.executable, backend, options.work, options.build], check=True, stdout=subprocess.DEVNULL)
    wheels = list(options.work.glob("*.whl"))
    check(len(wheels) == 1 and re.fullmatch(r"attn-[\d.]+-py3-none-(manylinux_2_\d+|linux)_\w+\.whl", wheels[0].name),
          f"one wheel for every Python 3: {[w.name for w in wheels]}")
    names = check_contents(wheels[0])
    site = options.work / "a site with a space"
    with zipfile.ZipFile(wheels[0]) as wheel:
        wheel.extractall(site)
    check_libraries(site / "attn/lib")
    print(f"{wheels[0].name}: {len(names)} files, {wheels[0].stat().st_size >> 10} KiB")

    tests = options.source / "tests/python"
    versions = pythons()
    for version, python in versions:
        for module in ("test_library", "test_dlpack"):
            done = subprocess.run([python, "-B", tests / "run.py", module], cwd=options.work, capture_output=True,
                                  text=True, env={"PYTHONPATH": str(site), "HOME": str(options.work)})
            check(done.returncode == 0, f"{module} with Python {version}:\n{done.stdout}{done.stderr}")
    print(f"used by Python {', '.join(version for version, _ in versions)}")

    pip = subprocess.run([sys.executable, "-m", "pip", "--version"], capture_output=True, text=True)
    if pip.returncode != 0:
        print("no pip here: `pip install .` was not tried")
        return 0
    target = options.work / "pip"
    done = subprocess.run(
        [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--no-build-isolation",
         "--disable-pip-version-check", "--no-cache-dir", "--config-settings", f"build-dir={options.build}", "--target",
         target, options.source], capture_output=True, text=True)
    check(done.returncode == 0, f"pip install .\n{done.stdout}{done.stderr}")
    done = subprocess.run([sys.executable, "-B", "-c", "import attn; print(attn.__file__, attn.__version__)"],
                          cwd=options.work, capture_output=True, text=True, env={"PYTHONPATH": str(target)})
    check(str(target) in done.stdout, f"what pip installed is imported: {done.stdout}{done.stderr}")
    print("pip install . works")
    return 0


if __name__ == "__main__":
    sys.exit(main())
