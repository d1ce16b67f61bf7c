#!/usr/bin/env python3
"""One way of using libattn each, as ctest runs them (label consumer): install, then find_package,
find_package_static, pkg_config, headers and command on the installed and moved tree; add_subdirectory on the
sources. Exit code 0: it worked and the numbers were right; 77: skipped, with the reason printed as SKIP: ...
"""
import argparse
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

SKIPPED = 77
# Designated initialisers, which users write most, are free of -Wmissing-field-initializers.
OPTIONS = """#include <attn/attn.hpp>
int main() {
  const attn::Problem problem{.batch = 2};
  const attn::PlanOptions plan{.threads = 1};
  const attn::ForwardOptions options{.causal = true};
  const attn::Tensors tensors{.sinks = nullptr};
  const attn::TensorView view{.data = nullptr};
  return problem.batch == 2 && plan.threads == 1 && options.causal && !tensors.q.present() && !view.present() ? 0 : 1;
}
"""
WARNINGS = ["-std=c++20", "-Wall", "-Wextra", "-Wpedantic", "-Werror"]


class Consumer:
    def __init__(self, options):
        self.options = options
        self.work = Path(options.work)
        self.prefix = self.work / "moved tree"  # a space, and not where it was installed
        self.app = Path(__file__).resolve().parent / "app"

    def call(self, *command, **options):
        command = [str(c) for c in command]
        print("+", shlex.join(command), flush=True)
        return subprocess.run(command, check=True, stdin=subprocess.DEVNULL, **options)

    def skip(self, reason):
        print(f"SKIP: {reason}")
        sys.exit(SKIPPED)

    def sanitize_flags(self):
        return [f"-fsanitize={self.options.sanitize}"] if self.options.sanitize else []

    def configure(self, source, build, *definitions):
        flags = " ".join(self.sanitize_flags())
        self.call(self.options.cmake, "-S", source, "-B", build, "-G", "Ninja",
                  f"-DCMAKE_CXX_COMPILER={self.options.cxx}", f"-DCMAKE_C_COMPILER={self.options.cc}",
                  f"-DCMAKE_CXX_FLAGS={flags}", *definitions)

    def check_staged(self, program):
        """The libraries that are staged have to be those of the tree, not the system's of the same name."""
        loaded = self.call("ldd", program, capture_output=True, text=True).stdout
        print(loaded)
        for name in ("libhwy", "libtbb"):
            found = re.search(rf"^\s*{name}\.so\S* => (.+) \(0x", loaded, re.M)
            if found and not Path(os.path.realpath(found.group(1))).is_relative_to(os.path.realpath(self.prefix)):
                sys.exit(f"{program} takes {name} from {found.group(1)}, not from {self.prefix}")

    def install(self):
        staging = self.work / "installed"
        for tree in (staging, self.prefix):
            shutil.rmtree(tree, ignore_errors=True)
        self.call(self.options.cmake, "--install", self.options.build, "--prefix", staging, stdout=subprocess.DEVNULL)
        staging.rename(self.prefix)
        files = sorted(str(p.relative_to(self.prefix)) for p in self.prefix.rglob("*") if not p.is_dir())
        print("\n".join(files))
        wanted = ["bin/attn", "include/attn/attn.hpp", "lib/libattn.so", "lib/libattn.so.0", "lib/libattn.a",
                  "lib/cmake/attn/attn-config.cmake", "lib/pkgconfig/attn.pc", "lib/libhwy.so.1",
                  "lib/libtbb.so.12", "share/doc/attn/LICENSE"]
        absent = [name for name in wanted if name not in files]
        if absent:
            sys.exit(f"not installed: {', '.join(absent)}")
        # Nothing that a consumer reads may point back into the build or source tree.
        for name in files:
            if name.endswith((".cmake", ".pc", ".hpp", ".h")):
                text = (self.prefix / name).read_text()
                for origin in (self.options.build, self.options.source, str(staging)):
                    if origin in text:
                        sys.exit(f"{name} names {origin}")

    def find_package(self, target="attn::attn"):
        build = self.work / target.split("::")[1]
        shutil.rmtree(build, ignore_errors=True)
        # A user has neither Highway's nor oneTBB's nor fmt's development files.
        absent = [f"-DCMAKE_DISABLE_FIND_PACKAGE_{name}=ON" for name in ("hwy", "TBB", "fmt", "nlohmann_json")]
        self.configure(self.app, build, f"-DCMAKE_PREFIX_PATH={self.prefix}", f"-DCONSUMER_TARGET={target}", *absent)
        self.call(self.options.cmake, "--build", build)
        self.call(build / "consumer")
        self.check_staged(build / "consumer")

    def find_package_static(self):
        self.find_package("attn::attn_static")
        needed = self.call("readelf", "-d", self.work / "attn_static/consumer", capture_output=True, text=True).stdout
        if re.search(r"\(NEEDED\).*libattn", needed):
            sys.exit("the consumer of attn::attn_static needs libattn.so")

    def pkg_config(self):
        if not shutil.which("pkg-config"):
            self.skip("pkg-config is not installed")
        env = {**os.environ, "PKG_CONFIG_PATH": str(self.prefix / "lib/pkgconfig")}
        flags = self.call("pkg-config", "--cflags", "--libs", "attn", env=env, capture_output=True, text=True).stdout
        program = self.work / "pkg_config_consumer"
        self.call(self.options.cxx, "-std=c++20", *self.sanitize_flags(), self.app / "main.cpp", "-o", program,
                  *shlex.split(flags))
        env["LD_LIBRARY_PATH"] = str(self.prefix / "lib")
        self.call(program, env=env)

    def headers(self):
        """Each installed header compiles alone, without warnings, with every compiler that is here."""
        compilers = [self.options.cxx] + [c for c in ("g++", "clang++") if shutil.which(c)]
        headers = sorted((self.prefix / "include").rglob("*.hpp"))
        if not headers:
            sys.exit("no headers were installed")
        names = [header.relative_to(self.prefix / "include") for header in headers]
        units = {str(name): f"#include <{name}>\n#include <{name}>\nint main() {{}}\n" for name in names}
        units["designated initialisers"] = OPTIONS
        for name, text in units.items():
            for compiler in dict.fromkeys(os.path.realpath(shutil.which(c)) for c in compilers):
                print(f"{compiler}: {name}", flush=True)
                subprocess.run([compiler, *WARNINGS, "-fsyntax-only", "-I", self.prefix / "include", "-x", "c++", "-"],
                               input=text, text=True, check=True)
        for header in sorted((self.prefix / "include").rglob("*.h")):
            name = header.relative_to(self.prefix / "include")
            subprocess.run([self.options.cc, "-std=c99", "-Wall", "-Wextra", "-Wpedantic", "-Werror", "-fsyntax-only",
                            "-I", self.prefix / "include", "-x", "c", "-"],
                           input=f"#include <{name}>\nint main(void) {{ return 0; }}\n", text=True, check=True)

    def command(self):
        program = self.prefix / "bin/attn"
        clean = {k: v for k, v in os.environ.items() if k != "LD_LIBRARY_PATH"}
        self.call(program, "--help", stdout=subprocess.DEVNULL, env=clean)
        self.call(program, "verify", "b1 hq2 hk1 sq5 sk9 d8 fp32 causal=br", env=clean)
        self.check_staged(program)
        self.check_staged(self.prefix / "lib/libattn.so")

    def add_subdirectory(self):
        # The build is kept: compiling the library once more takes a while, and a second run then does not.
        build = self.work / "subproject"
        launcher = [f"-DCMAKE_CXX_COMPILER_LAUNCHER={self.options.launcher}"] if self.options.launcher else []
        self.configure(Path(__file__).resolve().parent / "subproject", build, "-DCMAKE_BUILD_TYPE=", "-DATTN_CUDA=OFF",
                       f"-DATTN_SOURCE={self.options.source}", *launcher)
        self.call(self.options.cmake, "--build", build, "-j", "2")
        for linkage in ("attn", "attn_static"):
            self.call(build / f"consumer_{linkage}")
        # Installing the parent must not install libattn.
        installed = self.work / "subproject_installed"
        shutil.rmtree(installed, ignore_errors=True)
        self.call(self.options.cmake, "--install", build, "--prefix", installed)
        if installed.exists() and any(p.is_file() for p in installed.rglob("*")):
            sys.exit("a subproject build of libattn has install rules")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("work", "source", "build", "cmake", "cxx", "cc"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--sanitize", default="")
    parser.add_argument("--launcher", default="")
    parser.add_argument("way", choices=["install", "find_package", "find_package_static", "pkg_config", "headers",
                                        "command", "add_subdirectory"])
    options = parser.parse_args()
    try:
        getattr(Consumer(options), options.way)()
    except subprocess.CalledProcessError as error:
        for stream in (error.stdout, error.stderr):
            print(stream or "", end="")
        sys.exit(f"exit code {error.returncode}: {shlex.join(map(str, error.cmd))}")


if __name__ == "__main__":
    main()
