"""Builds the wheel of the Python package attn (PEP 517, PEP 660), from CMake's build of the shared library and the files
in python/attn. The wheel is py3-none-<platform>: it holds libattn and the two libraries staged beside it.

Config setting build-dir=<folder>: the CMake build tree to use or to make; unset: build-wheel/ in the source tree.
As a program: python3 python/backend/attn_build.py FOLDER writes the wheel there. Tested in tests/python/test_wheel.py."""
import base64
import hashlib
import io
import os
import platform
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tempfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SONAME = "libattn.so.0"
EPOCH = (1980, 1, 1, 0, 0, 0)  # the same sources give the same file


def _project():
    """name, description, requires-python, license of pyproject.toml, and the version of CMakeLists.txt."""
    section = re.search(r"^\[project\]\n(.*?)(?=^\[|\Z)", (ROOT / "pyproject.toml").read_text(), re.M | re.S).group(1)
    fields = dict(re.findall(r'^([\w-]+) = "(.*)"$', section, re.M))
    fields["version"] = re.search(r"^project\(attn VERSION ([\d.]+)", (ROOT / "CMakeLists.txt").read_text(), re.M).group(1)
    return fields


def _missing_tools():
    return [tool for tool in ("cmake", "ninja") if not shutil.which(tool)]


def get_requires_for_build_wheel(config_settings=None):
    return _missing_tools()  # PyPI has both, for whoever has them not from elsewhere


get_requires_for_build_editable = get_requires_for_build_wheel


def _run(*command):
    try:
        done = subprocess.run([str(part) for part in command], stdin=subprocess.DEVNULL)
    except FileNotFoundError:
        raise SystemExit(f"attn: {command[0]} is not on PATH") from None
    if done.returncode != 0:
        raise SystemExit(
            f"attn: '{' '.join(map(str, command))}' failed; its output is above. libattn needs a C++20 compiler, Highway, "
            "oneTBB and fmt: ./dev build installs them on Debian and Ubuntu"
        )


def _build_library(settings, work):
    """Builds and installs the shared library; the folder with it and the libraries it brings."""
    tree = Path((settings or {}).get("build-dir") or ROOT / "build-wheel").resolve()
    if not (tree / "CMakeCache.txt").exists():
        generator = ["-G", "Ninja"] if shutil.which("ninja") else []
        _run("cmake", "-S", ROOT, "-B", tree, *generator, "-DCMAKE_BUILD_TYPE=Release", "-DATTN_BUILD_TOOLS=OFF",
             "-DATTN_BUILD_TESTS=OFF", "-DATTN_BUILD_BENCH=OFF",
             *([f"-DATTN_CUDA={os.environ['ATTN_CUDA']}"] if os.environ.get("ATTN_CUDA") else []))  # fmt: skip
    jobs = os.environ.get("CMAKE_BUILD_PARALLEL_LEVEL") or str(len(os.sched_getaffinity(0)))
    # The command belongs to the same component, and a developer's tree has it.
    tools = "ATTN_BUILD_TOOLS:BOOL=ON" in (tree / "CMakeCache.txt").read_text(errors="replace")
    _run("cmake", "--build", tree, "--parallel", jobs, "--target", "attn", *(["attn_command"] if tools else []))
    _run("cmake", "--install", tree, "--prefix", work, "--component", "runtime")
    return next(Path(work).rglob(SONAME)).parent


def _platform_tag(libraries):
    """manylinux_2_N of the newest glibc symbol that is needed, or plain linux where that is not known."""
    machine = platform.machine()
    newest = 0
    for library in libraries:
        done = subprocess.run(["readelf", "-V", str(library)], capture_output=True, text=True) if shutil.which("readelf") else None
        if done is None or done.returncode != 0 or platform.libc_ver()[0] != "glibc":
            return sysconfig.get_platform().replace("-", "_").replace(".", "_")
        newest = max([newest] + [int(minor) for minor in re.findall(r"GLIBC_2\.(\d+)", done.stdout)])
    return f"manylinux_2_{max(newest, 17)}_{machine}"


def _metadata(project):
    return (
        f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n"
        f"Summary: {project['description']}\nLicense: {project['license']}\n"
        f"Requires-Python: {project['requires-python']}\nDescription-Content-Type: text/markdown\n\n"
        + (ROOT / project["readme"]).read_text(encoding="utf-8")
    )


class _Wheel:
    def __init__(self, folder, tag, project):
        self.info = f"{project['name']}-{project['version']}.dist-info"
        self.path = Path(folder) / f"{project['name']}-{project['version']}-py3-none-{tag}.whl"
        self.zip = zipfile.ZipFile(self.path, "w", zipfile.ZIP_DEFLATED)
        self.record = []
        self.tag, self.project = tag, project

    def add(self, name, data):
        entry = zipfile.ZipInfo(name, EPOCH)
        entry.compress_type = zipfile.ZIP_DEFLATED
        entry.external_attr = (0o755 if ".so" in name else 0o644) << 16
        self.zip.writestr(entry, data)
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
        self.record.append(f"{name},sha256={digest},{len(data)}")

    def close(self, licences):
        self.add(f"{self.info}/METADATA", _metadata(self.project).encode())
        self.add(f"{self.info}/WHEEL", (
            f"Wheel-Version: 1.0\nGenerator: attn_build\nRoot-Is-Purelib: false\nTag: py3-none-{self.tag}\n").encode())
        for path in licences:
            self.add(f"{self.info}/licenses/{path.name}", path.read_bytes())
        entry = zipfile.ZipInfo(f"{self.info}/RECORD", EPOCH)
        entry.external_attr = 0o644 << 16
        self.zip.writestr(entry, "\n".join([*self.record, f"{self.info}/RECORD,,", ""]))
        self.zip.close()
        return self.path.name


def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    project = _project()
    with tempfile.TemporaryDirectory() as work:
        folder = _build_library(config_settings, work)
        # The loader asks for sonames: of each library just the file of that name, and no links, which wheels cannot hold.
        libraries = [p for p in sorted(folder.glob("*.so.*")) if re.fullmatch(r"lib\w+\.so\.\d+", p.name)]
        wheel = _Wheel(wheel_directory, _platform_tag(libraries), project)
        for path in sorted((ROOT / "python/attn").iterdir()):
            if path.suffix == ".py" or path.name == "py.typed":
                wheel.add(f"attn/{path.name}", path.read_bytes())
        for path in libraries:
            wheel.add(f"attn/lib/{path.name}", path.read_bytes())
        return wheel.close([ROOT / "LICENSE", *sorted(Path(work).rglob("third-party/*.txt"))])


def build_editable(wheel_directory, config_settings=None, metadata_directory=None):
    """A wheel with a path to a folder of the build tree that links to the sources and the library."""
    project = _project()
    with tempfile.TemporaryDirectory() as work:
        folder = _build_library(config_settings, work)
        tree = Path((config_settings or {}).get("build-dir") or ROOT / "build-wheel").resolve() / "editable"
        shutil.rmtree(tree, ignore_errors=True)
        shutil.copytree(folder, tree / "attn/lib", symlinks=True)
        for path in sorted((ROOT / "python/attn").iterdir()):
            if path.suffix == ".py" or path.name == "py.typed":
                (tree / "attn" / path.name).symlink_to(path)
        wheel = _Wheel(wheel_directory, _platform_tag([]), project)
        wheel.add("attn.pth", f"{tree}\n".encode())
        return wheel.close([ROOT / "LICENSE"])


def build_sdist(sdist_directory, config_settings=None):
    project = _project()
    base = f"{project['name']}-{project['version']}"
    listed = subprocess.run(["git", "-C", str(ROOT), "ls-files", "-z"], capture_output=True, text=True)
    if listed.returncode == 0:
        names = [name for name in listed.stdout.split("\0") if name]
    else:  # from an unpacked sdist
        names = [str(p.relative_to(ROOT)) for p in ROOT.rglob("*") if p.is_file()]
        names = [name for name in names if not name.startswith(("build", "dist/", ".")) and "__pycache__" not in name]
    path = Path(sdist_directory) / f"{base}.tar.gz"
    with tarfile.open(path, "w:gz", format=tarfile.PAX_FORMAT) as archive:
        for name in sorted(set(names)):
            if (ROOT / name).is_file() and not name.startswith(("bench/results/", "samples/")):
                archive.add(ROOT / name, f"{base}/{name}", recursive=False)
        data = _metadata(project).encode()
        entry = tarfile.TarInfo(f"{base}/PKG-INFO")
        entry.size = len(data)
        archive.addfile(entry, io.BytesIO(data))
    return path.name


if __name__ == "__main__":
    target = Path(sys.argv[1] if len(sys.argv) > 1 else ROOT / "dist").resolve()
    target.mkdir(parents=True, exist_ok=True)
    print(target / build_wheel(target, {"build-dir": sys.argv[2]} if len(sys.argv) > 2 else None))
