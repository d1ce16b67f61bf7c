#!/usr/bin/env python3
"""Checks of built ELF files, each with its findings one a line and exit code 1 if there are any.

  exports   libattn exports just what exported_symbols.txt lists; --update rewrites the list
  needed    only the C and C++ run-time and the two staged libraries (Highway, oneTBB) are needed
  versions  no glibc or libstdc++ symbol version newer than Ubuntu 24.04's is needed
  simd      no instruction beyond the baseline (x86-64 or A64, by the file) lies outside Highway's per-target
            namespaces, none of AVX-512 in those of AVX2; A64 has no such namespace, NEON is its baseline

Run by ctest (label abi); with --expect-findings a check must find something (that matches an expression), which is
how it is tested itself.
"""
import argparse
import difflib
import platform
import re
import subprocess
import sys
from pathlib import Path

SKIPPED = 77

ALLOWED_LIBRARIES = {"libc.so.6", "libm.so.6", "libpthread.so.0", "libstdc++.so.6", "libgcc_s.so.1",
                     "ld-linux-x86-64.so.2", "ld-linux-aarch64.so.1"}
STAGED_LIBRARIES = {"libhwy.so.1", "libtbb.so.12"}

# Ubuntu 24.04: glibc 2.39, libstdc++ of GCC 14 (GLIBCXX_3.4.33, CXXABI_1.3.15). Debian 12 is older.
NEWEST_VERSIONS = {"GLIBC": (2, 39), "GLIBCXX": (3, 4, 33), "CXXABI": (1, 3, 15), "GCC": (14, 0, 0)}

# Every AVX and AVX-512 instruction is VEX- or EVEX-encoded, and its name begins with v (the few baseline ones
# that do so too are privileged and not for user programs). AVX2 targets come with BMI, BMI2, LZCNT and MOVBE.
VEX = re.compile(r"^v(?!err$|erw$|mcall$|mlaunch$|mresume$)\w+$")
BMI = re.compile(r"^(andn|bextr|blsi|blsr|blsmsk|bzhi|mulx|pdep|pext|rorx|sarx|shlx|shrx|lzcnt|movbe|k(mov|or|and|"
                 r"xor|not|shift|ortest|unpck)\w*)$")
# SSE3 to SSE4.2, POPCNT, AES and CLMUL.
SSE4 = re.compile(r"^(addsubp[sd]|h(add|sub)p[sd]|lddqu|movs[lh]dup|movddup|p(abs|sign)[bwd]|palignr|pshufb|"
                  r"ph(add|sub)(w|d|sw)|pmaddubsw|pmulhrsw|(blend|blendv|dp|round)p[sd]|rounds[sd]|extractps|"
                  r"insertps|movntdqa|mpsadbw|packusdw|pblendvb|pblendw|pcmp(eq|gt)q|pcmp[ei]str[im]|pextr[bdq]|"
                  r"pinsr[bdq]|phminposuw|p(max|min)(sb|sd|ud|uw)|pmov[sz]x\w+|pmuldq|pmulld|ptest|popcnt|"
                  r"aes\w+|pclmul\w+|crc32\w*)$")
# EVEX: what AVX-512 has and AVX2 has not.
EVEX = re.compile(r"%zmm|%k[0-7]|%[xy]mm(1[6-9]|2\d|3[01])\b")
AVX3_NAMESPACE = re.compile(r"N_AVX(3|3_DL|3_ZEN4|3_SPR|10_2|3_AMX)E?")
AVX_NAMESPACE = re.compile(r"N_AVX(2|3|3_DL|3_ZEN4|3_SPR|10_2)E?")
SSE_NAMESPACE = re.compile(r"N_(SSSE3|SSE4)")
# Beyond the first A64 (Cortex-A53 and A72 without the crypto extension): AES, SHA, 64-bit PMULL, CRC, dot products,
# atomics of LSE, SVE's registers. GCC's __aarch64_ helpers ask the CPU before they use LSE.
A64 = re.compile(r"\t(aes\w+|sha(1|256|512)\w+|sm[34]\w+|eor3|bcax|rax1|xar|crc32\w+|[us]dot|bf(dot|mmla|mlal[bt]|cvtn?2?)|"
                 r"(ld|st)(add|clr|eor|set|[us]max|[us]min)[alhb]*|swp[alhb]*|casp?[alhb]*)\t|\tpmull2?\t.*\.1q|"
                 r"\bz\d+\.[bhsd]|\bp\d+/[mz]")
A64_HELPER = re.compile(r"^__aarch64_(ldadd|ldclr|ldeor|ldset|swp|cas)\w+$")
FUNCTION = re.compile(r"^[0-9a-f]+ <(.+)>:$")


def output_of(*command):
    return subprocess.run(command, check=True, capture_output=True, text=True, errors="replace").stdout


def exported_symbols(path, nm):
    lines = output_of(nm, "-D", "--defined-only", path).splitlines()
    fields = [line.split() for line in lines]
    names = [f[-1].split("@")[0] for f in fields if f and f[-2] != "A"]  # A: the version nodes themselves
    return sorted(set(subprocess.run(["c++filt"], input="\n".join(names), check=True, capture_output=True,
                                     text=True).stdout.splitlines()))


def check_exports(options):
    listed = Path(options.list)
    now = [symbol for path in options.files for symbol in exported_symbols(path, options.nm)]
    if options.update:
        listed.write_text("".join(f"{symbol}\n" for symbol in now))
        print(f"{listed}: {len(now)} symbols written")
        return []
    before = listed.read_text().splitlines() if listed.exists() else []
    findings = [line for line in difflib.unified_diff(before, now, str(listed), "exported now", n=0, lineterm="")
                if not line.startswith("@@")]
    if findings:
        findings.append("A removed or changed symbol breaks users: raise the version. If the change is meant: "
                        f"python3 {sys.argv[0]} exports --update --list {listed} {' '.join(options.files)}")
    else:
        print(f"{len(now)} exported symbols, as listed")
    return findings


def check_needed(options):
    findings = []
    for path in options.files:
        needed = re.findall(r"\(NEEDED\).*\[(.+)\]", output_of("readelf", "-d", path))
        allowed = ALLOWED_LIBRARIES | STAGED_LIBRARIES
        findings += [f"{path}: needs {name}; allowed: {', '.join(sorted(allowed))}"
                     for name in needed if name not in allowed]
        print(f"{path}: needs {', '.join(needed)}")
    return findings


def check_versions(options):
    libc = tuple(map(int, platform.libc_ver()[1].split(".")[:2] or [0]))
    if libc > NEWEST_VERSIONS["GLIBC"]:
        print(f"SKIP: built against glibc {'.'.join(map(str, libc))}; files for other machines are built on Debian 12")
        sys.exit(SKIPPED)
    findings = []
    for path in options.files:
        newest = {}
        for kind, version in re.findall(r"Name: (GLIBC|GLIBCXX|CXXABI|GCC)_([0-9.]+)", output_of("readelf", "-V", path)):
            newest[kind] = max(newest.get(kind, ()), tuple(map(int, version.split("."))))
        for kind, version in sorted(newest.items()):
            if version > NEWEST_VERSIONS[kind]:
                findings.append(f"{path}: needs {kind}_{'.'.join(map(str, version))}, newer than "
                                f"{kind}_{'.'.join(map(str, NEWEST_VERSIONS[kind]))} of Ubuntu 24.04")
        print(f"{path}: " + ", ".join(f"{k}_{'.'.join(map(str, v))}" for k, v in sorted(newest.items())))
    return findings


def disassembly(path, objdump):
    """(function, "\\tmnemonic\\toperands") of each instruction."""
    function = "?"
    for line in output_of(objdump, "-d", "--no-show-raw-insn", path).splitlines():
        head = FUNCTION.match(line)
        if head:
            function = head.group(1)
        elif "\t" in line:
            mnemonic, _, operands = line.split("\t", 1)[1].replace("\t", " ").partition(" ")
            yield function, f"\t{mnemonic}\t{operands.strip()}"


def x86_verdict(function, instruction):
    """None for the baseline, else whether the function may use the instruction."""
    mnemonic = instruction.split("\t")[1]
    if EVEX.search(instruction):
        return AVX3_NAMESPACE.search(function) is not None
    if VEX.match(mnemonic) or BMI.match(mnemonic):
        return AVX_NAMESPACE.search(function) is not None
    if SSE4.match(mnemonic):
        return (AVX_NAMESPACE.search(function) or SSE_NAMESPACE.search(function)) is not None
    return None


def a64_verdict(function, instruction):
    return A64_HELPER.match(function) is not None if A64.search(instruction) else None


def check_simd(options):
    findings = []
    for path in options.files:
        machine = re.search(r"Machine:\s+(.+)", output_of("readelf", "-h", path)).group(1).strip()
        verdict = {"Advanced Micro Devices X86-64": x86_verdict, "AArch64": a64_verdict}.get(machine)
        if verdict is None:
            print(f"SKIP: there is no list of instructions for {machine}")
            sys.exit(SKIPPED)
        beyond, inside = {}, 0
        for function, instruction in disassembly(path, options.objdump):
            allowed = verdict(function, instruction)
            if allowed:
                inside += 1
            elif allowed is not None:
                beyond.setdefault(function, instruction.strip())
        for function, example in sorted(beyond.items()):
            name = subprocess.run(["c++filt", function], capture_output=True, text=True, check=True).stdout.strip()
            findings.append(f"{path}: {name}: {example}")
        print(f"{path}: {inside} instructions beyond the baseline, all where their CPU is known" if not beyond else
              f"{path}: {len(beyond)} functions need more than the CPU that runs them has")
    return findings


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("check", choices=["exports", "needed", "versions", "simd"])
    parser.add_argument("--list", help="exports: the file that lists them")
    parser.add_argument("--update", action="store_true", help="exports: rewrite the list")
    parser.add_argument("--objdump", default="objdump", help="simd: the one for the files' machine")
    parser.add_argument("--nm", default="nm", help="exports: the one for the files' machine")
    parser.add_argument("--expect-findings", nargs="?", const="", metavar="EXPRESSION")
    parser.add_argument("files", nargs="+")
    options = parser.parse_args()
    checks = {"exports": check_exports, "needed": check_needed, "versions": check_versions, "simd": check_simd}
    findings = checks[options.check](options)
    print("\n".join(findings))
    if options.expect_findings is not None:
        found = any(re.search(options.expect_findings, finding) for finding in findings)
        print("found, as expected" if found else "nothing found where something had to be")
        return 0 if found else 1
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
