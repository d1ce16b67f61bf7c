#!/usr/bin/env python3
"""Checks every Markdown file of the repository: relative links and their #anchors resolve, and each block

    <!-- begin: attn list --support -->
    ...
    <!-- end -->

holds, as a fenced block or as it is, just what that command of this build (or `bench/tables.py NAME`) prints
(--update rewrites it), without the GPU column, which depends on the build and the machine.
Run by ctest (label docs) and ./dev docs; --self-test shows that each kind of defect is found.
"""
import argparse
import re
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

LINK = re.compile(r"!?\[[^\]\n]*\]\(\s*<?([^)\s>]+)>?(?:\s+\"[^\"]*\")?\s*\)")
BLOCK = re.compile(r"(<!-- begin: ((?:attn|bench/tables\.py) [^\n]*?) -->\n)(.*?)(<!-- end -->)", re.S)
FENCE = re.compile(r"^(```|~~~).*?^\1[ \t]*$", re.S | re.M)


def markdown_files(root):
    """Those of the checkout: what git tracks or would track, or, outside git, all but build folders."""
    listed = subprocess.run(["git", "-C", str(root), "ls-files", "-z", "--cached", "--others", "--exclude-standard",
                             "*.md"], capture_output=True, text=True)
    if listed.returncode == 0 and listed.stdout:
        return [root / name for name in listed.stdout.split("\0") if name and (root / name).exists()]
    return [p for p in root.rglob("*.md") if not p.relative_to(root).parts[0].startswith((".", "build"))]


def anchors(text):
    """The anchors that GitHub makes of headings: lower case, punctuation dropped, spaces to hyphens."""
    found, seen = set(re.findall(r"<a (?:id|name)=\"([^\"]+)\"", text)), {}
    for heading in re.findall(r"^#{1,6}\s+(.+?)\s*#*$", FENCE.sub("", text), re.M):
        slug = re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
        count = seen[slug] = seen.get(slug, -1) + 1
        found.add(f"{slug}-{count}" if count else slug)
    return found


def check_links(path, root, text):
    findings = []
    prose = re.sub(r"`[^`\n]*`", "", FENCE.sub("", text))
    for target in LINK.findall(prose):
        if re.match(r"[a-z][a-z0-9+.-]*:", target):
            continue  # http, mailto: not ours to reach
        name, _, anchor = target.partition("#")
        file = path if not name else (root / name.lstrip("/") if name.startswith("/") else path.parent / name)
        if not file.exists():
            findings.append(f"{path.relative_to(root)}: link to {target}: there is no {name}")
        elif anchor and file.suffix == ".md" and anchor not in anchors(file.read_text(encoding="utf-8")):
            findings.append(f"{path.relative_to(root)}: link to {target}: no heading has the anchor #{anchor}")
    return findings


def portable(output):
    """The output without the column and the notes of the GPU backend, which depend on the build and the machine."""
    lines = [line for line in output.splitlines() if not line.startswith("– cuda:")]
    if lines and lines[0].split()[-1] == "cuda":
        column = lines[0].rindex("cuda")
        lines = [line[:column] for line in lines]
    return "\n".join(line.rstrip() for line in lines)


def check_tables(path, root, text, attn, update):
    findings = []

    def expected(match):
        head, command, body, tail = match.groups()
        program, *rest = shlex.split(command)
        start = [attn] if program == "attn" else [sys.executable, str(root / program)]
        done = subprocess.run([*start, *rest], stdin=subprocess.DEVNULL, capture_output=True,
                              text=True, cwd=root)
        if done.returncode != 0:
            findings.append(f"{path.relative_to(root)}: `{command}` failed: {done.stderr.strip()}")
            return match.group(0)
        output = portable(done.stdout.strip("\n"))
        fenced = body.lstrip().startswith("```") or not output.lstrip().startswith("|")
        return head + (f"```text\n{output}\n```\n" if fenced else f"{output}\n") + tail

    wanted = BLOCK.sub(expected, text)
    if wanted != text and update:
        path.write_text(wanted, encoding="utf-8")
        print(f"{path.relative_to(root)}: tables rewritten")
    elif wanted != text:
        findings.append(f"{path.relative_to(root)}: a generated table is not what the command prints now; "
                        "./dev docs --update")
    return findings


def check(root, attn, update=False):
    findings, files = [], markdown_files(root)
    for path in files:
        text = path.read_text(encoding="utf-8")
        findings += check_links(path, root, text)
        if attn:
            findings += check_tables(path, root, text, attn, update)
        elif BLOCK.search(text):
            findings.append(f"{path.relative_to(root)}: has generated tables, and no command was given to check them")
    print(f"{len(files)} Markdown files, {len(findings)} findings")
    return findings


def self_test():
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        table = "<!-- begin: attn x -->\n```text\nx\n```\n<!-- end -->\n"
        (root / "good.md").write_text("# A b\n[self](#a-b) [other](other.md#c) [web](https://x.y/z) `[no](no.md)`\n" + table)
        (root / "other.md").write_text("## C\n")
        assert check(root, "/bin/echo") == [], check(root, "/bin/echo")
        (root / "good.md").write_text("[x](absent.md) [y](other.md#absent)\n" + table.replace("\nx\n", "\ny\n"))
        assert len(check(root, "/bin/echo")) == 3, check(root, "/bin/echo")
        check(root, "/bin/echo", update=True)
        assert len(check(root, "/bin/echo")) == 2, check(root, "/bin/echo")
    table = "feature  cpu  cuda\nfp32     yes  –\n– cuda: no driver"
    assert portable(table) == "feature  cpu\nfp32     yes", portable(table)
    return []


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", type=Path)
    parser.add_argument("--attn", help="the built command")
    parser.add_argument("--update", action="store_true")
    parser.add_argument("--self-test", action="store_true")
    options = parser.parse_args()
    findings = self_test() if options.self_test else check(options.root.resolve(), options.attn, options.update)
    print("\n".join(findings))
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
